"""The cost model's predictions: what is faster on the machine that a compile is for, from its numbers (machine.py) and from
counts and ratios that hold on all (predictions.py).

What decides in what order a sum's numbers are added up is not here: that does not depend on the machine.
"""

from __future__ import annotations

import math

from .machine import here
from .predictions import ARGUMENT, CALL, CALLED, COPIED_PASSES, EFFORT, LAUNCH, SLOWEST, TEAMS, TILE_BYTES, TURNED_LEAST

#: Bytes that are moved for a number of a pass: it is read, and written.
_MOVED = 8


def microseconds(calls: float) -> float:
    """What takes as long as so many calls of an operator of ATen."""
    return calls * here().call


def pass_over(elements: int) -> float:
    """Microseconds of a pass over so many numbers, which one thread reads and writes."""
    machine = here()
    size = elements * _MOVED
    each = machine.first if size <= machine.first_bytes else machine.second if size <= machine.second_bytes else machine.far
    return elements * each / 1e3


def unit() -> float:
    """Nanoseconds of a unit of work (`ops.work`)."""
    return EFFORT * here().addition


def small_work(name: str) -> int:
    """Elements times work an element up to which a kernel of this operator is faster than ATen however slow its loop is."""
    saved = microseconds(CALLED.get(name, 0.0) + CALL + 2 * ARGUMENT - LAUNCH)
    return _rounded(saved / 2 / (1 - SLOWEST) * 1e3 / unit())


def small_elements() -> int:
    """Elements up to which a kernel costs less than another kernel's launch: statements that share nothing are one."""
    return _rounded(microseconds(LAUNCH) * 1e3 / (unit() + here().first))


def grain() -> int:
    """Elements times work an element from which threads share a loop."""
    return max(round(TEAMS * here().team / unit() / 10) * 10_000, 10_000)


def channels_last_work() -> float:
    """Multiplications of a graph's convolutions from which they have channels-last images."""
    return TURNED_LEAST * 1e3 / here().product


def work_of_copy() -> float:
    """Multiplications that must come with each element of a tensor that is turned to channels last, or back."""
    return COPIED_PASSES * here().far / here().product


def tile_bytes() -> int:
    """Bytes of a product from which it has blocks of rows, and of a block from which it has fewer."""
    return max(TILE_BYTES, here().second_bytes // 2)


def _rounded(number: float) -> int:
    """The nearest power of two."""
    return 1 << max(0, round(math.log2(number)))
