"""The base of iterator values, and the two simplest: over the items of a sequence and over a range.

Containers import this; the iterators that are made of others are in iterators.py. An iterator that existed before
the frame is followed only where its position can be read without moving it (see the wrappers in iterators.py);
`consumed` counts what the trace took from it, so that `write_back` can move the real one by as much.
"""

from __future__ import annotations

import collections
import types
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from fxjit.frontend.bytecode.flow import LOOP_PARAMETER, may_leave_for_loop
from fxjit.frontend.bytecode.instruction import Code
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Raised, Rebuilder, Value
from fxjit.guards.source import LocalSource, Source


class IteratorValue(Value):
    """An iterator: `advance` gives the next item, or None at the end (and then for ever)."""

    shell = False
    cls: type

    def __init__(self, source: Source | None = None) -> None:
        super().__init__(source)
        self.consumed = 0
        self.exhausted = False

    def pytype(self) -> type:
        return self.cls

    def tp_iter(self, t: Tracer) -> Value:
        return self

    def advance(self, t: Tracer) -> Value | None:
        raise AssertionError(f"{type(self).__name__} cannot advance")

    def tp_iternext(self, t: Tracer) -> Value | None:
        if self.exhausted:
            return None
        t.effects.mutate(self)
        item = self.advance(t)
        self.consumed += 1
        if item is None:
            self.exhausted = True
            return None
        return item.realize()

    def nb_bool(self, t: Tracer) -> Value:
        return t.make(True)

    def write_back(self, cg: Rebuilder) -> None:
        cg.push_const(self.consumed)
        cg.asm.call_const(consume, 2)
        cg.asm.pop()

    def meth___next__(self, t: Tracer) -> Value:
        item = protocol.next_(t, self)
        if item is None:
            t.raise_(StopIteration)
        return item


class SequenceIteratorValue(IteratorValue):
    """iter(list), iter(tuple) and reversed(list): the list may change meanwhile. `origin` is the text whose characters the
    sequence holds, where it is one."""

    def __init__(self, sequence: Value, index: int = 0, step: int = 1, source: Source | None = None,
                 origin: Value | None = None) -> None:
        super().__init__(source)
        self.origin = origin
        self.sequence = sequence
        self.index = index
        self.step = step

    def pytype(self) -> type:
        if self.origin is not None:
            return type(iter(self.origin.as_constant()))
        if self.step < 0:
            return type(reversed([])) if self.sequence.pytype() is list else reversed
        return type(iter(())) if issubclass(self.sequence.pytype(), tuple) else type(iter([]))

    def _items(self) -> list[Value]:
        holder: Any = getattr(self.sequence, "base", None) or self.sequence  # of an instance of a subclass
        found: list[Value] = holder.items
        return found

    def advance(self, t: Tracer) -> Value | None:
        items = self._items()
        if not 0 <= self.index < len(items):
            return None
        item = items[self.index]
        self.index += self.step
        return item

    def rest(self) -> list[Value]:
        """The remaining items, if nothing changes."""
        items = self._items()
        if self.exhausted or not 0 <= self.index < len(items):
            return []
        return items[self.index:] if self.step > 0 else items[self.index::-1]

    def meth___length_hint__(self, t: Tracer) -> Value:
        return t.make(len(self.rest()))

    def rebuild(self, cg: Rebuilder) -> None:
        if self.exhausted:
            cg.call(exhausted_iterator, self.pytype())
        elif self.step > 0:
            cg.call(iterator_at, self.origin or self.sequence, self.index)
        else:
            cg.call(reversed_at, self.sequence, self.index)


class CallableIteratorValue(SequenceIteratorValue):
    """An iterator of the kind that `iter(function, sentinel)` gives, whose items are known: `re.finditer`."""

    def pytype(self) -> type:
        return _CALLABLE_ITERATOR

    def rebuild(self, cg: Rebuilder) -> None:
        if self.exhausted:
            cg.call(exhausted_iterator, self.pytype())
        else:
            cg.call(callable_iterator_at, self.sequence, self.index)


class RangeIteratorValue(IteratorValue):
    cls = type(iter(range(0)))

    def __init__(self, left: range, source: Source | None = None) -> None:
        super().__init__(source)
        self.left = left

    def advance(self, t: Tracer) -> Value | None:
        if not self.left:
            return None
        first = self.left[0]
        self.left = self.left[1:]
        return t.make(first)

    def meth___length_hint__(self, t: Tracer) -> Value:
        return t.make(len(self.left))

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(iter, self.left)


