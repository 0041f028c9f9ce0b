"""Training steps of two models under DistributedDataParallel, FSDP2 and tensor parallel: the rows of `python -m
benchmarks.distributed --strategies`, and of `--overlap` how much of the communication runs beside backward.

Eager, torch.compile and fxjit take turns, step by step, in one set of processes, on equal data, so that their losses can be
compared. The delayed network (distributed.py) is a communication hook, which DistributedDataParallel alone has.
"""

from __future__ import annotations

import os
import queue
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NoReturn

import torch
import torch.nn.functional as F
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import fxjit
from benchmarks.distributed_losses import MODELS, STRATEGIES, Batch

HEADER = ("ranks", "model", "under", "network", "eager, ms", "torch.compile, of eager's time", "fxjit",
          "losses: torch.compile", "losses: fxjit")
OVERLAP_HEADER = ("ranks", "model", "way", "network busy, ms", "of it beside backward", "step, ms")
#: Of each model: width, depth, how many of distributed_losses' batches make one. 4 and 2 MB of parameters.
SIZES = {"GPT-2": (192, 2, 8), "ResNet": (96, 3, 4)}
#: Of a bucket. torch.compile takes none below the first one's, which is 1.
MEGABYTES = 1
#: Steps that are not measured: compiles, and the order of the buckets.
FIRST = 4
Way = Callable[[Any], Any]
Interval = tuple[float, float]


class SlowNetwork:
    """A communication hook: buckets go one after the other over a link of some latency (seconds) and bandwidth (bytes a
    second), whose times a profiler sees as ranges called "network"."""

    def __init__(self, latency: float, bandwidth: float) -> None:
        self.latency, self.bandwidth = latency, bandwidth
        self._sent: queue.SimpleQueue[Any] = queue.SimpleQueue()
        threading.Thread(target=self._deliver, daemon=True).start()

    def send(self, bucket: Any) -> Any:
        buffer, arrives = bucket.buffer(), torch.futures.Future()  # type: ignore[var-annotated]  # torch's has no types
        buffer.div_(distributed.get_world_size())
        self._sent.put((distributed.all_reduce(buffer, async_op=True), buffer, arrives))
        return arrives

    def _deliver(self) -> None:
        while True:
            work, buffer, arrives = self._sent.get()
            with torch.profiler.record_function("network"):
                over = time.perf_counter() + self.latency + buffer.numel() * buffer.element_size() / self.bandwidth
                work.wait()
                time.sleep(max(0.0, over - time.perf_counter()))
            arrives.set_result(buffer)


def leave() -> NoReturn:
    """Ends a rank, which has sent its results, at once. A thread that comes back from C++ to Python, or lets a tensor go, while
    Python ends aborts the process: the network's may, and gloo's."""
    distributed.destroy_process_group()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)


def ways(with_torch_compile: bool) -> dict[str, Way]:
    found: dict[str, Way] = {"eager": lambda model: model}
    if with_torch_compile:
        found["torch.compile"] = torch.compile
    return found | {"fxjit": fxjit.compile}


def _batch(name: str, step: int, rank: int) -> Batch:
    generator = torch.Generator().manual_seed(1000 * step + rank)
    parts = [MODELS[name][1](generator) for _ in range(SIZES[name][2])]
    x, target = (torch.cat(each) for each in zip(*parts, strict=True))
    return x, target


