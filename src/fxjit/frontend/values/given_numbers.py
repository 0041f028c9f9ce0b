"""Numbers in tensors that the frame was given: the guards read them before the frame starts, and they are symbols.

A subscript, a branch and a size want the number in an integer tensor without dimensions. Where that tensor existed before the
frame, on the processor and not written to so far, or follows from such a one by a sum or a comparison with constants, the
number is one that varies from call to call, as a number that the frame is given is: what is decided on it is a guard.

Flags are numbers that stay: a bool, a byte or a float that is 0 or 1, in a tensor that an object holds (a buffer such as
`initialized`). Reading one (`bool(flag)`, `flag.item()`) is a guard on its value, until it has changed more than once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch
import torch.fx

from fxjit.errors import BreakGraph
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.tensor_base import GraphTensor
from fxjit.guards.modules import is_of_object
from fxjit.guards.source import ApplySource
from fxjit.homes import module_of
from fxjit.schemas import name_of

_INTEGERS: Final = (torch.int8, torch.int16, torch.int32, torch.int64)
_FLAGS: Final = (torch.bool, torch.uint8, torch.float16, torch.bfloat16, torch.float32, torch.float64)
#: Operations of an int64 and a constant, by their names as functions, as methods and as operators.
_SUMS: Final = {"add": "+", "__add__": "+", "sub": "-", "__sub__": "-"}
_COMPARISONS: Final = {"lt": "<", "le": "<=", "eq": "==", "ne": "!=", "gt": ">", "ge": ">="}
#: A sum of a number within the first and so many constants within the second is an int64.
_NUMBERS: Final = 1 << 61
_CONSTANTS: Final = 1 << 48
#: Constants that each dtype has, whole numbers up to this one.
_SMALL: Final = 127
_MOST_OPERATORS: Final = 8


def number_in(t: Tracer, tensor: GraphTensor) -> Value | None:
    """The number in a tensor without dimensions, or the truth of a comparison. None where it is not known before the frame
    starts, where reading it would wait for a device, and where numbers that vary are compiled one by one."""
    if tensor.fake.dim() or overrides.entered_transforms(t) or overrides.entered_modes(t):
        return None
    return _number_of(t, tensor.node, _MOST_OPERATORS, _INTEGERS)


def kept_number_in(t: Tracer, tensor: GraphTensor) -> Value | None:
    """The number in a tensor with one element that an object of the program's holds, or the truth of its comparison with a
    constant. Of integers it is one that varies, of flags a constant. None as `number_in`."""
    if overrides.entered_transforms(t) or overrides.entered_modes(t):
        return None
    return _number_of(t, tensor.node, 2, _INTEGERS + _FLAGS, kept=True)


def truth_in(t: Tracer, tensor: GraphTensor) -> Value | None:
    """What `bool(tensor)` asks for: the number as `number_in` or `kept_number_in` gives it."""
    found = number_in(t, tensor)
    return kept_number_in(t, tensor) if found is None else found


def emit_with_numbers(t: Tracer, asked: BreakGraph, target: Callable[..., object] | str, args: Sequence[Any],
                      kwargs: Mapping[str, Any]) -> Value:
    """The call of an operator that `asked` a tensor for its number (`x.narrow(0, 0, length)`), with numbers in the place of
    such tensors; breaks as it did where none is known before the frame starts, or that is not what the operator asked."""
    bound = 1 if isinstance(target, str) else 0
    given = [*args[bound:], *kwargs.values()]
    found = [_with_number(t, arg) for arg in given]
    if all(one is other for one, other in zip(found, given, strict=True)):
        raise asked
    count = len(args) - bound
    try:
        return t.emit(target, [*args[:bound], *found[:count]], dict(zip(kwargs, found[count:], strict=True)))
    except BreakGraph:
        raise asked from None


def _with_number(t: Tracer, arg: Any) -> Any:
    value = arg.realize() if isinstance(arg, Value) else arg
    if isinstance(value, GraphTensor):
        number = number_in(t, value) if value.fake.dtype in _INTEGERS else None
        return arg if number is None else number
    if not isinstance(value, (TupleValue, ListValue)) or value.pytype() not in (tuple, list, torch.Size):
        return arg
    items = value.realized()
    found = [_with_number(t, item) for item in items]
    return arg if all(one is other for one, other in zip(found, items, strict=True)) else TupleValue(found)


def _number_of(t: Tracer, node: torch.fx.Node, operators: int, dtypes: tuple[torch.dtype, ...],
               kept: bool = False) -> Value | None:
    """`kept`: of tensors that objects hold, and then of any that have one element."""
    if not operators or not _is_plain(node.meta.get("example_value"), kept):
        return None
    if node.op == "placeholder":
        return _given(t, node, dtypes, kept)
    name, args = name_of(node.target), node.args
    if node.op not in ("call_function", "call_method") or node.kwargs or len(args) != 2:
        return None
    operation = _COMPARISONS.get(name, _SUMS.get(name))
    if operation is None or not _is_torchs(node.target):
        return None
    reflected = not isinstance(args[0], torch.fx.Node)
    base, constant = (args[1], args[0]) if reflected else args
    if not isinstance(base, torch.fx.Node) or type(constant) is not int or abs(constant) > _CONSTANTS:
        return None
    if base.meta["example_value"].dtype is not torch.int64 and not (kept and name in _COMPARISONS and 0 <= constant <= _SMALL):
        return None
    number = _number_of(t, base, operators - 1, dtypes, kept)
    if number is None or (base.op == "placeholder" and name in _SUMS and not _is_in_range(t, number)):
        return None
    left, right = (t.make(constant), number) if reflected else (number, t.make(constant))
    return protocol.compare(t, operation, left, right) if name in _COMPARISONS else protocol.binary(t, operation, left, right)


def _is_plain(fake: object, kept: bool) -> bool:
    """A processor's, with one number, which is never written to."""
    if not isinstance(fake, torch.Tensor) or fake.device.type != "cpu" or fake.layout is not torch.strided:
        return False
    numel = fake.numel() if kept else 1 - fake.dim()
    if not isinstance(numel, int) or numel != 1 or fake.is_inference() or fake._version or fake.requires_grad:
        return False
    return fake.dtype in (_INTEGERS + _FLAGS if kept else (*_INTEGERS, torch.bool))


