"""Builtins in plain Python."""

from __future__ import annotations

import bisect
import heapq
from typing import Any

from fxjit.frontend.values.calls import polyfill


@polyfill(bisect.bisect_right)
def bisect_right(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> int:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    if hi is None:
        hi = len(a)
    while lo < hi:
        middle = (lo + hi) // 2
        item = a[middle] if key is None else key(a[middle])
        if x < item:
            hi = middle
        else:
            lo = middle + 1
    return lo


@polyfill(bisect.bisect_left)
def bisect_left(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> int:
    if lo < 0:
        raise ValueError("lo must be non-negative")
    if hi is None:
        hi = len(a)
    while lo < hi:
        middle = (lo + hi) // 2
        item = a[middle] if key is None else key(a[middle])
        if item < x:
            lo = middle + 1
        else:
            hi = middle
    return lo


@polyfill(bisect.insort_right)
def insort_right(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> None:
    a.insert(bisect_right(a, x if key is None else key(x), lo, hi, key=key), x)


@polyfill(bisect.insort_left)
def insort_left(a: Any, x: Any, lo: int = 0, hi: int | None = None, *, key: Any = None) -> None:
    a.insert(bisect_left(a, x if key is None else key(x), lo, hi, key=key), x)


@polyfill(heapq.heappush)
def heappush(heap: Any, item: Any) -> None:
    heap.append(item)
    _sift_down(heap, 0, len(heap) - 1)


@polyfill(heapq.heappop)
def heappop(heap: Any) -> Any:
    if not heap:
        raise IndexError("index out of range")
    last = heap.pop()
    if not heap:
        return last
    first = heap[0]
    heap[0] = last
    _sift_up(heap, 0)
    return first


@polyfill(heapq.heapify)
def heapify(heap: Any) -> None:
    for index in reversed(range(len(heap) // 2)):
        _sift_up(heap, index)


@polyfill(heapq.heapreplace)
def heapreplace(heap: Any, item: Any) -> Any:
    if not heap:
        raise IndexError("index out of range")
    first = heap[0]
    heap[0] = item
    _sift_up(heap, 0)
    return first


@polyfill(heapq.heappushpop)
def heappushpop(heap: Any, item: Any) -> Any:
    if heap and heap[0] < item:
        item, heap[0] = heap[0], item
        _sift_up(heap, 0)
    return item


def _sift_down(heap: Any, start: int, index: int) -> None:
    """Move the item at `index` towards the root until its parent is not greater."""
    item = heap[index]
    while index > start:
        above = (index - 1) >> 1
        if not item < heap[above]:
            break
        heap[index] = heap[above]
        index = above
    heap[index] = item


def _sift_up(heap: Any, index: int) -> None:
    """Let the item at `index` sink to a leaf along the smaller children, then rise to its place, as CPython does."""
    end, start, item = len(heap), index, heap[index]
    child = 2 * index + 1
    while child < end:
        right = child + 1
        if right < end and not heap[child] < heap[right]:
            child = right
        heap[index] = heap[child]
        index = child
        child = 2 * index + 1
    heap[index] = item
    _sift_down(heap, start, index)


@polyfill(heapq.nsmallest)
def nsmallest(n: int, iterable: Any, key: Any = None) -> list[Any]:
    return sorted(iterable, key=key)[: max(n, 0)]


@polyfill(heapq.nlargest)
def nlargest(n: int, iterable: Any, key: Any = None) -> list[Any]:
    return sorted(iterable, key=key, reverse=True)[: max(n, 0)]
