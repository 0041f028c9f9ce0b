"""A pointwise group that goes over blocks of its last two loops (schedule/transposes.py)."""

from __future__ import annotations

from ..hints import Hints
from ..index import prod
from ..schedule.fuse import Group
from .kernel import Renderer, indent, lines, simd_of

#: Numbers of a block along what is read, and along what is written: two vectors of floats.
READ, WRITTEN = 64, 32


class BlockRenderer(Renderer):
    """Its loop along what is written steps through what is read: the compiler does not see how far (`Printer.step`), however
    little the loop calculates. `x * 2` and a transpose, one thread of a Zen 5, ns a number, seen and hidden: 256 x 256 and
    512 x 512 of bfloat16 0.96 and 0.19, 1024 x 1024 2.1 and 0.38; floats 0.26 and 0.13, 0.46 and 0.22, 0.70 and 0.67."""

    def __init__(self, group: Group, in_registers: frozenset[str], hints: Hints, threads: int) -> None:
        super().__init__(group, in_registers, hints, threads)
        self.printer.hides_steps = "o"

    def pointwise(self) -> list[str]:
        sizes, last = self.group.outer, len(self.group.outer) - 1
        if prod(sizes) == 0:
            return []
        inner, before = self.scopes()
        names: dict[str, str] = {}
        rows = self.converted_rows(self.outer[last], sizes[last], "from", "to - from", WRITTEN)
        with self.printer.converting(rows):
            for member in self.group.members:
                self.body(member, self.outer, inner, before, names)
        read, written = self.outer[last - 1], self.outer[last]
        high, wide = self.c(sizes[last - 1]), self.c(sizes[last])
        first, then = ([], []) if rows is None else (rows.before, rows.after)
        body = [
            *self.arrays,
            f"const int64_t hi = fx_imin(lo + {READ}, {high}), to = fx_imin(from + {WRITTEN}, {wide});",
            f"for (int64_t {read} = lo; {read} < hi; ++{read}) {{",
            indent(lines([*before.lines, *first, simd_of(inner.lines)])),
            f"  for (int64_t {written} = from; {written} < to; ++{written}) {{",
            indent(indent(lines(inner.lines))),
            indent(lines(["}", *then])),
            "}",
        ]
        heads = [
            *self.heads(self.outer[: last - 1], sizes[: last - 1]),
            f"for (int64_t lo = 0; lo < {high}; lo += {READ})",
            f"for (int64_t from = 0; from < {wide}; from += {WRITTEN}) {{",
        ]
        pragma = self.parallel(self.c(prod(sizes)), self.weight(self.group.members), f" collapse({last + 1})")
        return [*self.unless_empty(sizes), pragma, *heads, indent(lines(body)), "}"]
