"""How things are measured here: side by side in one process, taking turns, medians, ratios.

Absolute times of a shared machine mean nothing; the ratio of two things that took turns does.
"""

from __future__ import annotations

import argparse
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping


def case_arguments(description: str | None) -> argparse.ArgumentParser:
    """What the benchmarks that go through a list of cases take."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--seconds", type=float, default=1.0, help="measuring time of each way of each case")
    parser.add_argument("--only", default="", help="only the cases whose name contains this")
    parser.add_argument("--without-torch-compile", action="store_true")
    return parser


def interleaved(calls: Mapping[str, Callable[[], object]], seconds: float = 1.0, rounds: int = 41) -> dict[str, float]:
    """Median seconds of one call of each, measured in `rounds` short turns that together take about `seconds` each."""
    loops: dict[str, int] = {}
    for name, call in calls.items():
        call()
        start = time.perf_counter()
        call()
        once = max(time.perf_counter() - start, 1e-7)
        loops[name] = max(1, int(seconds / rounds / once))
    samples: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            count = loops[name]
            start = time.perf_counter()
            for _ in range(count):
                call()
            samples[name].append((time.perf_counter() - start) / count)
    return {name: statistics.median(times) for name, times in samples.items()}


def first_call(call: Callable[[], object], clock: Callable[[], float] = time.perf_counter) -> float:
    """Seconds of the first call."""
    start = clock()
    call()
    return clock() - start


def measured_beside() -> str:
    """The line below a table: the release of torch, whose compiler is the one compared with, and the machine."""
    import torch

    return (f"Beside torch {torch.__version__} (eager and torch.compile), CPython {platform.python_version()}, "
            f"{os.cpu_count()} processors, {torch.backends.cpu.get_cpu_capability()}, threads: {torch.get_num_threads()}, "
            f"{time.strftime('%Y-%m-%d')}.")


def markdown(header: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    """A Markdown table."""
    lines = ["| " + " | ".join(header) + " |", "| " + " | ".join("---" for _ in header) + " |"]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])
