"""Helper processes: they end with the program and with their entry, no child of the program's, and a fork has none of them."""

from __future__ import annotations

import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import fxjit
from fxjit import config
from fxjit.backends.tiers import process
from fxjit.backends.tiers.process import Helper, HelperFailed
from fxjit.counters import counters

SECONDS = 30.0


@pytest.fixture(autouse=True)
def tiers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    fxjit.reset()
    monkeypatch.setattr(process, "NICENESS", 0)
    with config.patch(tiers=True, cache_dir=str(tmp_path), cache_graphs=True):
        yield
    fxjit.reset()


def soon(holds: Callable[[], bool]) -> bool:
    until = time.monotonic() + SECONDS
    while not holds() and time.monotonic() < until:
        time.sleep(0.01)
    return holds()


def marked(mark: str) -> list[int]:
    """The processes that have the mark in their environment."""
    found = []
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if mark.encode() in Path(f"/proc/{pid}/environ").read_bytes():
                found.append(int(pid))
        except OSError:
            pass
    return found


@pytest.fixture
def slow_compiler(tmp_path: Path) -> Path:
    """It says what it is, and compiles for as long as nobody stops it."""
    path = tmp_path / "slow-compiler"
    path.write_text('#!/bin/sh\n[ "$1" = --version ] && { echo slow 1.0; exit; }\nsleep 600\n')
    path.chmod(0o700)
    return path


PROGRAM = """
import os, signal, sys, time
from pathlib import Path
from fxjit.backends.native.runtime.cc import abandon
from fxjit.backends.native.runtime.child import Child
from fxjit.backends.store.folder import Scratch, hold
from fxjit.backends.tiers.process import Helper

def compiles():
    Scratch(hold(Path(sys.argv[2]))).write("kernel.cpp", b"source")
    compiler = Child(["sleep", "600"])
    Path(sys.argv[1]).touch()
    time.sleep(600)

helper = Helper(compiles, abandon)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
"""


@pytest.mark.parametrize("end", [0, signal.SIGKILL, signal.SIGINT])
def test_helpers_and_their_compilers_end_with_the_program(end: int, tmp_path: Path) -> None:
    mark = f"FXJIT_TEST_MARK_{os.getpid()}_{time.monotonic_ns()}"
    made = tmp_path / "made"
    made.mkdir()
    source = PROGRAM + (f"os.kill(os.getpid(), {int(end)})" if end else "")
    done = subprocess.run([sys.executable, "-c", source, str(tmp_path / "started"), str(made)], capture_output=True, text=True,
                          env={**os.environ, "MARK": mark}, timeout=200, check=False)
    assert done.returncode == -end, done.stderr
    assert (tmp_path / "started").exists()
    assert not done.stderr or end == signal.SIGINT
    assert soon(lambda: not marked(mark))
    assert not list(made.iterdir()), "what was being compiled is left"


def test_a_helper_whose_compiler_was_stopped_does_not_end_before_what_it_made_is_removed(tmp_path: Path) -> None:
    made = tmp_path / "made"
    made.mkdir()
    source = PROGRAM.replace('Path(sys.argv[1]).touch()\n    time.sleep(600)',
                             'Path(sys.argv[1]).touch()\n    return compiler.wait(600)[0].encode()')
    source = source.replace("helper = Helper(compiles, abandon)", """
from fxjit.backends.native.runtime import child
from fxjit.backends.store import folder
def slowly():
    child.abandon()
    time.sleep(0.5)
    folder.abandon()
helper = Helper(compiles, slowly)""")
    subprocess.run([sys.executable, "-c", source, str(tmp_path / "started"), str(made)], timeout=200, check=True)
    assert soon(lambda: not list(made.iterdir()))


def test_a_reset_stops_the_helper(slow_compiler: Path) -> None:
    with config.patch({"cpp.compiler": str(slow_compiler)}):
        compiled = fxjit.compile(lambda x: x.sin() * 3)
        compiled(torch.ones(3))
        (deferred,) = pending()
        held = deferred.helper.held
        del deferred
        fxjit.reset()
        assert not pending() and fxjit.wait_for_compiles(0)
        assert not any(map(is_open, held))
        torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() * 3)
    fxjit.reset()


def pending() -> list[object]:
    from fxjit.backends.tiers import deferred

    return list(deferred._pending)


def is_open(descriptor: int) -> bool:
    return os.path.exists(f"/proc/self/fd/{descriptor}")


def test_over_its_budget_a_graph_stays_as_captured(slow_compiler: Path) -> None:
    with config.patch({"cpp.compiler": str(slow_compiler), "background_budget": 1.0}):
        compiled = fxjit.compile(lambda x: x.sin() * 4)
        with pytest.warns(RuntimeWarning, match="config.background_budget"):
            compiled(torch.ones(3))
            assert fxjit.wait_for_compiles(60)
        torch.testing.assert_close(compiled(torch.ones(3)), torch.ones(3).sin() * 4)
    assert counters["tiers"] == {"deferred": 1, "over budget": 1}


def test_waiting_has_an_end(slow_compiler: Path) -> None:
    with config.patch({"cpp.compiler": str(slow_compiler)}):
        fxjit.compile(lambda x: x.sin() * 5)(torch.ones(3))
        began = time.monotonic()
        assert not fxjit.wait_for_compiles(0.2)
        assert time.monotonic() - began < SECONDS
    fxjit.reset()


