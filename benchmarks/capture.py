"""`python -m benchmarks.capture`: what capturing a program costs, fxjit beside torch.compile, both with backend `eager`.

Counted are CPU seconds of the first call of each program of the list (benchmarks/programs.py), less those of an eager
call, in a process of its own with one thread, after a trivial function was compiled there: imports and what is set up
once are not the program's. The two compilers take turns, and the smallest of `--rounds` counts. `--growth` asks how the cost
grows with a model's depth.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import torch

import fxjit
from benchmarks.models import call
from benchmarks.programs import MORE, PROGRAMS, Program, llama
from benchmarks.timing import markdown, measured_beside

WAYS = ("fxjit", "torch")
_DEPTHS = (2, 4, 8, 16, 32)
_SEED = 0


def compiled_by(way: str, fn: Any) -> Any:
    return fxjit.compile(fn, backend="eager") if way == "fxjit" else torch.compile(fn, backend="eager")


def builder(name: str) -> Callable[[], Program]:
    """A program of the benchmark, or `llama_N`: a model of N layers."""
    if name.startswith("llama_"):
        return lambda: llama(int(name.removeprefix("llama_")))
    return PROGRAMS[name] if name in PROGRAMS else MORE[name]


class Work:
    """Counts what the symbolic interpreter did: instructions, traces (one a frame, and one more for each restart)."""

    def __init__(self) -> None:
        from fxjit.frontend.interp.dispatch import HANDLERS
        from fxjit.frontend.trace import Trace

        self.instructions = self.traces = 0
        for opcode, handler in list(HANDLERS.items()):
            HANDLERS[opcode] = self._counting(handler)
        run = Trace.run

        def counted(trace: Trace, code: Any) -> Any:
            self.traces += 1
            return run(trace, code)

        Trace.run = counted  # type: ignore[method-assign]  # for the length of this process

    def _counting(self, handler: Callable[..., Any]) -> Callable[..., Any]:
        def count(machine: Any, instruction: Any) -> Any:
            self.instructions += 1
            return handler(machine, instruction)

        return count


def measure(name: str, way: str, count: bool) -> dict[str, Any]:
    """Here and now: CPU seconds of the first compiled call and of an eager one, and with `count` the work done."""
    torch.set_num_threads(1)
    fxjit.config.store_entries = False  # what is measured is tracing, which a stored entry takes the place of
    trivial = compiled_by(way, lambda x: x + 1)
    trivial(torch.ones(3))
    torch.manual_seed(_SEED)
    eager = builder(name)()
    batch = eager.batches[0]
    call(eager, eager.fn, batch)
    start = time.process_time()
    call(eager, eager.fn, batch)
    once = time.process_time() - start
    torch.manual_seed(_SEED)
    ours = builder(name)()
    compiled = compiled_by(way, ours.fn)
    work = Work() if count else None
    before = fxjit.counters["frames"]["total"]
    start = time.process_time()
    call(ours, compiled, batch)
    spent = time.process_time() - start
    found = {"seconds": max(spent - once, 1e-4), "eager": once}
    if work is not None:
        frames = fxjit.counters["frames"]["total"] - before
        found |= {"instructions": work.instructions, "traces": work.traces, "frames": frames}
    return found


def in_process(name: str, way: str, count: bool = False, timeout: float = 600.0) -> dict[str, Any]:
    """`measure` in a process of its own; {"error": ...} where it failed."""
    command = [sys.executable, "-m", "benchmarks.capture", "--here", name, "--way", way] + ["--count"] * count
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return {"error": f"more than {timeout:.0f} s"}
    lines = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if not lines:
        return {"error": (done.stderr.strip().splitlines() or ["nothing said"])[-1][:200]}
    found: dict[str, Any] = json.loads(lines[-1])
    return found


def _row(name: str, rounds: int) -> tuple[str, ...]:
    best: dict[str, float] = {}
    for _ in range(rounds):
        for way in WAYS:
            found = in_process(name, way)
            if "error" in found:
                return (name, "-", "-", "-", "-", "-", f"{way}: {found['error']}")
            best[way] = min(best.get(way, found["seconds"]), found["seconds"])
    work = in_process(name, "fxjit", count=True)
    return (name, f"{best['fxjit']:.2f}", f"{best['torch']:.2f}", f"{best['fxjit'] / best['torch']:.2f}",
            str(work.get("instructions", "-")), f"{work.get('traces', '-')} / {work.get('frames', '-')}", work.get("error", ""))


HEADER = ("program", "fxjit, CPU s", "torch.compile, CPU s", "ratio", "instructions traced", "traces / frames", "error")
GROWTH = ("layers", "instructions traced", "fxjit, CPU s", "µs an instruction", "torch.compile, CPU s", "ratio")


def _growth(depth: int, rounds: int) -> tuple[str, ...]:
    name = f"llama_{depth}"
    ours = min(in_process(name, "fxjit")["seconds"] for _ in range(rounds))
    theirs = min(in_process(name, "torch")["seconds"] for _ in range(rounds))
    count = in_process(name, "fxjit", count=True)["instructions"]
    return (str(depth), str(count), f"{ours:.2f}", f"{ours / count * 1e6:.0f}", f"{theirs:.2f}", f"{ours / theirs:.2f}")


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="this program; may be repeated")
    parser.add_argument("--more", action="store_true", help="the programs that are not of the list too")
    parser.add_argument("--growth", action="store_true", help="models of 2, 4, 8, 16 and 32 layers instead")
    parser.add_argument("--rounds", type=int, default=1, help="processes for each program and compiler")
    parser.add_argument("--here", help=argparse.SUPPRESS)
    parser.add_argument("--way", choices=WAYS, default="fxjit", help=argparse.SUPPRESS)
    parser.add_argument("--count", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args(argv)
    if options.here:
        print(json.dumps(measure(options.here, options.way, options.count)))
        return
    rows = []
    header = GROWTH if options.growth else HEADER
    names = options.only or list(PROGRAMS) + (list(MORE) if options.more else [])
    for which in _DEPTHS if options.growth else names:
        rows.append(_growth(int(which), options.rounds) if options.growth else _row(str(which), options.rounds))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    print(markdown(header, rows))
    print(f"\n{measured_beside()}")


if __name__ == "__main__":
    main()
