"""A schedule of loops (schedule/gpu.py) as one kernel in Triton.

Programs share axis x, the outer loops run together (`tiled`: the last loop, with one more on axis y); a reduction is
along axis r, held whole or looped over. Blocks are masked at every edge. Sizes that vary are arguments. Block sizes, and
whether indices have 64 bits, are constants of the kernel: one text, several compiled kernels.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

import sympy
import torch

from ..hints import Hints
from ..index import Size, Sizes, prod
from ..ir import Buffer, Load
from ..ops import REDUCTIONS, SCANS
from ..schedule.fuse import Member, group_symbols, reads_same_place
from ..schedule.gpu import WIDEST_BLOCK, KernelSchedule, largest_span
from .cpp import Scope
from .triton_ops import NOWHERE, POINTERS, TYPES, Given, Named, Printer, stored
from .triton_prelude import with_prelude

#: From this length on, rows that are looped over are read in larger blocks.
LONG_ROW = 16384
#: Two for each multiprocessor of the largest GPUs, in powers of 2.
LEAST_PROGRAMS = 256
#: The longest name of a kernel, for a profiler's column.
LONGEST_NAME = 64


@dataclass(frozen=True, slots=True)
class Config:
    """Block sizes by their names in the kernel, warps, and how many rounds of a loop are read ahead."""

    blocks: tuple[tuple[str, int], ...]
    warps: int
    stages: int = 1


@dataclass(slots=True)
class TritonKernel:
    """A generated Triton kernel, for the executor and the compiler.

    It is called with `buffers`, then with `sizes`: `passed` of them are the function's own arguments, the others sizes
    that only its launch depends on. There is a program for each block of `axes` (size, block), and `rest` times as many;
    where `span` is not NARROW (runtime/launch_configuration.py), indices take 64 bits.
    """

    source: str
    name: str
    buffers: list[str]
    sizes: list[sympy.Expr]
    passed: int
    pointers: list[str]
    written: dict[str, Buffer]
    axes: list[tuple[Size, str]]
    rest: Size
    span: Size
    configs: list[Config]
    asserts: bool
    device: torch.device
    changed: list[str] = field(default_factory=list)


class Renderer:
    def __init__(self, schedule: KernelSchedule, hints: Hints) -> None:
        self.schedule, self.group, self.hints = schedule, schedule.group, hints
        self.makers = {member.compute.out.name: member for member in self.group.members}
        self.position = {id(member): k for k, member in enumerate(self.group.members)}
        self.rank = 1 if schedule.kind == "pointwise" else 2
        self.has_tiles = schedule.kind in ("tiled", "product")
        self.pointers: dict[str, str] = {}
        self.types: dict[str, torch.dtype] = {}
        self.name_buffers()
        self.parameters: list[sympy.Expr] = sorted(self.sizes_that_vary(), key=str)
        self.symbols = {str(symbol): f"n{k}" for k, symbol in enumerate(self.parameters)}
        self.masks = {"x": "xm", "y": "ym", "r": "rm"}
        self.printer = Printer(self.pointers, self.symbols, self.masks, self.rank)
        self.outer: list[Named] = []
        # Values that are kept for the whole program: of rows, and in a persistent kernel of whole rows.
        self.top: Scope[str] = Scope()
        self.values: dict[str, Named] = {}
        self.cuts: dict[Sizes, list[Named]] = {}

    # What the kernel touches

    def sizes_that_vary(self) -> set[sympy.Symbol]:
        return group_symbols(self.group)

    def name_buffers(self) -> None:
        for member in self.group.members:
            for load in member.compute.loads():
                maker = self.makers.get(load.buffer)
                if maker is None or self.position[id(maker)] >= self.position[id(member)]:
                    self.name_buffer(load.buffer, load.memory_dtype)
            out = member.compute.out
            if out.name not in self.schedule.in_registers:
                self.name_buffer(out.name, out.dtype)

    def name_buffer(self, name: str, dtype: torch.dtype) -> None:
        if name not in self.pointers:
            self.pointers[name] = f"p{len(self.pointers)}"
            self.types[name] = dtype

    def changed(self) -> list[str]:
        """Buffers that are read before they are written."""
        read = set()
        for member in self.group.members:
            for load in member.compute.loads():
                maker = self.makers.get(load.buffer)
                if maker is not None and self.position[id(maker)] >= self.position[id(member)]:
                    read.add(load.buffer)
            if member.compute.scatter is not None:
                read.add(member.compute.out.name)
        return sorted(read)

    # The function

    def kernel(self) -> TritonKernel:
        body = self.body()
        axes, span = self.axes(), largest_span(self.schedule, self.parameters)
        blocks = [*(block for _, block in axes), *self.looped_blocks]
        arguments = [*self.pointers.values(), *self.symbols.values()]
        constants = [f"{name}: tl.constexpr" for name in (*blocks, "WIDE")]
        name = kernel_name(self.schedule)
        text = f"def {name}({', '.join([*arguments, *constants])}):\n" + indent4("\n".join(body)) + "\n"
        written = {m.compute.out.name: m.compute.out for m in self.group.members if m.compute.out.name in self.pointers}
        return TritonKernel(
            source=with_prelude(text),
            name=name,
            buffers=list(self.pointers),
            sizes=launch_sizes(self.parameters, [*(size for size, _ in axes), self.rest(), span]),
            passed=len(self.parameters),
            pointers=[POINTERS[self.types[name]] for name in self.pointers],
            written=written,
            axes=axes,
            rest=self.rest(),
            span=span,
            configs=self.configurations(),
            asserts=self.printer.checks,
            device=self.group.device,
            changed=self.changed(),
        )

    def body(self) -> list[str]:
        return {"pointwise": self.pointwise, "tiled": self.tiled}.get(self.schedule.kind, self.reducing)()

    @property
    def looped_blocks(self) -> tuple[str, ...]:
        return ("RB",) if self.schedule.kind in ("looped", "split") else ()

    def configurations(self) -> list[Config]:
        return configurations(self.schedule, self.hints)

    def size(self, size: Size) -> str:
        return self.printer.size(size)

    def axes(self) -> list[tuple[Size, str]]:
        sizes = self.group.outer
        if self.has_tiles:
            return [(sizes[-1], "XB"), (sizes[self.schedule.across], "YB")]
        return [(prod(sizes), "XB")]

    def rest(self) -> Size:
        if self.has_tiles:
            own = (self.schedule.across, len(self.group.outer) - 1)
            return prod(size for k, size in enumerate(self.group.outer) if k not in own)
        return self.schedule.chunks

    def program(self) -> list[str]:
        return ["pid = tl.program_id(0)", "if WIDE:", "  pid = pid.to(tl.int64)"]

    def block(self, axis: str, program: str, size: Size, name: str, shape: str) -> list[str]:
        """The block's indices along an axis and their mask: all true, and known to be, where blocks fit."""
        lines = [f"{axis} = {program} * {name} + tl.arange(0, {name}){shape}"]
        if size == 1:
            # One index, in a block that may be wider all the same.
            return [*lines, f"{axis}m = {axis} < 1"]
        if not isinstance(size, int):
            return [*lines, f"{axis}m = {axis} < {self.size(size)}"]
        ones = {"": f"[{name}]", "[:, None]": f"[{name}, 1]", "[None, :]": f"[1, {name}]"}[shape]
        return [
            *lines,
            f"if {size} % {name} == 0:",
            f"  {axis}m = tl.full({ones}, True, tl.int1)",
            "else:",
            f"  {axis}m = {axis} < {size}",
        ]

    def unflatten(self, name: str, sizes: Sizes, prefix: str, along: frozenset[str]) -> tuple[list[str], list[Named]]:
        """The loop variables behind one flat index, the last one fastest."""
        if not sizes:
            return [], []
        if len(sizes) == 1:
            return [], [(name, along)]
        lines: list[str] = []
        names: list[Named] = []
        rest = name
        for k in reversed(range(1, len(sizes))):
            lines.append(f"{prefix}{k} = {rest} % {self.size(sizes[k])}")
            lines.append(f"{prefix}q{k} = {rest} // {self.size(sizes[k])}")
            rest = f"{prefix}q{k}"
            names.append((f"{prefix}{k}", along))
        return lines, [(rest, along), *reversed(names)]

    # Kernels without reductions

    def pointwise(self) -> list[str]:
        sizes = self.group.outer
        lines = [*self.program(), *self.block("x", "pid", prod(sizes), "XB", "")]
        more, self.outer = self.unflatten("x", sizes, "o", frozenset("x"))
        self.members_without_rows()
        return [*lines, *more, *self.top.lines]

    def tiled(self) -> list[str]:
        sizes, across = self.group.outer, self.schedule.across
        last = len(sizes) - 1
        lines = [
            *self.program(),
            f"xs = ({self.size(sizes[last])} + XB - 1) // XB",
            f"ys = ({self.size(sizes[across])} + YB - 1) // YB",
            *self.block("x", "(pid % xs)", sizes[last], "XB", "[None, :]"),
            *self.block("y", "((pid // xs) % ys)", sizes[across], "YB", "[:, None]"),
            "z = pid // xs // ys",
        ]
        others = [k for k in range(last) if k != across]
        more, names = self.unflatten("z", tuple(sizes[k] for k in others), "o", NOWHERE)
        given = dict(zip(others, names, strict=True)) | {across: ("y", frozenset("y")), last: ("x", frozenset("x"))}
        self.outer = [given[k] for k in range(len(sizes))]
        self.members_without_rows()
        return [*lines, *more, *self.top.lines]

    def members_without_rows(self) -> None:
        for member in self.group.members:
            self.store(member, self.element(member, self.outer, self.top), self.outer, self.top)

    # Kernels with reductions

    def reducing(self) -> list[str]:
        sizes, split = self.group.outer, self.schedule.kind == "split"
        program = f"(pid // {self.schedule.chunks})" if split else "pid"
        lines = [*self.program(), *self.block("x", program, prod(sizes), "XB", "[:, None]")]
        more, self.outer = self.unflatten("x", sizes, "o", frozenset("x"))
        self.top.lines += more
        if split:
            self.top.lines.append(f"c = pid % {self.schedule.chunks}")
        for loop_nest in sorted({member.loop_nest for member in self.group.members}):
            members = [m for m in self.group.members if m.loop_nest == loop_nest and not m.is_row]
            if members:
                self.loop_nest(loop_nest, members)
            for member in (m for m in self.group.members if m.loop_nest == loop_nest and m.is_row):
                name = self.element(member, self.outer, self.top)
                self.store(member, name, self.outer, self.top)
        return [*lines, *self.top.lines]

    def loop_nest(self, loop_nest: int, members: list[Member]) -> None:
        length = prod(members[0].inner)
        if self.schedule.kind == "persistent":
            assert isinstance(length, int)
            self.held(length, members)
        else:
            self.looped(loop_nest, length, members)

    def held(self, length: int, members: list[Member]) -> None:
        """A loop's whole length as one block."""
        block = power_of_2(length)
        known = f"r{length}"
        if f"{known} = " not in "".join(self.top.lines):
            self.top.lines.append(f"{known} = tl.arange(0, {block})[None, :]")
            self.top.lines.append("if WIDE:")
            self.top.lines.append(f"  {known} = {known}.to(tl.int64)")
            mask = f"tl.full([1, {block}], True, tl.int1)" if block == length else f"{known} < {length}"
            self.top.lines.append(f"{known}m = {mask}")
        self.masks["r"] = f"{known}m"
        cut = members[0].inner
        if cut not in self.cuts:
            lines, self.cuts[cut] = self.unflatten(known, cut, f"i{len(self.cuts)}_", frozenset("r"))
            self.top.lines += lines
        inner = self.cuts[cut]
        loops = [*self.outer, *inner]
        for member in members:
            value, axes = self.element(member, loops, self.top)
            kind = member.compute.reduction or member.compute.scan
            if kind is None:
                self.store(member, (value, axes), loops, self.top)
                continue
            if "r" not in axes or block != length:
                start = neutral(kind, member.compute.expr.dtype)
                if block != length:
                    value = f"tl.where({self.masks['r']}, {value}, {start})"
                if "r" not in axes:
                    value = f"tl.broadcast_to({value}, [XB, {block}])"
            if member.compute.scan is not None:
                self.scanned(member, f"fx_scan_{kind}({value})", loops, self.top)
            else:
                self.row(member, f"fx_row_{kind}({value})")

    def looped(self, loop_nest: int, length: Size, members: list[Member]) -> None:
        self.masks["r"] = "rm"
        body = Scope(self.top)
        start, end = "0", self.size(length)
        if self.schedule.kind == "split":
            self.top.lines.append(
                f"per = ((({end} + {self.schedule.chunks} - 1) // {self.schedule.chunks} + RB - 1) // RB) * RB"
            )
            self.top.lines.append("r_first = c * per")
            self.top.lines.append(f"r_last = tl.minimum(r_first + per, {end})")
            start, end = "r_first", "r_last"
        more, inner = self.unflatten("r", members[0].inner, "i", frozenset("r"))
        body.lines += ["r = r0 + tl.arange(0, RB)[None, :]", "if WIDE:", "  r = r.to(tl.int64)", f"rm = r < {end}", *more]
        loops = [*self.outer, *inner]
        # Nothing is read ahead of a loop that may not run: what it reads may have no memory.
        ahead = self.top if isinstance(length, int) and length > 0 else body
        for member in members:
            how = member.compute.reduction or member.compute.scan
            if how is not None:
                kind, width = TYPES[member.compute.expr.dtype], "RB" if member.compute.scan is None else "1"
                first = neutral(how, member.compute.expr.dtype)
                self.top.lines.append(f"{self.total(member)} = tl.full([XB, {width}], {first}, {kind})")
        for member in members:
            value, axes = self.element(member, loops, body, ahead)
            if member.compute.scan is not None:
                self.scan_on(member, value, loops, body)
                continue
            if member.compute.reduction is None:
                self.store(member, (value, axes), loops, body)
                continue
            total = self.total(member)
            combined = COMBINE[member.compute.reduction].format(total, value)
            body.lines.append(f"{total} = tl.where(rm, {combined}, {total})")
        self.top.lines.append(f"for r0 in range({start}, {end}, RB):")
        self.top.lines += ["  " + line for line in body.lines]
        for member in members:
            if member.compute.reduction is not None:
                self.row(member, f"fx_row_{member.compute.reduction}({self.total(member)})")

    def scan_on(self, member: Member, value: str, loops: list[Named], body: Scope[str]) -> None:
        """A block's scan, on from the total of the blocks before it."""
        kind, total = member.compute.scan, self.total(member)
        assert kind is not None
        here = f"tl.broadcast_to(tl.where(rm, {value}, {neutral(kind, member.compute.expr.dtype)}), [XB, RB])"
        block = self.printer.named(here, body)
        # Of equal values the later one counts.
        self.scanned(member, COMBINE[kind].format(f"fx_scan_{kind}({block})", total), loops, body)
        body.lines.append(f"{total} = {COMBINE[kind].format(f'fx_row_{kind}({block})', total)}")

    def scanned(self, member: Member, text: str, loops: list[Named], scope: Scope[str]) -> None:
        name = f"v{self.position[id(member)]}"
        scope.lines.append(f"{name} = {text}")
        value = name, frozenset("xr")
        self.values[member.compute.out.name] = value
        self.store(member, value, loops, scope)

    def total(self, member: Member) -> str:
        return f"a{self.position[id(member)]}"

    def row(self, member: Member, text: str) -> None:
        name = f"v{self.position[id(member)]}"
        self.top.lines.append(f"{name} = {text}")
        value = name, frozenset("x")
        self.values[member.compute.out.name] = value
        self.store(member, value, self.outer, self.top)

    # One member

    def element(self, member: Member, loops: list[Named], inner: Scope[str], ahead: Scope[str] | None = None) -> Named:
        value = self.printer.emit(member.compute.expr, loops, inner, ahead or self.top, self.at_hand(member))
        if not member.compute.has_order:
            self.values[member.compute.out.name] = value
        return value

    def at_hand(self, member: Member) -> Given:
        def given(load: Load) -> Named | None:
            maker = self.makers.get(load.buffer)
            if maker is None or self.position[id(maker)] >= self.position[id(member)]:
                return None  # not made here, or an input read before the member that writes to it
            assert self.group.reducing or reads_same_place(load, maker, member, self.group.outer)
            return self.values[load.buffer]

        return given

    def store(self, member: Member, value: Named, loops: list[Named], scope: Scope[str]) -> None:
        compute = member.compute
        out = compute.out.name
        if out not in self.pointers:
            return
        place, axes = self.printer.affine(compute.stride, compute.offset, loops)
        if self.schedule.kind == "split" and member.compute.reduction is not None:
            place += " + c"
        # All lanes of the block that the loops make: a value may vary along fewer axes than its memory does.
        along = axes.union(*(each for _, each in loops))
        shape = self.shape(along)
        mask = self.printer.mask(along)
        if out in self.changed():
            # What others of the program read there, they read before.
            scope.lines.append("tl.debug_barrier()")
        text = f"tl.full({shape}, 0, tl.int32) + {place}" if axes != along or not axes else place
        kept = stored(value[0], compute.out.dtype)
        if compute.scatter is not None:
            text, mask = self.computed_place(member, text, mask, loops, scope)
            if compute.scatter.mode != "set":
                # An atomic operation takes a value for each place.
                kept = f"tl.broadcast_to({kept}, {shape})"
        how = STORE[compute.scatter.mode if compute.scatter is not None else "set"]
        masked = f", {mask}" if mask else ""
        scope.lines.append(f"{how}({self.pointers[out]} + ({text}), {kept}{masked})")

    def computed_place(self, member: Member, place: str, mask: str, loops: list[Named], scope: Scope[str]) -> tuple[str, str]:
        """The place with the indices added, and the mask without those out of bounds."""
        assert member.compute.scatter is not None
        for gather in member.compute.scatter.gathers:
            found = self.printer.emit(gather.index, loops, scope, self.top, self.at_hand(member))
            index, inside = self.printer.checked(gather, found, scope)
            place += f" + {index} * {self.size(gather.stride)}"
            mask = f"{mask} & {inside}" if mask else inside
        return place, mask

    def shape(self, axes: frozenset[str]) -> str:
        if self.rank == 1:
            return "[XB]" if axes else "[1]"
        if self.has_tiles:
            return f"[{'YB' if 'y' in axes else 1}, {'XB' if 'x' in axes else 1}]"
        held = self.masks["r"].removesuffix("m").removeprefix("r")
        block = str(power_of_2(int(held))) if held else "RB"
        return f"[{'XB' if 'x' in axes else 1}, {block if 'r' in axes else 1}]"


