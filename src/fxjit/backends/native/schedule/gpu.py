"""From a group of statements to kernels for a GPU: which loops become axes of blocks, and where one kernel cannot do.

A group over rows whose length fits in registers is one `persistent` kernel: each program holds whole rows, and values
that several reductions need are read once. A longer one is `looped`: each reduction is a loop over the row, and what a
later loop needs of an earlier one is computed again from what is in memory. Few long rows are `split`: chunks of a row
are reduced by programs of their own into a small buffer, which a second kernel reduces.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import sympy

from ..hints import Hints
from ..index import Size, Sizes, add, contiguous_strides, magnitude, mul, prod
from ..ir import Buffer, Compute, Expr, Gather, Load, compute_type, loads, substitute
from .collapse import accesses, collapse
from .fuse import Group, Member, assign_loop_nests
from .product_fusion import Dot, ProductGroup

# The longest row that a program holds whole; over columns, the tallest column.
LONGEST_ROW = 4096
TALLEST_COLUMN = 64
# Bytes of live values in a program, above which a row is looped over rather than held.
HELD_BYTES = 96 * 1024
# Programs that the chunks of few rows are to make, and what a chunk is at least.
PROGRAMS = 1024
CHUNK = 8192
# A dimension below which there is no block axis of its own.
NARROW = 8
# The largest block that a loop over a row reads at once.
WIDEST_BLOCK = 4096


@dataclass(frozen=True, slots=True)
class KernelSchedule:
    """One kernel: a group with how it runs.

    `kind`: pointwise, tiled (blocks over dimension `across` and the last one), persistent, looped, split into `chunks`, or
    a matrix product: tiles of `dot`'s sums, and then as if tiled.
    """

    group: Group
    kind: str
    in_registers: frozenset[str]
    across: int = 0
    chunks: int = 1
    dot: Dot | None = None


def kernel_schedules(group: Group, in_registers: frozenset[str], hints: Hints) -> list[KernelSchedule]:
    """The kernels that run a group, in order. Buffers of `in_registers` that cross from one to the next become memory."""
    if isinstance(group, ProductGroup):
        return [KernelSchedule(group, "product", in_registers, len(group.outer) - 2, dot=group.dot)]
    if group.scatters:
        return [KernelSchedule(collapse(group), "pointwise", in_registers)]
    if not group.reducing:
        return [pointwise(group, in_registers, hints)]
    if group.split and any(member.compute.reduction is not None for member in group.members):
        return [schedule for part in in_chunks(group, in_registers, hints) for schedule in part]
    if fits(group, hints):
        return [KernelSchedule(collapse(group), "persistent", in_registers)]
    once = recomputed(group, in_registers)
    if once is not None:
        return [KernelSchedule(collapse(once), "looped", in_registers)]
    parts = split_by_loop_nest(group)
    crossing = read_by_others(parts)
    return [schedule for part in parts for schedule in kernel_schedules(part, in_registers - crossing, hints)]


def pointwise(group: Group, in_registers: frozenset[str], hints: Hints) -> KernelSchedule:
    merged = collapse(group)
    across = transposed_dimension(merged, hints)
    return (
        KernelSchedule(merged, "pointwise", in_registers)
        if across is None
        else KernelSchedule(merged, "tiled", in_registers, across)
    )


def transposed_dimension(group: Group, hints: Hints) -> int | None:
    """A dimension other than the last along which some access is contiguous."""
    sizes = group.outer
    if len(sizes) < 2 or hints(sizes[-1]) <= NARROW:
        return None
    votes: dict[int, int] = {}
    for member in group.members:
        for strides in accesses(member.compute):
            for dim in range(len(sizes) - 1):
                if strides[dim] in (1, -1) and strides[-1] not in (0, 1, -1) and hints(sizes[dim]) > NARROW:
                    votes[dim] = votes.get(dim, 0) + 1
    return max(votes, key=lambda dim: votes[dim]) if votes else None


# Rows that are held


def row_lengths(group: Group) -> dict[int, Size]:
    return {member.loop_nest: prod(member.inner) for member in group.members if not member.is_row}


def fits(group: Group, hints: Hints) -> bool:
    """Whether a program can hold all it needs of a row."""
    limit = TALLEST_COLUMN if group.column_reduction else LONGEST_ROW
    lengths = row_lengths(group).values()
    if not all(isinstance(length, int) and 0 < length <= limit for length in lengths):
        return False
    longest = max((int(length) for length in lengths), default=1)  # type: ignore[arg-type]  # static lengths only
    inner = [member for member in group.members if not member.is_row]
    held = len({load.buffer for member in inner for load in member.compute.loads()} | {m.compute.out.name for m in inner})
    return longest * held * 4 <= HELD_BYTES


# Rows that are looped over


def recomputed(group: Group, in_registers: frozenset[str]) -> Group | None:
    """The group with what a loop nest needs of an earlier one's loop computed again there; None where that would be wrong."""
    makers = {member.compute.out.name: member for member in group.members}
    expressions: dict[str, Expr] = {}
    members: list[Member] = []
    for member in group.members:
        expr = inlined(member, makers, expressions)
        if expr is None:
            return None
        made = replace(member.compute, expr=expr) if expr is not member.compute.expr else member.compute
        members.append(Member(made, member.inner, member.loop_nest))
        expressions[member.compute.out.name] = made.expr
    used = {load.buffer for member in members for load in member.compute.loads()}
    kept = [m for m in members if m.compute.out.name in used or m.compute.out.name not in in_registers]
    return Group(group.outer, kept, group.column_reduction, group.split, group.reducing, group.name)


