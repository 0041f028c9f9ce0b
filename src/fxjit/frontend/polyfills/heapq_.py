"""The C functions of `heapq`: binary heaps in lists, smallest or largest item first.

The children of the item at `i` are at `2 * i + 1` and `2 * i + 2`. An item that was put at the root first sinks to a leaf,
along the path of the children that win, and then climbs back to where it belongs: that takes fewer comparisons than looking
for its place on the way down. Programs see which items are compared, in which order and with what in the list meanwhile, so
that it is done by swaps, as C does it; a comparison that changes the length of the list is an error. Lists are used by list's
own methods, whatever a subclass overrides.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Final

from fxjit.frontend.values.calls import polyfill

_item: Final[Callable[[Any, int], Any]] = list.__getitem__
_put: Final[Callable[[Any, int, Any], None]] = list.__setitem__
_length: Final[Callable[[Any], int]] = list.__len__

#: The private functions on heaps of the largest item, by the names that this Python has.
_pop_largest: Final[Any] = heapq._heappop_max  # type: ignore[attr-defined]  # private
_replace_largest: Final[Any] = heapq._heapreplace_max  # type: ignore[attr-defined]  # private
_heapify_largest: Final[Any] = heapq._heapify_max  # type: ignore[attr-defined]  # private


def _require_list(heap: Any, argument: str) -> None:
    if not isinstance(heap, list):
        raise TypeError(f"{argument} must be list, not {None if heap is None else type(heap).__name__}")


def _wins(heap: Any, one: int, other: int, largest: bool) -> bool:
    """Whether the item at `one` must be nearer to the root than the item at `other`."""
    size = _length(heap)
    a, b = _item(heap, one), _item(heap, other)
    result = bool(b < a if largest else a < b)
    if _length(heap) != size:
        raise RuntimeError("list changed size during iteration")
    return result


def _swap(heap: Any, one: int, other: int) -> None:
    first = _item(heap, one)
    _put(heap, one, _item(heap, other))
    _put(heap, other, first)


def _climb(heap: Any, root: int, place: int, largest: bool) -> None:
    """Move the item at `place` up to `root` at most, past the parents that it wins against."""
    while place > root:
        parent = (place - 1) // 2
        if not _wins(heap, place, parent, largest):
            break
        _swap(heap, parent, place)
        place = parent


def _sink(heap: Any, root: int, largest: bool) -> None:
    """Move the item at `root` to a leaf of its heap, and from there up to its place."""
    place, size = root, _length(heap)
    while 2 * place + 1 < size:
        left, right = 2 * place + 1, 2 * place + 2
        # Among equals, the right one goes up.
        child = right if right < size and not _wins(heap, left, right, largest) else left
        _swap(heap, place, child)
        place = child
    _climb(heap, root, place, largest)


def _heapify(heap: Any, largest: bool) -> None:
    for root in range(_length(heap) // 2 - 1, -1, -1):
        _sink(heap, root, largest)


def _pop(heap: Any, largest: bool) -> Any:
    if not _length(heap):
        raise IndexError("index out of range")
    last = list.pop(heap)
    if not _length(heap):
        return last
    return _replace(heap, last, largest)


def _replace(heap: Any, item: Any, largest: bool) -> Any:
    if not _length(heap):
        raise IndexError("index out of range")
    first = _item(heap, 0)
    _put(heap, 0, item)
    _sink(heap, 0, largest)
    return first


@polyfill(heapq.heappush)
def heappush(heap: Any, item: Any, /) -> None:
    _require_list(heap, "heappush() argument 1")
    list.append(heap, item)
    _climb(heap, 0, _length(heap) - 1, False)


@polyfill(heapq.heappop)
def heappop(heap: Any, /) -> Any:
    _require_list(heap, "heappop() argument")
    return _pop(heap, False)


@polyfill(heapq.heapify)
def heapify(heap: Any, /) -> None:
    _require_list(heap, "heapify() argument")
    _heapify(heap, False)


@polyfill(heapq.heapreplace)
def heapreplace(heap: Any, item: Any, /) -> Any:
    _require_list(heap, "heapreplace() argument 1")
    return _replace(heap, item, False)


@polyfill(heapq.heappushpop)
def heappushpop(heap: Any, item: Any, /) -> Any:
    _require_list(heap, "heappushpop() argument 1")
    if not _length(heap) or not _item(heap, 0) < item:
        return item
    return _replace(heap, item, False)


@polyfill(_pop_largest)
def heappop_max(heap: Any, /) -> Any:
    _require_list(heap, "_heappop_max() argument")
    return _pop(heap, True)


@polyfill(_replace_largest)
def heapreplace_max(heap: Any, item: Any, /) -> Any:
    _require_list(heap, "_heapreplace_max() argument 1")
    return _replace(heap, item, True)


@polyfill(_heapify_largest)
def heapify_max(heap: Any, /) -> None:
    _require_list(heap, "_heapify_max() argument")
    _heapify(heap, True)