def kernel_name(schedule: KernelSchedule) -> str:
    """What a profiler shows: the kind of kernel and its operators, the same for equal kernels of equal layers."""
    operators: dict[str, None] = {}
    for member in schedule.group.members:
        for each in sorted(re.sub(r"\W|_*\d*$", "", node.name).strip("_") for node in member.compute.origins):
            operators[each] = None
    return "_".join([schedule.kind, *filter(None, operators)])[:LONGEST_NAME].rstrip("_")


def launch_sizes(parameters: list[sympy.Expr], sizes: list[Size]) -> list[sympy.Expr]:
    """The parameters, and after them what else varies among the sizes."""
    found = list(parameters)
    found += [size for size in dict.fromkeys(sizes) if not isinstance(size, int) and size not in found]
    return found


def indent4(text: str) -> str:
    return "\n".join("    " + line for line in text.split("\n"))


def power_of_2(size: int) -> int:
    return 1 << max(size - 1, 0).bit_length()


def neutral(kind: str, dtype: torch.dtype) -> str:
    """The neutral element of a reduction, as text."""
    if kind in ("any", "all"):
        return "False" if kind == "any" else "True"
    if kind in ("sum", "prod"):
        value = 0 if kind == "sum" else 1
        return f"{value}.0" if dtype.is_floating_point else str(value)
    if dtype.is_floating_point:
        return 'float("-inf")' if kind in ("max", "logaddexp") else 'float("inf")'
    info = torch.iinfo(dtype)
    return str(info.min if kind == "max" else info.max)


