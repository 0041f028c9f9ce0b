"""A matrix product with the loops around it as one kernel in Triton: tiles of sums, then as in a tiled kernel.

Along the sum, the left operand's index is on axis r and the right one's on axis s: the same numbers, as a row and as a
column of a block.
"""

from __future__ import annotations

import sympy
import torch

from ..hints import Hints
from ..index import symbols_in
from ..ir import Expr, Iota, Load, is_plain_load, walk
from ..schedule.gpu import KernelSchedule
from .cpp import Scope
from .triton import Config, Renderer, TritonKernel, distinct, power_of_2
from .triton_ops import NOWHERE, TYPES, Given, Named, Printer

#: Rows of tiles whose programs run after each other: what they read is then still in the cache.
ROWS_TOGETHER = 8
#: Tiles: columns, rows, depth, warps, rounds read ahead. For tensor cores, and for float32 that is not to be rounded.
TILES = (
    (128, 128, 64, 8, 3), (128, 64, 64, 4, 4), (64, 128, 64, 4, 4), (64, 64, 64, 4, 4), (64, 32, 64, 4, 5), (32, 64, 64, 4, 5),
)  # fmt: skip
EXACT_TILES = ((64, 64, 16, 8, 2), (32, 64, 32, 4, 2), (32, 32, 32, 4, 2))
#: The smallest block of a tensor core.
LEAST = 16


def render(schedule: KernelSchedule, hints: Hints) -> TritonKernel:
    """The kernel of a schedule of any kind."""
    return (Renderer if schedule.dot is None else ProductRenderer)(schedule, hints).kernel()


class OperandPrinter(Printer):
    """Prints what is multiplied: all of it varies along the sum, and what is past its end is nothing."""

    looped = frozenset("rs")
    filler = ", other=0"


class ProductRenderer(Renderer):
    def __init__(self, schedule: KernelSchedule, hints: Hints) -> None:
        assert schedule.dot is not None
        self.dot = schedule.dot
        super().__init__(schedule, hints)
        self.masks |= {"r": "rm", "s": "sm"}
        self.operands = OperandPrinter(self.pointers, self.symbols, self.masks, self.rank)

    # What the kernel touches

    def sizes_that_vary(self) -> set[sympy.Symbol]:
        found = super().sizes_that_vary() | symbols_in([self.dot.k])
        for node in (*walk(self.dot.a), *walk(self.dot.b)):
            if isinstance(node, (Load, Iota)):
                found |= symbols_in((*node.strides, node.offset))
            if isinstance(node, Load):
                found |= {s for gather in node.gathers for s in symbols_in((gather.stride, gather.size))}
        return found

    def name_buffers(self) -> None:
        for load in self.dot.loads():
            self.name_buffer(load.buffer, load.memory_dtype)
        super().name_buffers()

    def name_buffer(self, name: str, dtype: torch.dtype) -> None:
        if name != self.dot.sums:
            super().name_buffer(name, dtype)

    @property
    def looped_blocks(self) -> tuple[str, ...]:
        return ("KB",)

    def configurations(self) -> list[Config]:
        exact = self.dot.memory_dtype is torch.float32 and not self.dot.tf32
        columns, rows = (power_of_2(self.hints(size)) for size in (self.group.outer[-1], self.group.outer[-2]))
        depth = power_of_2(self.hints(self.dot.k))

        def fitted(block: int, size: int) -> int:
            return max(min(block, size), LEAST)

        # A block of float32 is as many bytes as one of half types that is twice as deep.
        half = 1 if self.dot.memory_dtype is torch.float32 and not exact else 0
        return distinct([
            Config((("XB", fitted(x, columns)), ("YB", fitted(y, rows)), ("KB", fitted(k >> half, depth))), warps, stages)
            for x, y, k, warps, stages in (EXACT_TILES if exact else TILES)
        ])

    # The function

    def body(self) -> list[str]:
        sizes = self.group.outer
        lines = [
            *self.program(),
            f"xs = ({self.size(sizes[-1])} + XB - 1) // XB",
            f"ys = ({self.size(sizes[-2])} + YB - 1) // YB",
            "tile = pid % (xs * ys)",
            f"first = tile // ({ROWS_TOGETHER} * xs) * {ROWS_TOGETHER}",
            f"together = tl.minimum(ys - first, {ROWS_TOGETHER})",
            f"place = tile % ({ROWS_TOGETHER} * xs)",
            *self.block("x", "(place // together)", sizes[-1], "XB", "[None, :]"),
            *self.block("y", "(first + place % together)", sizes[-2], "YB", "[:, None]"),
            "z = pid // (xs * ys)",
        ]
        batches: list[Named] = [("z", NOWHERE)] if len(sizes) == 3 else []
        self.outer = [*batches, ("y", frozenset("y")), ("x", frozenset("x"))]
        lines += self.sum(batches)
        self.members_without_rows()
        return [*lines, *self.top.lines]

    def sum(self, batches: list[Named]) -> list[str]:
        depth = self.size(self.dot.k)
        body = Scope(self.top)
        body.lines += ["r = k0 + tl.arange(0, KB)[None, :]", "s = k0 + tl.arange(0, KB)[:, None]"]
        body.lines += ["if WIDE:", "  r = r.to(tl.int64)", "  s = s.to(tl.int64)", f"rm = r < {depth}", f"sm = s < {depth}"]
        if isinstance(self.dot.k, int):
            body.lines += [f"if {depth} % KB == 0:", "  rm = tl.full([1, KB], True, tl.int1)",
                           "  sm = tl.full([KB, 1], True, tl.int1)"]
        a = self.factor(self.dot.a, [*batches, ("y", frozenset("y")), ("r", frozenset("r"))], body, "rm", "[YB, KB]")
        b = self.factor(self.dot.b, [*batches, ("s", frozenset("s")), ("x", frozenset("x"))], body, "sm", "[KB, XB]")
        precision = "tf32" if self.dot.tf32 else "ieee"
        body.lines.append(f'sums = tl.dot({a}, {b}, sums, input_precision="{precision}")')
        self.printer.counter = self.operands.counter
        before, self.top.lines = self.top.lines, []
        return [*before, "sums = tl.full([YB, XB], 0.0, tl.float32)", f"for k0 in range(0, {depth}, KB):",
                *("  " + line for line in body.lines)]

    def factor(self, expr: Expr, loops: list[Named], body: Scope[str], mask: str, shape: str) -> str:
        """A block of an operand, of its type in memory and with nothing in it past the end of the sum."""
        name, axes = self.operands.emit(expr, loops, body, self.top, nothing_at_hand)
        if not is_plain_load(expr):
            kind = TYPES[self.dot.memory_dtype]
            name = self.operands.named(f"tl.where({mask}, {name}, 0.0).to({kind})", body)
        if len(axes) < 2:
            name = self.operands.named(f"tl.broadcast_to({name}, {shape})", body)
        return name

    def at_hand(self, member: object) -> Given:
        known = super().at_hand(member)  # type: ignore[arg-type]  # its members are rows or tiles
        return lambda load: ("sums", frozenset("xy")) if load.buffer == self.dot.sums else known(load)


def nothing_at_hand(load: Load) -> Named | None:
    return None


