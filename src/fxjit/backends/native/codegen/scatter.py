"""A statement that stores at computed places, as a C++ function; `render` writes any group.

Loops along which the store has a stride of its own never meet in one place: threads and vectors share those. The others
run in order, so that the last of several values stands, and sums are added up as eager adds them, whatever the threads.
"""

from __future__ import annotations

from ..hints import Hints
from ..index import prod
from ..ir import Expr, Iota, Load, Scatter, walk
from ..ops import SCALARS
from ..schedule.collapse import collapse
from ..schedule.fuse import Group, Member, permuted
from ..schedule.per_column import per_column
from ..schedule.short_loops import with_short_loops
from ..schedule.transposes import with_block_loops
from .cpp import Line, Loops, load_text, store_text
from .kernel import Kernel, Renderer, indent, lines, loop, simd_of
from .prelude import C_TYPES
from .short_loops import ShortLoopRenderer
from .transposes import BlockRenderer

# What a thread takes at least of a row that threads share, and rows that are enough for them.
PIECE = 64
ENOUGH_ROWS = 8


def render(
    group: Group, in_registers: frozenset[str], hints: Hints, threads: int, fresh: frozenset[str] = frozenset()
) -> Kernel:
    """`in_registers` are the buffers that nothing outside the group reads: they are in registers or on the stack. `fresh` are
    results of the graph in memory of their own, to which nothing is written before."""
    merged = collapse(group)
    if group.scatters:
        return ScatterRenderer(in_order(merged), in_registers, hints, threads).kernel()
    turned = with_short_loops(merged, hints)
    if turned is not None:
        return ShortLoopRenderer(turned[0], in_registers, hints, threads, turned[1]).kernel()
    blocks = with_block_loops(merged, hints)
    if blocks is not None:
        return BlockRenderer(blocks, in_registers, hints, threads).kernel()
    merged, alone = per_column(merged)
    return Renderer(merged, in_registers | alone, hints, threads, fresh).kernel()


def in_order(group: Group) -> Group:
    """The loops with a stride of their own, then those without; a loop over neighbours in memory last of all."""
    compute = group.members[0].compute
    own = [k for k, stride in enumerate(compute.stride) if stride != 0]
    repeated = [k for k, stride in enumerate(compute.stride) if stride == 0]
    neighbours = own[-1:] if own and compute.stride[own[-1]] == 1 else []
    order = tuple([k for k in own if k not in neighbours] + repeated + neighbours)
    made = permuted(compute, order)
    return Group(made.size, [Member(made, ())])


