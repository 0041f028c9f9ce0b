"""`python -m benchmarks.first_call`: seconds until the first result, with the compile in the foreground and in the background
(`config.tiers`), and what a step costs while a helper process compiles.

Each program (benchmarks/programs.py) has processes of its own, one with tiers, one without, and with `--torch-compile` one of
torch.compile, which take turns; each starts with an empty cache and compiles a trivial function first, so that importing the
compiler is left out. Steps during the compile are compared with eager steps of the same process before and after it. Printed as
Markdown, medians over the rounds.

`--second-process` measures the first result in a process that finds another's cache: its graphs alone, and its entries too
(`config.store_entries`), of which it says how many frames still were traced, and whether results and gradients are eager's.
With `--processor` its seconds are of the processor, this process's alone: on a busy machine they are what repeats.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch

import fxjit
from benchmarks import models
from benchmarks.programs import PROGRAMS, Program
from benchmarks.timing import first_call, markdown, measured_beside

SAMPLE = ("hf_bert", "hf_gpt2", "hf_llama", "hf_t5", "hf_vit", "hf_clip", "timm_convnextv2_atto", "tv_mobilenet_v2",
          "xt_decoder_rotary_swiglu", "df_unet2d")
#: Seconds of eager steps that steps during the compile are compared with, before and after each.
EAGER = 1.0


class NothingToTrainError(Exception):
    """The program's result has no gradient."""


def step_of(program: Program, fn: Any, training: bool) -> Callable[[], object]:
    """One call; with `training`, the gradients of its loss too."""
    if not training:
        return lambda: models.call(program, fn, program.batches[0])

    def train() -> object:
        loss = models._loss(fn(**program.inputs(program.batches[0])))
        if not loss.requires_grad:
            raise NothingToTrainError
        loss.backward()
        return loss
    return train


def steps(step: Callable[[], object], seconds: float) -> list[float]:
    until, found = time.perf_counter() + seconds, [first_call(step)]
    while time.perf_counter() < until:
        found.append(first_call(step))
    return found


def measure(name: str, way: str, training: bool) -> dict[str, float]:
    """Of one program, in this process: seconds."""
    compiler = torch.compile if way == "torch.compile" else fxjit.compile
    tiers = way == "tiers"
    compiler(lambda x: x * 2 + 1)(torch.ones(3))
    eager, ours = PROGRAMS[name](), PROGRAMS[name]()
    eager_step = step_of(eager, eager.fn, training)
    found = {"eager": first_call(eager_step)}
    alone = steps(eager_step, EAGER)
    with fxjit.config.patch(tiers=tiers):
        step = step_of(ours, compiler(ours.fn), training)
        began = time.perf_counter()
        found["first"] = first_call(step)
        during = []
        while tiers and not fxjit.wait_for_compiles(0):
            during.append(first_call(step))
        found["compiled"] = time.perf_counter() - began
    alone += steps(eager_step, EAGER)
    found["during"] = statistics.median(during) / statistics.median(alone) if len(during) > 2 else 0.0
    found["refused"] = fxjit.counters["tiers"]["refused"]
    return found


def in_process(name: str, way: str, training: bool) -> dict[str, float]:
    with tempfile.TemporaryDirectory(prefix="fxjit-bench-") as folder:
        return _printed_by(folder, ["--here", name, "--way", way, *(["--training"] if training else [])])


def _printed_by(folder: str, arguments: list[str]) -> dict[str, Any]:
    """What this file prints, in a process of its own, with that cache folder."""
    command = [sys.executable, "-m", "benchmarks.first_call", *arguments]
    environment = fxjit.config.child_environment(FXJIT_CACHE_DIR=folder, TORCHINDUCTOR_CACHE_DIR=folder)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if NothingToTrainError.__name__ in done.stderr:
        raise NothingToTrainError
    if done.returncode:
        raise RuntimeError(f"{' '.join(arguments)}: {done.stderr[-2000:]}")
    return dict(json.loads(done.stdout.splitlines()[-1]))


