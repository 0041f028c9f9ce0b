"""`python -m benchmarks.roofline`: how far models of real size are from what this machine can do, and where their kernels are.

The roofline model (Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures", 2009): a kernel that does F operations and moves B bytes of memory takes at least max(F / peak, B / bandwidth)
seconds. The peak is what torch's own product of two square matrices reaches, the bandwidth that of a copy of 64 MB. Both are
measured in turns with the model's calls, since a shared machine is now faster and now slower; times are medians of all turns.

A model's least time is an estimate: that of its products, convolutions and attention at that peak or, if it is longer, of
reading its parameters (in training twice, and of writing their gradients). Products of other shapes may be a little faster
than the square one, and recurrent layers are not counted. With `--picture FILE` kernels are drawn under the roof; with
`--json FILE` a run goes on where it ended.
"""

from __future__ import annotations

import argparse
import functools
import json
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks.real import MODES, call_of
from benchmarks.timing import markdown, measured_beside
from benchmarks.workers import KeptRows, measured

#: Rows of the square matrices whose product gives the peak, and floats of the copy that gives the bandwidth.
SQUARE, COPIED = 1024, 16 << 20
LIMIT = 600.0

Point = dict[str, float]


# -- one process ----------------------------------------------------------------------------------------------------


class Kernels:
    """What the native backend made of the graphs that were compiled: operations and bytes of a call of each kernel."""

    def __init__(self) -> None:
        self.launches: list[tuple[Any, Any, list[Any]]] = []
        """A graph's library, hints and launches."""
        self.keys: dict[str, str] = {}
        """The path of a loaded library -> its key."""

    @contextmanager
    def noted(self) -> Iterator[None]:
        from fxjit import events
        from fxjit.backends.native import pipeline
        from fxjit.backends.native.codegen.launch import Launch

        plan, start, compilations = pipeline.plan, pipeline.cc.start, []

        def planned(low: Any, gm: Any, hints: Any, steps: list[Any]) -> Any:
            ours = [(low, step) for step in steps if isinstance(step, Launch)]
            if ours:
                self.launches.append((compilations[-1], hints, ours))
            return plan(low, gm, hints, steps)

        def started(*arguments: Any) -> Any:
            compilations.append(start(*arguments))
            return compilations[-1]

        def loaded(event: events.Event) -> None:
            if isinstance(event, events.LibraryLoaded):
                self.keys[event.path] = event.key

        with (mock.patch.object(pipeline, "plan", planned), mock.patch.object(pipeline.cc, "start", started),
              events.listen(loaded)):
            yield

    def by_name(self) -> dict[tuple[str, str], tuple[float, float]]:
        """(its library's key, name) -> operations and bytes."""
        found = {}
        for compilation, hints, ours in self.launches:
            for low, launch in ours:
                buffers = [low.buffers[name] for name in launch.kernel.buffers if name in low.buffers]
                found[compilation.key, f"fxjit::{launch.entry}"] = (
                    operations(launch, hints), float(sum(bytes_of(buffer, hints) for buffer in buffers)))
        return found


def operations(launch: Any, hints: Any) -> float:
    """Operations on numbers of one call: each operator of an element's expression counts one, a fused product two a term."""
    from fxjit.backends.native.index import prod
    from fxjit.backends.native.ir import Op, walk

    group = launch.group
    count = 0.0
    for member in group.members:
        each = sum(isinstance(node, Op) for expr in member.compute.exprs for node in walk(expr))
        count += (each + member.compute.has_order) * hints(prod(group.outer + member.inner))
    product = getattr(group, "product", None)
    if product is not None:
        count += 2 * hints(product.m) * hints(product.n) * hints(product.k)
    return count


def bytes_of(buffer: Any, hints: Any) -> int:
    return int(hints(buffer.numel)) * buffer.dtype.itemsize


def measure(name: str, mode: str, turns: int) -> dict[str, Any]:
    """Medians in seconds, operations and bytes of one model, and the mean of fxjit's calls with what of it is products and
    kernels, a point each."""
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    import fxjit
    from benchmarks.real_models import MODELS
    from fxjit import _C

    torch.manual_seed(0)
    module, arguments = MODELS[name]()
    module.train(mode == "training")
    square, source = torch.randn(SQUARE, SQUARE), torch.randn(COPIED)
    product, copy = torch.empty_like(square), torch.empty_like(source)
    kernels = Kernels()
    with FlopCounterMode(display=False) as counter:
        call_of(module, arguments, mode)()
    with kernels.noted(), fxjit.config.patch(cache_graphs=False):
        ours = call_of(fxjit.compile(module), arguments, mode)
        ours()
    calls: dict[str, Callable[[], object]] = {
        "product": lambda: torch.mm(square, square, out=product), "copy": lambda: copy.copy_(source),
        "eager": call_of(module, arguments, mode), "fxjit": ours,
    }
    for call in calls.values():
        call()
    samples: dict[str, list[float]] = {way: [] for way in calls}
    _C.count_ranges(True)
    for _ in range(turns):
        for way, call in calls.items():
            start = time.perf_counter()
            call()
            samples[way].append(time.perf_counter() - start)
    ranges = _C.counted_ranges()
    _C.count_ranges(False)
    medians = {way: statistics.median(taken) for way, taken in samples.items()}
    parameters = sum(each.numel() * each.element_size() for each in module.parameters())
    points, work = [], kernels.by_name()
    for library, kernel, times, seconds in ranges:
        done, moved = work.get((kernels.keys.get(library or "", ""), kernel), (0.0, 0.0))
        if times and moved:
            points.append({"operations": done * times / turns, "bytes": moved * times / turns, "seconds": seconds / turns})
    gemm = sum(seconds for library, kernel, _, seconds in ranges if library is None and kernel == "fxjit::gemm") / turns
    return {"medians": medians, "mean": statistics.mean(samples["fxjit"]), "gemm": gemm, "kernels": points,
            "operations": float(counter.get_total_flops()),
            # Training reads the parameters in both passes, and writes their gradients.
            "bytes": float(parameters * (3 if mode == "training" else 1))}


