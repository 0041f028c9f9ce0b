"""Displays, unpacking, f-strings."""

from __future__ import annotations

from typing import Any

from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.interp.dispatch import op
from fxjit.frontend.interp.machine import Machine
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Value
from fxjit.frontend.values.deferred import joined
from fxjit.frontend.values.functions import FunctionValue
from fxjit.frontend.values.mapping import DictValue, merged_as_it_is
from fxjit.frontend.values.ranges import SliceValue
from fxjit.frontend.values.sequence import ListValue, SequenceValue, TupleValue


def _pop_n(m: Machine, count: int | None) -> list[Value]:
    assert count is not None
    stack = m.stack
    items = stack[len(stack) - count :]
    del stack[len(stack) - count :]
    return items


@op("BUILD_TUPLE")
def build_tuple(m: Machine, i: Instruction) -> None:
    m.stack.append(TupleValue(_pop_n(m, i.arg)))


@op("BUILD_LIST")
def build_list(m: Machine, i: Instruction) -> None:
    m.stack.append(ListValue(_pop_n(m, i.arg)))


@op("BUILD_SET")
def build_set(m: Machine, i: Instruction) -> None:
    t, items = m.t, _pop_n(m, i.arg)
    m.stack.append(t.call(t.make(set), [ListValue(items)] if items else [], None))


@op("BUILD_MAP")
def build_map(m: Machine, i: Instruction) -> None:
    assert i.arg is not None
    items = _pop_n(m, 2 * i.arg)
    m.stack.append(DictValue(m.t, list(zip(items[::2], items[1::2], strict=True))))


@op("BUILD_CONST_KEY_MAP")
def build_const_key_map(m: Machine, i: Instruction) -> None:
    keys = protocol.unpack(m.t, m.stack.pop())
    m.stack.append(DictValue(m.t, list(zip(keys, _pop_n(m, i.arg), strict=True))))


@op("BUILD_STRING")
def build_string(m: Machine, i: Instruction) -> None:
    m.stack.append(joined(m.t, _pop_n(m, i.arg)))


@op("BUILD_SLICE")
def build_slice(m: Machine, i: Instruction) -> None:
    parts = _pop_n(m, i.arg)
    step = parts[2] if len(parts) == 3 else m.t.make(None)
    m.stack.append(SliceValue(parts[0], parts[1], step))


# -- growing what a display or comprehension builds ----------------------------------------------------------------


@op("LIST_APPEND")
def list_append(m: Machine, i: Instruction) -> None:
    item = m.stack.pop()
    target: Any = m.stack[-i.arg]  # type: ignore[operator]  # an instruction with an argument
    target.meth_append(m.t, item)


@op("SET_ADD")
def set_add(m: Machine, i: Instruction) -> None:
    item = m.stack.pop()
    target: Any = m.stack[-i.arg]  # type: ignore[operator]  # an instruction with an argument
    target.meth_add(m.t, item)


@op("MAP_ADD")
def map_add(m: Machine, i: Instruction) -> None:
    value, key = m.stack.pop(), m.stack.pop()
    protocol.setitem(m.t, m.stack[-i.arg], key, value)  # type: ignore[operator]  # an instruction with an argument


@op("LIST_EXTEND")
def list_extend(m: Machine, i: Instruction) -> None:
    t, items = m.t, m.stack.pop()
    target: Any = m.stack[-i.arg]  # type: ignore[operator]  # an instruction with an argument
    if not is_iterable(items):
        t.raise_(TypeError, f"Value after * must be an iterable, not {items.pytype().__name__}")
    target.meth_extend(t, items)


def is_iterable(value: Value) -> bool:
    """Whether the type of `value` says how to iterate over it."""
    cls = value.pytype()
    return any(protocol.type_lookup(cls, name) is not NOT_IMPLEMENTED for name in ("__iter__", "__getitem__"))


@op("SET_UPDATE")
def set_update(m: Machine, i: Instruction) -> None:
    items = m.stack.pop()
    target: Any = m.stack[-i.arg]  # type: ignore[operator]  # an instruction with an argument
    target.meth_update(m.t, items)


def _require_mapping(m: Machine, value: Value, where: str) -> None:
    if protocol.type_lookup(value.pytype(), "keys") is NOT_IMPLEMENTED:
        m.t.raise_(TypeError, f"{where}'{value.pytype().__name__}' object is not a mapping")


@op("DICT_UPDATE")
def dict_update(m: Machine, i: Instruction) -> None:
    mapping = m.stack.pop()
    _require_mapping(m, mapping, "")
    target: Any = m.stack[-i.arg]  # type: ignore[operator]  # an instruction with an argument
    target.meth_update(m.t, mapping)


