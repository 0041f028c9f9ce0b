"""itertools in plain Python: what values/iterators.py has no value for. Each gives a generator.

An iterator is made once, and asked by `next` from then on: a loop over it would call an `__iter__` of the program's once more,
which may begin anew.
"""

from __future__ import annotations

import itertools
import operator
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from fxjit.frontend.values.calls import polyfill, stands_for

_END: Final[Any] = object()


@polyfill(itertools.islice)
def islice(iterable: Iterable[Any], *args: Any) -> Iterator[Any]:
    if not 1 <= len(args) <= 3:
        raise TypeError(f"islice expected at {'least 2' if not args else 'most 4'} arguments, got {len(args) + 1}")
    start, stop, step = (0, args[0], 1) if len(args) == 1 else (args[0], args[1], args[2] if len(args) == 3 else 1)
    stop = None if stop is None else _index_or_less(stop)
    if stop == -1:
        raise ValueError("Stop argument for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    start = 0 if start is None else _index_or_less(start)
    if start < 0 or (stop is not None and stop < 0):
        raise ValueError("Indices for islice() must be None or an integer: 0 <= x <= sys.maxsize.")
    step = 1 if step is None else _index_or_less(step)
    if step < 1:
        raise ValueError("Step for islice() must be a positive integer or None.")
    return _islice(iter(iterable), start, stop, step)


def _index_or_less(value: Any) -> int:
    """-1 for what is no integer, or none that C's sizes hold."""
    try:
        index = operator.index(value)
    except TypeError:
        return -1
    return index if index <= sys.maxsize else -1


@stands_for(itertools.islice)
def _islice(items: Iterator[Any], start: int, stop: int | None, step: int) -> Iterator[Any]:
    wanted = start
    index = 0
    while stop is None or index < stop:
        if wanted >= index and stop is not None and wanted >= stop:
            for _ in range(stop - index):  # what is skipped at the end is consumed as well
                if next(items, _END) is _END:
                    break
            return
        item = next(items, _END)
        if item is _END:
            return
        if index == wanted:
            wanted += step
            yield item
        index += 1


@polyfill(itertools.accumulate)
def accumulate(iterable: Iterable[Any], func: Callable[[Any, Any], Any] | None = None, *,
               initial: Any = None) -> Iterator[Any]:
    return _accumulate(iter(iterable), operator.add if func is None else func, initial)


def _accumulate(items: Iterator[Any], func: Callable[[Any, Any], Any], total: Any) -> Iterator[Any]:
    if total is None:
        total = next(items, _END)
        if total is _END:
            return
    yield total
    while (item := next(items, _END)) is not _END:
        total = func(total, item)
        yield total


@polyfill(itertools.takewhile)
def takewhile(predicate: Callable[[Any], Any], iterable: Iterable[Any], /) -> Iterator[Any]:
    return _takewhile(predicate, iter(iterable))


@stands_for(itertools.takewhile)
def _takewhile(predicate: Callable[[Any], Any], items: Iterator[Any]) -> Iterator[Any]:
    while (item := next(items, _END)) is not _END and predicate(item):
        yield item


@polyfill(itertools.dropwhile)
def dropwhile(predicate: Callable[[Any], Any], iterable: Iterable[Any], /) -> Iterator[Any]:
    return _dropwhile(predicate, iter(iterable))


@stands_for(itertools.dropwhile)
def _dropwhile(predicate: Callable[[Any], Any], items: Iterator[Any]) -> Iterator[Any]:
    while (item := next(items, _END)) is not _END and predicate(item):
        pass
    while item is not _END:
        yield item
        item = next(items, _END)


@polyfill(itertools.starmap)
def starmap(function: Callable[..., Any], iterable: Iterable[Any], /) -> Iterator[Any]:
    return _starmap(function, iter(iterable))


@stands_for(itertools.starmap)
def _starmap(function: Callable[..., Any], items: Iterator[Any]) -> Iterator[Any]:
    while (args := next(items, _END)) is not _END:
        yield function(*tuple(args))


@polyfill(itertools.compress)
def compress(data: Iterable[Any], selectors: Iterable[Any]) -> Iterator[Any]:
    return _compress(iter(data), iter(selectors))


@stands_for(itertools.compress)
def _compress(data: Iterator[Any], selectors: Iterator[Any]) -> Iterator[Any]:
    while (item := next(data, _END)) is not _END and (selected := next(selectors, _END)) is not _END:
        if selected:
            yield item


@polyfill(itertools.pairwise)
def pairwise(iterable: Iterable[Any], /) -> Iterator[Any]:
    return _pairwise(iter(iterable))


@stands_for(itertools.pairwise)
def _pairwise(items: Iterator[Any]) -> Iterator[Any]:
    before = next(items, _END)
    while before is not _END and (item := next(items, _END)) is not _END:
        yield before, item
        before = item


@polyfill(itertools.zip_longest)
def zip_longest(*iterables: Iterable[Any], fillvalue: Any = None) -> Iterator[Any]:
    return _zip_longest([iter(part) for part in iterables], fillvalue)


def _zip_longest(parts: list[Iterator[Any]], fillvalue: Any) -> Iterator[Any]:
    running = [True] * len(parts)
    while any(running):
        row = []
        for index, part in enumerate(parts):
            value = fillvalue
            if running[index]:
                value = next(part, _END)
                if value is _END:
                    value, running[index] = fillvalue, False
                    if not any(running):
                        return
            row.append(value)
        yield tuple(row)


@polyfill(itertools.tee)
def tee(iterable: Iterable[Any], n: int = 2, /) -> tuple[Iterator[Any], ...]:
    if n < 0:
        raise ValueError("n must be >= 0")
    if n == 0:
        return ()
    items = iter(iter(iterable))  # twice, as C does
    queues: list[list[Any]] = [[] for _ in range(n)]
    asking: list[bool] = []
    return tuple([_tee(items, queues, queue, asking) for queue in queues])


def _tee(items: Iterator[Any], queues: list[list[Any]], queue: list[Any], asking: list[bool]) -> Iterator[Any]:
    while True:
        if not queue:
            if asking:
                raise RuntimeError("cannot re-enter the tee iterator")
            asking.append(True)
            try:
                item = next(items)
            except StopIteration:
                return
            finally:
                asking.pop()
            for other in queues:
                other.append(item)
        yield queue.pop(0)


class _Groups:
    """What a `groupby` and its groups share."""

    def __init__(self, items: Iterator[Any], key: Callable[[Any], Any] | None) -> None:
        self.items, self.key_function = items, key
        #: The item that no group has given yet, its key, and the key of the group that is given.
        self.item = self.key = self.target = _END
        #: How many groups there were: an earlier one is at its end.
        self.group = 0

    def step(self) -> bool:
        item = next(self.items, _END)
        if item is _END:
            return False
        key = item if self.key_function is None else self.key_function(item)
        self.item, self.key = item, key
        return True


@polyfill(itertools.groupby)
def groupby(iterable: Iterable[Any], key: Callable[[Any], Any] | None = None) -> Iterator[Any]:
    return _groups(_Groups(iter(iterable), key))


def _groups(shared: _Groups) -> Iterator[Any]:
    while True:
        shared.group += 1
        while shared.key is _END or (
                shared.target is not _END and (shared.target is shared.key or shared.target == shared.key)):
            if not shared.step():
                return
        shared.target = shared.key
        yield shared.key, _group(shared, shared.group, shared.target)


def _group(shared: _Groups, group: int, target: Any) -> Iterator[Any]:
    while shared.group == group:
        if shared.item is _END and not shared.step():
            return
        if not (target is shared.key or target == shared.key):
            return
        item = shared.item
        shared.item = shared.key = _END
        yield item


def _batched(iterable: Iterable[Any], n: int, *, strict: bool = False) -> Iterator[Any]:
    if n < 1:
        raise ValueError("n must be at least one")
    return _batches(iter(iterable), n, strict)


def _batches(items: Iterator[Any], n: int, strict: bool) -> Iterator[Any]:
    while True:
        batch: list[Any] = []
        while len(batch) < n and (item := next(items, _END)) is not _END:
            batch.append(item)
        if not batch:
            return
        if strict and len(batch) != n:
            raise ValueError("batched(): incomplete batch")
        yield tuple(batch)


if hasattr(itertools, "batched"):  # new in Python 3.12
    polyfill(itertools.batched)(_batched)