COMBINE = {
    "sum": "{0} + {1}",
    "prod": "{0} * {1}",
    "max": "fx_max({0}, {1})",
    "min": "fx_min({0}, {1})",
    "any": "{0} | {1}",
    "all": "{0} & {1}",
    "logaddexp": "fx_logaddexp({0}, {1})",
}
assert set(COMBINE) == set(REDUCTIONS) | set(SCANS)
#: What stores a value, alone or combined with what is there without others coming between; what is missing is ATen's.
STORE = {"set": "tl.store", "add": "tl.atomic_add", "maximum": "tl.atomic_max", "minimum": "tl.atomic_min"}


# Block sizes. Which are candidates, and which is first, was measured on an H200 with 16 cases from 10 to 270 MB in bfloat16 and
# float32 (torch 2.11, Triton 3.6, 2026-11-28; docs/triton.md): each first one is within 4 % of the best of 6 to 22 there, but
# for sums of 64 columns (7 %), layer norms of 768 (11 %), and rows of 65,000 (19 %), whose second one is the best and is
# measured at the first call. That sums in chunks are added up by more programs (LEAST_PROGRAMS) was concluded, not measured.


def configurations(schedule: KernelSchedule, hints: Hints) -> list[Config]:
    """Block sizes to choose from; the first is what is taken where nothing is measured."""
    group = schedule.group
    reads = len({load.buffer for member in group.members for load in member.compute.loads()})
    rows = largest_block(prod(group.outer))
    if schedule.kind == "pointwise":
        sizes = [(1024, 4), (512, 4), (2048, 8)] if reads <= 8 else [(512, 4), (256, 4), (1024, 8)]
        return distinct([Config((("XB", min(size, rows)),), warps) for size, warps in sizes])
    if schedule.kind == "tiled":
        wide, high = largest_block(group.outer[-1]), largest_block(group.outer[schedule.across])
        tiles = [(32, 64, 4), (64, 64, 8), (32, 32, 4)]
        return distinct([Config((("XB", min(x, wide)), ("YB", min(y, high))), warps) for x, y, warps in tiles])
    if schedule.kind == "persistent":
        return held_rows(group.members, rows)
    if group.column_reduction:
        shapes = [(64, 16, 4), (64, 32, 4), (32, 64, 8)]
    else:
        longest = max((hints(prod(m.inner)) for m in group.members if not m.is_row), default=1)
        if longest >= LONG_ROW:
            shapes = [(1, 4096, 16), (1, 8192, 16), (1, 2048, 8)]
        elif longest >= 1024:
            shapes = [(1, 2048, 8), (1, 1024, 8), (1, 4096, 16)]
        else:
            shapes = [(8, 256, 4), (4, 512, 4), (16, 128, 4)]
    return distinct([Config((("XB", min(x, rows)), ("RB", r)), warps) for x, r, warps in shapes])


