"""Iterators made of other iterators: zip, map, filter, enumerate, chain, count, repeat, cycle, islice; and the wrappers
for iterators that existed before the frame.

What itertools has beyond these is traced from Python (polyfills/itertools_.py). A sourced iterator is followed where
its state can be read without moving it; otherwise advancing it breaks the graph.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Hashable, Iterator, Sequence
from typing import Any, Final

import numpy as np
import torch

from fxjit import config
from fxjit.frontend.bytecode.flow import LOOP_PARAMETER
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Lazy, Rebuilder, Value
from fxjit.frontend.values.iteration import IteratorValue, RangeIteratorValue, SequenceIteratorValue, exhausted_iterator
from fxjit.frontend.values.ranges import as_index
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.tensor_base import GraphTensor
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import TypeIs
from fxjit.guards.source import ApplySource, LocalSource, Source


class ZipValue(IteratorValue):
    cls = zip

    def __init__(self, parts: Sequence[Value], strict: bool = False, source: Source | None = None) -> None:
        super().__init__(source)
        self.parts = list(parts)
        self.strict = strict

    def advance(self, t: Tracer) -> Value | None:
        items: list[Value] = []
        for index, part in enumerate(self.parts):
            item = protocol.next_(t, part)
            if item is None:
                if self.strict:
                    self._check_ends(t, index)
                return None
            items.append(item)
        return TupleValue(items) if items else None

    def _check_ends(self, t: Tracer, ended: int) -> None:
        """One iterator is at its end: `strict` wants that they all are."""
        if ended:
            plural = "s 1-" if ended > 1 else " "
            t.raise_(ValueError, f"zip() argument {ended + 1} is shorter than argument{plural}{ended}")
        for index, part in enumerate(self.parts[1:], 1):
            if protocol.next_(t, part) is not None:
                plural = "s 1-" if index > 1 else " "
                t.raise_(ValueError, f"zip() argument {index + 1} is longer than argument{plural}{index}")

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(make_zip, self.strict, *self.parts)


def make_zip(strict: bool, *parts: Any) -> Iterator[Any]:
    return zip(*parts, strict=strict)


class MapValue(IteratorValue):
    cls = map

    def __init__(self, fn: Value, parts: Sequence[Value], source: Source | None = None) -> None:
        super().__init__(source)
        self.fn = fn
        self.parts = list(parts)

    def advance(self, t: Tracer) -> Value | None:
        items: list[Value] = []
        for part in self.parts:
            item = protocol.next_(t, part)
            if item is None:
                return None
            items.append(item)
        return t.call(self.fn, items)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(map, self.fn, *self.parts)


class FilterValue(IteratorValue):
    """filter and itertools.filterfalse (`wanted` False)."""

    def __init__(self, fn: Value, part: Value, wanted: bool = True) -> None:
        super().__init__()
        self.cls = filter if wanted else itertools.filterfalse
        self.fn = fn
        self.part = part
        self.wanted = wanted

    def advance(self, t: Tracer) -> Value | None:
        plain_truth = self.fn.is_constant() and self.fn.as_constant() in (None, bool)
        while (item := protocol.next_(t, self.part)) is not None:
            answer = item if plain_truth else t.call(self.fn, [item])
            if protocol.truth(t, answer) is self.wanted:
                return item
        return None

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(self.cls, self.fn, self.part)


class EnumerateValue(IteratorValue):
    cls = enumerate

    def __init__(self, part: Value, count: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.part = part
        self.count = count

    def advance(self, t: Tracer) -> Value | None:
        item = protocol.next_(t, self.part)
        if item is None:
            return None
        result = TupleValue([self.count, item])
        self.count = protocol.binary(t, "+", self.count, t.make(1))
        return result

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(enumerate, self.part, self.count)


class ChainValue(IteratorValue):
    cls = itertools.chain

    def __init__(self, parts: Value) -> None:
        """`parts` is an iterator over iterables."""
        super().__init__()
        self.parts = parts
        self.current: Value | None = None

    def advance(self, t: Tracer) -> Value | None:
        while True:
            if self.current is None:
                following = protocol.next_(t, self.parts)
                if following is None:
                    return None
                self.current = protocol.iter_(t, following)
            item = protocol.next_(t, self.current)
            if item is not None:
                return item
            self.current = None

    def rebuild(self, cg: Rebuilder) -> None:
        if self.current is None:
            cg.call(itertools.chain.from_iterable, self.parts)
        else:
            cg.call(chain_behind, self.current, self.parts)


def chain_behind(current: Iterator[Any], parts: Iterator[Any]) -> Iterator[Any]:
    """A chain in the middle of one of its parts."""
    return itertools.chain.from_iterable(itertools.chain([current], parts))


class CountValue(IteratorValue):
    cls = itertools.count

    def __init__(self, start: Value, step: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.next_value = start
        self.step = step

    def advance(self, t: Tracer) -> Value | None:
        result = self.next_value
        self.next_value = protocol.binary(t, "+", result, self.step)
        return result

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(itertools.count, self.next_value, self.step)


class RepeatValue(IteratorValue):
    cls = itertools.repeat

    def __init__(self, item: Value, times: int | None = None, source: Source | None = None) -> None:
        super().__init__(source)
        self.item = item
        self.times = times

    def advance(self, t: Tracer) -> Value | None:
        if self.times is not None:
            if self.times <= 0:
                return None
            self.times -= 1
        return self.item

    def meth___length_hint__(self, t: Tracer) -> Value:
        if self.times is None:
            t.raise_(TypeError, "len() of unsized object")
        return t.make(self.times)

    def rebuild(self, cg: Rebuilder) -> None:
        if self.times is None:
            cg.call(itertools.repeat, self.item)
        else:
            cg.call(itertools.repeat, self.item, self.times)


class CycleValue(IteratorValue):
    cls = itertools.cycle

    def __init__(self, part: Value) -> None:
        super().__init__()
        self.part = part
        self.saved: list[Value] = []
        self.index = -1  # in `saved`, once `part` is at its end

    def advance(self, t: Tracer) -> Value | None:
        if self.index < 0:
            item = protocol.next_(t, self.part)
            if item is not None:
                self.saved.append(item)
                return item
            self.index = 0
        if not self.saved:
            return None
        item = self.saved[self.index]
        self.index = (self.index + 1) % len(self.saved)
        return item

    def rebuild(self, cg: Rebuilder) -> None:
        if self.index < 0:
            cg.call(cycle_behind, self.part, TupleValue(self.saved))
        else:
            cg.call(itertools.cycle, TupleValue(self.saved[self.index:] + self.saved[:self.index]))


def cycle_behind(part: Iterator[Any], saved: tuple[Any, ...]) -> Iterator[Any]:
    """A cycle in its first round: the elements it gave are repeated after the remaining ones."""
    cycle = itertools.cycle(itertools.chain(saved, part))
    for _ in saved:
        next(cycle)
    return cycle


class FixedIteratorValue(IteratorValue):
    """Items that are known from the start, under the type that gives them in CPython: product, permutations..."""

    def __init__(self, cls: type, items: Sequence[Value], given: Sequence[Value]) -> None:
        super().__init__()
        self.cls = cls
        #: What the type was called with.
        self.given = list(given)
        self.rest = list(items)
        self.rest.reverse()

    def advance(self, t: Tracer) -> Value | None:
        return self.rest.pop() if self.rest else None

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(iterator_after, self.cls, self.consumed, *self.given)


def iterator_after(cls: Any, taken: int, *args: Any) -> Any:
    """Run-time helper of new bytecode: makes an iterator of `cls` that gave `taken` items already."""
    made = cls(*args)
    for _ in range(taken):
        next(made, None)
    return made


class CallIteratorValue(IteratorValue):
    """iter(callable, sentinel)"""

    cls = type(iter(int, 1))

    def __init__(self, fn: Value, sentinel: Value) -> None:
        super().__init__()
        self.fn = fn
        self.sentinel = sentinel

    def advance(self, t: Tracer) -> Value | None:
        item = t.call(self.fn, [])
        return None if protocol.equal(t, item, self.sentinel) else item

    def rebuild(self, cg: Rebuilder) -> None:
        if self.exhausted:
            cg.call(exhausted_iterator, self.cls)
        else:
            cg.call(iter, self.fn, self.sentinel)


# -- iterators that existed before ------------------------------------------------------------------------------


#: How the parameters of a resume function begin that bring what was on the stack: of the frame, of those it called.
_LEFT_OVER: Final = (".stack", ".resume", LOOP_PARAMETER)


class ResumedIteratorValue(IteratorValue):
    """The iterator of a loop that is resumed in the middle. It stands elsewhere at each iteration, and moves on for real, so
    that one entry serves them all."""

    def __init__(self, cls: type, source: Source) -> None:
        super().__init__(source)
        self.cls = cls

    def tp_iternext(self, t: Tracer) -> Value | None:
        t.break_("loop-resumed")


def is_left_over(source: Source) -> bool:
    """Whether a break left it on the stack."""
    return isinstance(source, LocalSource) and source.name.startswith(_LEFT_OVER)


def _resumed(t: Tracer, obj: Any, source: Source) -> Value | None:
    """The value of an iterator that a break left on the stack, inside of the loop over it; None for any other."""
    goes_on = isinstance(source, LocalSource) and source.name.startswith(LOOP_PARAMETER)
    return ResumedIteratorValue(type(obj), source) if goes_on or (config.resume_in_loops and is_left_over(source)) else None


def gives_like_items(value: Value) -> bool:
    """Whether all iterations of a loop over this iterator are one program: it gives numbers, whose values vary, or tensors of
    one shape, and not modules or functions, of which each is compiled by itself."""
    if isinstance(value, ZipValue):
        return all(map(gives_like_items, value.parts))
    if isinstance(value, EnumerateValue):
        return gives_like_items(value.part)
    if isinstance(value, SequenceIteratorValue):
        kinds = {_kind_of_item(item) for item in value.rest()}
        return len(kinds) < 2 and None not in kinds
    return isinstance(value, (RangeIteratorValue, CountValue, ResumedIteratorValue))


def _kind_of_item(item: Value) -> Hashable:
    """The type of a number or the shape of a tensor, or of those in a tuple or list; None of anything else. Without looking at
    it: that a loop over it is resumed is no fact that the code relies on."""
    value = item if isinstance(item, Lazy) else item.realize()
    if isinstance(value, (TupleValue, ListValue)):
        kinds = tuple(map(_kind_of_item, value.items))
        return None if None in kinds else kinds
    obj: Any = value.peek() if isinstance(value, Lazy) else value.fake if isinstance(value, GraphTensor) else None
    if obj is None:
        return value.pytype().__name__ if issubclass(value.pytype(), _NUMBERS) else None
    return _kind_of(obj)


def _kind_of(obj: Any) -> Hashable:
    if isinstance(obj, (tuple, list)):
        kinds = tuple(map(_kind_of, obj))
        return None if None in kinds else kinds
    if isinstance(obj, (torch.Tensor, np.ndarray)):
        return str(obj.dtype), tuple(map(str, obj.shape))
    return type(obj).__name__ if isinstance(obj, _NUMBERS) else None


_NUMBERS: Final = (int, float, complex, np.generic)


def _underlying(iterator: Any) -> Any:
    return iterator.__reduce__()[1][0]


def _position(iterator: Any) -> int:
    reduced = iterator.__reduce__()
    return int(reduced[2] or 0) if len(reduced) > 2 else 0


def _arguments(iterator: Any) -> Any:
    """The arguments from which an iterator of itertools can be rebuilt. From 3.12 on reading them warns everybody."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        return iterator.__reduce__()[1]


