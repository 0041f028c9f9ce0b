"""A program printed as Python, for `FXJIT_LOGS=output_code` and debug folders: the instructions that encode.py encodes, one
line each. A printer only; nothing runs the text."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from fxjit import _C

from .aten_calls import FunctionName
from .opcodes import Instruction, KernelCell, KernelEntry, Listing, Number, Numbers, Object, Operand, Symbol, Value, Variable


def python_text(listing: Listing) -> str:
    lines = [f"arena = allocate_bytes({listing.arena})"] if listing.arena else []
    lines += [FORMS[each.name](each) for each in listing.instructions]
    return f"def call({', '.join(listing.inputs)}):\n" + "".join(f"    {line}\n" for line in lines)


def _allocate(i: Instruction) -> str:
    buffer = i.buffer
    assert buffer is not None, "an allocation is for a buffer"
    place = "" if buffer.device.type == "cpu" else f", device='{buffer.device}'"
    return f"{_text(i, 'out')} = empty_strided({_tuple(buffer.size)}, {_tuple(buffer.stride)}, dtype={buffer.dtype}{place})"


def _arena(i: Instruction) -> str:
    return f"{_text(i, 'out')} = arena[{i.operands['offset']}:]"


def _launch(i: Instruction) -> str:
    return f"{_text(i, 'kernel')}({_commas([*map(_value, i.repeated), *_sizes(i)])})"


def _repeat(i: Instruction) -> str:
    return "pass  # where it looked up out of range:"


def _fail(i: Instruction) -> str:
    return f"raise IndexError({_text(i, 'text')})  # up to here"


def _call_kernel(i: Instruction) -> str:
    return f"{_text(i, 'cell')}({_commas([*map(_value, i.repeated), *_sizes(i)])})"


def _view(i: Instruction) -> str:
    ndim, numbers = i.operands["ndim"], i.operands["sizes"]
    assert isinstance(ndim, int) and isinstance(numbers, Numbers)
    size, stride, offset = _tuple(numbers.sizes[:ndim]), _tuple(numbers.sizes[ndim:-1]), numbers.sizes[-1]
    return f"{_text(i, 'out')} = view({_text(i, 'base')}, {size}, {stride}, offset={offset})"


def _call(i: Instruction) -> str:
    keywords = i.operands["keywords"]
    names = keywords.value if isinstance(keywords, Object) else ()
    values = [_value(each) for each in i.repeated]
    first = len(values) - len(names)
    named = [f"{name}={value}" for name, value in zip(names, values[first:], strict=True)]
    return f"{_text(i, 'out')} = {_text(i, 'function')}({_commas([*values[:first], *named])})"


def _item(i: Instruction) -> str:
    return f"{_text(i, 'out')} = {_text(i, 'sequence')}[{i.operands['index']}]"


def _bind(i: Instruction) -> str:
    origin, source = _C.SYMBOL_ORIGINS[int(i.operands["origin"])], _text(i, "source")  # type: ignore[arg-type]  # an int
    return f"{_text(i, 'symbol')} = " + (source if origin == "INTEGER" else f"{source}.{origin.lower()}({i.operands['dim']})")


def _assert_strides(i: Instruction) -> str:
    ndim, numbers = i.operands["ndim"], i.operands["sizes"]
    assert isinstance(ndim, int) and isinstance(numbers, Numbers)
    layout = f"{_tuple(numbers.sizes[:ndim])}, {_tuple(numbers.sizes[ndim:])}, {_text(i, 'torch_dtype')}"
    return f"{_text(i, 'tensor')} = {_text(i, 'helper')}({_text(i, 'tensor')}, {layout})"


def _gemm(i: Instruction) -> str:
    numbers = i.operands["sizes"]
    assert isinstance(numbers, Numbers)
    bias = "" if i.operands["bias"] == -1 else f", bias={_text(i, 'bias')}"
    return f"gemm({_text(i, 'a')}, {_text(i, 'b')}, out={_text(i, 'into')}{bias}, sizes={_tuple(numbers.sizes)})"


def _bmm(i: Instruction) -> str:
    return f"bmm({_text(i, 'a')}, {_text(i, 'b')}, out={_text(i, 'into')})"


def _grouped(i: Instruction) -> str:
    numbers = i.operands["sizes"]
    assert isinstance(numbers, Numbers)
    operands = _commas([_text(i, "a"), _text(i, "b"), _text(i, "ends")])
    return f"grouped_mm({operands}, out={_text(i, 'into')}, sizes={_tuple(numbers.sizes)})"


def _convolve(i: Instruction) -> str:
    numbers = i.operands["sizes"]
    assert isinstance(numbers, Numbers)
    bias = "" if i.operands["bias"] == -1 else f", bias={_text(i, 'bias')}"
    return f"convolve({_text(i, 'x')}, {_text(i, 'weight')}, out={_text(i, 'into')}{bias}, sizes={_tuple(numbers.sizes)})"


def _store_number(i: Instruction) -> str:
    return f"{_text(i, 'into')}[:] = double({_text(i, 'number')})"


def _load(i: Instruction) -> str:
    return f"{_text(i, 'out')} = {_text(i, 'object')}"


def _free(i: Instruction) -> str:
    return f"del {_commas(map(_value, i.repeated))}"


def _writes(i: Instruction) -> str:
    return f"writes({_commas(map(_value, i.repeated))})"


def _return(i: Instruction) -> str:
    values = _commas(map(_value, i.repeated))
    return f"return [{values}]" if i.operands["several"] else f"return {values}"


#: How each instruction is printed.
FORMS: dict[str, Callable[[Instruction], str]] = {
    "ALLOCATE": _allocate, "ARENA": _arena, "LAUNCH": _launch, "CALL_KERNEL": _call_kernel, "VIEW": _view, "CALL": _call,
    "ITEM": _item, "BIND": _bind, "ASSERT_STRIDES": _assert_strides, "GEMM": _gemm, "BMM": _bmm,
    "GROUPED": _grouped, "CONVOLVE": _convolve,
    "STORE_NUMBER": _store_number, "LOAD": _load, "FREE": _free, "WRITES": _writes, "RETURN": _return,
    "REPEAT": _repeat, "FAIL": _fail,
}  # fmt: skip


def _text(i: Instruction, name: str) -> str:
    return _operand(i.operands[name])


def _operand(operand: Operand) -> str:
    if isinstance(operand, (Variable, KernelEntry, KernelCell)):
        return operand.name
    if isinstance(operand, Symbol):
        return str(operand.symbol)
    assert isinstance(operand, Object), operand
    return operand.label or _object(operand.value)


def _value(value: Value) -> str:
    if isinstance(value, Number):
        return str(value.size)
    if isinstance(value, list):
        return f"[{_commas(map(_value, value))}]"
    if isinstance(value, tuple):
        return _tuple(map(_value, value))
    if isinstance(value, slice):
        return f"slice({_commas(map(_value, (value.start, value.stop, value.step)))})"
    if isinstance(value, dict):
        return f"dict({_commas(f'{name}={_value(each)}' for name, each in value.items())})"
    return _operand(value)


def _object(value: Any) -> str:
    """A constant, or the name of what is none that Python could read."""
    if isinstance(value, FunctionName):
        return value.label
    if value is None or isinstance(value, (bool, int, float, complex, str, torch.dtype, torch.layout, torch.memory_format)):
        return repr(value)
    if isinstance(value, torch.device):
        return f"device('{value}')"
    if isinstance(value, list):
        return f"[{_commas(map(_object, value))}]"
    if type(value) is tuple:
        return _tuple(map(_object, value))
    name = str(getattr(value, "__name__", type(value).__name__))
    return name if name.isidentifier() else type(value).__name__


def _sizes(i: Instruction) -> list[str]:
    numbers = i.operands["sizes"]
    assert isinstance(numbers, Numbers)
    return [str(size) for size in numbers.sizes]


def _commas(parts: Iterable[str]) -> str:
    return ", ".join(parts)


def _tuple(parts: Iterable[Any]) -> str:
    all_ = [str(part) for part in parts]
    return f"({all_[0]},)" if len(all_) == 1 else f"({_commas(all_)})"
