"""Compensated sums of float64: pieces are added up plainly, and their totals with what each addition rounds off.

A plain sum's error grows with the root of the number of additions in a row, in eager with that of a short one, since ATen adds
up in levels. Here pieces are as short, and their totals, of which there may be many, lose nothing (Knuth's two-sum): it costs
a few additions a piece. Sums of float32 are gathered in double instead, where nothing of this is needed.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fxjit import config

from ..index import Sizes, prod
from ..ir import Compute, compute_type

#: Additions in a row, of a vector's lane or of a column.
IN_A_ROW = 16
#: A row's elements in a piece, in a loop of vectors.
LENGTH = "FX_PIECE"
#: A last dimension up to this long makes no piece of its own.
SHORT = 64

SUPPORT = r"""#define FX_PIECE (16 * FX_VECTOR / (int64_t)sizeof(double))
static FX void fx_gather(double &total, double &rest, double x) {
  double sum = total + x, part = sum - total;
  rest += (total - (sum - part)) + (x - part);
  total = sum;
}
/* Of a total that is infinite or no number the rest is none. */
static FX double fx_total(double total, double rest) {
  return fx_abs(rest) < __builtin_inf() ? total + rest : total;
}
"""


def is_applicable(compute: Compute) -> bool:
    """Whether a total in double is gathered so: a sum that is not rounded to less, and is not as short as a piece."""
    if compute.reduction != "sum" or compute_type(compute.out.dtype) is not torch.float64:
        return False
    count = prod(compute.rsize)
    return not compute.narrowed and not config.cpp.fast_math and not (isinstance(count, int) and count <= IN_A_ROW)


class Pieces:
    """What the loops over a row need for sums of those names: totals `a_`, declared by the caller, rests `e_` and pieces `v_`.

    `serial`: the loop goes one by one. `begin` and `end` stand around a piece's loop of `length` elements, which is empty where
    the last dimension is a loop as it is; `rest` stands behind all loops.
    """

    def __init__(self, names: Sequence[str], sizes: Sizes, serial: bool) -> None:
        length = str(IN_A_ROW // 2) if serial else LENGTH
        self.declared = [f"double e_{name} = 0;" for name in names]
        self.begin: list[str] = []
        self.end: list[str] = []
        self.rest: list[str] = []
        self.length = ""
        if not names:
            return
        new = [f"double v_{name} = 0;" for name in names]
        gather = " ".join(f"fx_gather(a_{name}, e_{name}, v_{name});" for name in names)
        last = sizes[-1]
        if len(sizes) > 1 and isinstance(last, int) and last <= SHORT:
            count = f"k_{names[0]}"
            self.declared += [*new, f"int64_t {count} = 0;"]
            empty = " ".join(f"v_{name} = 0;" for name in names)
            self.end = [f"if (({count} += {last}) >= {length}) {{ {gather} {empty} {count} = 0; }}"]
            self.rest = [gather]
        else:
            self.begin, self.end, self.length = new, [gather], length


class ColumnPieces:
    """The same for neighbouring columns: `end` stands behind what adds one row to the pieces."""

    def __init__(self, names: Sequence[str], columns: int, until: str) -> None:
        self.declared: list[str] = []
        self.end: list[str] = []
        self.rest: list[str] = []
        if not names:
            return
        self.declared = [f"alignas(64) double v_{name}[{columns}] = {{}}, e_{name}[{columns}] = {{}};" for name in names]
        count = f"k_{names[0]}"
        self.declared.append(f"int64_t {count} = 0;")
        gather = " ".join(f"fx_gather(a_{name}[l], e_{name}[l], v_{name}[l]); v_{name}[l] = 0;" for name in names)
        every = ["#pragma omp simd", f"for (int64_t l = 0; l < {until}; ++l) {{ {gather} }}"]
        self.end = [f"if (++{count} == {IN_A_ROW}) {{", f"{count} = 0;", *every, "}"]
        self.rest = every