def _first_argument(iterator: Any) -> Any:
    return _arguments(iterator)[0]


def _second_argument(iterator: Any) -> Any:
    arguments = _arguments(iterator)
    return arguments[1] if len(arguments) > 1 else None


@wraps(type(iter([])), type(iter(())))
def _wrap_sequence_iterator(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    if (resumed := _resumed(t, obj, source)) is not None:
        return resumed
    sequence = t.wrap(_underlying(obj), ApplySource(source, _underlying))
    index = as_index(t, t.wrap(_position(obj), ApplySource(source, _position)))
    return SequenceIteratorValue(sequence.realize(), index, source=source)


@wraps(type(iter(range(0))))
def _wrap_range_iterator(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    if (resumed := _resumed(t, obj, source)) is not None:
        return resumed
    whole = t.wrap(_underlying(obj), ApplySource(source, _underlying)).as_constant()
    index = as_index(t, t.wrap(_position(obj), ApplySource(source, _position)))
    return RangeIteratorValue(whole[index:], source)


@wraps(itertools.count)
def _wrap_count(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    if (resumed := _resumed(t, obj, source)) is not None:
        return resumed
    start = t.wrap(_first_argument(obj), ApplySource(source, _first_argument))
    step = t.wrap(_second_argument(obj), ApplySource(source, _second_argument))
    by_one = step.is_constant() and step.as_constant() is None
    return CountValue(start.realize(), t.make(1) if by_one else step.realize(), source)


@wraps(itertools.repeat)
def _wrap_repeat(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    if (resumed := _resumed(t, obj, source)) is not None:
        return resumed
    item = t.wrap(_first_argument(obj), ApplySource(source, _first_argument))
    count = t.wrap(_second_argument(obj), ApplySource(source, _second_argument))
    times = None if _second_argument(obj) is None else as_index(t, count)
    return RepeatValue(item.realize(), times, source)


class OpaqueIteratorValue(IteratorValue):
    """An iterator whose state cannot be read."""

    def __init__(self, cls: type, source: Source) -> None:
        super().__init__(source)
        self.cls = cls

    def tp_iternext(self, t: Tracer) -> Value | None:
        t.break_("value-iterator", value=self.describe(), type=self.cls.__name__)


_OPAQUE: Final[tuple[type, ...]] = (
    zip, map, enumerate, filter, reversed, itertools.chain, itertools.cycle, itertools.islice, itertools.product,
    itertools.permutations, itertools.combinations, itertools.accumulate, itertools.zip_longest, itertools.takewhile,
    itertools.dropwhile, itertools.starmap, itertools.groupby, itertools.compress, itertools.pairwise,
    itertools.filterfalse, type(reversed([])), type(iter({})), type(iter({}.values())), type(iter({}.items())),
    type(iter(set())), type(iter(int, 1)), type(itertools.tee([])[0]),
)


@wraps(*_OPAQUE)
def _wrap_opaque_iterator(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    if (resumed := _resumed(t, obj, source)) is not None:
        return resumed
    return OpaqueIteratorValue(type(obj), source)
