"""`python -m tests.native.cache_stress --kills 200 --processes 16`: processes that share one cache folder, killed at random
moments or all at once. Those that live are right, and nothing is left over: no file but whole entries, no process, no lock.

The suite does a few of each (test_cache_stress.py).
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import random
import signal
import sys
import tempfile
import time
from multiprocessing.process import BaseProcess
from pathlib import Path

import torch

import fxjit
from fxjit import config
from fxjit.backends.store import artifacts, folder

# Processes fork from one that has imported everything; what they compile is their own.
_SERVER = multiprocessing.get_context("forkserver")
_SERVER.set_forkserver_preload(
    ["torch", "fxjit.pipeline", "fxjit.frontend.callables.families", "fxjit.backends.native.entry", "tests.native.cache_stress"]
)
#: How many different programs there are.
PROGRAMS = 12
#: Seconds after which whatever a killed process had started has ended.
PATIENCE = 60.0


def work(number: int, place: Path, scratch: Path) -> None:
    """Compiles a program and its gradient, and compares both with eager; the exit status says whether they are right."""
    os.environ["TMPDIR"] = tempfile.tempdir = str(scratch)
    torch.set_num_threads(1)
    weight = torch.linspace(-1, 1, 16).view(4, 4)

    def program(x: torch.Tensor) -> torch.Tensor:
        x = torch.softmax(x @ weight * (1 + number % PROGRAMS), -1).sin()
        return torch.nn.functional.gelu(x + number % PROGRAMS).sum(0)

    x, y = (torch.linspace(-1, 1, 32).view(8, 4).requires_grad_() for _ in range(2))
    with config.patch(cache_dir=str(place), cache_graphs=True, small_graphs_as_captured=False):
        got, wanted = fxjit.compile(program, backend="native", fullgraph=True)(y), program(x)
    torch.testing.assert_close(got, wanted)
    got.sum().backward()
    wanted.sum().backward()
    torch.testing.assert_close(y.grad, x.grad)


def start(number: int, place: Path, scratch: Path) -> BaseProcess:
    process = _SERVER.Process(target=work, args=(number, place, scratch))
    process.start()
    return process


def together(count: int, place: Path, scratch: Path, seed: int = 0) -> None:
    """That many processes at once, some with the same program, while this one empties the folder now and then."""
    running = [start(seed + number, place, scratch) for number in range(count)]
    deadline = time.monotonic() + 600
    while any(each.is_alive() for each in running) and time.monotonic() < deadline:
        time.sleep(0.5)
        artifacts.KernelCache(place / "kernels").clear()
    for each in running:
        each.kill() if each.is_alive() else None
        each.join()
    assert [each.exitcode for each in running] == [0] * count, [each.exitcode for each in running]


def killed(count: int, place: Path, scratch: Path, seed: int = 0) -> int:
    """Processes killed at random moments of their work; gives how many were. Each fourth may end."""
    rng, seconds, dead = random.Random(seed), 10.0, 0
    for number in range(count):
        began = time.monotonic()
        process = start(rng.randrange(PROGRAMS * 4), place, scratch)
        whole = number % 4 == 0
        process.join(600 if whole else rng.uniform(0, seconds))
        if whole:
            seconds = time.monotonic() - began
        if process.exitcode is None:
            assert process.pid is not None
            os.kill(process.pid, signal.SIGKILL)
            process.join()
            dead += 1
        else:
            assert process.exitcode == 0, f"a process beside killed ones ended with {process.exitcode}"
        if number % 16 == 15:  # as `trim` does at the start of programs: what is there is always whole or absent
            artifacts.KernelCache(place / "kernels").trim(rng.choice([0, 1 << 16, 1 << 30]))
    return dead


def left_over(place: Path, scratch: Path) -> list[str]:
    """What should not be there once all is over: damaged entries, other files, processes, locks."""
    cache = artifacts.KernelCache(place / "kernels")
    deadline = time.monotonic() + PATIENCE
    while (running := compilers(scratch, place)) and time.monotonic() < deadline:
        time.sleep(0.05)
    for each in (cache.folder.path, scratch):
        for path in each.iterdir():
            if path.name.startswith(folder.SCRATCH):
                os.utime(path, (0, 0))  # the time is over in which it could be young
        folder.sweep(folder.hold(each))
    found = [f"the process {each}" for each in running]
    for path in (place / "kernels").iterdir():
        entry = artifacts._OURS.fullmatch(path.name)
        if path.name == artifacts._TRIMMED:
            continue
        if entry is None:
            found.append(f"the file {path}")
        elif entry["suffix"] in (artifacts.LIBRARY, artifacts.FACTS) and cache.get(entry["key"], entry["suffix"]) is None:
            found.append(f"the damaged entry {path}")
    found += [
        f"the file {path}"
        for path in (*scratch.iterdir(), *place.iterdir())
        if path != place / "kernels" and not path.name.startswith("torch")
    ]  # torch makes an empty folder there
    return found + [
        f"a lock: {line}" for line in Path("/proc/locks").read_text().splitlines() if _is_below(line, place, scratch)
    ]


def compilers(*folders: Path) -> list[str]:
    """The processes that write or read below these folders, by their command lines."""
    found = []
    for each in Path("/proc").iterdir():
        if each.name.isdigit() and int(each.name) != os.getpid():
            try:
                command = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if any(f"{where}/" in command for where in folders):
                found.append(f"{each.name}: {command[:200]}")
    return found


def _is_below(lock: str, *folders: Path) -> bool:
    inodes = {path.stat().st_ino for where in folders for path in (where, *where.rglob("*"))}
    return any(int(part.rpartition(":")[2]) in inodes for part in lock.split() if part.count(":") == 2)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fxjit-stress-") as folder_name:
        place, scratch = Path(folder_name, "cache"), Path(folder_name, "tmp")
        place.mkdir(mode=0o700)
        scratch.mkdir(mode=0o700)
        dead = killed(options.kills, place, scratch, options.seed)
        found = left_over(place, scratch)
        print(f"{options.kills} processes, {dead} of them killed: {len(found)} left over {found}", flush=True)
        for number in range(3):
            together(options.processes, place, scratch, number * 5)
        found += left_over(place, scratch)
        print(f"{options.processes} processes at once, three times: {len(found)} left over {found}", flush=True)
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
