"""`python -m benchmarks.step_model`: what a step under DistributedDataParallel would take on 8 to 1024 ranks.

A step is measured without communication: when each bucket of gradients is ready, how many bytes it has, how long the step
takes. A bucket is then sent as soon as it is ready and the one before it is through, and the optimizer waits for the last. An
all-reduce of `bytes` over `n` ranks takes `2 log2(n) latency + 2 (n - 1) / n bytes / bandwidth` (recursive halving and
doubling: Thakur, Rabenseifner and Gropp, "Optimization of collective communication operations in MPICH", 2005). The prediction
is held against measured steps on this machine's ranks, whose buckets arrive late by a communication hook; both tables are
printed as Markdown, and `--picture FILE` draws the second one. docs/performance_processes.md has them.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, multiprocessing

import fxjit
from benchmarks.distributed_steps import FIRST, SIZES, SlowNetwork, Way, leave, training
from benchmarks.timing import markdown, measured_beside

RANKS = (8, 32, 128, 512, 1024)
CHECK_HEADER = ("ranks", "model", "way", "network", "predicted, ms", "measured, ms", "measured / predicted")
HEADER = ("model", "way", "network", "buckets", "no network, ms", *(f"{n} ranks, ms" for n in RANKS), "beside backward, 1024")


@dataclass(frozen=True)
class Link:
    """What a rank sends over: seconds that a message takes beside its bytes, and bytes a second."""

    name: str
    latency: float
    bandwidth: float

    def all_reduce(self, size: float, ranks: int) -> float:
        """Seconds to reduce `size` bytes over so many ranks."""
        return self.fixed(ranks) + size / self.rate(ranks)

    def fixed(self, ranks: int) -> float:
        return 2 * math.log2(ranks) * self.latency

    def rate(self, ranks: int) -> float:
        return self.bandwidth * ranks / (2 * (ranks - 1))


LINKS = (Link("50 us, 1.25 GB/s", 50e-6, 1.25e9), Link("1 ms, 200 MB/s", 1e-3, 200e6))


@dataclass(frozen=True)
class Step:
    """A step that sends nothing, in seconds from its start."""

    #: When each bucket is ready, in their order, and its bytes. Backward ends with the last one.
    buckets: tuple[tuple[float, int], ...]
    seconds: float

    @property
    def backward_ends(self) -> float:
        return self.buckets[-1][0]


@dataclass(frozen=True)
class Prediction:
    seconds: float
    #: Of the time that the network is busy, how much lies before backward's end.
    beside_backward: float


def predicted(step: Step, link: Link, ranks: int) -> Prediction:
    """The step on so many ranks: buckets go one after the other, and what follows backward waits for the last."""
    free = busy = beside = 0.0
    for ready, size in step.buckets:
        begin = max(free, ready)
        free = begin + link.all_reduce(size, ranks)
        busy += free - begin
        beside += max(0.0, min(free, step.backward_ends) - begin)
    return Prediction(step.seconds + max(0.0, free - step.backward_ends), beside / busy)


class Recorder:
    """A communication hook that sends nothing and notes when it was asked to."""

    def __init__(self) -> None:
        self.asked: list[tuple[float, int]] = []

    def send(self, bucket: Any) -> Any:
        buffer = bucket.buffer()
        self.asked.append((time.perf_counter(), buffer.numel() * buffer.element_size()))
        arrives = torch.futures.Future()  # type: ignore[var-annotated]  # torch's has no types
        arrives.set_result(buffer)
        return arrives


def recorded(name: str, way: Way, steps: int) -> Step:
    """The medians of some steps that send nothing."""
    recorder, samples = Recorder(), []
    run = training(name, "DDP", recorder, way)
    for count in range(FIRST + steps):
        recorder.asked.clear()
        seconds, _ = next(run)
        start = time.perf_counter() - seconds
        if count >= FIRST:
            samples.append(Step(tuple((asked - start, size) for asked, size in recorder.asked), seconds))
    assert len({tuple(size for _, size in each.buckets) for each in samples}) == 1, "the buckets change from step to step"
    ready = [statistics.median(times) for times in zip(*([at for at, _ in each.buckets] for each in samples), strict=True)]
    sizes = [size for _, size in samples[0].buckets]
    return Step(tuple(zip(ready, sizes, strict=True)), statistics.median(each.seconds for each in samples))


def measured(name: str, way: Way, link: Link, steps: int) -> float:
    """The median of some steps whose buckets arrive as late as on the link."""
    ranks = distributed.get_world_size()
    run = training(name, "DDP", SlowNetwork(link.fixed(ranks), link.rate(ranks)), way)
    return statistics.median([next(run)[0] for _ in range(FIRST + steps)][FIRST:])


def ways(with_torch_compile: bool) -> dict[str, Way]:
    """Eager, and compiled code that is one graph or is cut at the buckets (by options: those of equal ones share code)."""
    found: dict[str, Way] = {"eager": lambda model: model}
    for on in (False, True):
        found[f"fxjit, optimize_ddp={on}"] = lambda model, on=on: fxjit.compile(model, options={"optimize_ddp": on})
    return found | ({"torch.compile": torch.compile} if with_torch_compile else {})


def _on_rank(rank: int, ranks: int, options: argparse.Namespace, store: str, results: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", store=distributed.FileStore(store, ranks), rank=rank, world_size=ranks)
    for name in (each for each in SIZES if options.only in each):
        for way, make in ways(not options.without_torch_compile).items():
            step = recorded(name, make, options.steps)
            seconds = measured(name, make, LINKS[-1], options.steps)
            if rank == 0:
                results.put((ranks, name, way, step, seconds))
    leave()


def measurements(ranks: int, options: argparse.Namespace) -> list[tuple[int, str, str, Step, float]]:
    """Rank 0's: how many ranks, the model, the way, its step without a network, and seconds over the last of the links."""
    results = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        given = (ranks, options, os.path.join(folder, "store"), results)
        multiprocessing.spawn(_on_rank, given, nprocs=ranks)  # type: ignore[no-untyped-call]
    found = []
    while not results.empty():
        found.append(results.get())
    return found


