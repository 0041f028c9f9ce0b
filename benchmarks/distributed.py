"""`python -m benchmarks.distributed`: training steps under DistributedDataParallel, on a network of a given speed.

The ranks are processes of this machine, over gloo. A communication hook delays each bucket as a network would that sends one
bucket after the other: `latency + bytes / bandwidth`, from when the network is free. Eager, fxjit with `optimize_ddp` off and
on, and torch.compile take turns in the same processes; medians of rank 0's steps; only the ratios mean something. Printed as
Markdown; docs/performance_processes.md has it. `--losses` prints, instead, how far losses are from eager's under
DistributedDataParallel, FSDP2 and tensor parallel (distributed_losses.py); `--strategies` the time of a step under each, and
`--overlap` how much of the communication runs beside backward (distributed_steps.py).
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

import fxjit
from benchmarks import distributed_losses, distributed_steps
from benchmarks.timing import markdown, measured_beside

Step = Callable[[], object]


@dataclass(frozen=True)
class Network:
    """One link, as a rank sees it."""

    name: str
    #: Seconds that each bucket takes beside its bytes.
    latency: float
    #: Bytes a second.
    bandwidth: float


NETWORKS = (Network("none", 0.0, float("inf")), Network("1 ms, 200 MB/s", 1e-3, 200e6), Network("5 ms, 50 MB/s", 5e-3, 50e6))


class Blocks(nn.Module):
    """The feed-forward half of a transformer: `depth` residual blocks of `width`."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
            for _ in range(depth)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = x + block(x)
        return x


def _convolutions(channels: int, depth: int) -> nn.Module:
    layers = [nn.Conv2d(3, channels, 3, padding=1)]
    for _ in range(depth):
        layers += [nn.Conv2d(channels, channels, 3, padding=1), nn.BatchNorm2d(channels), nn.ReLU()]  # type: ignore[list-item]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(channels, 10))


CASES: dict[str, Callable[[], tuple[nn.Module, torch.Tensor]]] = {
    "6 blocks of 512": lambda: (Blocks(512, 6), torch.randn(128, 512)),
    "8 convolutions of 128": lambda: (_convolutions(128, 8), torch.randn(8, 3, 16, 16)),
    "2 blocks of 32": lambda: (Blocks(32, 2), torch.randn(8, 32)),
}


class Delay:
    """The state of a communication hook whose results arrive when the network would have sent them."""

    def __init__(self, network: Network) -> None:
        self.network, self.free_at = network, 0.0

    def send(self, bucket: Any) -> Any:
        buffer = bucket.buffer().div_(distributed.get_world_size())
        seconds = self.network.latency + buffer.numel() * buffer.element_size() / self.network.bandwidth
        self.free_at = max(time.perf_counter(), self.free_at) + seconds
        work = distributed.all_reduce(buffer, async_op=True)
        arrives: Any = torch.futures.Future()

        def deliver() -> None:
            work.wait()
            arrives.set_result(buffer)

        threading.Timer(max(0.0, self.free_at - time.perf_counter()), deliver).start()
        return arrives


def _ways(with_torch_compile: bool) -> dict[str, Callable[[nn.Module], Callable[..., Any]]]:
    ways: dict[str, Callable[[nn.Module], Callable[..., Any]]] = {"eager": lambda model: model}
    for name, optimize in (("off", False), ("on", True)):
        # As options: compiled code is shared by those of equal options.
        ways[name] = lambda model, optimize=optimize: fxjit.compile(model, options={"optimize_ddp": optimize})
    if with_torch_compile:
        ways["torch.compile"] = torch.compile
    return ways


def _step(name: str, network: Network, way: Callable[[nn.Module], Callable[..., Any]]) -> Step:
    torch.manual_seed(0)
    net, x = CASES[name]()
    model: Any = DistributedDataParallel(net, bucket_cap_mb=1)
    if network.latency:
        model.register_comm_hook(Delay(network), lambda delay, bucket: delay.send(bucket))
    run = way(model)
    return lambda: run(x).square().mean().backward()


