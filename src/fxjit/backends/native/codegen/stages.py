"""A long loop body of values that wait for each other, as several short loops over a tile.

A processor works on some iterations of a loop at once as long as the next ones fit into its window of instructions. Where an
iteration is long and serial (functions of functions) they do not, and its latencies add up: four times
`tanh(1.5 * x + 1) * sigmoid(x) - x / 4` took 1.5 times as long in one loop as in four (AVX-512, GCC 12, libmvec), eight 1.8
times. So such a body is cut into stages; a tile of elements runs through all of them while it is in the first cache.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

#: Elements of a tile: a value that a later stage reads again takes at most 2 KiB of the stack.
TILE = 256
#: The longest path through a stage, in the units of `ops.work`: one function with what is around it.
PATH = 24
#: A body with less work than this leaves room for its neighbours.
ENOUGH = 80
#: A stage does not end where more values than these would have to be kept, nor before less work than a function's.
KEPT, LEAST = 6, 16
#: Rows shorter than this are not worth the loops.
LONG_ENOUGH = 64

_DEFINITION = re.compile(r"const (.+?) (t\d+) = (.*);")
_NAME = re.compile(r"\bt\d+\b")


def _defined(line: str) -> str | None:
    found = _DEFINITION.fullmatch(line)
    return found[2] if found else None


def _read_by(line: str) -> set[str]:
    found = _DEFINITION.fullmatch(line)
    return set(_NAME.findall(found[3] if found else line))


def _file(line: str, costs: Mapping[str, int], depths: dict[str, int]) -> int:
    """How long the line's value waits, from those in `depths` on, where it is put down."""
    depth = max((depths.get(name, 0) for name in _read_by(line)), default=0)
    if (name := _defined(line)) is not None:
        depth += costs.get(name, 1)
        depths[name] = depth
    return depth


def cut(lines: list[str], costs: Mapping[str, int]) -> list[list[str]]:
    """The lines in order, as stages; one where the body is short or not serial. `costs` are those of the values by name."""
    whole: dict[str, int] = {}
    longest = max((_file(line, costs, whole) for line in lines), default=0)
    work = sum(costs.get(name, 1) for name in whole)
    if work < ENOUGH or longest <= PATH or longest * 4 < work:
        return [lines]
    left = work
    last_read = {name: position for position, line in enumerate(lines) for name in _read_by(line)}
    stages: list[list[str]] = [[]]
    depths: dict[str, int] = {}
    live: set[str] = set()
    for position, line in enumerate(lines):
        live = {name for name in live if last_read.get(name, -1) >= position}
        if _file(line, costs, depths) > PATH and stages[-1] and len(live) <= KEPT and left >= LEAST:
            stages.append([])
            depths = {}
            _file(line, costs, depths)
        stages[-1].append(line)
        if (name := _defined(line)) is not None:
            left -= costs.get(name, 1)
            live.add(name)
    return stages


def tiled(stages: list[list[str]], index: str, size: str, simd: str) -> list[str]:
    """The body of the loop over tiles that begin at `lo`: one loop over `index` for each stage."""
    found = [(k, each) for k, stage in enumerate(stages) for line in stage if (each := _DEFINITION.fullmatch(line))]
    kinds, maker = {each[2]: each[1] for _, each in found}, {each[2]: k for k, each in found}
    needs = [{name for line in stage for name in _read_by(line) if maker.get(name, k) < k} for k, stage in enumerate(stages)]
    kept = sorted(set().union(*needs), key=lambda name: int(name[1:]))
    place = f"[{index} - lo]"
    out = [f"const int64_t hi = fx_imin(lo + {TILE}, {size});"]
    out += [f"alignas(64) {kinds[name]} k{name}[{TILE}];" for name in kept]
    for k, stage in enumerate(stages):
        inside = [f"const {kinds[name]} {name} = k{name}{place};" for name in kept if name in needs[k]]
        inside += stage
        inside += [f"k{name}{place} = {name};" for name in kept if maker[name] == k]
        out += [simd, f"for (int64_t {index} = lo; {index} < hi; ++{index}) {{", *("  " + line for line in inside), "}"]
    return out