def check_row(ranks: int, name: str, way: str, step: Step, seconds: float) -> tuple[str, ...]:
    expected = predicted(step, LINKS[-1], ranks).seconds
    return (str(ranks), name, way, LINKS[-1].name, f"{1e3 * expected:.1f}", f"{1e3 * seconds:.1f}", f"{seconds / expected:.2f}")


def row(name: str, way: str, link: Link, step: Step) -> tuple[str, ...]:
    expected = [predicted(step, link, ranks) for ranks in RANKS]
    return (name, way, link.name, str(len(step.buckets)), f"{1e3 * step.seconds:.1f}",
            *(f"{1e3 * each.seconds:.1f}" for each in expected), f"{expected[-1].beside_backward:.0%}")


def draw(steps: Iterable[tuple[str, str, Step]], path: str) -> None:
    """Step times over ranks, a line for each way, a field for each model and link."""
    from matplotlib import pyplot

    found = list(steps)
    models = list(dict.fromkeys(name for name, _, _ in found))
    figure, axes = pyplot.subplots(len(models), len(LINKS), figsize=(9, 3.2 * len(models)), squeeze=False)
    ranks = [2**power for power in range(1, 11)]
    for line, model in enumerate(models):
        for column, link in enumerate(LINKS):
            field = axes[line][column]
            for name, way, step in found:
                if name == model:
                    field.plot(ranks, [1e3 * predicted(step, link, each).seconds for each in ranks], label=way)
            field.set_xscale("log", base=2)
            field.set_title(f"{model}, {link.name}")
            field.set_xlabel("ranks")
            field.set_ylabel("a step, ms")
    axes[0][0].legend()
    figure.tight_layout()
    figure.savefig(path)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", type=int, nargs="*", default=[2, 4], help="ranks of this machine to hold it against")
    parser.add_argument("--steps", type=int, default=15, help="measured steps of each way")
    parser.add_argument("--only", default="", help="only the models whose name contains this")
    parser.add_argument("--without-torch-compile", action="store_true")
    parser.add_argument("--picture", default="", help="where the picture of the predictions goes")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found = [each for ranks in options.check for each in measurements(ranks, options)]
    print(markdown(CHECK_HEADER, [check_row(*each) for each in found]), end="\n\n")
    # Fewer ranks than processors: each computes as one does that has a machine.
    steps = [(name, way, step) for ranks, name, way, step, _ in found if ranks == options.check[0]]
    print(markdown(HEADER, [row(name, way, link, step) for name, way, step in steps for link in LINKS]))
    print(f"\n{measured_beside()}")
    if options.picture:
        draw(steps, options.picture)


if __name__ == "__main__":
    main()