def inlined(member: Member, makers: dict[str, Member], expressions: dict[str, Expr]) -> Expr | None:
    """The member's expression without loads of what other loops than its own made."""
    crossing = [
        load
        for load in member.compute.loads()
        if (maker := makers.get(load.buffer)) is not None
        and load.buffer in expressions
        and not maker.gives_row
        and maker.loop_nest != member.loop_nest
    ]
    if not crossing:
        return member.compute.expr
    if any(makers[load.buffer].compute.scan is not None for load in crossing):
        return None
    for load in crossing:
        for inner in loads(expressions[load.buffer]):
            writer = makers.get(inner.buffer)
            # Memory that the group has written meanwhile does not hold what the value was computed from.
            if (
                writer is not None
                and not (writer.gives_row and inner.buffer in expressions)
                and writer.loop_nest < member.loop_nest
            ):
                return None
    wanted = {id(load) for load in crossing}
    return substitute(member.compute.expr, lambda load: expressions[load.buffer] if id(load) in wanted else load)


def split_by_loop_nest(group: Group) -> list[Group]:
    """One group a loop nest; values cross between them in memory."""
    parts: list[Group] = []
    for loop_nest in sorted({member.loop_nest for member in group.members}):
        chosen = [Member(member.compute, member.inner) for member in group.members if member.loop_nest == loop_nest]
        rows_only = all(member.is_row for member in chosen)
        part = Group(group.outer, chosen, group.column_reduction and not rows_only, False, not rows_only)
        assign_loop_nests(part)
        parts.append(part)
    return parts


def read_by_others(parts: list[Group]) -> frozenset[str]:
    """The results that one of the groups writes and another reads."""
    found: set[str] = set()
    for part in parts:
        for other in parts:
            if other is not part:
                found |= part.writes() & other.reads()
    return frozenset(found)


# Few long rows


