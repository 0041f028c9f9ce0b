"""`python -m tests.tiers.endings --runs 1000`: whole programs end as eager's do, whatever they do during a background compile.

They stop (return, exit, raise, are killed, become another program), fork, raise, reset, recompile, change threads, settings or
files at random moments. Each is run by eager too, and has to end the same: what it computed (values, gradients, random numbers,
exceptions), its exit status and what it said; no process and no temporary file is left. The seed of a run that differs is
printed. Each program is a fork of this process, which is the reaper of whatever it leaves. Some are run by test_stress.py.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import os
import pickle
import random
import shutil
import signal
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import fxjit
from fxjit import config
from fxjit.backends.native.runtime import cc
from fxjit.backends.store import folder as folders
from fxjit.backends.store.folder import hold, sweep

#: Seconds that a program, and what it leaves, may take.
LIMIT, LEFT = 300.0, 60.0
_PR_SET_CHILD_SUBREAPER = 36


class Net(nn.Module):
    """Parameters, statistics that are written, random numbers."""

    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor
        self.first, self.norm, self.last = nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.last(F.dropout(self.norm(self.first(x)).tanh() * self.factor, 0.3, self.training))


class Program:
    """One run: what is computed is recorded at once, since it may end at any moment."""

    def __init__(self, seed: int, eager: bool, record: Callable[[Any], None]) -> None:
        self.rng, self.eager, self.record = random.Random(seed), eager, record
        self.factor = 1 + self.rng.random()
        self.begin()

    def begin(self) -> None:
        torch.manual_seed(1)
        self.net = Net(self.factor)
        self.state = torch.arange(6.0)
        self.compile()

    def compile(self) -> None:
        factor = self.factor

        def pure(x: torch.Tensor) -> torch.Tensor:
            if bool((x > 1e6).any()):
                raise ValueError("too large")
            return torch.softmax(x * factor, -1).sin()

        def mutate(state: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
            state.mul_(0.5).add_(x * factor)
            return state.view(2, 3)[1:]

        compiled: Callable[[Any], Any] = (lambda fn: fn) if self.eager else fxjit.compile
        self.pure, self.mutate, self.model = compiled(pure), compiled(mutate), compiled(self.net)

    def wait(self, longest: float) -> None:
        """A random moment; eager's program has nothing to wait for."""
        seconds = self.rng.random() * longest
        if not self.eager:
            time.sleep(seconds)


Step = Callable[[Program], None]


def call(program: Program) -> None:
    x = torch.linspace(-1, 1, 6).view(2, 3).requires_grad_()
    program.pure(x).square().sum().backward()
    program.record(x.grad)


def other_sizes(program: Program) -> None:
    for rows in program.rng.sample(range(2, 9), 3):
        program.record(program.pure(torch.ones(rows, 3).cumsum(0)))


def train(program: Program) -> None:
    for _ in range(program.rng.randint(1, 4)):
        x = torch.randn(5, 4, requires_grad=True)
        out = program.model(x)
        program.wait(0.3)  # the code may be exchanged by another call meanwhile
        out.square().sum().backward()
        program.record([out.detach(), x.grad, torch.rand(1), program.net.norm.running_mean])


def write(program: Program) -> None:
    view = program.mutate(program.state, torch.ones(6))
    program.record([view.clone(), program.state.clone(), view._base is program.state])


def raises(program: Program) -> None:
    try:
        program.pure(torch.full((2, 3), 1e7))
    except ValueError as error:
        program.record(str(error))


def states(program: Program) -> None:
    with torch.no_grad():
        program.record(program.pure(torch.ones(2, 3)).requires_grad)
    with torch.inference_mode():
        program.record(program.pure(torch.ones(2, 3)).is_inference())
    with torch.autocast("cpu", torch.bfloat16):
        program.record(program.model(torch.ones(2, 4)).dtype)


def threads(program: Program) -> None:
    found: list[Any] = []

    def run() -> None:
        try:
            for rows in (2, 3, 2):
                found.append(program.pure(torch.ones(rows, 3)).sum())
        except BaseException as error:
            found.append(repr(error))
            raise

    started = [threading.Thread(target=run) for _ in range(3)]
    for each in started:
        each.start()
    for each in started:
        each.join()
    program.record(sorted(map(float, found)))


def own_thread_pool() -> None:
    """One thread for operators. torch makes the thread pool of a forked process anew at its first use, and fails where two
    threads use it first together (ParallelOpenMP.cpp, "Invalid thread pool"), and GNU's OpenMP waits forever in a fork whose
    parent had a team of several: with eager programs, too."""
    torch.set_num_threads(1)


def fork(program: Program) -> None:
    child = os.fork()
    if child == 0:
        own_thread_pool()
        for step in program.rng.sample((call, train, write, other_sizes, threads), 2):
            step(program)
        if program.rng.random() < 0.5:
            os._exit(7)
        sys.exit(7)
    program.record(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))


