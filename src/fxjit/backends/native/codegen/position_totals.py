"""Totals of reductions whose last loop is short: one for each of its positions, combined when all loops are done.

Within a `reduction` of a short loop GCC combines a vector's elements each time that the loop ends: for the sum of 4096 rows of
8 floats, 64 apart, that takes 16.0 us on a Zen 5 and with a total for each position 3.4; of 4 8.3 and 3.0, of 16 32.4 and 3.7,
of 10 16.3 and 12.0, of 64 35.9 and 14.8, of 128 41.7 and 24.4. Of 2 it takes 3.4 and 5.6.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..index import Size, Sizes, prod
from ..ir import Compute
from . import tree_reduction

#: Positions of the last loop, and how often it runs, from and up to which there is a total for each.
LEAST, MOST, LEAST_TIMES = 4, 128, 4
#: Bytes that the positions have to be in memory: of 4 of bfloat16 it takes twice the time that a `reduction` does.
LEAST_BYTES = 16


def is_applicable(sizes: Sizes, computes: Sequence[Compute]) -> bool:
    """Of loops of these sizes, which nothing orders."""
    *others, last = sizes
    times = prod(tuple(others))
    narrowest = min((load.memory_dtype.itemsize for each in computes for load in each.loads()), default=LEAST_BYTES)
    short = isinstance(last, int) and LEAST <= last <= MOST and last * narrowest >= LEAST_BYTES
    return short and bool(others) and not (isinstance(times, int) and times < LEAST_TIMES)


def declared(name: str, ctype: str, start: str, count: Size) -> list[str]:
    """The totals of that name, at their start."""
    return [f"alignas(64) {ctype} {name}[{count}];", f"for (int64_t l = 0; l < {count}; ++l) {name}[l] = {start};"]


def combined(total: str, name: str, ctype: str, kind: str, count: Size, combine: str) -> str:
    """What makes them one: `combine` adds `name[l]` to the total."""
    if tree_reduction.is_applicable(count, [(kind, ctype)]):
        return f"{total} = {tree_reduction.total(name, ctype, kind, count)};"
    return f"for (int64_t l = 0; l < {count}; ++l) {combine}"
