"""Binary search of the module `bisect` in plain Python."""

from __future__ import annotations

import bisect
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
