"""Which groups go over blocks: those that read along one dimension of memory and write along another.

A loop along what is written then steps from line to line through what is read; the next iteration of the loop around it reads
their neighbours, which have left the cache where lines are many, or meet in the same places of it. `x * 2 + 1` and a
transpose, one thread of a Zen 5, times eager's speed row by row and in blocks: 2 x 2304 x 96 floats 1.5 -> 4.4, 8 x 256 x 384
1.4 -> 4.6, 512 x 512 0.5 -> 1.2, 1024 x 1024 0.3 -> 0.7; of bfloat16 1.5 -> 4.2, 2.0 -> 4.1, 0.6 -> 0.6, 0.5 -> 0.5; GELU
before it, floats, 1.5 -> 1.8, 1.5 -> 2.4, 0.5 -> 1.0, 0.3 -> 0.8. Rows of 4000 bytes are as fast as they are (1000 x 1000 1.4,
in blocks 1.3).
"""

from __future__ import annotations

import math

from ..hints import Hints
from .fuse import Group, Member, permuted

#: Numbers between two steps from which each is in another line of the cache, and the least sizes of both loops.
APART, LEAST = 32, 64
#: A first cache keeps so many lines of those that lie a whole number of `PERIOD` bytes apart, and has so many bytes a line.
WAYS, PERIOD, LINE = 12, 4096, 64


def lines_kept(step: int) -> int:
    """How many lines, so many bytes apart, a first cache keeps: few, where steps meet in the same places of it."""
    return WAYS * min(PERIOD // math.gcd(step, PERIOD), PERIOD // LINE)


def with_block_loops(group: Group, hints: Hints) -> Group | None:
    """The pointwise group with the loop that reads neighbours right before the last, which writes them; None where all is read
    as it is written, or so little lies between steps that it stays where it is."""
    last = len(group.outer) - 1
    if group.reducing or group.scatters or last < 1 or any(member.compute.gathers() for member in group.members):
        return None
    made = group.writes()
    loads = [load for member in group.members for load in member.compute.loads() if load.buffer not in made]
    apart = [load for load in loads if abs(hints(load.strides[last])) >= APART]
    size = hints(group.outer[last])
    steps = [(abs(hints(load.strides[last])) * load.memory_dtype.itemsize, load.memory_dtype.itemsize) for load in apart]
    if size < LEAST or not any(lines_kept(step) < size and (item == 2 or step % (2 * LINE) == 0) for step, item in steps):
        return None
    for k in range(last):
        if hints(group.outer[k]) >= LEAST and all(load.strides[k] == 1 for load in apart):
            order = (*(each for each in range(last) if each != k), k, last)
            members = [Member(permuted(member.compute, order), ()) for member in group.members]
            return Group(members[0].compute.size, members, name=group.name)
    return None
