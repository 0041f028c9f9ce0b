"""Locks that the traced function makes: as an object's constructor does, and as they leave the trace."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit
from fxjit.testing import same


class Counted:
    def __init__(self) -> None:
        self.lock: Any = threading.RLock()
        self.other = threading.Lock()
        self.count = 0

    def add(self, x: torch.Tensor) -> torch.Tensor:
        with self.lock:
            with self.lock:
                self.count += 1
            return x + self.count


def _held_by_an_object(x: torch.Tensor) -> Any:
    counted = Counted()
    return counted.add(counted.add(x)), counted.count, counted.lock._is_owned(), counted.other.locked()


def _asked(x: torch.Tensor) -> Any:
    lock = threading.Lock()
    taken = lock.acquire(), lock.acquire(False), lock.acquire(blocking=False), lock.locked()
    return x + 1, taken, lock.release(), lock.locked()


def _again(x: torch.Tensor) -> Any:
    lock = threading.RLock()
    return x + 1, [lock.acquire() for _ in range(3)], lock.acquire(False), lock.release(), lock is lock


def _types(x: torch.Tensor) -> Any:
    lock, other = threading.RLock(), threading.Lock()
    kinds = type(lock), type(other), isinstance(lock, type(threading.RLock())), isinstance(other, type(lock))
    try:
        other.take()  # type: ignore[attr-defined]
    except AttributeError as error:
        return x + 1, kinds, str(error), hasattr(lock, "locked"), hasattr(lock, "acquire"), lock is other


def _released_too_often(x: torch.Tensor) -> Any:
    said = []
    for lock in (threading.Lock(), threading.RLock()):
        try:
            with lock:
                lock.release()
        except RuntimeError as error:
            said.append(str(error))
    return x + 1, said


def _raises_under_it(x: torch.Tensor) -> Any:
    lock = threading.Lock()
    try:
        with lock:
            raise ValueError("under it")
    except ValueError:
        return x + 1, lock.locked()


@pytest.mark.parametrize("program", [_held_by_an_object, _asked, _again, _types, _released_too_often, _raises_under_it])
def test_a_lock_is_made_and_taken(program: Callable[[torch.Tensor], Any]) -> None:
    assert_same_as_eager(program, torch.ones(2))


def test_a_lock_leaves_as_often_taken_as_it_is() -> None:
    def program(x: torch.Tensor) -> Any:
        counted = Counted()
        counted.lock.acquire()
        counted.lock.acquire()
        counted.other.acquire()
        return x + 1, counted, [counted.lock], threading.Lock()

    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    for _ in range(2):
        result, counted, (lock,), free = compiled(torch.ones(2))
        assert same(result, torch.full((2,), 2.0))
        assert lock is counted.lock
        assert counted.other.locked()
        assert not free.locked()
        assert free is not compiled(torch.ones(2))[3]
        lock.release()
        lock.release()
        with pytest.raises(RuntimeError):
            lock.release()


@pytest.mark.parametrize("kind", [threading.Lock, threading.RLock])
def test_the_graph_breaks_while_it_is_taken(kind: Callable[[], Any]) -> None:
    def under_it(x: torch.Tensor) -> Any:
        lock = kind()
        with lock:
            y = x + x.sum().item()
        return y, lock.acquire(False)

    def between(x: torch.Tensor) -> Any:
        lock = kind()
        held = {"one": lock, "other": [lock]}
        lock.acquire()
        y = x + x.sum().item()
        lock.release()
        return y, held["one"] is held["other"][0], lock.acquire(False)

    for program in (under_it, between):
        fxjit.reset()
        compiled = fxjit.compile(program, backend="eager")
        for _ in range(2):
            assert same(program(torch.ones(2)), compiled(torch.ones(2)))


def test_one_that_would_wait_for_itself_is_left_to_the_program() -> None:
    def program(x: torch.Tensor) -> Any:
        lock = threading.Lock()
        lock.acquire()
        return x + 1, lock.acquire(timeout=0.01)

    fxjit.reset()
    assert same(program(torch.ones(2)), fxjit.compile(program, backend="eager")(torch.ones(2)))


def test_other_threads_wait_for_one_that_left() -> None:
    def program(x: torch.Tensor) -> Any:
        lock = threading.Lock()
        lock.acquire()
        return x + 1, lock

    fxjit.reset()
    _, lock = fxjit.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    seen: list[bool] = []
    thread = threading.Thread(target=lambda: seen.append(lock.acquire(timeout=0.01)))
    thread.start()
    thread.join()
    assert seen == [False]
    lock.release()