def _other_table(options: argparse.Namespace) -> list[tuple[str, ...]]:
    """The rows of the table that another option asks for."""
    if options.losses:
        return distributed_losses.rows()
    models = [each for each in distributed_steps.SIZES if options.only in each]
    table: list[tuple[str, ...]] = []
    delays = [distributed_steps.SlowNetwork(each.latency, each.bandwidth) for each in NETWORKS[1 : options.networks]]
    if options.overlap:
        for name in models:
            picture = options.picture if name == models[0] else ""
            table += distributed_steps.overlaps(name, delays[0], picture)
    if options.strategies:
        made = distributed_steps.ways(not options.without_torch_compile)
        for name in models:
            for strategy in distributed_losses.STRATEGIES:
                for network in (None, *(delays[:1] if strategy == "DDP" else ())):
                    fxjit.reset()
                    table.append(distributed_steps.row(name, strategy, network, made, options.steps))
                    if distributed.get_rank() == 0:
                        print(table[-1], file=sys.stderr, flush=True)
    return table


def _measure(options: argparse.Namespace, name: str, network: Network) -> dict[str, float]:
    """Seconds of a step, each way."""
    steps = {way: _step(name, network, make) for way, make in _ways(not options.without_torch_compile).items()}
    # Each rank takes as many steps: they wait for each other in each.
    samples: dict[str, list[float]] = {way: [] for way in steps}
    for count in range(options.steps + 3):
        for way, step in steps.items():
            start = time.perf_counter()
            step()
            if count >= 3:  # the first compile, and rebuild the buckets
                samples[way].append(time.perf_counter() - start)
    return {way: statistics.median(each) for way, each in samples.items()}


def _on_rank(rank: int, options: argparse.Namespace, store: str, rows: Any) -> None:
    torch.set_num_threads(1)
    distributed.init_process_group(
        "gloo", store=distributed.FileStore(store, options.ranks), rank=rank, world_size=options.ranks)
    table = _other_table(options)
    if table and rank == 0:
        rows.put(table)
    for name in (each for each in CASES if not table and options.only in each):
        for network in NETWORKS[: options.networks]:
            seconds = _measure(options, name, network)
            if rank == 0:
                rows.put((name, network.name, seconds))
    distributed_steps.leave()


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=21, help="measured steps of each way")
    parser.add_argument("--networks", type=int, default=len(NETWORKS), help="how many of the networks")
    parser.add_argument("--only", default="", help="only the models whose name contains this")
    parser.add_argument("--without-torch-compile", action="store_true")
    parser.add_argument("--losses", action="store_true", help="the losses of 20 steps, beside eager's")
    parser.add_argument("--strategies", action="store_true", help="steps under DistributedDataParallel, FSDP2, tensor parallel")
    parser.add_argument("--overlap", action="store_true", help="how much of the communication runs beside backward")
    parser.add_argument("--picture", default="", help="with --overlap: where its picture goes")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    rows = multiprocessing.get_context("spawn").SimpleQueue()
    with tempfile.TemporaryDirectory() as folder:
        multiprocessing.spawn(_on_rank, (options, os.path.join(folder, "store"), rows), nprocs=options.ranks)  # type: ignore[no-untyped-call]
    others = {"losses": distributed_losses.HEADER, "strategies": distributed_steps.HEADER,
              "overlap": distributed_steps.OVERLAP_HEADER}
    for option, header_of in others.items():
        if getattr(options, option):
            print(markdown(header_of, rows.get()))
            print(f"\n{options.ranks} ranks on {os.cpu_count()} cores. {measured_beside()}")
            return
    header = ("model", "network", "eager, ms", "fxjit uncut, of eager's time", "fxjit cut", "torch.compile")
    table = []
    while not rows.empty():
        name, network, seconds = rows.get()
        of_eager = {way: f"{each / seconds['eager']:.2f}x" for way, each in seconds.items()}
        times = (of_eager["off"], of_eager["on"], of_eager.get("torch.compile", "-"))
        table.append((name, network, f"{1000 * seconds['eager']:.1f}", *times))
    print(markdown(header, table))
    print(f"\n{measured_beside()}")


if __name__ == "__main__":
    main()
