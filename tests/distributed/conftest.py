"""Process groups on one machine: two ranks over gloo, kept for all tests, each call with a limit of time."""

from __future__ import annotations

import contextlib
import inspect
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection, Listener
from pathlib import Path
from typing import Any

import pytest
import torch

if not torch.distributed.is_available():
    collect_ignore_glob = ["test_*.py"]


@dataclass(frozen=True)
class Ended:
    """In the place of a rank's result: its process has ended."""

    status: int


class Ranks:
    """Calls a function of a test file on every rank: `ranks(function, *args)` gives their results, by rank."""

    def __init__(self, world_size: int, folder: Path) -> None:
        address = str(folder / "socket")
        script = str(Path(__file__).with_name("rank.py"))
        with Listener(address, "AF_UNIX") as listener:
            self.processes = [
                subprocess.Popen([sys.executable, script, address, str(rank), str(world_size), str(folder)])
                for rank in range(world_size)
            ]
            accepted = [listener.accept() for _ in self.processes]
        self.connections: list[Connection] = [each for _, each in sorted((one.recv(), one) for one in accepted)]

    def __call__(self, function: Callable[..., Any], *args: Any, seconds: float = 120) -> list[Any]:
        """The results, by rank; that of a rank which ends meanwhile is the `Ended` with its exit status."""
        for connection in self.connections:
            connection.send((inspect.getfile(function), function.__name__, args))
        results = []
        for rank, connection in enumerate(self.connections):
            if not connection.poll(seconds):
                self.close()
                pytest.fail(f"rank {rank} did not end {function.__name__} in {seconds} seconds")
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


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ranks]:
    pool = Ranks(2, tmp_path_factory.mktemp("ranks"))
    yield pool
    pool.close()


@pytest.fixture
def mortal_ranks(tmp_path: Path) -> Iterator[Ranks]:
    """For one test: it may end them."""
    pool = Ranks(2, tmp_path)
    yield pool
    pool.close()
