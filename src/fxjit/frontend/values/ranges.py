"""range and slice objects, and what everybody needs to read an index: `as_index`, `as_slice`.

A range is a constant: its three numbers are known while tracing (a symbolic size used in one is specialised).
"""

from __future__ import annotations

import operator
import sys
from typing import Any, Final

import numpy as np

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.iteration import RangeIteratorValue
from fxjit.frontend.values.wrap import creates, wraps
from fxjit.guards.kinds import ConstIs, TypeIs
from fxjit.guards.source import AttrSource, Source


class SliceValue(Value):
    def __init__(self, start: Value, stop: Value, step: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.start, self.stop, self.step = start, stop, step

    def parts(self) -> tuple[Value, Value, Value]:
        return self.start, self.stop, self.step

    def pytype(self) -> type:
        return slice

    def is_constant(self) -> bool:
        return all(part.is_constant() for part in self.parts())

    def as_constant(self) -> slice:
        return slice(*(part.as_constant() for part in self.parts()))

    def is_whole(self) -> bool:
        return all(part.is_constant() and part.as_constant() is None for part in self.parts())

    def graph_arg(self, t: Tracer) -> Any:
        parts = [part.graph_arg(t) for part in self.parts()]
        return slice(*(operator.index(part) if isinstance(part, np.integer) else part for part in parts))  # as code shows them

    def rebuild(self, cg: Rebuilder) -> None:
        for part in self.parts():
            cg.push(part)
        cg.asm.build_slice(3)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name in ("start", "stop", "step"):
            part: Value = getattr(self, name)
            return part
        return super().tp_getattro(t, name)

    def tp_hash(self, t: Tracer) -> Value:
        t.raise_(TypeError, "unhashable type: 'slice'")

    def tp_repr(self, t: Tracer) -> Value:
        return t.make(f"slice({', '.join(protocol.repr_(t, part).as_constant() for part in self.parts())})")

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if not isinstance(other, SliceValue) or op not in ("==", "!="):
            return NOT_IMPLEMENTED
        same = all(protocol.equal(t, a, b) for a, b in zip(self.parts(), other.parts(), strict=True))
        return t.make(same == (op == "=="))

    def meth_indices(self, t: Tracer, length: Value) -> Value:
        return t.make(as_slice(t, self).indices(as_index(t, length)))


#: Numbers of a range that are compared with an object while tracing.
_MOST_COMPARED: Final = 10_000


class RangeValue(Value):
    def __init__(self, value: range, source: Source | None = None) -> None:
        super().__init__(source)
        self.range = value

    def pytype(self) -> type:
        return range

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> range:
        return self.range

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push_const(self.range)

    def tp_iter(self, t: Tracer) -> Value:
        return RangeIteratorValue(self.range)

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        if not item.is_constant() and item.pytype() is int and hasattr(item, "specialize"):
            return self._contains_number(t, item)
        if item.is_constant():
            return t.make(item.as_constant() in self.range)
        return t.make(any(protocol.equal(t, t.make(number), item) for number in self._compared_with(t, item)))

    def _contains_number(self, t: Tracer, item: Any) -> Value:
        """Of a number of the graph: by the ends and the remainder, as CPython does."""
        if not self.range:
            return t.make(False)
        low, high, step = *sorted((self.range[0], self.range[-1])), abs(self.range.step)
        if max(-low, high, step) > sys.maxsize:  # no symbol's range goes so far
            return t.make(item.specialize(t).as_constant() in self.range)
        for op, end in ((">=", low), ("<=", high)):
            if not protocol.truth(t, protocol.compare(t, op, item, t.make(end))):
                return t.make(False)
        return t.make(step == 1 or protocol.equal(t, protocol.binary(t, "%", item, t.make(step)), t.make(low % step)))

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        if isinstance(key, SliceValue):
            return RangeValue(self.range[as_slice(t, key)])
        index = as_index(t, key, "range indices must be integers or slices, not {}")
        try:
            return t.make(self.range[index])
        except IndexError as error:
            t.raise_(IndexError, *error.args)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name in ("start", "stop", "step"):
            return t.make(getattr(self.range, name))
        return super().tp_getattro(t, name)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if not isinstance(other, RangeValue) or op not in ("==", "!="):
            return NOT_IMPLEMENTED
        return t.make((self.range == other.range) == (op == "=="))

    def meth_index(self, t: Tracer, value: Value) -> Value:
        if value.is_constant():
            return protocol.fold(t, self.range.index, value.as_constant())
        for index, number in enumerate(self._compared_with(t, value)):
            if protocol.equal(t, t.make(number), value):
                return t.make(index)
        t.raise_(ValueError, "sequence.index(x): x not in sequence")

    def meth_count(self, t: Tracer, value: Value) -> Value:
        if value.is_constant():
            return protocol.fold(t, self.range.count, value.as_constant())
        return t.make(sum(protocol.equal(t, t.make(number), value) for number in self._compared_with(t, value)))

    def _compared_with(self, t: Tracer, value: Value) -> range:
        if self.range[_MOST_COMPARED:]:
            t.break_("call-builtin", function="range", args=value.describe())
        return self.range

    def meth___reversed__(self, t: Tracer) -> Value:
        return RangeIteratorValue(self.range[::-1])


def as_index(t: Tracer, value: Value, message: str = "'{}' object cannot be interpreted as an integer") -> int:
    """`operator.index(value)`; what has no `__index__` raises `message` with its type's name."""
    value = value.realize()
    if not value.is_constant():
        if not hasattr(value.pytype(), "__index__"):
            t.raise_(TypeError, message.format(value.pytype().__name__))
        value = protocol.unary(t, "index", value)
        if not value.is_constant():
            specialize = getattr(value, "specialize", None)
            if specialize is None:
                t.break_("data-symbol", value=value.describe(), why="a Python container is indexed with it")
            return int(specialize(t).as_constant())
    protocol.guard_operators(t, (value,), "__index__")
    try:
        return operator.index(value.as_constant())
    except TypeError:
        t.raise_(TypeError, message.format(value.pytype().__name__))


def as_slice(t: Tracer, value: SliceValue) -> slice:
    """A slice of numbers, for a Python container."""
    def bound(part: Value) -> int | None:
        part = part.realize()
        if part.is_constant() and part.as_constant() is None:
            return None
        return as_index(t, part, "slice indices must be integers or None or have an __index__ method")

    result = slice(*(bound(part) for part in value.parts()))
    if result.step == 0:
        t.raise_(ValueError, "slice step cannot be zero")
    return result


@wraps(range)
def wrap_range(t: Tracer, obj: range, source: Source) -> Value:
    t.guard(ConstIs(source, obj))
    return RangeValue(obj, source)


@wraps(slice)
def wrap_slice(t: Tracer, obj: slice, source: Source) -> Value:
    t.guard(TypeIs(source, slice))
    start, stop, step = (t.wrap(getattr(obj, name), AttrSource(source, name)) for name in ("start", "stop", "step"))
    return SliceValue(start, stop, step, source)


@creates(range)
def make_range(t: Tracer, obj: range) -> Value:
    return RangeValue(obj)


@creates(slice)
def make_slice(t: Tracer, obj: slice) -> Value:
    return SliceValue(t.make(obj.start), t.make(obj.stop), t.make(obj.step))
