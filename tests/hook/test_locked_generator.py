"""A fork while another thread draws random numbers: torch's generator stays locked in the child."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time

import pytest
import torch

import fxjit
from fxjit import forks

TEXT = """if True:
    import os, threading, time, torch, fxjit, warnings
    warnings.simplefilter("always")
    torch.set_num_threads(1)

    def scaled(x):
        return x * 2 + 1

    compiled, whole = fxjit.compile(scaled, backend="eager"), fxjit.compile(scaled, backend="eager", fullgraph=True)
    compiled(torch.ones(3))
    numbers = torch.empty(2_000_000)

    def draw():
        while True:
            numbers.normal_()

    threading.Thread(target=draw, daemon=True).start()
    time.sleep(0.05)
    for _ in range(50):
        child = os.fork()
        if child == 0:
            from fxjit import forks
            if not forks.generator_is_lost():
                os._exit(3)
            right = torch.equal(compiled(torch.ones(3)), torch.full((3,), 3.0))
            right = right and torch.equal(compiled(torch.ones(4, 5)), torch.full((4, 5), 3.0))
            try:
                whole(torch.ones(2))
            except fxjit.errors.Unsupported as error:
                right = right and "generator" in str(error)
            os._exit(0 if right else 1)
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status != 3:
            break
    os._exit(status)
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="it is found in /proc")
def test_the_child_runs_what_is_compiled_and_compiles_nothing():
    """It hung, in a lock that no thread of it holds."""
    done = subprocess.run([sys.executable, "-c", TEXT], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    assert "compiles nothing in this process" in done.stderr


def test_a_lock_that_a_thread_of_the_process_holds_is_not_lost():
    stop = threading.Event()

    def draw():
        numbers = torch.empty(500_000)
        while not stop.is_set():
            numbers.normal_()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        until = time.monotonic() + 0.2
        while time.monotonic() < until:
            assert not forks._is_generator_locked()
    finally:
        stop.set()
        thread.join()
    assert not forks.generator_is_lost()
    assert torch.equal(fxjit.compile(torch.sin, backend="eager")(torch.zeros(2)), torch.zeros(2))