class ScatterRenderer(Renderer):
    @property
    def scatter(self) -> Scatter:
        scatter = self.group.members[0].compute.scatter
        assert scatter is not None
        return scatter

    def pointwise(self) -> list[str]:
        sizes, stride = self.group.outer, self.group.members[0].compute.stride
        if prod(sizes) == 0:
            return []
        last = len(sizes) - 1
        vector = last >= 0 and stride[last] == 1
        rows = [k for k in range(last + (not vector)) if stride[k] != 0]
        shared = vector and self.hints(prod(sizes[k] for k in rows)) < ENOUGH_ROWS
        serial = [k for k in range(last + (not vector)) if shared or k not in rows]
        inner, before = self.scopes()
        self.update(inner, before)
        nest: list[str] = [*before.lines, *inner.lines]
        if vector:
            bounds = ("first", "past") if shared else ("0", self.c(sizes[last]))
            head = f"for (int64_t o{last} = {bounds[0]}; o{last} < {bounds[1]}; ++o{last}) {{"
            simd = "" if any(varies(gather.index) for gather in self.scatter.gathers) else simd_of(inner.lines)
            nest = [*before.lines, simd, head, indent(lines(inner.lines)), "}"]
        for k in reversed(serial):
            nest = [loop(self.outer[k], self.c(sizes[k])) + " {", indent(lines(nest)), "}"]
        return [
            *self.unless_empty(sizes), *self.checked_before(), *(self.in_pieces(nest) if shared else self.in_rows(nest, rows))
        ]  # fmt: skip

    def checked_before(self) -> list[str]:
        """All indices of a store in an input, before anything is stored: where one is wrong the input stays as it was."""
        member = self.group.members[0]
        if member.compute.out.kind != "input":
            return []
        out: list[str] = []
        for gather in self.scatter.gathers:
            inner, before = self.scopes()
            given = self.at_hand(member, {})
            index = self.printer.emit(gather.index, self.outer, inner, before, given)
            self.printer.checked(gather, index, inner)
            own = [k for k in range(len(self.outer)) if steps(gather.index, k)]
            nest = [*map(str, before.lines), *map(str, inner.lines)]
            for k in reversed(own):
                nest = [loop(self.outer[k], self.c(self.group.outer[k])) + " {", indent(lines(nest)), "}"]
            out += ["{", indent(lines(nest)), "}"]
        return [*out, "if (bad) return 1;"]

    def in_rows(self, nest: list[str], rows: list[int]) -> list[str]:
        sizes = self.group.outer
        collapsed = f" collapse({len(rows)})" if len(rows) > 1 else ""
        pragma = self.parallel(self.c(prod(sizes)), self.weight(self.group.members), collapsed)
        return self.wrap(nest, [self.outer[k] for k in rows], tuple(sizes[k] for k in rows), pragma)

    def in_pieces(self, nest: list[str]) -> list[str]:
        """Each thread goes through all of the indices, with a piece of what is stored at each."""
        sizes, weight = self.group.outer, self.weight(self.group.members)
        total, length = self.c(prod(sizes)), self.c(sizes[-1])
        pragma = self.parallel(total, weight)
        if not pragma:
            return [f"const int64_t first = 0, past = {length};", *nest]
        head = f"const int64_t pieces = fx_imax(1, fx_imin({self.team}, {length} / {PIECE}));"
        mine = f"const int64_t first = {length} * piece / pieces, past = {length} * (piece + 1) / pieces;"
        pragma = pragma.replace("(parallel: ", "(parallel: pieces > 1 && ")
        return [head, pragma, loop("piece", "pieces") + " {", indent(lines([mine, *nest])), "}"]

    def update(self, inner: Loops, before: Loops) -> None:
        """One element: its value combined with what is in its place."""
        member = self.group.members[0]
        compute, scatter = member.compute, self.scatter
        loops, given = self.outer, self.at_hand(member, {})
        value = self.printer.emit(compute.expr, loops, inner, before, given)
        place = self.printer.affine(compute.stride, compute.offset, loops)
        reads = [value]
        wrong: list[str] = []
        for gather in scatter.gathers:
            scope = inner if varies(gather.index) else before
            index = self.printer.emit(gather.index, loops, inner, before, given)
            if scope is inner:
                index, out_of_bounds = self.printer.bounds(gather, index, scope)
                wrong.append(out_of_bounds)
            else:
                index = self.printer.checked(gather, index, scope)
            reads.append(index)
            place += f" + {index} * {self.c(gather.stride)}"
        element, storage = f"{self.pointers[compute.out.name]}[{place}]", compute.out.dtype
        if scatter.mode != "set":
            value = SCALARS[scatter.mode].cpp.format(load_text(element, storage), value, t=C_TYPES[compute.expr.dtype])
        # Where each element has an index, a jump is faster than a choice, which the next element's sum would depend on.
        unless = f"if (__builtin_expect({' | '.join(wrong)}, 0)) bad = 1; else " if wrong else ""
        inner.lines.append(Line(f"{unless}{element} = {store_text(value, storage)};", [*reads, *wrong]))


def varies(expr: Expr) -> bool:
    """Whether the value depends on the innermost loop."""
    return steps(expr, -1)


def steps(expr: Expr, k: int) -> bool:
    """Whether the value depends on the k-th loop."""
    return any(node.strides and node.strides[k] != 0 for node in walk(expr) if isinstance(node, (Load, Iota)))
