"""Recomputed or kept: whether a pointwise value gets memory (or, fused, a register) of its own."""

from __future__ import annotations

from collections.abc import Callable

from .predictions import CHEAP, CHEAP_BROADCAST, MAX_LOADS, MAX_WORK


def should_keep(work: int, reads: int, readers: int, *, rounded: Callable[[], bool], broadcast: Callable[[], bool]) -> bool:
    """Of a value that takes this much work an element, reads so many places, and is read by so many statements.

    `rounded`: readers have to see the same numbers, which memory of a half type rounds. `broadcast`: a reader has more elements
    than there are, so that each would be computed again and again.
    """
    if reads == 0:
        return False
    if reads > MAX_LOADS or work > MAX_WORK:
        return True
    if readers > 1:
        return work > CHEAP or reads > 1 or rounded()
    return work > CHEAP_BROADCAST and broadcast()
