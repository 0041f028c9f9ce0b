"""`python -m benchmarks.real`: models of the sizes that people run, inference and training, on one thread and on two.

Eager, torch.compile and fxjit take turns in one process, a call of each at a time, and the numbers are ratios of their medians:
of the time on the processor for one thread, which what else runs on the machine changes little, and of the wall clock for more.
`--more` takes other models (benchmarks/more_real_models.py). Each model, mode and number of threads has a process of its own;
the peak of memory is what the process grows by during a call. With `--json FILE` a run goes on where it ended. What was printed
last is in docs/performance_models.md.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import json
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Any

from benchmarks.cpu import peak_of
from benchmarks.timing import first_call, markdown, measured_beside
from benchmarks.workers import KeptRows, measured

Call = Callable[[], object]
MODES = ("inference", "training")
AUTOCAST = "autocast"
#: Seconds that one model may take in one mode on one number of threads.
LIMIT = 900.0


# -- one process ----------------------------------------------------------------------------------------------------


def call_of(fn: Any, arguments: tuple[Any, ...], mode: str, dtype: str = "float32") -> Call:
    """One call as it is measured: a forward pass without gradients, or a training step's forward and backward."""
    import torch

    def forward() -> Any:
        with torch.autocast("cpu", torch.bfloat16) if dtype == AUTOCAST else contextlib.nullcontext():
            return fn(*arguments)

    def infer() -> object:
        with torch.no_grad():
            return forward()

    def train() -> object:
        for parameter in fn.parameters():
            parameter.grad = None
        forward().square().mean().backward()
        return None

    return infer if mode == "inference" else train


def measure(
    name: str, mode: str, ways: list[str], turns: int, dtype: str = "float32", freezing: bool = False
) -> dict[str, Any]:
    """Seconds of the first call, the medians of a call by the wall clock ("steady") and of the process's time on the
    processor, all its threads together ("cpu"), and the bytes of its peak, each by way."""
    import torch

    import fxjit
    from benchmarks.more_real_models import MORE_MODELS
    from benchmarks.real_models import MODELS

    torch.manual_seed(0)
    module, arguments = (MODELS | MORE_MODELS)[name]()
    if freezing:
        import torch._inductor.config

        torch._inductor.config.freezing = fxjit.config.freezing = True
    if dtype not in ("float32", AUTOCAST):
        kind = getattr(torch, dtype)
        module.to(kind)
        arguments = tuple(each.to(kind) if isinstance(each, torch.Tensor) and each.is_floating_point() else each
                          for each in arguments)
    module.train(mode == "training")
    for each in module.modules():
        if isinstance(each, torch.nn.Dropout):
            each.p = 0.0
    compilers = {"eager": lambda fn: fn, "torch": torch.compile, "fxjit": fxjit.compile}
    calls: dict[str, Call] = {}
    first: dict[str, float] = {}
    for way in ways:
        calls[way] = call_of(compilers[way](copy.deepcopy(module)), arguments, mode, dtype)
        first[way] = first_call(calls[way])
        calls[way]()
    samples: dict[str, list[tuple[float, float]]] = {way: [] for way in ways}
    for _ in range(turns):
        for way, call in calls.items():
            start = time.perf_counter(), time.process_time()
            call()
            samples[way].append((time.perf_counter() - start[0], time.process_time() - start[1]))
    wall, cpu = ({way: statistics.median(each[clock] for each in taken) for way, taken in samples.items()} for clock in (0, 1))
    return {"first": first, "steady": wall, "cpu": cpu, "peak": {way: peak_of(call) for way, call in calls.items()}}


# -- all of them ----------------------------------------------------------------------------------------------------


