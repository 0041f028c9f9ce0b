"""A pointwise group whose short loops along memory are written out within a loop of vectors (schedule/short_loops.py)."""

from __future__ import annotations

import itertools

from ..hints import Hints
from ..index import prod
from ..schedule.fuse import Group
from .kernel import BLOCK, Renderer, indent, lines, loop, simd_of
from .loop_fission import TILE


class ShortLoopRenderer(Renderer):
    """`short`: how many loops before the last one are written out."""

    def __init__(self, group: Group, in_registers: frozenset[str], hints: Hints, threads: int, short: int) -> None:
        super().__init__(group, in_registers, hints, threads)
        self.short = short
        self.printer.hides_steps = None  # of neighbours the compiler is to know that they are

    def pointwise(self) -> list[str]:
        sizes, last = self.group.outer, len(self.group.outer) - 1
        if prod(sizes) == 0:
            return []
        around = last - self.short
        inner, before = self.scopes()
        written = [range(size) for size in sizes[around:last] if isinstance(size, int)]
        rows = self.converted_rows(self.outer[last], sizes[last], "lo", "hi - lo", TILE)
        with self.printer.converting(rows):
            for places in itertools.product(*written):
                names: dict[str, str] = {}
                for member in self.group.members:
                    self.body(member, [*self.outer[:around], *map(str, places), self.outer[last]], inner, before, names)
        high, weight, simd = self.c(sizes[last]), self.weight(self.group.members), simd_of(inner.lines)
        tiles = rows is not None and rows.used
        if around == 0 or (self.hints(prod(sizes[:around])) < 8 and self.hints(sizes[last]) > BLOCK):
            threaded = self.parallel(self.c(prod(sizes[around:])), weight)
            if not tiles:
                threaded = threaded.replace("parallel for", "parallel for simd") or simd
            nest = [*before.lines, *self.innermost([inner.lines], self.outer[last], ("0", high), threaded, simd, rows)]
            for k in reversed(range(around)):
                nest = [loop(self.outer[k], self.c(sizes[k])) + " {", indent(lines(nest)), "}"]
            return self.unless_empty(sizes) + nest
        collapsed = f" collapse({around})" if around > 1 else ""
        pragma = self.parallel(self.c(prod(sizes)), weight, collapsed)
        body = self.innermost([inner.lines], self.outer[last], ("0", high), "" if tiles else simd, simd, rows)
        return self.unless_empty(sizes) + self.wrap([*before.lines, *body], self.outer[:around], sizes[:around], pragma)