def reset(program: Program) -> None:
    if not program.eager:
        fxjit.reset()


def drop(program: Program) -> None:
    """All that is compiled goes, and its helpers with it."""
    program.compile()
    gc.collect()


def wait_for_compiles(program: Program) -> None:
    seconds = program.rng.random() * 2
    if not program.eager:
        fxjit.wait_for_compiles(seconds)


def settings(program: Program) -> None:
    """The next compiles are others; those under way go on."""
    name, value = program.rng.choice([("tiers", False), ("background_budget", 0.3), ("num_threads", 1), ("cache_graphs", False),
                                      ("dynamic_shapes", False), ("recompile_limit", 2)])
    if not program.eager:
        setattr(config, name, value)


def thread_count(program: Program) -> None:
    torch.set_num_threads(program.rng.randint(1, 3))


def copies(program: Program) -> None:
    import copy
    import io

    if not program.eager:
        copied = copy.deepcopy(program.model)
        buffer = io.BytesIO()
        torch.save(program.model.state_dict(), buffer)
        copied.load_state_dict(torch.load(io.BytesIO(buffer.getvalue())))
        program.model = copied
        program.net = getattr(copied, "_orig_mod", copied)


def interrupted(program: Program) -> None:
    """A handler of a signal raises, wherever the program is."""
    class Alarm(Exception):
        pass

    def handle(number: int, frame: object) -> None:
        raise Alarm

    before = signal.signal(signal.SIGALRM, handle)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.01 + program.rng.random() * (0 if program.eager else 0.6))
        while True:
            program.pure(torch.ones(2, 3))
            if program.rng is None:
                break
    except Alarm:
        program.record("interrupted")
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def close_files(program: Program) -> None:
    """As a daemon does."""
    os.closerange(KEPT + 1, 256)


STEPS: tuple[Step, ...] = (call, other_sizes, train, write, raises, states, threads, fork, reset, drop, wait_for_compiles,
                           settings, thread_count, copies, interrupted, close_files)


def returns(program: Program) -> None:
    pass


def exits(program: Program) -> None:
    sys.exit(3)


def exits_at_once(program: Program) -> None:
    os._exit(4)


def is_unlucky(program: Program) -> None:
    raise LookupError("nobody catches it")


def is_killed(program: Program) -> None:
    os.kill(os.getpid(), program.rng.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGABRT]))
    time.sleep(LIMIT)


def is_killed_sometime(program: Program) -> None:
    """While it compiles or computes."""
    number = program.rng.choice([signal.SIGKILL, signal.SIGTERM])
    seconds = program.rng.random() * 1.5

    def kill() -> None:
        time.sleep(0 if program.eager else seconds)
        os.kill(os.getpid(), number)

    threading.Thread(target=kill, daemon=True).start()
    program.factor += 1
    program.record = lambda value: None
    while True:
        program.compile()
        for step in (call, train, write):
            step(program)


def becomes_another(program: Program) -> None:
    os.execv("/bin/sh", ["sh", "-c", "echo another >&2; exit 6"])


def leaves_a_thread(program: Program) -> None:
    """The interpreter waits for it."""
    def run() -> None:
        for _ in range(5):
            call(program)
            program.wait(0.2)

    threading.Thread(target=run).start()
    sys.exit(5)


ENDINGS: tuple[Step, ...] = (returns, exits, exits_at_once, is_unlucky, is_killed, is_killed_sometime, becomes_another,
                             leaves_a_thread)
#: The descriptor that programs record to.
KEPT = 20


def execute(seed: int, eager: bool, record: Callable[[Any], None], steps: tuple[Step, ...], ending: Step | None) -> None:
    """The program of this seed, to its end."""
    program = Program(seed, eager, record)
    chosen = steps or tuple(program.rng.choices(STEPS, k=program.rng.randint(1, 4)))
    last = ending or ENDINGS[seed % len(ENDINGS)]
    call(program)
    train(program)
    for step in chosen:
        program.wait(0.8)
        step(program)
        call(program)
    program.wait(0.8)
    last(program)