def run(name: str, mode: str, threads: int, options: argparse.Namespace) -> dict[str, Any]:
    """What the model's own process found; {"problem": ...} where it failed."""
    task = {"name": name, "mode": mode, "ways": options.ways.split(","), "turns": options.turns,
            "dtype": options.dtype, "freezing": options.freezing}
    with tempfile.TemporaryDirectory(prefix="fxjit-bench-") as folder:
        environment = os.environ | {"OMP_NUM_THREADS": str(threads),
                                    "TORCHINDUCTOR_CACHE_DIR": options.torch_cache or f"{folder}/inductor",
                                    "FXJIT_CACHE_DIR": options.fxjit_cache or f"{folder}/fxjit"}
        return measured("benchmarks.real", task, LIMIT, environment)


def ratio(found: dict[str, Any], field: str, over: str, under: str) -> float | None:
    """`over`'s number by `under`'s, where both were measured."""
    values = found.get(field, {})
    return values[over] / values[under] if values.get(over) and values.get(under) else None


def table(results: dict[str, Any]) -> str:
    """The rows of all that was measured, and the geometric means."""
    header = ("model", "mode", "threads", "eager, ms", "torch over eager", "fxjit over eager", "fxjit over torch",
              "peak MB: eager", "torch", "fxjit", "first call, s: torch", "fxjit")
    rows = []
    columns: tuple[list[float], list[float], list[float]] = ([], [], [])
    for key, found in results.items():
        name, mode, threads = key.split(" | ")
        if "problem" in found:
            rows.append((name, mode, threads, found["problem"], *[""] * 8))
            continue
        clock = "cpu" if threads == "1" and "cpu" in found else "steady"
        speeds = [ratio(found, clock, *pair) for pair in (("eager", "torch"), ("eager", "fxjit"), ("torch", "fxjit"))]
        for column, speed in zip(columns, speeds, strict=True):
            if speed is not None:
                column.append(speed)
        peaks = [found["peak"].get(way) for way in ("eager", "torch", "fxjit")]
        firsts = [found["first"].get(way) for way in ("torch", "fxjit")]
        rows.append((
            name, mode, threads, f"{found[clock].get('eager', math.nan) * 1e3:.1f}", *map(_times, speeds),
            *("" if peak is None else f"{peak / 1e6:.0f}" for peak in peaks),
            *("" if seconds is None else f"{seconds:.1f}" for seconds in firsts),
        ))  # fmt: skip
    means = [statistics.geometric_mean(column) if column else None for column in columns]
    rows.append(("geometric mean", "", "", "", *map(_times, means), *[""] * 5))
    return markdown(header, rows)


def _times(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}x"


def main(argv: list[str] | None = None) -> None:
    """Measures what the file does not have, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="only models whose name contains one of these, with commas")
    parser.add_argument("--more", action="store_true", help="other models than those of the first list")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16", "float16", AUTOCAST),
                        help="of weights and inputs; autocast: float32 under autocast to bfloat16")
    parser.add_argument("--freezing", action="store_true", help="both compilers take parameters for constants (inference)")
    parser.add_argument("--modes", default=",".join(MODES))
    parser.add_argument("--threads", default="1,2")
    parser.add_argument("--ways", default="eager,torch,fxjit")
    parser.add_argument("--turns", type=int, default=15, help="calls of each way")
    parser.add_argument("--json", help="where the results go, after each row; what it has is not measured again")
    parser.add_argument("--fxjit-cache", help="a folder for fxjit's cache; by default each row begins with an empty one")
    parser.add_argument("--torch-cache", help="the same for torch.compile's")
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.worker:
        print(json.dumps(measure(**json.loads(options.worker))))
        return
    from benchmarks.more_real_models import MORE_MODELS
    from benchmarks.real_models import MODELS

    kept = KeptRows(options.json)
    for name in MORE_MODELS if options.more else MODELS:
        if not any(part in name for part in options.only.split(",")):
            continue
        for mode in options.modes.split(","):
            for threads in map(int, options.threads.split(",")):
                shown = name if options.dtype == "float32" else f"{name}, {options.dtype}"
                shown += ", frozen" if options.freezing else ""
                kept.add(f"{shown} | {mode} | {threads}", functools.partial(run, name, mode, threads, options))
    print(table(kept.rows))
    print(f"\n{measured_beside()}")


if __name__ == "__main__":
    main()
