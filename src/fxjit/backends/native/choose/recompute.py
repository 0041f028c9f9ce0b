"""Recomputed or kept: whether a pointwise value gets memory (or, fused, a register) of its own."""

from __future__ import annotations

from collections.abc import Callable

from .predictions import CHEAP, CHEAP_BROADCAST, MAX_LOADS, MAX_WORK


def should_keep(
    work: int, loads: int, of_elements: int, reads: int, readers: int, *, rounded: Callable[[], bool],
    broadcast: Callable[[], bool], again: Callable[[], bool],
) -> bool:  # fmt: skip
    """Of a value that takes this much work an element, loads so many numbers, and is read by so many statements.

    `of_elements`, `reads`: the work and the loads that are not the same for many elements. `rounded`: readers have to see the
    same numbers, which memory of a half type rounds. `broadcast`: a reader has more elements than there are, so that each would
    be computed again and again. `again`: a reader computes it several times itself, since it has several loops over it or
    is several kernels, some of which go along rows and some along columns.
    """
    if loads == 0:  # numbers of places, such as the frequencies of an embedding of positions
        return work > CHEAP_BROADCAST and broadcast()
    if loads > MAX_LOADS or work > MAX_WORK:
        return True
    if readers > 1:
        return of_elements > CHEAP or reads > 1 or rounded()
    if of_elements > CHEAP and again():
        return True
    return work > CHEAP_BROADCAST and broadcast()
