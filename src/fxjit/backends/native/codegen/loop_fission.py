"""Loop fission: a long loop body with a long chain of dependences, as several short loops over a tile.

A processor works on some iterations of a loop at once as long as the next ones fit into its window of instructions. Where an
iteration is long and serial (functions of functions) they do not, and its latencies add up: four times
`tanh(1.5 * x + 1) * sigmoid(x) - x / 4` took 1.5 times as long in one loop as in four (AVX-512, GCC 12, libmvec), eight 1.8
times. So such a body is cut into stages; a tile of elements runs through all of them while it is in the first cache.
"""

from __future__ import annotations

from collections.abc import Sequence

from .cpp import Line

#: Elements of a tile: a value that a later stage reads again takes at most 2 KiB of the stack.
TILE = 256
#: The longest path through a stage, in the units of `ops.work`: one function with what is around it.
PATH = 24
#: A body with less work than this leaves room for its neighbours.
ENOUGH = 80
#: A stage does not end where more values than these would have to be kept, nor before less work than a function's.
KEPT, LEAST = 6, 16
#: Rows shorter than this stay one loop.
LONG_ENOUGH = 64


def _file(line: Line, depths: dict[str, int]) -> int:
    """The depth of the line's value in the chain of dependences, noted in `depths`."""
    depth = max((depths.get(name, 0) for name in line.reads), default=0)
    if line.defines is not None:
        depth += line.cost
        depths[line.defines] = depth
    return depth


def fission(lines: list[Line]) -> list[list[Line]]:
    """The lines in order, as stages; one where the body is short or not serial."""
    whole: dict[str, int] = {}
    longest = max((_file(line, whole) for line in lines), default=0)
    work = sum(line.cost for line in lines)
    if work < ENOUGH or longest <= PATH or longest * 4 < work:
        return [lines]
    left = work
    last_read = {name: position for position, line in enumerate(lines) for name in line.reads}
    stages: list[list[Line]] = [[]]
    depths: dict[str, int] = {}
    live: set[str] = set()
    for position, line in enumerate(lines):
        live = {name for name in live if last_read.get(name, -1) >= position}
        if _file(line, depths) > PATH and stages[-1] and len(live) <= KEPT and left >= LEAST:
            stages.append([])
            depths = {}
            _file(line, depths)
        stages[-1].append(line)
        if line.defines is not None:
            left -= line.cost
            live.add(line.defines)
    return stages


def tiled_loops(stages: Sequence[Sequence[Line]], index: str, size: str, simd: str) -> list[str]:
    """The body of the loop over tiles that begin at `lo`: one loop over `index` for each stage."""
    found = [(line.defines, line.ctype, k) for k, stage in enumerate(stages) for line in stage if line.defines is not None]
    kinds, maker = {name: kind for name, kind, _ in found}, {name: k for name, _, k in found}
    needs = [{name for line in stage for name in line.reads if maker.get(name, k) < k} for k, stage in enumerate(stages)]
    kept = [name for name in maker if any(name in needed for needed in needs)]
    place = f"[{index} - lo]"
    out = [f"const int64_t hi = fx_imin(lo + {TILE}, {size});"]
    out += [f"alignas(64) {kinds[name]} k{name}[{TILE}];" for name in kept]
    for k, stage in enumerate(stages):
        inside = [f"const {kinds[name]} {name} = k{name}{place};" for name in kept if name in needs[k]]
        inside += stage
        inside += [f"k{name}{place} = {name};" for name in kept if maker[name] == k]
        out += [simd, f"for (int64_t {index} = lo; {index} < hi; ++{index}) {{", *("  " + line for line in inside), "}"]
    return out
