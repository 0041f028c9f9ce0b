"""Short loops along memory that give their place to a long one: which loop is made of vectors, and which are written out.

A loop over 2 or 4 numbers fills no vector. Where a longer loop steps over just these numbers (the next pixel of a shuffle, the
next pair of a transpose), vectors go along that one, and the short loops are written out in its body: the compiler sees all
that lies between two steps, and takes whole vectors apart or puts them together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ..hints import Hints
from ..index import Sizes
from ..ops import work
from .fuse import Group, Member, permuted

#: Numbers between two steps of a loop of vectors, which is how often its body is written down: what GCC 12 takes apart. One
#: thread of a Zen 5, `x * 2 + 1` of 2 x 1024 x 192 floats and a transpose of the last dimension, seen as n x these (or these x
#: n), times eager's speed with the other order of loops, and so: 3 1.0 -> 2.6 (0.4 -> 3.0), 4 5.1 -> 6.8 (2.3 -> 7.9), 8 3.6 ->
#: 6.8 (3.8 -> 6.4); but 5 3.8 -> 2.2, 6 3.8 -> 2.1, 7 3.9 -> 2.3. Sigmoid and 2 1.3 -> 2.7 (0.4 -> 3.3), of bfloat16 0.9 ->
#: 2.3.
TIMES: Final = (2, 3, 4, 8)
#: How often a loop of vectors runs at least: SiLU before a pixel shuffle of 8 channels that lie side by side 1.1 -> 1.8.
LEAST: Final = 8
#: A last loop over fewer numbers than a vector has, of at least so much work (`ops.work`), has vectors along another loop that
#: runs so often, and stores number by number. One thread of a Zen 5, sine / GELU / sigmoid of 8192 x 1 and 5 numbers together,
#: times eager's speed before 0.35 / 0.52 / 0.87, so 2.1 / 1.7 / 2.3; and 10 numbers 1.0 / 0.5 / 0.8 -> 1.8 / 1.2 / 1.5, of
#: bfloat16 0.6 / 0.8 / 1.9 -> 2.1 / 2.8 / 5.7, of float16 0.3 / 0.5 / 0.8 -> 1.0 / 2.2 / 2.8.
SHORT, FUNCTIONS, LONG = 16, 16, 64


def with_short_loops(group: Group, hints: Hints) -> tuple[Group, int] | None:
    """The pointwise group with its loop of vectors last and the short ones before that, and how many these are; None where no
    loop is better than the one that is last."""
    if group.reducing or group.scatters or any(member.compute.gathers() for member in group.members):
        return None
    loops = range(len(group.outer))
    accesses = [strides for member in group.members for strides in accesses_of(member)]
    for vector in sorted(loops, key=lambda k: (k != loops[-1], -hints(group.outer[k]))):
        if hints(group.outer[vector]) < LEAST:
            continue
        found = [between(strides, group.outer, vector) for strides in accesses]
        short = sorted(set[int]().union(*(each for each in found if each is not None)))
        times = 1
        for k in short:
            times *= int(hints(group.outer[k]))
        if None in found or times not in TIMES:
            continue
        order = (*(k for k in loops if k != vector and k not in short), *short, vector)
        members = [Member(permuted(member.compute, order), ()) for member in group.members]
        return Group(members[0].compute.size, members, name=group.name), len(short)
    return with_long_loop(group, hints)


def with_long_loop(group: Group, hints: Hints) -> tuple[Group, int] | None:
    """The group with another loop of vectors than a short one that is last, where what is computed takes longer than stores
    one by one."""
    last = len(group.outer) - 1
    weight = max(sum(map(work, member.compute.exprs)) for member in group.members)
    if last < 1 or weight < FUNCTIONS or hints(group.outer[last]) >= SHORT:
        return None
    made = group.writes()  # which is at hand
    loads = [load.strides for member in group.members for load in member.compute.loads() if load.buffer not in made]
    for vector in sorted(range(last), key=lambda k: -hints(group.outer[k])):
        if hints(group.outer[vector]) >= LONG and all(hints(strides[vector]) in (0, 1) for strides in loads):
            order = (*(k for k in range(last + 1) if k != vector), vector)
            members = [Member(permuted(member.compute, order), ()) for member in group.members]
            return Group(members[0].compute.size, members, name=group.name), 0
    return None


def accesses_of(member: Member) -> list[Sizes]:
    return [member.compute.stride, *(load.strides for load in member.compute.loads())]


def between(strides: Sizes, sizes: Sizes, vector: int) -> Sequence[int] | None:
    """The loops that go over all numbers between two steps of loop `vector`; None where there are others, or too many."""
    step = strides[vector]
    if not isinstance(step, int) or not 0 <= step <= max(TIMES):
        return None
    found: list[int] = []
    reach = 1
    while reach < step:
        inner = next((k for k, size in enumerate(sizes) if k != vector and size != 1 and strides[k] == reach), None)
        size = None if inner is None else sizes[inner]
        if inner is None or not isinstance(size, int):
            return None
        found.append(inner)
        reach *= size
    return found if step <= 1 or reach == step else None
