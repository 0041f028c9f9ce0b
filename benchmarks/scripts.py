"""`python -m benchmarks.scripts`: scripts that call torch.compile, as they stand: in eager, under fxjit, by themselves.

Each run is a process of its own, in an empty folder; in eager torch.compile does nothing. A script prints a line with a number
for each step. The seconds to the first step are those from the start of the process to the first
line, imports included; ms a step is the median of the times between the lines of the later half. The numbers of all steps are
compared with eager's: *off by* is the greatest difference, relative to the greater of eager's number and 1. Training adds up
what differs by rounding, so the last steps may differ more than the first. `--sources FOLDER` is where repositories are that
are no packages (`git clone https://github.com/karpathy/nanoGPT`, and `vwxyzjn/cleanrl`). Caches are of this run: each first
step compiles anew.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import pickle
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from benchmarks.timing import markdown, measured_beside

FILES = Path(__file__).parent / "script_files"
STEP = r"^step \d+ \w+ (\S+)"


@dataclasses.dataclass(frozen=True)
class Script:
    """A script: its path below the sources, or in script_files, and what it prints for each step."""

    path: str
    arguments: tuple[str, ...] = ()
    line: str = STEP
    source: str = ""
    #: Lays out what the script reads, in the folder that it runs in; given that, and its repository.
    prepare: Callable[[Path, Path], None] = lambda folder, source: None
    #: Path below the sources of a script that the first argument names.
    of: str = ""
    #: A scalar of TensorBoard that stands for numbers which the lines do not have.
    scalar: str = ""

    def command(self, sources: Path) -> list[str]:
        path = sources / self.source / self.path if self.source and not self.of else FILES / self.path
        return [str(path), *([str(sources / self.source / self.of)] if self.of else []), *self.arguments]


def _characters(folder: Path, source: Path) -> None:
    """Random tokens where nanoGPT looks for Shakespeare's characters, and the file that it reads its options with."""
    shutil.copy(source / "configurator.py", folder)
    where = folder / "data" / "shakespeare_char"
    where.mkdir(parents=True)
    for name in ("train", "val"):
        np.random.default_rng(0).integers(0, 65, 20000).astype(np.uint16).tofile(where / f"{name}.bin")
    (where / "meta.pkl").write_bytes(pickle.dumps({"vocab_size": 65}))


_PPO = ("--no-cuda", "--total-timesteps", "6144")
SCRIPTS: dict[str, Script] = {
    "nanoGPT train.py": Script(
        "train.py", ("--device=cpu", "--dtype=float32", "--dataset=shakespeare_char", "--eval_iters=1", "--log_interval=1",
                     "--block_size=64", "--batch_size=12", "--n_layer=4", "--n_head=4", "--n_embd=128", "--max_iters=30",
                     "--dropout=0.0", "--gradient_accumulation_steps=1"),
        r"^iter \d+: loss (\S+),", "nanoGPT", _characters),
    "Lightning fit": Script("lightning_fit.py"),
    "HF Trainer": Script("hf_trainer.py", line=r"^\{'loss': '?([^',]+)"),
    "accelerate": Script("accelerate_loop.py"),
    "cleanrl ppo.py": Script("cleanrl/ppo.py", _PPO, r"^SPS: (\d+)", "cleanrl", scalar="losses/value_loss"),
    "cleanrl ppo.py, agent compiled": Script(
        "ppo_compiled.py", _PPO, r"^SPS: (\d+)", "cleanrl", of="cleanrl/ppo.py", scalar="losses/value_loss"),
    "torchao Llama": Script("torchao_llama.py"),
    "diffusers Flux": Script("diffusers_flux.py"),
    "tiny": Script("tiny.py"),
}
#: What stands before the script in the command of each way.
LAUNCHERS = {"eager": [str(FILES / "eagerly.py")], "fxjit": ["-m", "fxjit", "run"], "torch.compile": []}
WAYS = tuple(LAUNCHERS)