def _is_torchs(target: Any) -> bool:
    """An operator of Python's, a method of tensors, or a function of torch's."""
    return isinstance(target, str) or module_of(target) in ("_operator", "torch", "")


def _given(t: Tracer, node: torch.fx.Node, dtypes: tuple[torch.dtype, ...], kept: bool) -> Value | None:
    dtype = node.meta["example_value"].dtype
    found = t.given_tensor_of(node) if dtype in dtypes else None
    if found is None:
        return None
    real, source = found
    if type(real) is not torch.Tensor or real.dtype is not dtype or (kept and not is_of_object(source)):
        return None
    if dtype in _INTEGERS:
        return t.varying_number(integer_in(real), ApplySource(source, integer_in))
    return t.kept_flag(element_in(real), ApplySource(source, element_in))


def element_in(tensor: torch.Tensor) -> bool | int | float:
    """Run-time helper of guards: the number in a tensor with one element."""
    return tensor.item()


def integer_in(tensor: torch.Tensor) -> int:
    """Run-time helper of guards and of new bytecode."""
    return int(tensor.item())


def _is_in_range(t: Tracer, number: Value) -> bool:
    """Whether sums are far from where an int64 starts over; that is a guard."""
    return all(protocol.truth(t, protocol.compare(t, operation, number, t.make(limit)))
               for operation, limit in (("<", _NUMBERS), (">", -_NUMBERS)))
