"""Neighbouring loops that every access of a group steps through as through one become one loop."""

from __future__ import annotations

from collections.abc import Iterable

from ..index import Size, Sizes, equal, mul
from ..ir import Compute, Iota, Load, reindex, walk
from .fuse import Group, Member


def collapse(group: Group) -> Group:
    """The same group over as few loops as possible."""
    outer_accesses = [strides[: len(group.outer)] for member in group.members for strides in accesses(member.compute)]
    outer_runs = runs(group.outer, outer_accesses)
    inner_runs: dict[int, list[list[int]]] = {}
    for loop_nest in {member.loop_nest for member in group.members if member.inner}:
        mates = [member for member in group.members if member.loop_nest == loop_nest and member.inner]
        base = len(group.outer)
        tails = [strides[base:] for member in mates for strides in accesses(member.compute) if len(strides) > base]
        inner_runs[loop_nest] = runs(mates[0].inner, tails)
    members = [
        merge(member, group.outer, outer_runs, inner_runs.get(member.loop_nest, []) if member.inner else [])
        for member in group.members
    ]
    return Group(
        merged_sizes(group.outer, outer_runs), members, group.column_reduction, group.split, group.reducing, group.name
    )


def accesses(compute: Compute) -> Iterable[Sizes]:
    yield compute.stride
    for node in (node for expr in compute.exprs for node in walk(expr)):
        if isinstance(node, (Load, Iota)):
            yield node.strides


def runs(sizes: Sizes, strides: Iterable[Sizes]) -> list[list[int]]:
    """Dimensions that merge, as lists of neighbours."""
    out: list[list[int]] = [[k] for k in range(len(sizes))][:1]
    given = list(strides)
    for k in range(1, len(sizes)):
        if all(equal(each[k - 1], mul(each[k], sizes[k])) for each in given):
            out[-1].append(k)
        else:
            out.append([k])
    return out


def merged_sizes(sizes: Sizes, groups: list[list[int]]) -> Sizes:
    out: list[Size] = []
    for group in groups:
        total: Size = 1
        for k in group:
            total = mul(total, sizes[k])
        out.append(total)
    return tuple(out)


def merge(member: Member, outer: Sizes, outer_runs: list[list[int]], inner_runs: list[list[int]]) -> Member:
    base = len(outer)
    all_runs = outer_runs + [[base + k for k in run] for run in inner_runs]
    compute = member.compute

    def pick(strides: Sizes) -> Sizes:
        # A run's stride is its last dimension's.
        return tuple(strides[run[-1]] for run in all_runs if run[-1] < len(strides))

    new_outer, new_inner = merged_sizes(outer, outer_runs), merged_sizes(member.inner, inner_runs)
    loops = (new_outer, new_inner) if compute.has_order else (new_outer + new_inner, ())
    made = compute.over(
        *loops, pick(compute.stride), lambda expr: reindex(expr, lambda strides, offset: (pick(strides), offset))
    )
    return Member(made, new_inner, member.loop_nest)