def start(seed: int, eager: bool, folder: Path, steps: tuple[Step, ...], ending: Step | None) -> int:
    """Forks the process of a program. In it this function returns 0 when the program has ended by itself, or raises."""
    child = os.fork()
    if child:
        return child
    warnings.filterwarnings("ignore", "fxjit could not compile a graph", RuntimeWarning)
    warnings.filterwarnings("ignore", ".*use of fork\\(\\) may lead to deadlocks", DeprecationWarning)
    own_thread_pool()
    os.setpgid(0, 0)
    (folder / "tmp").mkdir(parents=True)
    tempfile.tempdir = os.environ["TMPDIR"] = str(folder / "tmp")
    cc._temporary_folder.cache_clear()
    log = os.open(folder / "stderr", os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 2)
    out = os.open(folder / "record", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(out, KEPT)
    config.tiers, config.cache_dir, config.cache_graphs = True, str(folder / "cache"), True
    config.progress = 0.0  # what a slow machine says on stderr, eager does not
    config.small_graphs_as_captured = False
    if seed % 2:
        config.cpp.extra_flags = "-O0"  # a compile that is over sooner

    def record(value: Any) -> None:
        said = pickle.dumps((os.getpid() == pid, value))
        os.write(KEPT, len(said).to_bytes(8, "little") + said)

    pid = os.getpid()
    execute(seed, eager, record, steps, ending)
    return 0


def recorded(folder: Path) -> list[Any]:
    """What the program itself recorded, and then what its forks did."""
    content, found, at = (folder / "record").read_bytes(), [], 0
    while at + 8 <= len(content):
        size = int.from_bytes(content[at:at + 8], "little")
        found.append(pickle.loads(content[at + 8:at + 8 + size]))
        at += 8 + size
    return [value for own in (True, False) for mine, value in found if mine is own]


def ended(child: int) -> int:
    """Its exit status."""
    until = time.monotonic() + LIMIT
    while time.monotonic() < until:
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.01)
    stacks = Path(f"/proc/{child}/status").read_text()
    os.killpg(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise AssertionError(f"the program does not end:\n{stacks}")


def wait_for_rest() -> None:
    """Until no process is left of those that the program started."""
    until = time.monotonic() + LEFT
    while time.monotonic() < until:
        try:
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass
        except ChildProcessError:
            return
        time.sleep(0.01)
    left = {int(child) for path in Path("/proc/self/task").glob("*/children") for child in path.read_text().split()}
    names = [Path(f"/proc/{each}/cmdline").read_bytes().replace(b"\0", b" ").decode() for each in left]
    for each in left:
        os.kill(each, signal.SIGKILL)
        os.waitpid(each, 0)
    raise AssertionError(f"processes are left: {names}")


def check(folder: Path, seed: int, steps: tuple[Step, ...] = (), ending: Step | None = None) -> bool:
    """Runs one program twice and compares; False in the processes of the programs themselves."""
    statuses = []
    for eager in (True, False):
        child = start(seed, eager, folder / str(eager), steps, ending)
        if not child:
            return False
        statuses.append(ended(child))
        wait_for_rest()
    said = [(folder / str(eager) / "stderr").read_text() for eager in (True, False)]
    wanted, got = (recorded(folder / str(eager)) for eager in (True, False))
    assert statuses[0] == statuses[1] and said[0] == said[1], f"ends with {statuses}\n{said[0]}\n--- ours ---\n{said[1]}"
    assert len(wanted) == len(got), f"{len(got)} of {len(wanted)} values"
    for one, other in zip(wanted, got, strict=True):
        torch.testing.assert_close(other, one) if not isinstance(one, (str, torch.dtype)) else None
        assert type(one) is type(other) and (not isinstance(one, (str, torch.dtype)) or one == other)
    if statuses[1] < 0:  # killed while it compiled in the foreground, perhaps: the next compile removes what that left
        sweep(hold(folder / "False" / "tmp"))
    left = [*os.listdir(folder / "False" / "tmp"), *(each.name for each in (folder / "False" / "cache").rglob("fxjit-tmp-*"))]
    assert not left, f"files are left: {left}"
    return True


def prepare() -> None:
    """Everything is imported before the first fork; this process gets what programs leave behind."""
    torch.set_num_threads(1)  # a fork has no other
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    with tempfile.TemporaryDirectory() as folder, config.patch(cache_dir=folder):
        fxjit.compile(lambda x: x.sin() * 2)(torch.ones(3, requires_grad=True)).sum().backward()
    fxjit.reset()
    folders.ABANDONED = 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--steps", nargs="*", default=(), choices=[each.__name__ for each in STEPS])
    parser.add_argument("--ending", choices=[each.__name__ for each in ENDINGS])
    options = parser.parse_args()
    steps = tuple(each for name in options.steps for each in STEPS if each.__name__ == name)
    ending = next((each for each in ENDINGS if each.__name__ == options.ending), None)
    prepare()
    failed = []
    for seed in range(options.seed, options.seed + options.runs):
        folder = Path(tempfile.mkdtemp(prefix="fxjit-endings-"))
        try:
            if not check(folder, seed, steps, ending):
                return
        except AssertionError:
            failed.append(seed)
            print(f"seed {seed}", traceback.format_exc(), flush=True)
        shutil.rmtree(folder)
    if failed:
        sys.exit(f"{len(failed)} of {options.runs} runs did not end as eager's: {failed}")
    print(f"{options.runs} runs ended as eager's")


if __name__ == "__main__":
    main()