def is_item_of_resumed_loop(code: Code, source: Source) -> bool:
    """Whether the object is, or is in, what a `for` loop gave that `code`, a resume function, goes on in; and no decision on
    data ends that loop, so that there are as many iterations as items."""
    root = source
    while not isinstance(root, LocalSource):
        if (parent := root.base) is None:
            return False
        root = parent
    slots = code.argument_slots
    if root.name not in slots or not root.name.startswith(".stack"):
        return False
    before = slots[slots.index(root.name) - 1]
    return before.startswith(LOOP_PARAMETER) and not any(
        each.opname.startswith("POP_JUMP") and may_leave_for_loop(code, each.index) for each in code.instructions)


# -- what the new bytecode calls --------------------------------------------------------------------------------


def consume(iterator: Iterator[Any], count: int) -> None:
    """Move an iterator that existed before by what the trace took from it (its end included)."""
    for _ in range(count):
        next(iterator, None)


def method_in_c(obj: Any, name: str, otherwise: Callable[[Any], Any]) -> Any:
    """What a method gives of the builtin type that the class of `obj` derives from, past what the class overrides."""
    for cls in type(obj).__mro__:
        raw = vars(cls).get(name)
        if isinstance(raw, (types.WrapperDescriptorType, types.MethodDescriptorType)):
            return raw(obj)
    return otherwise(obj)


def iterator_at(sequence: Any, index: int) -> Iterator[Any]:
    iterator: Iterator[Any] = method_in_c(sequence, "__iter__", iter)
    if index:
        iterator.__setstate__(index)  # type: ignore[attr-defined]  # iterators of lists, tuples and texts have it
    return iterator


def reversed_at(sequence: Any, index: int) -> Iterator[Any]:
    iterator: Iterator[Any] = method_in_c(sequence, "__reversed__", reversed)
    iterator.__setstate__(index)  # type: ignore[attr-defined]  # both kinds have it
    return iterator


def callable_iterator_at(sequence: Any, index: int) -> Iterator[Any]:
    return iter(iterator_at(sequence, index).__next__, object())


_CALLABLE_ITERATOR: Final = type(iter(int, 0))


class _Nothing:
    """A sequence of the old protocol, without items."""

    def __getitem__(self, index: int) -> Any:
        raise IndexError(index)


#: What makes an iterator of each kind that is at its end after one step.
_AT_END: Final[Mapping[type, Callable[[], Iterator[Any]]]] = {
    type(made()): made for made in (
        lambda: iter([]), lambda: iter(()), lambda: reversed([]), lambda: reversed(()),
        lambda: iter(_Nothing()),
        lambda: iter(int, 0),
    )
}


def exhausted_iterator(cls: type) -> Iterator[Any]:
    """An iterator at its end, of the kind `cls`."""
    iterator = _AT_END.get(cls, _AT_END[type(iter([]))])()
    next(iterator, None)
    return iterator


class IndexIteratorValue(IteratorValue):
    """iter() of an object that has `__getitem__` and no `__iter__`: items from 0 on, until IndexError. And reversed() of one:
    items down to 0."""

    def __init__(self, sequence: Value, index: int = 0, step: int = 1) -> None:
        super().__init__()
        self.sequence = sequence
        self.index = index
        self.step = step

    def pytype(self) -> type:
        return type(iter(_Nothing())) if self.step > 0 else reversed

    def advance(self, t: Tracer) -> Value | None:
        if self.index < 0:
            return None
        try:
            item = protocol.getitem(t, self.sequence, t.make(self.index))
        except Raised as raised:
            if issubclass(raised.value.pytype(), (IndexError, StopIteration)):
                return None
            raise
        self.index += self.step
        return item

    def meth___length_hint__(self, t: Tracer) -> Value:
        if self.exhausted:
            return t.make(0)
        if protocol.type_lookup(self.sequence.pytype(), "__len__") is NOT_IMPLEMENTED:
            return t.make(NotImplemented)
        size = protocol.length(t, self.sequence)
        if not protocol.truth(t, protocol.compare(t, ">", size, t.make(self.index))):
            return t.make(0)
        return protocol.binary(t, "-", size, t.make(self.index)) if self.step > 0 else t.make(self.index + 1)

    def query_length_hint(self, t: Tracer) -> None:
        protocol.query_length_hint(t, self, lambda: None, lambda: self.meth___length_hint__(t))

    def rebuild(self, cg: Rebuilder) -> None:
        if self.exhausted:
            cg.call(exhausted_iterator, self.pytype())
        else:
            cg.call(iterator_at if self.step > 0 else reversed_at, self.sequence, self.index)


def _clear_counts() -> bool:
    """Whether an iterator of an OrderedDict takes `clear` for a change of the order, as it does from Python 3.13 on."""
    entries = collections.OrderedDict.fromkeys("ab")
    keys = iter(entries)
    entries.clear()
    try:
        next(keys)
    except RuntimeError as error:
        return "mutated" in str(error)
    return False


CLEAR_COUNTS: Final = _clear_counts()