def measure_second(name: str, entries: bool, training: bool, clock: Callable[[], float]) -> dict[str, Any]:
    """Of one program, in this process, whose cache folder another one may have filled."""
    with fxjit.config.patch(store_entries=False):  # found on the disk, it would not import the compiler
        fxjit.compile(lambda x: x * 2 + 1)(torch.ones(3))
    models.seed(0)
    eager = PROGRAMS[name]()
    models.seed(0)
    ours = PROGRAMS[name]()
    found: dict[str, Any] = {"eager": first_call(step_of(eager, eager.fn, training), clock)}
    fxjit.counters.clear()
    with fxjit.config.patch(store_entries=entries):
        compiled = fxjit.compile(ours.fn)
        found["first"] = first_call(step_of(ours, compiled, training), clock)
        found["traced"] = fxjit.counters["cache"]["entry miss"]
        wrong = []
        for batch in ours.batches:
            wrong += models.differences(models.call(eager, eager.fn, batch), models.call(ours, compiled, batch), "result")
        if training:
            wrong += models.gradients_that_differ(eager, ours, compiled)
    found["wrong"] = wrong[0] if wrong else ""
    return found


SECOND_HEADER = ("program", "empty cache, s over eager's", "graphs of another process, s", "its entries too, s",
                 "frames traced", "results")


def second_row(name: str, rounds: int, training: bool, processor: bool) -> tuple[str, ...]:
    """One row of the table of second processes."""
    seconds: dict[str, list[float]] = {"empty": [], "graphs": [], "entries": []}
    traced, wrong = 0, ""
    for _ in range(rounds):
        for entries, kind in ((False, "graphs"), (True, "entries")):
            with tempfile.TemporaryDirectory(prefix="fxjit-bench-") as folder:
                for where in ("empty", kind):
                    found = _printed_by(folder, ["--second-process", "--here", name, *(["--entries"] if entries else []),
                                                 *(["--training"] if training else []),
                                                 *(["--processor"] if processor else [])])
                    seconds[where].append(found["first"] - found["eager"])
                    wrong = wrong or found["wrong"]
        traced = int(found["traced"])
    return (name, *(f"{statistics.median(each):.2f}" for each in seconds.values()), str(traced), wrong or "as eager's")


HEADER = ("program", "first call over eager's, foreground, s", "the same, tiers, s", "until compiled, foreground, s",
          "the same, tiers, s", "a step during the compile, of eager's", "compiled again in the foreground",
          "first call over eager's, torch.compile, s")


def row(name: str, rounds: int, training: bool, with_torch_compile: bool) -> tuple[str, ...]:
    """One row of the table."""
    ways = ("foreground", "tiers", *(["torch.compile"] if with_torch_compile else []))
    measured: dict[str, list[dict[str, float]]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way, found in measured.items():
            found.append(in_process(name, way, training))

    def median(way: str, of: Callable[[dict[str, float]], float]) -> float:
        return statistics.median(map(of, measured[way]))

    over = {way: f"{median(way, lambda each: each['first'] - each['eager']):.2f}" for way in ways}
    until = [f"{median(way, lambda each: each['compiled'] - each['eager']):.2f}" for way in ("foreground", "tiers")]
    during = median("tiers", lambda each: each["during"])
    refused = int(median("tiers", lambda each: each["refused"]))
    return (name, over["foreground"], over["tiers"], *until, f"{during:.2f}x" if during else "-", str(refused),
            over.get("torch.compile", "-"))


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--here", help="measure this program in this process")
    parser.add_argument("--way", default="foreground", choices=("foreground", "tiers", "torch.compile"), help="with --here")
    parser.add_argument("--torch-compile", action="store_true", help="torch.compile's first call too")
    parser.add_argument("--training", action="store_true")
    parser.add_argument("--second-process", action="store_true", help="the table of second processes")
    parser.add_argument("--processor", action="store_true", help="with --second-process: seconds of the processor")
    parser.add_argument("--entries", action="store_true", help="with --here: config.store_entries")
    parser.add_argument("--only", nargs="*", default=SAMPLE, help="these programs; without a name: all")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(argv)
    if options.here and options.second_process:
        clock = time.process_time if options.processor else time.perf_counter
        print(json.dumps(measure_second(options.here, options.entries, options.training, clock)))
        return
    if options.here:
        print(json.dumps(measure(options.here, options.way, options.training)))
        return
    rows = []
    for name in options.only or PROGRAMS:
        try:
            rows.append(second_row(name, options.rounds, options.training, options.processor) if options.second_process
                        else row(name, options.rounds, options.training, options.torch_compile))
        except NothingToTrainError:
            print(f"{name} has nothing to train", file=sys.stderr, flush=True)
            continue
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    print(markdown(SECOND_HEADER if options.second_process else HEADER, rows))
    print(f"\n{measured_beside()}")


if __name__ == "__main__":
    main()