def in_chunks(group: Group, in_registers: frozenset[str], hints: Hints) -> list[list[KernelSchedule]]:
    """A group of one loop nest, as chunks of its rows and what is made of their results."""
    before = [member for member in group.members if member.loop_nest == -1]
    inner = [member for member in group.members if not member.is_row]
    after = [member for member in group.members if member.is_row and member.loop_nest != -1]
    chunks = chunk_count(group, inner[0].inner, hints)
    partial = {m.compute.out.name: partial_of(m, group.outer, chunks) for m in inner if m.compute.reduction is not None}
    first = [Member(m.compute, m.inner, m.loop_nest) for m in before]
    for member in inner:
        out = partial.get(member.compute.out.name)
        compute = member.compute if out is None else replace(member.compute, out=out, stride=out.stride[:-1], offset=0)
        first.append(Member(compute, member.inner, member.loop_nest))
    second = [Member(m.compute, ()) for m in before]
    second += [Member(combined(m, partial[m.compute.out.name], chunks), (chunks,)) for m in inner if m.compute.reduction]
    second += [Member(m.compute, ()) for m in after]
    last = Group(group.outer, second, False, False, True)
    assign_loop_nests(last)
    rows = frozenset(m.compute.out.name for m in before)
    head = collapse(Group(group.outer, first, group.column_reduction, True, True))
    return [
        [KernelSchedule(head, "split", in_registers | rows, chunks=chunks)],
        kernel_schedules(last, in_registers, hints),
    ]


def chunk_count(group: Group, inner: Sizes, hints: Hints) -> int:
    columns = hints(prod(inner))
    rows = hints(prod(group.outer))
    programs = -(-rows // 64) if group.column_reduction else rows
    least = max(1, CHUNK // 64 if group.column_reduction else CHUNK)
    return max(1, min(PROGRAMS // max(programs, 1), -(-columns // least)))


def partial_of(member: Member, outer: Sizes, chunks: int) -> Buffer:
    """Where the chunks' results stand: one more dimension than the reduction's own."""
    out = member.compute.out
    size = (*outer, chunks)
    return replace(
        out, name=f"{out.name}_parts", dtype=compute_type(out.dtype), size=size, stride=contiguous_strides(size), kind="temp"
    )


def combined(member: Member, partial: Buffer, chunks: int) -> Compute:
    old = member.compute
    load = Load(partial.name, compute_type(partial.dtype), partial.dtype, partial.stride, 0)
    return replace(old, rsize=(chunks,), expr=load)


def largest_span(schedule: KernelSchedule, parameters: Iterable[sympy.Expr]) -> Size:
    """At least as far as any index of the kernel goes, and as large as its parameters: its iterations, and the last place of
    each access."""
    spans: list[Size] = []
    for member in schedule.group.members:
        compute, domain = member.compute, schedule.group.outer + member.inner
        read = (load for expr in compute.exprs for load in loads(expr))
        places = [(compute.stride, compute.offset), *((load.strides, load.offset) for load in read)]
        spans += [magnitude(prod(domain)), *reaches(domain, places), *gathered(compute.gathers())]
    if schedule.dot is not None:
        *batches, m, n = schedule.group.outer
        for expr, domain in ((schedule.dot.a, (*batches, m, schedule.dot.k)), (schedule.dot.b, (*batches, schedule.dot.k, n))):
            spans += [*reaches(domain, ((load.strides, load.offset) for load in loads(expr)))]
            spans += gathered(gather for load in loads(expr) for gather in load.gathers)
    counted = {factor for span in spans if not isinstance(span, int) for factor in sympy.Mul.make_args(span)}
    spans += [magnitude(each) for each in parameters if each not in counted]
    total: Size = max((span for span in spans if isinstance(span, int)), default=0)
    for span in dict.fromkeys(span for span in spans if not isinstance(span, int)):
        total = add(total, span)
    # Chunks are whole blocks: together they go past the end.
    return total if schedule.kind != "split" else add(total, schedule.chunks * WIDEST_BLOCK)


def reaches(domain: Sizes, places: Iterable[tuple[Sizes, Size]]) -> Iterator[Size]:
    for strides, offset in places:
        reach = magnitude(offset)
        for size, stride in zip(domain, strides, strict=False):
            reach = add(reach, magnitude(mul(size, stride)))
        yield reach


def gathered(gathers: Iterable[Gather]) -> list[Size]:
    return [magnitude(mul(gather.size, gather.stride)) for gather in gathers]