def test_a_forked_child_computes_and_compiles_for_itself() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x.cos() * 2).sum(0)

    compiled = fxjit.compile(fn)
    compiled(torch.ones(3, 3))
    child = os.fork()
    if child == 0:
        status = 1
        try:
            right = all(torch.allclose(compiled(torch.ones(3, 3)), fn(torch.ones(3, 3))) for _ in range(3))
            ended = fxjit.wait_for_compiles(120)
            status = 0 if right and ended and torch.allclose(compiled(torch.ones(3, 3)), fn(torch.ones(3, 3))) else 2
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    assert fxjit.wait_for_compiles(120)
    torch.testing.assert_close(compiled(torch.ones(3, 3)), fn(torch.ones(3, 3)))
    assert counters["tiers"] == {"deferred": 1, "exchanged": 1}


def children_of_this_process() -> set[str]:
    return {child for listed in Path("/proc/self/task").glob("*/children") for child in listed.read_text().split()}


def test_the_program_has_no_child_of_ours(slow_compiler: Path) -> None:
    told: list[int] = []
    children = children_of_this_process()
    before = signal.signal(signal.SIGCHLD, lambda number, frame: told.append(number))
    try:
        with config.patch({"cpp.compiler": str(slow_compiler)}):
            fxjit.compile(lambda x: x.sin() * 6)(torch.ones(3))
            assert pending()
            assert children_of_this_process() == children
        fxjit.reset()
    finally:
        signal.signal(signal.SIGCHLD, before)


def test_descriptors_are_given_back() -> None:
    def used() -> int:
        return len(os.listdir("/proc/self/fd"))

    compiled = [fxjit.compile(eval(f"lambda x: x.sin() * {number}")) for number in range(4)]
    compiled[0](torch.ones(3))
    assert fxjit.wait_for_compiles(120)
    before = used()
    for each in compiled[1:]:
        each(torch.ones(3))
    assert fxjit.wait_for_compiles(120)
    assert used() == before


def test_threads_share_an_entry_while_its_code_is_exchanged() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        return (x @ x).relu().sum(0)

    x = torch.linspace(-1, 1, 64).view(8, 8)
    compiled, wanted, wrong = fxjit.compile(fn), fn(x), []
    compiled(x)
    stop = time.monotonic() + SECONDS

    def call() -> None:
        while time.monotonic() < stop and not counters["tiers"]["exchanged"]:
            for _ in range(20):
                if not torch.allclose(compiled(x), wanted, atol=1e-6):
                    wrong.append(compiled(x))

    threads = [threading.Thread(target=call) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    assert not wrong and counters["tiers"]["exchanged"] == 1


def nothing() -> None:
    pass


def test_a_helper_gives_a_result_an_error_or_says_that_it_was_killed() -> None:
    def fail() -> bytes:
        raise KeyError("lost")

    works = {"R": lambda: b"x" * 200_000, "E": fail, "K": lambda: os.kill(os.getpid(), signal.SIGKILL) or b""}
    helpers = {name: Helper(work, nothing) for name, work in works.items()}
    assert all(each.ended(SECONDS) for each in helpers.values())
    assert helpers["R"].result() == b"x" * 200_000
    with pytest.raises(HelperFailed, match="KeyError: 'lost'"):
        helpers["E"].result()
    with pytest.raises(HelperFailed, match="was killed"):
        helpers["K"].result()


def test_a_helper_has_the_threads_state_and_changes_nothing_here() -> None:
    seen: list[int] = []

    def work() -> bytes:
        seen.append(1)
        return repr((torch.is_grad_enabled(), torch.get_num_threads())).encode()

    with torch.no_grad():
        helper = Helper(work, nothing)
    assert helper.ended(SECONDS) and helper.result() == b"(False, 1)"
    assert not seen


@pytest.mark.parametrize("kind", [multiprocessing.RLock, multiprocessing.Lock, multiprocessing.Semaphore])
def test_a_stopped_helper_leaves_no_semaphore_of_the_programs_taken(kind: Callable[[], Any], tmp_path: Path) -> None:
    """torch.fx takes tqdm's write lock, which processes share: the program waited for ever for a helper that was gone."""
    lock, taken = kind(), tmp_path / "taken"

    def work() -> bytes:
        with lock:
            taken.touch()
            time.sleep(SECONDS)
        return b""

    helper = Helper(work, nothing)
    assert soon(taken.exists)
    helper.stop()
    assert lock.acquire(timeout=SECONDS / 2)
    lock.release()


def test_a_helper_holds_none_of_the_programs_files() -> None:
    """Whoever reads from a pipe of the program's sees its end when the program closes it."""
    read, write = os.pipe()
    helper = Helper(lambda: time.sleep(SECONDS) or b"", nothing)
    os.close(write)
    began = time.monotonic()
    assert os.read(read, 1) == b"" and time.monotonic() - began < SECONDS / 2
    os.close(read)
    helper.stop()


def test_without_another_process_a_graph_is_compiled_in_the_foreground(monkeypatch: pytest.MonkeyPatch) -> None:
    def none(*_: object) -> bool:
        raise OSError("no more processes")

    monkeypatch.setattr(process._C, "fork_helper", none)
    torch.testing.assert_close(fxjit.compile(lambda x: x * 2 + 1)(torch.ones(3)), torch.full((3,), 3.0))
    assert not counters["tiers"] and counters["native"]["kernels"] == 1
