"""`python -m tests.tiers.stress --runs 1000`: programs that fork, raise, reset, compile again, drop their functions or lose the
helper process at a random moment of a background compile end as eager's do. The seed of a run that does not is printed.

The suite runs each disturbance once (test_stress.py).
"""

from __future__ import annotations

import argparse
import gc
import os
import random
import signal
import threading
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import torch

import fxjit
from fxjit import config

Fn = Callable[[torch.Tensor], torch.Tensor]


class Subject:
    """A function with a constant of its own, so that no other run's code fits it, and its compiled twin."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.factor = rng.random()
        self.weight = torch.linspace(-1, 1, 9).view(3, 3)
        self.compiled = fxjit.compile(self.make())
        self.checks = 0

    def make(self) -> Fn:
        factor, weight = self.factor, self.weight

        def fn(x: torch.Tensor) -> torch.Tensor:
            if bool((x > 1e6).any()):
                raise ValueError("too large")
            return torch.softmax(x @ weight * factor, -1).sin()

        return fn

    def check(self, rows: int = 2) -> None:
        """A call with its gradient, beside eager."""
        x, y = (torch.linspace(-1, 1, 3 * rows).view(rows, 3).requires_grad_() for _ in range(2))
        wanted, got = self.make()(x), self.compiled(y)
        torch.testing.assert_close(got, wanted)
        wanted.sum().backward()
        got.sum().backward()
        torch.testing.assert_close(y.grad, x.grad)
        self.checks += 1


def autograd_survives_fork() -> bool:
    """Whether torch's autograd runs in a forked process after it ran in this one: in builds for CUDA it raises."""
    torch.ones(1, requires_grad=True).sum().backward()
    child = os.fork()
    if child == 0:
        status = 1
        try:
            torch.ones(1, requires_grad=True).sum().backward()
            status = 0
        finally:
            os._exit(status)
    return os.waitpid(child, 0)[1] == 0


def fork(subject: Subject) -> None:
    child = os.fork()
    if child == 0:
        status = 1
        try:
            subject.check()
            subject.check(4)
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0, "a forked child computed something else"


def raises(subject: Subject) -> None:
    try:
        subject.compiled(torch.full((2, 3), 1e7))
    except ValueError as error:
        assert str(error) == "too large"
    else:
        raise AssertionError("it did not raise")


def reset(subject: Subject) -> None:
    fxjit.reset()


def compile_again(subject: Subject) -> None:
    for rows in (3, 5, 2):
        subject.check(rows)


def drop(subject: Subject) -> None:
    subject.compiled = fxjit.compile(subject.make())
    gc.collect()


def lose_the_helper(subject: Subject) -> None:
    """As the system does when it runs out of memory."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            same = Path(f"/proc/{pid}/cmdline").read_bytes() == Path("/proc/self/cmdline").read_bytes()
            if same and os.getpgid(int(pid)) == int(pid) != os.getpid() and _is_helper(int(pid)):
                os.kill(int(pid), signal.SIGKILL)
        except OSError:
            continue


def _is_helper(pid: int) -> bool:
    """Whether the process holds one of the files that this one waits for."""
    from fxjit.backends.tiers import process

    mine = {os.readlink(f"/proc/self/fd/{helper._ended}") for helper in process._helpers}
    return any(os.readlink(each) in mine for each in Path(f"/proc/{pid}/fd").iterdir() if each.name not in "012")


def threads(subject: Subject) -> None:
    failed: list[BaseException] = []

    def call() -> None:
        try:
            for _ in range(5):
                subject.check()
        except BaseException as error:  # noqa: BLE001 - whatever it is: told in the main thread
            failed.append(error)

    started = [threading.Thread(target=call) for _ in range(3)]
    for each in started:
        each.start()
    for each in started:
        each.join()
    if failed:
        raise failed[0]


def wait(subject: Subject) -> None:
    fxjit.wait_for_compiles(subject.rng.random())


DISTURBANCES = (fork, raises, reset, compile_again, drop, lose_the_helper, threads, wait)


def run(seed: int, disturbances: tuple[Callable[[Subject], None], ...] = ()) -> int:
    """One program, disturbed at moments that the seed decides: how many of its calls were compared with eager."""
    rng = random.Random(seed)
    subject = Subject(rng)
    chosen = disturbances or tuple(rng.choices(DISTURBANCES, k=rng.randint(1, 3)))
    with config.patch(tiers=True, cache_graphs=False), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "fxjit could not compile a graph", RuntimeWarning)
        subject.check()
        for disturb in chosen:
            time.sleep(rng.random() * 1.5)
            disturb(subject)
            subject.check()
        assert fxjit.wait_for_compiles(300), "a compile does not end"
        subject.check()
        subject.check(3)
    fxjit.reset()
    return subject.checks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=1000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    for seed in range(options.seed, options.seed + options.runs):
        try:
            run(seed)
        except BaseException:
            print(f"seed {seed}", flush=True)
            raise
    print(f"{options.runs} runs ended as eager's")


if __name__ == "__main__":
    main()