@op("DICT_MERGE")
def dict_merge(m: Machine, i: Instruction) -> None:
    """`f(**a, **b)`: a name given twice is an error. The callable lies below the dict and the arguments."""
    assert i.arg is not None
    t, mapping = m.t, m.stack.pop()
    target: Any = m.stack[-i.arg]
    if protocol.type_lookup(mapping.pytype(), "keys") is NOT_IMPLEMENTED:
        t.raise_(TypeError, f"{_called(m, i.arg)} argument after ** must be a mapping, not {mapping.pytype().__name__}")
    merged = merged_as_it_is(mapping.realize())
    known = None if merged is None else list(merged.items.values())
    keys = protocol.unpack_fast(t, protocol.call_method(t, mapping, "keys")) if known is None else [key for key, _ in known]
    for index, key in enumerate(keys):
        if protocol.contains(t, target, key):
            name = key.as_constant() if key.is_constant() else "?"
            t.raise_(TypeError, f"{_called(m, i.arg)} got multiple values for keyword argument '{name}'")
        protocol.setitem(t, target, key, protocol.getitem(t, mapping, key) if known is None else known[index][1].realize())


def _called(m: Machine, depth: int) -> str:
    """How CPython names the function that is about to be called, for messages."""
    for value in m.stack[-depth - 3 : -depth]:
        if isinstance(value, FunctionValue):
            return called_name(value)
    return "function"


def called_name(fn: Value) -> str:
    """How CPython names a callable in the messages about its arguments (`_PyObject_FunctionStr`)."""
    if not isinstance(fn, FunctionValue):
        return fn.describe()
    module = fn.globals.get("__name__")
    return f"{module}.{fn.qualname}()" if module not in (None, "builtins") else f"{fn.qualname}()"


@op("LIST_TO_TUPLE")
def list_to_tuple(m: Machine, i: Instruction) -> None:
    items = m.stack[-1]
    assert isinstance(items, SequenceValue)
    m.stack[-1] = TupleValue(items.items)


# -- unpacking -----------------------------------------------------------------------------------------------------


def _iterate(m: Machine, value: Value) -> Value:
    if not is_iterable(value):
        m.t.raise_(TypeError, f"cannot unpack non-iterable {value.pytype().__name__} object")
    return protocol.iter_(m.t, value)


@op("UNPACK_SEQUENCE")
def unpack_sequence(m: Machine, i: Instruction) -> None:
    t, count = m.t, i.arg
    assert count is not None
    value = m.stack.pop()
    if isinstance(value, SequenceValue) and value.cls in (list, tuple) and len(value.items) == count:
        m.stack.extend([item.realize() for item in reversed(value.items)])
        return
    it = _iterate(m, value)
    items: list[Value] = []
    while len(items) < count:
        item = protocol.next_(t, it)
        if item is None:
            t.raise_(ValueError, f"not enough values to unpack (expected {count}, got {len(items)})")
        items.append(item)
    if protocol.next_(t, it) is not None:
        t.raise_(ValueError, f"too many values to unpack (expected {count})")
    m.stack.extend(reversed(items))


@op("UNPACK_EX")
def unpack_ex(m: Machine, i: Instruction) -> None:
    counts: Any = i.argval
    before, after = counts
    t, it = m.t, _iterate(m, m.stack.pop())
    items: list[Value] = []
    while len(items) < before:
        item = protocol.next_(t, it)
        if item is None:
            break
        items.append(item)
    else:
        items += protocol.unpack_hinted(t, it)
    if len(items) < before + after:
        t.raise_(ValueError, f"not enough values to unpack (expected at least {before + after}, got {len(items)})")
    split = len(items) - after
    m.stack.extend(reversed(items[split:]))
    m.stack.append(ListValue(items[before:split]))
    m.stack.extend(reversed(items[:before]))


# -- f-strings -----------------------------------------------------------------------------------------------------


def _convert(m: Machine, value: Value, conversion: Any) -> Value:
    if conversion == "s":
        return protocol.str_(m.t, value)
    if conversion == "r":
        return protocol.repr_(m.t, value)
    if conversion == "a":
        return protocol.ascii_(m.t, value)
    return value


@op("FORMAT_VALUE")
def format_value(m: Machine, i: Instruction) -> None:
    shape: Any = i.argval
    conversion, has_spec = shape
    spec = m.stack.pop() if has_spec else None
    _format_top(m, conversion, spec)


def _format_top(m: Machine, conversion: Any, spec: Value | None) -> None:
    value = _convert(m, m.stack[-1], conversion)
    if spec is not None and not spec.is_constant():
        m.t.break_("value-slot", slot="format", type=spec.pytype().__name__)
    m.stack[-1] = protocol.format_(m.t, value, "" if spec is None else spec.as_constant())


@op("FORMAT_SIMPLE")
def format_simple(m: Machine, i: Instruction) -> None:
    _format_top(m, None, None)


@op("FORMAT_WITH_SPEC")
def format_with_spec(m: Machine, i: Instruction) -> None:
    spec = m.stack.pop()
    _format_top(m, None, spec)


@op("CONVERT_VALUE")
def convert_value(m: Machine, i: Instruction) -> None:
    m.stack[-1] = _convert(m, m.stack[-1], i.argval)