def training(name: str, strategy: str, network: SlowNetwork | None, way: Way) -> Iterator[tuple[float, float]]:
    """The seconds and the loss of each step of AdamW."""
    torch.manual_seed(0)
    width, depth, _ = SIZES[name]
    model: Any = MODELS[name][0](width, depth)
    if strategy == "DDP":
        model = DistributedDataParallel(model, bucket_cap_mb=MEGABYTES)
        if network is not None:
            model.register_comm_hook(network, lambda state, bucket: state.send(bucket))
        run = way(model)
    else:
        mesh = distributed.device_mesh.init_device_mesh("cpu", (distributed.get_world_size(),))
        run = model = STRATEGIES[strategy](model, mesh, way)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
    rank = 0 if strategy == "tensor parallel" else distributed.get_rank()
    for step in range(10**9):
        x, target = _batch(name, step, rank)
        start = time.perf_counter()
        loss = F.cross_entropy(run(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        yield time.perf_counter() - start, loss.item()


def row(name: str, strategy: str, network: SlowNetwork | None, made: dict[str, Way], steps: int) -> tuple[str, ...]:
    """One row of the table, on each rank: the times are its own."""
    runs = {way: training(name, strategy, network, make) for way, make in made.items()}
    seen: dict[str, list[tuple[float, float]]] = {way: [] for way in runs}
    for _ in range(FIRST + steps):
        for way, run in runs.items():  # each rank as many, and in this order: they wait for each other
            seen[way].append(next(run))
    seconds = {way: statistics.median(each for each, _ in found[FIRST:]) for way, found in seen.items()}

    def of_eager(way: str) -> str:
        return f"{seconds[way] / seconds['eager']:.2f}x" if way in seconds else "-"

    def from_eager(way: str) -> str:
        if way not in seen:
            return "-"
        pairs = zip(seen["eager"], seen[way], strict=True)
        return f"{max(abs(a - b) / abs(a) for (_, a), (_, b) in pairs):.1e}"

    said = "none" if network is None else f"{1e3 * network.latency:g} ms, {network.bandwidth / 1e6:g} MB/s"
    return (str(distributed.get_world_size()), name, strategy, said, f"{1e3 * seconds['eager']:.1f}", of_eager("torch.compile"),
            of_eager("fxjit"), from_eager("torch.compile"), from_eager("fxjit"))


# -- overlap, from a profiler's trace ----------------------------------------------------------------------------------


def union(intervals: list[Interval]) -> list[Interval]:
    found: list[Interval] = []
    for start, end in sorted(intervals):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return found


def common(some: list[Interval], others: list[Interval]) -> float:
    """How long both are under way."""
    return sum(max(0.0, min(a[1], b[1]) - max(a[0], b[0])) for a in union(some) for b in union(others))


def trace(name: str, network: SlowNetwork, way: Way) -> tuple[list[Interval], list[Interval], float]:
    """When the network was busy and when backward computed in one step, in milliseconds from its start, and its length."""
    run = training(name, "DDP", network, way)
    for _ in range(FIRST):
        next(run)
    everywhere = torch._C._profiler._ExperimentalConfig(profile_all_threads=True)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], experimental_config=everywhere) as seen:
        seconds, _ = next(run)
    events = [(each.name, each.time_range.start / 1e3, each.time_range.end / 1e3) for each in seen.events()]
    begin = min(start for _, start, _ in events)
    sent = [(start - begin, end - begin) for what, start, end in events if what == "network"]
    computed = [(start - begin, end - begin) for what, start, end in events if "evaluate_function" in what]
    assert sent and computed, "the profiler saw no backward or no network"
    return sent, computed, 1e3 * seconds


def overlaps(name: str, network: SlowNetwork, picture: str) -> list[tuple[str, ...]]:
    """The rows of the table of overlap, and the picture where a path is given, on each rank."""
    made: dict[str, Way] = {"eager": lambda model: model}
    for optimize in (False, True):  # as options: compiled code is shared by those of equal options
        made[f"fxjit, optimize_ddp={optimize}"] = lambda model, on=optimize: fxjit.compile(model, options={"optimize_ddp": on})
    found = {way: trace(name, network, make) for way, make in made.items()}
    if picture and distributed.get_rank() == 0:
        draw(found, f"{name}, {distributed.get_world_size()} ranks", picture)
    rows = []
    for way, (sent, computed, step) in found.items():
        busy = sum(end - start for start, end in union(sent))
        beside = f"{common(sent, computed) / busy:.0%}"
        rows.append((str(distributed.get_world_size()), name, way, f"{busy:.1f}", beside, f"{step:.1f}"))
    return rows


def draw(found: dict[str, tuple[list[Interval], list[Interval], float]], title: str, path: str) -> None:
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(figsize=(9, 3.2))
    for place, (way, (sent, computed, _)) in enumerate(reversed(found.items())):
        begin = min(start for start, _ in computed)
        for lane, (intervals, color) in enumerate(((sent, "tab:orange"), (computed, "tab:blue"))):
            bars = [(start - begin, end - start) for start, end in union(intervals)]
            label = None if place else ("network", "backward")[lane]
            axes.broken_barh(bars, (2.4 * place + lane, 0.9), facecolors=color, label=label)
    axes.set_yticks([2.4 * place + 1 for place in range(len(found))], [*reversed(found)])
    axes.set_xlabel("milliseconds since the beginning of backward")
    axes.set_title(title)
    axes.legend(loc="lower right")
    figure.tight_layout()
    figure.savefig(path)
