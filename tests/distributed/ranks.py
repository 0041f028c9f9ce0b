"""Process groups on one machine: ranks over gloo, each in a process of its own, and each call with a limit of time."""

from __future__ import annotations

import contextlib
import inspect
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import pytest


@dataclass(frozen=True)
class Ended:
    """In the place of a rank's result: its process has ended."""

    status: int


class Ranks:
    """Calls a function of a test file on every rank: `ranks(function, *args)` gives their results, by rank."""

    def __init__(self, world_size: int, folder: Path) -> None:
        script = str(Path(__file__).with_name("rank.py"))
        self.connections: list[Connection] = []
        self.processes: list[subprocess.Popen[bytes]] = []
        for rank in range(world_size):
            mine, its = Pipe()
            with its:  # its process alone has it then: where that ends, the other end says so
                command = [sys.executable, script, str(its.fileno()), str(rank), str(world_size), str(folder)]
                self.processes.append(subprocess.Popen(command, pass_fds=[its.fileno()]))
            self.connections.append(mine)

    def __call__(self, function: Callable[..., Any], *args: Any, seconds: float = 120) -> list[Any]:
        """The results, by rank; that of a rank which ends meanwhile is the `Ended` with its exit status."""
        for connection in self.connections:
            connection.send((inspect.getfile(function), function.__name__, args))
        results = []
        for rank, connection in enumerate(self.connections):
            if not connection.poll(seconds):
                for process in self.processes:
                    process.send_signal(signal.SIGUSR1)  # it shows where its threads are
                self.close()
                pytest.fail(f"rank {rank} did not end {function.__name__} in {seconds} seconds; stderr has every rank's stacks")
            try:
                how, what = connection.recv()
            except (EOFError, ConnectionError):
                results.append(Ended(self.processes[rank].wait(20)))
                continue
            assert how == "returned", f"rank {rank}:\n{what}"
            results.append(what)
        return results

    def close(self) -> None:
        """Ends the ranks: those that listen by themselves, the others (one waits for another in vain, say) by force."""
        for connection in self.connections:
            with contextlib.suppress(OSError):  # it has ended
                connection.send(None)
        for process in self.processes:
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