# -- all of them ----------------------------------------------------------------------------------------------------


def peak(found: dict[str, Any]) -> float:
    """Operations a second of a product."""
    return 2 * SQUARE**3 / found["medians"]["product"]


def bandwidth(found: dict[str, Any]) -> float:
    """Bytes a second, read and written."""
    return 8 * COPIED / found["medians"]["copy"]


def least_seconds(found: dict[str, Any]) -> float:
    return max(found["operations"] / peak(found), found["bytes"] / bandwidth(found))


HEADER = ("model", "mode", "GFLOP", "least, ms", "eager, ms", "fxjit, ms", "eager over the least",
          "fxjit over eager", "of fxjit's time: products of BLAS", "kernels", "ATen and the rest")


def table(results: dict[str, Any]) -> str:
    rows = []
    for key, found in results.items():
        name, mode = key.split(" | ")
        if "problem" in found:
            rows.append((name, mode, found["problem"], *[""] * (len(HEADER) - 3)))
            continue
        eager, ours = found["medians"]["eager"], found["medians"]["fxjit"]
        kernels, whole = sum(point["seconds"] for point in found["kernels"]), found["mean"]
        rows.append((name, mode, f"{found['operations'] / 1e9:.1f}", f"{least_seconds(found) * 1e3:.1f}", f"{eager * 1e3:.1f}",
                     f"{ours * 1e3:.1f}", f"{eager / least_seconds(found):.2f}x", f"{eager / ours:.2f}x",
                     *(f"{part / whole:.0%}" for part in (found["gemm"], kernels, whole - found["gemm"] - kernels))))
    return markdown(HEADER, rows)


def draw(results: dict[str, Any], path: Path) -> None:
    """Kernels, and whole models, under the roof. Each run's rates are by its own peak, since the machine's speed varies."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    measured = {key: found for key, found in results.items() if "problem" not in found}
    top = statistics.median(map(peak, measured.values()))
    slope = statistics.median(map(bandwidth, measured.values()))
    figure, axes = pyplot.subplots(figsize=(10, 6.5), layout="constrained")
    intensities = [2.0**step for step in range(-10, 13)]
    axes.plot(intensities, [min(1, slope * each / top) for each in intensities], color="black",
              label=f"peak {top / 1e9:.0f} GFLOP/s, memory {slope / 1e9:.0f} GB/s (medians)")
    colours = pyplot.get_cmap("tab20").colors
    for (key, found), colour in zip(measured.items(), colours * 4):
        marker = "o" if "inference" in key else "s"
        for point in found["kernels"]:
            if point["operations"] and point["seconds"]:
                rate = point["operations"] / point["seconds"] / peak(found)
                axes.scatter(point["operations"] / point["bytes"], rate, marker=marker, color=colour, alpha=0.5, linewidths=0,
                             s=8 + 300 * point["seconds"] / found["mean"])
        for way, filled in (("eager", False), ("fxjit", True)):
            rate = found["operations"] / found["medians"][way] / peak(found)
            axes.scatter(found["operations"] / found["bytes"], rate, marker="^" if marker == "o" else "D", s=70,
                         edgecolors=colour, facecolors=colour if filled else "none",
                         label=key.replace(" | ", ", ") if filled else None)
    axes.set(xscale="log", yscale="log", xlabel="operations a byte", ylabel="of the speed of a product of 1024 x 1024 matrices",
             title="Kernels of fxjit (dots and squares, size: share of the call) and whole models (eager hollow, fxjit filled)")
    axes.grid(True, which="major", alpha=0.3)
    axes.legend(fontsize=7, loc="lower right", ncols=2)
    figure.savefig(path, dpi=110)


def main(argv: list[str] | None = None) -> None:
    """Measures what the file does not have, prints the table, and draws the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only models whose name contains this")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--json", help="where the results go, after each row; what it has is not measured again")
    parser.add_argument("--picture", help="where the picture goes (PNG or SVG); needs matplotlib")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        print(json.dumps(measure(**json.loads(options.worker))))
        return
    from benchmarks.real_models import MODELS

    kept = KeptRows(options.json)
    for name in (name for name in MODELS if options.only in name):
        for mode in options.modes.split(","):
            task = {"name": name, "mode": mode, "turns": options.turns}
            kept.add(f"{name} | {mode}", functools.partial(measured, "benchmarks.roofline", task, LIMIT))
    print(table(kept.rows))
    print(f"\n{measured_beside()}")
    if options.picture:
        draw(kept.rows, Path(options.picture))


if __name__ == "__main__":
    main()
