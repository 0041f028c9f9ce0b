"""A group of statements as one C++ function: `int name(void *const *P, const int64_t *S)`.

P holds the buffers' data, S the symbolic sizes; the result is 1 when an index was out of bounds. Three shapes of loop
nest: pointwise groups (all loops outer), reducing groups over rows (inner loops vectorised along the reduction) and over
columns (`column_reduction`: up to 256 neighbouring results at once, vectorised across them). `split` groups share the
reduction itself among threads, in a number of chunks that depends on sizes alone, so that results do not depend on threads.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from ..choose.model import grain
from ..choose.predictions import COLUMNS_AT_ONCE, COLUMNS_MOST
from ..hints import Hints
from ..index import Size, Sizes, mul, prod
from ..ir import Buffer, Compute, Gather, Load, Op, compute_type
from ..ops import REDUCTIONS, SCANS, work
from ..schedule.fuse import Group, Member, group_symbols, reads_same_place
from . import compensation, position_totals, tree_reduction
from .cpp import (
    HEAVY,
    LEAST_HIDDEN_STEP,
    LEAST_HIDDEN_STEP_OF_NARROW,
    NOTE,
    Given,
    Line,
    Loops,
    Printer,
    Scope,
    makes_integers,
    store_text,
)
from .fp16 import LEAST, ONE_VECTOR, ROW, SHORT, ConvertedRows
from .loop_fission import LONG_ENOUGH, TILE, fission, tiled_loops
from .page_prefetch import INTERVAL, is_prefetched
from .prelude import C_TYPES, MEMORY_TYPES

BLOCK = 4096
MAX_CHUNKS = 64
SCRATCH_BYTES = 65536
#: The operations that round as a store in memory of a type does.
ROUNDING = {"round_to_half": torch.float16, "round_to_bfloat16": torch.bfloat16}
#: The place of the loop over neighbouring columns, in groups that reduce over columns.
COLUMN = "(lb + l)"


@dataclass(slots=True)
class Kernel:
    """A generated kernel for the executor: the function's text without its name, and its arguments in order."""

    body: str
    buffers: list[str]
    sizes: list[Size]


def scratch_size(member: Member, columns: int) -> int | None:
    """Bytes of a row-local array for an inner value, or None when it has to be memory."""
    count = prod(member.inner)
    if not isinstance(count, int):
        return None
    bytes_needed = count * columns * compute_type(member.compute.out.dtype).itemsize
    return bytes_needed if bytes_needed <= SCRATCH_BYTES else None