@dataclasses.dataclass
class Run:
    """What one run printed: seconds since its start, and the number, of each step."""

    seconds: list[float] = dataclasses.field(default_factory=list)
    numbers: list[float] = dataclasses.field(default_factory=list)
    error: str = ""

    def first(self) -> float:
        return self.seconds[0]

    def step(self) -> float:
        """Median milliseconds of the later half of the steps."""
        between = np.diff(self.seconds)
        return 1000 * statistics.median(between[len(between) // 2:])

    def off(self, eager: Run) -> str:
        if len(self.numbers) != len(eager.numbers):
            return f"{len(self.numbers)} steps, not {len(eager.numbers)}"
        return f"{max(abs(a - b) / max(abs(b), 1) for a, b in zip(self.numbers, eager.numbers, strict=True)):.1e}"


def run(script: Script, way: str, sources: Path, caches: Path) -> Run:
    """One run of a script in a process of its own."""
    found = Run()
    environment = dict(os.environ, FXJIT_CACHE_DIR=str(caches / "fxjit"), TORCHINDUCTOR_CACHE_DIR=str(caches / "inductor"),
                       PYTHONUNBUFFERED="1", WANDB_MODE="disabled")
    with tempfile.TemporaryDirectory() as folder, open(caches / "errors", "w+") as errors:
        script.prepare(Path(folder), sources / script.source)
        command = [sys.executable, *LAUNCHERS[way], *script.command(sources)]
        start = time.perf_counter()
        with subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, text=True, cwd=folder, env=environment) as process:
            assert process.stdout is not None
            for line in process.stdout:
                if step := re.search(script.line, line):
                    found.seconds.append(time.perf_counter() - start)
                    found.numbers.append(float(step[1]))
        if process.returncode:
            errors.seek(0)
            found.error = f"exit status {process.returncode}: " + (errors.read().strip().splitlines() or [""])[-1]
        elif len(found.seconds) < 3:
            found.error = f"{len(found.seconds)} lines of steps"
        elif script.scalar:
            found.numbers = _scalars(Path(folder), script.scalar)
    return found


def _scalars(folder: Path, name: str) -> list[float]:
    """The numbers of a scalar in the one TensorBoard log below a folder."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    [path] = folder.rglob("events.out.*")
    log = EventAccumulator(str(path))
    log.Reload()
    return [event.value for event in log.Scalars(name)]


def row(name: str, ways: tuple[str, ...], sources: Path, rounds: int = 1) -> tuple[str, ...]:
    """A script's row: seconds to the first step and ms a step of each way, and how far the numbers are from eager's."""
    script, cells = SCRIPTS[name], [name]
    if not Path(script.command(sources)[1 if script.of else 0]).exists():
        return (name, f"its repository is not in {sources}")
    runs: dict[str, list[Run]] = {way: [] for way in ways}
    for _ in range(rounds):
        for way in ways:
            with tempfile.TemporaryDirectory() as caches:
                runs[way].append(run(script, way, sources, Path(caches)))
    errors = {way: next((each.error for each in runs[way] if each.error), "") for way in ways}
    for way in ways:
        cells.append(errors[way] or times(runs[way]))
    for way in ways[1:]:
        cells.append("-" if errors[way] or errors["eager"] else runs[way][0].off(runs["eager"][0]))
    return tuple(cells)


def times(runs: list[Run]) -> str:
    """The medians of some runs: seconds to the first step and ms a step, these with their range."""
    steps = [each.step() for each in runs]
    spread = f" ({min(steps):.1f} to {max(steps):.1f})" if len(runs) > 1 else ""
    return f"{statistics.median(each.first() for each in runs):.1f} s, {statistics.median(steps):.1f} ms{spread}"


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", action="append", default=[], help="this script; may be repeated")
    parser.add_argument("--sources", type=Path, default=Path(), help="the folder of the repositories")
    parser.add_argument("--without-torch-compile", action="store_true")
    parser.add_argument("--rounds", type=int, default=1, help="runs of each way")
    options = parser.parse_args(argv)
    ways = WAYS[:2] if options.without_torch_compile else WAYS
    rows = []
    for name in options.only or [name for name in SCRIPTS if name != "tiny"]:
        rows.append(row(name, ways, options.sources.resolve(), options.rounds))
        print(" | ".join(rows[-1]), file=sys.stderr, flush=True)
    titles = tuple(f"{way}: first step, each" for way in ways) + tuple(f"{way}: off by" for way in ways[1:])
    print(markdown(("script", *titles), rows))
    print(f"\n{measured_beside()}")


if __name__ == "__main__":
    main()