def largest_block(size: Size) -> int:
    """More than this a block need not hold along an axis of that size; one that varies may be large at the next call."""
    return power_of_2(max(size, 1)) if isinstance(size, int) else WIDEST_BLOCK


def distinct(candidates: list[Config]) -> list[Config]:
    """One candidate for each choice of blocks."""
    found: dict[object, Config] = {}
    for each in candidates:
        found.setdefault(each.blocks, each)
    return list(found.values())


def held_rows(members: list[Member], rows: int) -> list[Config]:
    """Rows a program holds: about 2,048 elements, at least one, and so few that there are programs for the whole GPU. (The 50
    chunks of 768 sums in 24 programs took 5.4 us, the 1,024 of 64 sums in 32 programs 2.7.)"""
    length = power_of_2(max(int(prod(m.inner)) for m in members if not m.is_row))  # type: ignore[arg-type]  # static lengths only
    most = min(64, max(1, rows // LEAST_PROGRAMS))
    scans = any(member.compute.scan is not None for member in members)
    per_warp = 1024 if length <= 2048 and not scans else 512  # more would not fit in registers
    chosen = []
    for target in (2048, 1024, 4096):
        x = min(max(1, target // length), most)
        warps = min(max(power_of_2(x * length // per_warp), 1), 16)
        chosen.append(Config((("XB", x),), warps))
    return distinct(chosen)