class Renderer:
    """Renders a group without stores at computed places (those: scatter.py). `in_registers` are the buffers that nothing
    outside the group reads: values kept in registers or on the stack. `fresh`: those in memory, not written to before."""

    def __init__(
        self, group: Group, in_registers: frozenset[str], hints: Hints, threads: int, fresh: frozenset[str] = frozenset()
    ) -> None:
        self.group, self.in_registers, self.hints, self.fresh = group, in_registers, hints, fresh
        self.threads = f" num_threads({threads})" if threads else ""
        self.team = str(threads) if threads else "FX_THREADS"
        self.makers = {member.compute.out.name: member for member in group.members}
        self.position = {id(member): k for k, member in enumerate(group.members)}
        self.outer = [f"o{k}" for k in range(len(group.outer))]
        self.order: dict[str, Buffer | None] = {}
        self.pointers: dict[str, str] = {}
        self.types: dict[str, torch.dtype] = {}
        self.parameters = sorted(group_symbols(self.group), key=str)
        self.symbols = {str(s): f"n{k}" for k, s in enumerate(self.parameters)}
        self.printer = Printer(self.pointers, self.symbols, COLUMN if group.column_reduction else None)
        self.printer.hides_constants = any(makes_integers(expr) for member in group.members for expr in member.compute.exprs)
        heavy = self.weight(group.members) >= HEAVY
        if heavy or any(load.memory_dtype.itemsize < 4 for member in group.members for load in member.compute.loads()):
            self.printer.least_hidden_step = LEAST_HIDDEN_STEP if heavy else LEAST_HIDDEN_STEP_OF_NARROW
            self.printer.hides_steps = COLUMN if group.column_reduction else "i" if group.reducing else "o"
        self.read_here = {load.buffer for member in group.members for load in member.compute.loads()}
        self.arrays: list[str] = []
        self.whole: dict[tuple[str, str], str] = {}
        self.crossing = self.crosses_loop_nests()
        self.columns = self.choose_columns()
        self.name_buffers()

    # What the kernel touches

    def crosses_loop_nests(self) -> set[str]:
        """Inner values that a later loop nest reads again: they need memory."""
        found = set()
        for member in self.group.members:
            for load in member.compute.loads():
                maker = self.makers.get(load.buffer)
                if maker is not None and not maker.gives_row and maker.loop_nest != member.loop_nest:
                    found.add(load.buffer)
        return found

    def choose_columns(self) -> int:
        """As many as there are totals for, where rows have no inner values: memory is read on then. Fewer where inner values
        stay in the cache for that: 16 floats are still a whole line."""
        inner = [self.makers[name] for name in self.crossing if name in self.in_registers]
        if not inner and self.group.column_reduction and self.hints(self.group.outer[-1]) > COLUMNS_AT_ONCE:
            return COLUMNS_MOST
        for columns in (COLUMNS_AT_ONCE, COLUMNS_AT_ONCE // 2, COLUMNS_AT_ONCE // 4):
            if all(scratch_size(member, columns) is not None for member in inner):
                return columns
        return COLUMNS_AT_ONCE

    def is_scratch(self, name: str) -> bool:
        member = self.makers[name]
        return (
            name in self.in_registers
            and name in self.crossing
            and scratch_size(member, self.columns if self.group.column_reduction else 1) is not None
        )

    def name_buffers(self) -> None:
        for member in self.group.members:
            for load in member.compute.loads():
                maker = self.makers.get(load.buffer)
                if maker is None or (load.buffer in self.crossing and not self.is_scratch(load.buffer)):
                    self.name_buffer(load.buffer, load.memory_dtype)
            out = member.compute.out
            if self.in_memory(out.name):
                self.name_buffer(out.name, out.dtype)

    def in_memory(self, name: str) -> bool:
        return name not in self.in_registers or (name in self.crossing and not self.is_scratch(name))

    def name_buffer(self, name: str, dtype: torch.dtype) -> None:
        if name not in self.pointers:
            self.pointers[name] = f"p{len(self.pointers)}"
            self.types[name] = dtype

    # The function

    def kernel(self) -> Kernel:
        if not self.group.reducing:
            inside = self.pointwise()
        elif self.group.split:
            inside = self.split()
        else:
            inside = self.rows()
        head: list[str] = []
        written = set(self.makers)
        for position, (name, pointer) in enumerate(self.pointers.items()):
            const = "" if name in written else "const "
            ctype = MEMORY_TYPES[self.types[name]]
            head.append(f"{const}{ctype} *__restrict__ {pointer} = ({const}{ctype} *)P[{position}];")
        head += [f"const int64_t {name} = S[{k}];" for k, name in enumerate(self.symbols.values())]
        tables = ["int bad = 0;", *self.empty_tables()] if self.printer.checks else []
        head += [*self.printer.divided_sizes(), *tables]
        text = "\n".join(head + self.printer.opaque_constants() + inside)
        tail = "return bad;" if self.printer.checks else "return 0;"
        return Kernel(canonical(indent(text + "\n" + tail)), list(self.pointers), self.parameters)

    def empty_tables(self) -> list[str]:
        """An index into nothing is out of bounds before anything is read; nothing is read when there is no index."""
        lines = []
        for member in self.group.members:
            total = prod(self.group.outer + member.inner)
            for gather in member.compute.gathers():
                if not (isinstance(gather.size, int) and gather.size > 0):
                    lines.append(f"if ({self.c(gather.size)} == 0 && {self.c(total)} != 0) return 1;")
        return list(dict.fromkeys(lines))

    def c(self, size: Size) -> str:
        return self.printer.size(size)

    def bad(self) -> str:
        return " reduction(|:bad)" if self.gathers() else ""

    def gathers(self) -> list[Gather]:
        return [gather for member in self.group.members for gather in member.compute.gathers()]

    def weight(self, members: list[Member]) -> int:
        return max(1, sum(sum(map(work, member.compute.exprs)) for member in members))

    def parallel(self, total: str, weight: int, extra: str = "") -> str:
        least = grain()
        if re.fullmatch(r"[0-9 *()]+", total) and eval(total) * weight <= least:
            return ""  # known to be small: even a team of one thread costs more than such a loop
        # Without `parallel:` the condition would be one for vectors too.
        worthwhile = f"if (parallel: (int64_t)({total}) * {weight} > {least})"
        return f"#pragma omp parallel for{extra} schedule(static){self.threads}{self.bad()} {worthwhile}"

    # Pointwise groups

    def pointwise(self) -> list[str]:
        loops, sizes = self.outer, self.group.outer
        if prod(sizes) == 0:
            return []
        inner, before = self.scopes()
        names: dict[str, str] = {}
        converted = self.converted_rows(loops[-1], sizes[-1], "lo", "hi - lo", TILE) if loops else None
        with self.printer.converting(converted):
            for member in self.group.members:
                self.body(member, loops, inner, before, names)
        if not loops:
            return [*before.lines, *inner.lines]
        weight = self.weight(self.group.members)
        total = self.c(prod(sizes))
        last = len(loops) - 1
        rows = self.hints(prod(sizes[:-1]))
        simd = simd_of(inner.lines)
        parts = fission(inner.lines) if self.hints(sizes[last]) >= LONG_ENOUGH else [inner.lines]
        tiles = len(parts) > 1 or (converted is not None and converted.used)
        high = self.c(sizes[last])
        if last == 0 or (rows < 8 and self.hints(sizes[-1]) > BLOCK):
            threaded = self.parallel(high, weight)
            if last == 0 and (ahead := self.prefetch(sizes, "from")):
                inside = self.innermost(parts, loops[0], ("from", "to"), "" if tiles else simd, simd, converted)
                inside = [f"const int64_t to = fx_imin(from + {INTERVAL}, {high});", *ahead, *inside]
                head = f"for (int64_t from = 0; from < {high}; from += {INTERVAL}) {{"
                return [*self.unless_empty(sizes), *before.lines, threaded, head, indent(lines(inside)), "}"]
            if not tiles:
                threaded = threaded.replace("parallel for", "parallel for simd") or simd
            nest = [*before.lines, *self.innermost(parts, loops[last], ("0", high), threaded, simd, converted)]
            for k in reversed(range(last)):
                nest = [loop(loops[k], self.c(sizes[k])) + " {", indent(lines(nest)), "}"]
            return self.unless_empty(sizes) + nest
        collapse_clause = f" collapse({last})" if last > 1 else ""
        nest = self.innermost(parts, loops[last], ("0", high), "" if tiles else simd, simd, converted)
        nest = [*self.prefetch(sizes[:last]), *before.lines, *nest]
        nest = self.wrap(nest, loops[:last], sizes[:last], self.parallel(total, weight, collapse_clause))
        return self.unless_empty(sizes) + nest

    def innermost(
        self,
        parts: list[list[Line]],
        index: str,
        bounds: tuple[str, str],
        pragma: str,
        simd: str,
        rows: ConvertedRows | None,
    ) -> list[str]:
        """The loop along the last dimension under `pragma`, over elements, or over tiles of them where the body is several
        loops, or what it reads and writes is converted in arrays."""
        low, high = bounds
        converted = rows is not None and rows.used
        if len(parts) == 1 and not converted:
            return [pragma, f"for (int64_t {index} = {low}; {index} < {high}; ++{index}) {{", indent(lines(parts[0])), "}"]
        head = f"for (int64_t lo = {low}; lo < {high}; lo += {TILE}) {{"
        tile = tiled_loops(parts, index, high, simd)
        if rows is not None and converted:
            tile = [tile[0], *self.arrays, *rows.before, *tile[1:], *rows.after]
        return [*filter(None, [pragma]), head, indent(lines(tile)), "}"]

    def prefetch(self, outer: Sizes, start: str | None = None) -> list[str]:
        """Prefetches the pages that an iteration of the `outer` loops is about to write (page_prefetch.py); with `start`, those
        of `INTERVAL` of the last loop's iterations."""
        out, loops, times = [], self.outer[: len(outer)], 1
        if start is not None:
            loops, times = [*loops[:-1], start], INTERVAL
        for member in self.group.members:
            compute, name = member.compute, member.compute.out.name
            if name in self.fresh and self.in_memory(name) and is_prefetched(member, outer, self.hints):
                place = self.printer.affine(compute.stride[: len(outer)], compute.offset, loops)
                step = self.c(mul(compute.stride[len(outer) - 1], compute.out.dtype.itemsize * times))
                pointer = self.pointers[name]
                out.append(f"fx_ahead({pointer} + {place}, {step}, {pointer} + {self.c(compute.out.extent)});")
        return out

    def unless_empty(self, sizes: Sizes) -> list[str]:
        """Where there may be nothing to do, nothing is read either: values read ahead of a loop have no memory then."""
        total = prod(sizes)
        return [] if isinstance(total, int) else [f"if ({self.c(total)} == 0) return 0;"]

    def heads(self, loops: list[str], sizes: Sizes) -> list[str]:
        return [loop(name, self.c(size)) for name, size in zip(loops, sizes, strict=True)]

    def wrap(self, nest: list[str], loops: list[str], sizes: Sizes, pragma: str) -> list[str]:
        heads = self.heads(loops, sizes)
        if not heads:
            return ["{", indent(lines(nest)), "}"]
        return [pragma, *heads[:-1], heads[-1] + " {", indent(lines(nest)), "}"]

    def converted_rows(
        self, loop: str, size: Size, start: str, count: str, most: int, kept: dict[tuple[str, str], str] | None = None
    ) -> ConvertedRows | None:
        """The arrays of half numbers for a loop of vectors of that many elements, if it is long enough to have them. `kept` are
        those of other loops over the same whole rows."""
        if self.hints(size) < LEAST:
            return None
        one = isinstance(size, int) and size <= ONE_VECTOR and not self.group.reducing
        one = one and self.weight(self.group.members) >= HEAVY
        both = one or (kept is not None and isinstance(size, int) and size <= SHORT)
        most = -(-min(most, size if isinstance(size, int) else most) // LEAST) * LEAST
        place = "l" if loop == COLUMN else f"{loop} - {start}"
        return ConvertedRows(loop, start, place, count, most, {} if kept is None else kept, self.arrays, both, one)

    def scopes(self) -> tuple[Loops, Loops]:
        before: Loops = Scope()
        return Scope(before), before

    def body(self, member: Member, loops: list[str], inner: Loops, before: Loops, names: dict[str, str]) -> str:
        """One element of a member that does not reduce: computes it, files its name, stores it where it must be."""
        compute, moved = self.rounded_once(member.compute), None
        given = self.at_hand(member, names)
        if self.in_memory(compute.out.name) and compute.scan is None:
            moved = self.printer.copied(compute.expr, compute.out.dtype, loops, inner, before, given)
            if moved is not None:
                place = self.printer.affine(compute.stride, compute.offset, loops)
                inner.lines.append(Line(f"{self.pointers[compute.out.name]}[{place}].bits = {moved};", [moved]))
                if compute.out.name not in self.read_here:
                    return moved
        value = self.printer.emit(compute.expr, loops, inner, before, given)
        if compute.scan is not None:
            value = self.scanned(member, value, inner)
        names[compute.out.name] = value
        if self.in_memory(compute.out.name):
            if moved is None:
                text = self.printer.stored(
                    self.pointers[compute.out.name], compute.stride, compute.offset, loops, value, compute.out.dtype
                )
                inner.lines.append(Line(text, [value]))
        elif self.is_scratch(compute.out.name):
            inner.lines.append(Line(f"s_{compute.out.name}[{self.scratch_place(member)}] = {value};", [value]))
        return value

    def rounded_once(self, compute: Compute) -> Compute:
        """Without rounding before a store that rounds, unless the kernel reads the value again."""
        rounds = isinstance(compute.expr, Op) and ROUNDING.get(compute.expr.name) is compute.out.dtype
        if not rounds or compute.out.name in self.read_here or not self.in_memory(compute.out.name):
            return compute
        assert isinstance(compute.expr, Op)
        return replace(compute, expr=compute.expr.args[0])

    def scanned(self, member: Member, value: str, scope: Loops) -> str:
        """The total with this element; never shared by name, since its text is the same in every iteration."""
        name = member.compute.out.name
        total = f"a_{name}[l]" if self.group.column_reduction else f"a_{name}"
        kind = self.acc_type(member)
        scope.lines.append(Line(self.combine(member, total, value), [value]))
        scope.lines.append(Line(f"const {kind} t_{name} = ({kind}){total};", [], f"t_{name}", kind, 1))
        return f"t_{name}"

    def scratch_place(self, member: Member) -> str:
        """The place in a row-local array of the iteration the member is in; its loops may be cut otherwise than the maker's."""
        text = "0"
        for k, size in enumerate(member.inner):
            text = f"i{k}" if text == "0" else f"({text}) * {self.c(size)} + i{k}"
        return f"({text}) * {self.columns} + l" if self.group.column_reduction else text

    def at_hand(self, member: Member, names: dict[str, str]) -> Given:
        def given(load: Load) -> tuple[str, bool] | None:
            maker = self.makers.get(load.buffer)
            if maker is None or self.position[id(maker)] >= self.position[id(member)]:
                return None  # not made here, or an input read before the member that writes to it
            name = load.buffer
            if not self.group.reducing:
                return (
                    (names[name], True) if name in names and reads_same_place(load, maker, member, self.group.outer) else None
                )
            if maker.gives_row:
                return (f"r_{name}[l]", True) if self.group.column_reduction else (f"r_{name}", False)
            if maker.loop_nest == member.loop_nest and name in names:
                return names[name], True
            if self.is_scratch(name):
                return f"s_{name}[{self.scratch_place(member)}]", True
            return None

        return given

    # Reducing groups

    def rows(self) -> list[str]:
        """Threads share the outer loops; each index runs the loop nests one after the other."""
        group = self.group
        if prod(group.outer) == 0:
            return []
        weight = self.weight(group.members)
        heaviest = max((prod(group.outer + member.inner) for member in group.members), key=self.hints)
        inside = self.declare_scratch()
        loop_nests = sorted({member.loop_nest for member in group.members})
        for loop_nest in loop_nests:
            if any(not m.is_row and m.loop_nest == loop_nest for m in group.members):
                inside += self.render_loop_nest(loop_nest, None)
            inside += self.row_statements(loop_nest)
        inside = [*self.arrays, *inside]
        heads = self.heads(self.outer, group.outer)
        step: list[str] = []
        if group.column_reduction:
            step, heads[-1], length = self.columns_at_once(group.outer)
            inside = [length, *inside]
        else:
            inside = [*self.prefetch(group.outer), *inside]
        if not heads:
            return ["{", indent(lines(inside)), "}"]
        clause = f" collapse({len(heads)})" if len(heads) > 1 else ""
        threaded = self.parallel(self.c(heaviest), weight, clause)
        nest = [*step, threaded, *heads[:-1], heads[-1] + " {", indent(lines(inside)), "}"]
        return self.unless_empty(group.outer) + nest

    def columns_at_once(self, sizes: Sizes) -> tuple[list[str], str, str]:
        """Of the loop over columns: how many are taken at once, if that is no constant, its head, and how many are left."""
        size, at_once, step = self.c(sizes[-1]), str(self.columns), []
        if self.columns > COLUMNS_AT_ONCE:  # each thread has some
            at_once = "step"
            step = [f"const int64_t step = fx_step({self.c(prod(sizes))}, {self.team}, {COLUMNS_AT_ONCE}, {self.columns});"]
        head = f"for (int64_t lb = 0; lb < {size}; lb += {at_once})"
        return step, head, f"const int64_t nl = fx_imin({at_once}, {size} - lb);"

    def declare_scratch(self) -> list[str]:
        out = []
        for name, member in self.makers.items():
            if self.is_scratch(name):
                count = prod(member.inner)
                columns = f" * {self.columns}" if self.group.column_reduction else ""
                out.append(f"alignas(64) {C_TYPES[compute_type(member.compute.out.dtype)]} s_{name}[{count}{columns}];")
        return out

    def loop_nest_members(self, loop_nest: int) -> list[Member]:
        return [m for m in self.group.members if not m.is_row and m.loop_nest == loop_nest]

    def acc_type(self, member: Member) -> str:
        return C_TYPES[compute_type(member.compute.out.dtype)]

    def is_compensated(self, member: Member) -> bool:
        """Whether the sum is gathered in pieces, whose totals are added up with what rounding takes off (compensation.py)."""
        return self.total_type(member) == "double" and compensation.is_applicable(member.compute)

    def total_of(self, member: Member, columns: str = "") -> str:
        name = f"_{member.compute.out.name}{columns}"
        return f"fx_total(a{name}, e{name})" if self.is_compensated(member) else f"a{name}"

    def wide(self, member: Member) -> bool:
        """Sums and products of floats are gathered in double and rounded once, so that they are as exact as eager's."""
        return member.compute.reduction in ("sum", "prod") and compute_type(member.compute.out.dtype) is torch.float32

    def total_type(self, member: Member) -> str:
        # Eager's scans have their totals in double.
        wide_scan = member.compute.scan in ("sum", "prod", "logaddexp") and member.compute.expr.dtype is torch.float32
        if self.wide(member) or wide_scan:
            return "double"
        return "int" if member.compute.reduction in ("any", "all") else self.acc_type(member)

    def start(self, member: Member) -> str:
        kind, ctype = member.compute.reduction or member.compute.scan, self.acc_type(member)
        if kind == "logaddexp":
            return "-__builtin_inf()"
        if kind in ("max", "min"):
            return f"fx_limits<{ctype}>::{'low' if kind == 'max' else 'high'}()"
        return "1" if kind in ("prod", "all") else "0"

    def combine(self, member: Member, total: str, value: str) -> str:
        kind = member.compute.reduction
        if kind is None:
            assert member.compute.scan is not None
            kinds, total_type = SCANS[member.compute.scan], self.total_type(member)
            return f"{total} = {kinds.combine.format(total, f'({total_type}){value}', t=total_type)};"
        if kind in ("any", "all"):
            return f"{total} {'|' if kind == 'any' else '&'}= {value};"
        total_type = self.total_type(member)
        value = f"({total_type}){value}" if self.wide(member) else value
        return f"{total} = {REDUCTIONS[kind].combine.format(total, value, t=total_type)};"

    def clause(self, member: Member, name: str) -> str:
        symbol = {"sum": "+", "prod": "*", "any": "|", "all": "&", "max": "fx_max", "min": "fx_min"}[
            member.compute.reduction or ""
        ]
        return f" reduction({symbol}:{name})"

    def vector_length(self, reducers: list[Member]) -> str:
        """A maximum has as many totals as the loop has vector lanes, combined one by one at the end: by itself GCC takes as
        many as there are of the narrowest type."""
        types = [self.acc_type(member) for member in reducers if member.compute.reduction in ("max", "min")]
        return f" simdlen(FX_VECTOR / sizeof({types[0]}))" if types else ""

    def render_loop_nest(self, loop_nest: int, bounds: tuple[str, str] | None) -> list[str]:
        """The loops of a loop nest, totals `a_<buffer>` and after them rows `r_<buffer>`; `bounds` restrict the first loop."""
        members = self.loop_nest_members(loop_nest)
        reducers = [m for m in members if m.compute.reduction is not None]
        if self.group.column_reduction:
            return self.column_nest(members, reducers, bounds)
        running = [m for m in members if m.compute.has_order]
        declared = [f"{self.total_type(m)} a_{m.compute.out.name} = {self.start(m)};" for m in running]
        inner, before = self.scopes()
        sizes = members[0].inner
        by_tree = bounds is None and self.reduces_by_tree(members, reducers)
        serial = any(m.compute.scan is not None for m in members)  # what goes one by one is no loop of vectors
        pieces = compensation.Pieces([m.compute.out.name for m in reducers if self.is_compensated(m)], sizes, serial)
        declared += pieces.declared
        by_position = not serial and not pieces.declared and position_totals.is_applicable(sizes, [m.compute for m in members])
        for m in reducers if by_position else ():
            declared += position_totals.declared(f"w_{m.compute.out.name}", self.total_type(m), self.start(m), sizes[-1])
        names: dict[str, str] = {}
        clauses = ""
        partial: list[str] = []
        flush: list[str] = []
        arrays: dict[tuple[str, str], str] = {}
        last = f"i{len(sizes) - 1}"
        whole = bounds is None and len(sizes) == 1 and isinstance(sizes[0], int) and sizes[0] <= ROW
        rows = None if serial else self.converted_rows(last, sizes[-1], "lo", "hi - lo", ROW, self.whole if whole else None)
        for member in members:
            loops = self.outer + [f"i{k}" for k in range(len(member.inner))]
            if by_tree and (row := self.row_at(member, names, rows if whole else None)) is not None:
                made = tree_reduction.total(row, self.total_type(member), str(member.compute.reduction), sizes[0])
                flush.append(f"a_{member.compute.out.name} = {made};")
                continue
            with self.printer.converting(rows):
                if member.compute.reduction is None:
                    value = self.body(member, loops, inner, before, names)
                    if self.is_scratch(member.compute.out.name):
                        arrays[value, self.acc_type(member)] = f"s_{member.compute.out.name}"
                    continue
                value = self.printer.emit(member.compute.expr, loops, inner, before, self.at_hand(member, names))
            total = f"{'v' if not by_tree and self.is_compensated(member) else 'a'}_{member.compute.out.name}"
            if by_tree:
                kind, ctype = member.compute.reduction, self.acc_type(member)
                array = arrays.get((value, ctype))
                if array is None:
                    array = f"w_{member.compute.out.name}"
                    partial.append(f"alignas(64) {ctype} {array}[{sizes[0]}];")
                    inner.lines.append(Line(f"{array}[i0] = {value};", [value]))
                flush.append(f"{total} = {tree_reduction.total(array, self.total_type(member), kind, sizes[0])};")
                continue
            if by_position:
                inner.lines.append(Line(self.combine(member, f"w_{member.compute.out.name}[{last}]", value), [value]))
                continue
            inner.lines.append(Line(self.combine(member, total, value), [value]))
            clauses += self.clause(member, total)
        low, high = self.bounds(sizes, bounds, len(sizes) == 1)
        if not by_tree:
            clauses += "" if by_position else self.vector_length(reducers)
            partial += pieces.begin
            flush += pieces.end
        simd = "" if serial else simd_of(inner.lines, clauses)

        def core(low: str, high: str) -> list[str]:
            head = f"for (int64_t {last} = {low}; {last} < {high}; ++{last}) {{"
            return [simd, head, indent(lines(inner.lines)), "}"] if inner.lines else []

        if rows is not None and rows.used:
            tile = [*rows.before, *partial, *core("lo", "hi"), *flush, *rows.after]
            if whole:
                nest = [*before.lines, f"const int64_t lo = 0, hi = {high};", *tile]
            else:
                tile = [f"const int64_t hi = fx_imin(lo + {ROW}, {high});", *tile]
                nest = [*before.lines, f"for (int64_t lo = {low}; lo < {high}; lo += {ROW}) {{", indent(lines(tile)), "}"]
        elif pieces.length and not by_tree:
            tile = [f"const int64_t to = fx_imin(from + {pieces.length}, {high});", *partial, *core("from", "to"), *flush]
            head = f"for (int64_t from = {low}; from < {high}; from += {pieces.length}) {{"
            nest = [*before.lines, head, indent(lines(tile)), "}"]
        else:
            nest = [*before.lines, *partial, *core(low, high), *flush]
        last_piece = [] if by_tree else [*pieces.rest, *(self.of_positions(m, sizes[-1]) for m in reducers if by_position)]
        return [*declared, *self.around(nest, sizes, bounds), *last_piece, *([] if bounds else self.name_rows(reducers))]

    def around(self, nest: list[str], sizes: Sizes, bounds: tuple[str, str] | None) -> list[str]:
        """The loops around the last one, unless they run over nothing."""
        for k in reversed(range(len(sizes) - 1)):
            low, high = self.bounds(sizes, bounds, k == 0, k)
            nest = [f"for (int64_t i{k} = {low}; i{k} < {high}; ++i{k}) {{", indent(lines(nest)), "}"]
        count = prod(sizes)
        head = "{" if isinstance(count, int) else f"if ({self.c(count)} != 0) {{"
        return [head, indent(lines([] if count == 0 else nest)), "}"]

    def of_positions(self, member: Member, count: Size) -> str:
        total, name = f"a_{member.compute.out.name}", f"w_{member.compute.out.name}"
        ctype, kind = self.total_type(member), str(member.compute.reduction)
        return position_totals.combined(total, name, ctype, kind, count, self.combine(member, total, f"{name}[l]"))

    def reduces_by_tree(self, members: list[Member], reducers: list[Member]) -> bool:
        """Whether the totals are made of whole vectors at the end of a short row (tree_reduction.py)."""
        totals = [(member.compute.reduction, self.acc_type(member)) for member in reducers]
        rows = len(members[0].inner) == 1 and all(member.compute.scan is None for member in members)
        floats = all(ctype in ("float", "double") for _, ctype in totals) and not any(map(self.is_compensated, reducers))
        bytes_read = any(load.memory_dtype.itemsize == 1 for member in members for load in member.compute.loads())
        most = tree_reduction.MOST_OF_FLOATS if floats and not bytes_read else tree_reduction.MOST
        return rows and tree_reduction.is_applicable(members[0].inner[0], totals, most)

    def row_at(self, member: Member, names: dict[str, str], rows: ConvertedRows | None) -> str | None:
        """Where the numbers that the member reduces lie one after the other: in memory, if the kernel does not write there, or
        in the array of a half type's whole row. Put down in another array, they would be copied by GCC in vectors of half the
        width, and a load of what two stores wrote waits for both."""
        load, loops = member.compute.expr, [*self.outer, "i0"]
        if member.compute.reduction is None:  # a copy of the row
            return None
        if not isinstance(load, Load) or load.gathers or load.strides[-1] != 1 or load.buffer in self.group.writes():
            return None
        if C_TYPES[load.dtype] != self.acc_type(member) or self.at_hand(member, names)(load) is not None:
            return None
        if rows is not None and rows.widens(load.memory_dtype):
            first = self.printer.affine(load.strides, load.offset, rows.at_start(loops))
            return rows.widened(f"{self.pointers[load.buffer]}[{first}]").partition("[")[0]
        if load.memory_dtype is not load.dtype:
            return None
        return f"{self.pointers[load.buffer]} + ({self.printer.affine(load.strides[:-1], load.offset, self.outer)})"

    def bounds(self, sizes: Sizes, bounds: tuple[str, str] | None, first: bool, k: int = -1) -> tuple[str, str]:
        if bounds and first:
            return bounds
        return "0", self.c(sizes[k])

    def name_rows(self, reducers: list[Member]) -> list[str]:
        out = []
        for member in reducers:
            name = member.compute.out.name
            out.append(f"const {self.acc_type(member)} r_{name} = ({self.acc_type(member)}){self.total_of(member)};")
            out += self.store_row(member, f"r_{name}", self.outer)
        return out

    def store_row(self, member: Member, value: str, loops: list[str]) -> list[Line]:
        compute = member.compute
        if not self.in_memory(compute.out.name):
            return []
        place = self.printer.affine(compute.stride, compute.offset, loops)
        return [Line(f"{self.pointers[compute.out.name]}[{place}] = {store_text(value, compute.out.dtype)};", [value])]

    def row_statements(self, loop_nest: int) -> list[str]:
        """The members that run once an outer index, after the inner loops of `loop_nest`."""
        members = [m for m in self.group.members if m.is_row and m.loop_nest == loop_nest]
        if not members:
            return []
        if self.group.column_reduction:
            return self.column_statements(members)
        scope: Loops = Scope()
        for member in members:
            # Row values are named for good: later loop nests find them.
            value = self.printer.emit(member.compute.expr, self.outer, scope, scope, self.at_hand(member, {}))
            name, kind = member.compute.out.name, self.acc_type(member)
            scope.lines.append(Line(f"const {kind} r_{name} = {value};", [value], f"r_{name}", kind, 1))
            scope.lines += self.store_row(member, f"r_{name}", self.outer)
        return [*scope.lines]

    # Columns

    def column_loops(self, member: Member) -> list[str]:
        return [*self.outer[:-1], COLUMN, *(f"i{k}" for k in range(len(member.inner)))]

    def column_nest(self, members: list[Member], reducers: list[Member], bounds: tuple[str, str] | None) -> list[str]:
        declared = []
        for m in (m for m in members if m.compute.has_order):
            name = m.compute.out.name
            declared.append(f"alignas(64) {self.total_type(m)} a_{name}[{self.columns}];")
            declared.append(self.over_columns(f"a_{name}[l] = {self.start(m)};"))
        sizes = members[0].inner
        pieces = compensation.ColumnPieces(
            [m.compute.out.name for m in reducers if self.is_compensated(m)], self.columns, self.all_columns()
        )
        declared += pieces.declared
        scope, before = self.scopes()
        names: dict[str, str] = {}
        rows = self.converted_rows(COLUMN, self.group.outer[-1], "lb", "nl", self.columns)
        for member in members:
            loops = self.column_loops(member)
            with self.printer.converting(rows):
                if member.compute.reduction is None:
                    self.body(member, loops, scope, before, names)
                    continue
                value = self.printer.emit(member.compute.expr, loops, scope, before, self.at_hand(member, names))
            gathered = "v" if self.is_compensated(member) else "a"
            scope.lines.append(Line(self.combine(member, f"{gathered}_{member.compute.out.name}[l]", value), [value]))
        nest = [simd_of(scope.lines), "for (int64_t l = 0; l < nl; ++l) {", indent(lines(scope.lines)), "}"]
        if rows is not None:
            nest = [*rows.before, *nest, *rows.after]
        nest = [*before.lines, *nest, *pieces.end]
        for k in reversed(range(len(sizes))):
            low, high = self.bounds(sizes, bounds, k == 0, k)
            nest = [f"for (int64_t i{k} = {low}; i{k} < {high}; ++i{k}) {{", indent(lines(nest)), "}"]
        return [*declared, *nest, *pieces.rest, *([] if bounds else self.name_column_results(reducers))]

    def name_column_results(self, reducers: list[Member]) -> list[str]:
        out = []
        for member in reducers:
            name, ctype = member.compute.out.name, self.acc_type(member)
            out.append(f"alignas(64) {ctype} r_{name}[{self.columns}];")
            inside = [
                f"r_{name}[l] = ({ctype}){self.total_of(member, '[l]')};",
                *self.store_row(member, f"r_{name}[l]", [*self.outer[:-1], COLUMN]),
            ]
            out += ["for (int64_t l = 0; l < nl; ++l) {", indent(lines(inside)), "}"]
        return out

    def column_statements(self, members: list[Member]) -> list[str]:
        out: list[str] = []
        scope, before = self.scopes()
        loops = [*self.outer[:-1], COLUMN]
        for member in members:
            name = member.compute.out.name
            out.append(f"alignas(64) {self.acc_type(member)} r_{name}[{self.columns}];")
            value = self.printer.emit(member.compute.expr, loops, scope, before, self.at_hand(member, {}))
            scope.lines.append(Line(f"r_{name}[l] = {value};", [value]))
            scope.lines += self.store_row(member, f"r_{name}[l]", loops)
        nest = [simd_of(scope.lines), "for (int64_t l = 0; l < nl; ++l) {", indent(lines(scope.lines)), "}"]
        return [*out, *before.lines, *nest]

    # Reductions shared by the threads

    def split(self) -> list[str]:
        """Chunks of the first inner loop on all threads, their totals combined in order afterwards."""
        group = self.group
        if prod(group.outer) == 0:
            return []
        members = self.loop_nest_members(0)
        reducers = [m for m in members if m.compute.reduction is not None]
        sizes = members[0].inner
        inside = self.row_statements(-1)
        weight = self.weight(members)
        columns = f"[{self.columns}]" if group.column_reduction else ""
        columns_total = self.columns if group.column_reduction else 1
        chunks = MAX_CHUNKS if columns_total <= COLUMNS_AT_ONCE else MAX_CHUNKS // 2
        total = self.c(mul(prod(sizes), columns_total))  # a product of two literals would be an int in C
        inside.append(f"const int64_t nc = fx_imax(1, fx_imin(fx_imin({chunks}, {self.c(sizes[0])}), {total} / 16384));")
        parts = [f'static_assert({chunks} > 0, "");'] if not reducers else []
        parts += [f"alignas(64) {self.total_type(m)} q_{m.compute.out.name}[{chunks}]{columns};" for m in reducers]
        inside += parts
        chunk = self.render_loop_nest(0, ("c_lo", "c_hi"))
        keep = [self.over_columns(f"q_{m.compute.out.name}[c]@ = {self.total_of(m, '@')};") for m in reducers]
        first = self.c(sizes[0])
        chunk = [*self.arrays, f"const int64_t c_lo = {first} * c / nc, c_hi = {first} * (c + 1) / nc;", *chunk, *keep]
        inside += [self.parallel(f"{total}", weight), "for (int64_t c = 0; c < nc; ++c) {", indent(lines(chunk)), "}"]
        for m in reducers:
            name = m.compute.out.name
            inside.append(f"{self.total_type(m)} a_{name}{columns};")
            inside.append(self.over_columns(f"a_{name}@ = q_{name}[0]@;"))
            if self.is_compensated(m):
                inside.append(f"double e_{name}{columns};")
                inside.append(self.over_columns(f"e_{name}@ = 0;"))
                combined = f"fx_gather(a_{name}@, e_{name}@, q_{name}[c]@);"
            elif m.compute.reduction == "sum":
                combined = f"a_{name}@ += q_{name}[c]@;"
            else:
                combined = self.combine(m, f"a_{name}@", f"q_{name}[c]@")
            inside.append("for (int64_t c = 1; c < nc; ++c) " + self.over_columns(combined))
        inside += self.name_column_results(reducers) if group.column_reduction else self.name_rows(reducers)
        inside += self.row_statements(0)
        heads = [loop(name, self.c(size)) for name, size in zip(self.outer, group.outer, strict=True)]
        if group.column_reduction:
            heads[-1] = f"for (int64_t lb = 0; lb < {self.c(group.outer[-1])}; lb += {self.columns})"
            inside = [f"const int64_t nl = fx_imin({self.columns}, {self.c(group.outer[-1])} - lb);", *inside]
        return [*self.unless_empty(group.outer), *heads, "{", indent(lines(inside)), "}"]

    def over_columns(self, text: str) -> str:
        if not self.group.column_reduction:
            return text.replace("@", "")
        return f"for (int64_t l = 0; l < {self.all_columns()}; ++l) " + text.replace("@", "[l]")

    def all_columns(self) -> str:
        """The end of loops over totals: of few they go over all, in whole vectors."""
        return str(self.columns) if self.columns <= COLUMNS_AT_ONCE else "nl"


def canonical(text: str) -> str:
    """Names made from the graph's buffer numbers, numbered by appearance instead, so that equal kernels have equal text."""
    numbers: dict[str, str] = {}
    return re.sub(r"\b([abekqrstvw])_(b\d+)\b", lambda m: f"{m[1]}_{numbers.setdefault(m[2], str(len(numbers)))}", text)


def loop(name: str, size: str) -> str:
    return f"for (int64_t {name} = 0; {name} < {size}; ++{name})"


def simd_of(inside: Sequence[str], clauses: str = "") -> str:
    """The pragma of a loop of vectors with these lines in it."""
    noted = " reduction(|:bad)" if any(line.startswith(NOTE) for line in inside) else ""
    return f"#pragma omp simd{noted}{clauses}"


def lines(parts: Sequence[str]) -> str:
    return "\n".join(parts)


def indent(text: str) -> str:
    return "\n".join(line if line.startswith("#") else "  " + line for line in text.split("\n"))
