"""Locks that compiled code takes: it holds them while it runs, waits for none, and what they protect is as in eager code."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn import functional as F

import fxjit
from fxjit import config
from fxjit.frontend.held_locks import Recheck


class State:
    def __init__(self) -> None:
        self.lock, self.reentrant = threading.Lock(), threading.RLock()
        self.condition, self.event = threading.Condition(), threading.Event()
        self.semaphore, self.bounded = threading.Semaphore(2), threading.BoundedSemaphore(1)
        self.count, self.last = 0, None
        self.kept: dict[str, Any] = {}

    def free(self) -> bool:
        taken = threading.Thread(target=lambda: self.kept.update(free=self.reentrant.acquire(blocking=False)
                                                                 and self.reentrant.release() is None))
        taken.start()
        taken.join()
        return not self.lock.locked() and bool(self.kept.pop("free"))


def counts(x: torch.Tensor, s: State) -> Any:
    with s.lock:
        s.count += 1
        y = x * s.count
    return y + 1


def nested(x: torch.Tensor, s: State) -> Any:
    with s.reentrant, s.lock:
        with s.reentrant:
            s.kept["y"] = x.sin()
        s.last = s.kept["y"] + 1
    return s.last * 2


def several_times(x: torch.Tensor, s: State) -> Any:
    for i in range(3):
        with s.lock:
            s.count += i
        x = x + s.count
    return x


def by_calls(x: torch.Tensor, s: State) -> Any:
    found = [s.lock.acquire(), s.lock.acquire(blocking=False), s.reentrant.acquire(False), s.reentrant.acquire(timeout=-1)]
    try:
        s.count += 2
        return x * s.count, found
    finally:
        s.lock.release()
        s.reentrant.release()
        s.reentrant.release()


def is_left_by_an_exception(x: torch.Tensor, s: State) -> Any:
    try:
        with s.lock:
            s.count += 1
            raise ValueError("inside")
    except ValueError as error:
        return x + s.count, str(error)


def beside_random_numbers(x: torch.Tensor, s: State) -> Any:
    first = random.random()
    with s.lock:
        s.last = random.randint(1, 5)
        return x * s.last + first


def made_of_locks(x: torch.Tensor, s: State) -> Any:
    with s.condition:
        s.count += 1
        s.condition.notify_all()
    with s.semaphore, s.bounded:
        s.count += 1
    found = [s.semaphore.acquire(), s.bounded.acquire(blocking=False)]
    if s.event.is_set():
        s.event.clear()
    else:
        s.event.set()
    s.bounded.release()
    s.semaphore.release(1)
    return x * s.count, found, s.event.is_set()


def cached(x: torch.Tensor, s: State) -> Any:
    key = f"{x.shape[0]}, {s.count // 2}"
    with s.reentrant:
        if key not in s.kept:
            s.kept[key] = torch.arange(x.shape[0]).float()
        s.count += 1
        return x * s.kept[key]


class Registry:
    """One object, made at its first use."""

    _lock = threading.Lock()
    _instance: Any = None
    uses = 0

    def __new__(cls) -> Any:
        with cls._lock:
            if cls._instance is None:
                cls._instance = super().__new__(cls)
        return cls._instance


def one_instance(x: torch.Tensor, s: State) -> Any:
    registry = Registry()
    registry.uses += 1
    return x * 2, registry is Registry()


class Hooked(torch.nn.Module):
    """Hooks that keep what layers give, as libraries for attribution do."""

    def __init__(self, s: State) -> None:
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.ReLU(), torch.nn.Linear(2, 2))
        for layer in self.layers:
            layer.register_forward_hook(lambda module, args, output: self.keep(s, module, output))

    def keep(self, s: State, module: torch.nn.Module, output: torch.Tensor) -> None:
        with s.lock:
            s.kept[type(module).__name__] = output.clone()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layers(x)


PROGRAMS = [
    counts, nested, several_times, by_calls, is_left_by_an_exception, beside_random_numbers, made_of_locks, cached,
    one_instance,
]


def left(s: State) -> Any:
    counts = s.semaphore._value, s.bounded._value, s.event.is_set()  # type: ignore[attr-defined]  # of threading's own
    return s.count, repr(s.last), repr(s.kept), s.free(), counts


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_as_eager(program: Callable[..., Any], backend: str) -> None:
    compiled, states = fxjit.compile(program, backend=backend, fullgraph=True), (State(), State())
    for call in range(4):
        found = []
        for run, s in zip((program, compiled), states, strict=True):
            random.seed(call)
            found.append((repr(run(torch.ones(2), s)), left(s), random.random()))
        assert found[0] == found[1]


def test_hooks() -> None:
    s = State()
    model = Hooked(s)
    compiled = fxjit.compile(model, backend="eager", fullgraph=True)
    for _ in range(2):
        x = torch.randn(3, 2)
        expected, kept = model(x), dict(s.kept)
        s.kept.clear()
        assert torch.equal(compiled(x), expected) and s.free()
        assert all(torch.equal(s.kept[name], kept[name]) for name in kept) and s.kept.keys() == kept.keys()


@pytest.mark.parametrize("program", PROGRAMS)
def test_another_thread_was_there_meanwhile(program: Callable[..., Any], monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the guards hold no longer once the locks are held, the program runs as it stands."""
    fxjit.reset()  # of the numbers that other tests left in classes
    compiled, states = fxjit.compile(program, backend="eager", fullgraph=True), (State(), State())
    for call in range(6):
        found = []
        with monkeypatch.context() as patched:
            if call in (2, 4):
                patched.setattr(Recheck, "__call__", lambda *args: False)
            for run, s in zip((program, compiled), states, strict=True):
                random.seed(call)
                found.append((repr(run(torch.ones(2), s)), left(s), random.random()))
        assert found[0] == found[1]


@pytest.mark.parametrize("program", [counts, several_times])
def test_no_update_is_lost(program: Callable[..., Any]) -> None:
    s, alone = State(), State()
    compiled = fxjit.compile(program, backend="eager")
    for _ in range(3):
        compiled(torch.ones(2), s)
    threads = [threading.Thread(target=lambda: [compiled(torch.ones(2), s) for _ in range(150)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for _ in range(603):
        program(torch.ones(2), alone)
    assert s.count == alone.count and s.free()


def test_a_lock_that_is_held_is_waited_for() -> None:
    s = State()
    compiled = fxjit.compile(counts, backend="eager", fullgraph=True)
    for _ in range(3):
        compiled(torch.ones(2), s)
    s.lock.acquire()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(compiled(torch.ones(2), s)))
    thread.start()
    time.sleep(0.1)
    assert not found
    s.count = 10
    s.lock.release()
    thread.join()
    assert torch.equal(found[0], torch.full((2,), 12.0)) and s.count == 11 and s.free()


def test_a_graph_that_fails_lets_go() -> None:
    def fn(table: torch.Tensor, at: torch.Tensor, s: State) -> torch.Tensor:
        with s.lock:
            s.count += 1
            return F.embedding(at, table) + 1

    compiled, s = fxjit.compile(fn, backend="eager"), State()
    compiled(torch.ones(3, 2), torch.tensor([1]), s)
    for _ in range(3):
        with pytest.raises(IndexError):
            compiled(torch.ones(3, 2), torch.tensor([5]), s)
        assert s.free()
    compiled(torch.ones(3, 2), torch.tensor([2]), s)


def test_who_waits_is_woken() -> None:
    def fn(x: torch.Tensor, s: State) -> torch.Tensor:
        with s.condition:
            s.count += 1
            s.condition.notify()
        s.event.set()
        return x * s.count

    compiled, s = fxjit.compile(fn, backend="eager"), State()
    for _ in range(3):
        compiled(torch.ones(2), s)
    for call in range(4, 7):
        found: list[int] = []
        s.event.clear()
        ready = threading.Event()

        def wait(ready: threading.Event = ready, found: list[int] = found) -> None:
            with s.condition:
                ready.set()
                s.condition.wait(20)
                found.append(s.count)
            s.event.wait(20)
            found.append(-1)

        thread = threading.Thread(target=wait)
        thread.start()
        ready.wait()
        assert torch.equal(compiled(torch.ones(2), s), torch.full((2,), float(call)))
        thread.join(20)
        assert found == [call, -1]


def test_a_semaphore_that_is_taken_is_waited_for() -> None:
    def fn(x: torch.Tensor, s: State) -> torch.Tensor:
        with s.bounded:
            s.count += 1
        return x * s.count

    compiled, s = fxjit.compile(fn, backend="eager"), State()
    for _ in range(3):
        compiled(torch.ones(2), s)
    s.bounded.acquire()
    found: list[Any] = []
    thread = threading.Thread(target=lambda: found.append(compiled(torch.ones(2), s)))
    thread.start()
    time.sleep(0.1)
    assert not found
    s.bounded.release()
    thread.join(20)
    assert torch.equal(found[0], torch.full((2,), 4.0)) and s.count == 4


def breaks_inside(x: torch.Tensor, s: State) -> Any:
    with s.lock:
        s.count += 1
        fxjit.graph_break()
        return x * s.count


def breaks_behind(x: torch.Tensor, s: State) -> Any:
    with s.lock:
        s.count += 1
    x = x * s.count
    fxjit.graph_break()
    assert not s.lock.locked()
    with s.lock:
        s.count += 1
    return x + s.count


def breaks_between(x: torch.Tensor, s: State) -> Any:
    x = x + 1
    s.lock.acquire()
    s.count += 1
    fxjit.graph_break()
    x = x * s.count
    s.lock.release()
    return x + 1


def in_a_transform(x: torch.Tensor, s: State) -> Any:
    with s.lock:
        s.count += 1

    def inside(row: torch.Tensor) -> torch.Tensor:
        with s.lock:
            return row * s.count

    return torch.vmap(inside)(x), torch.func.grad(lambda x: inside(x).sum())(x)


def is_not_held(x: torch.Tensor, s: State) -> Any:
    x = x + 1
    try:
        s.lock.release()
    except RuntimeError as error:
        return x, str(error)
    return x


def stays_held(x: torch.Tensor, s: State) -> Any:
    s.reentrant.acquire()
    return x + 1, s.reentrant._is_owned()  # type: ignore[attr-defined]  # as threading.Condition does


def asks(x: torch.Tensor, s: State) -> Any:
    with s.lock:
        return x + s.lock.locked()


@pytest.mark.parametrize("program", [breaks_inside, breaks_behind, breaks_between, in_a_transform, is_not_held, asks])
@pytest.mark.parametrize("everywhere", [False, True])
def test_with_breaks(program: Callable[..., Any], everywhere: bool) -> None:
    compiled, states = fxjit.compile(program, backend="eager"), (State(), State())
    with config.patch(resume_in_loops=everywhere, resume_in_try=everywhere):
        for _ in range(3):
            found = [(repr(run(torch.ones(2), s)), left(s)) for run, s in zip((program, compiled), states, strict=True)]
            assert found[0] == found[1]


def test_one_that_stays_held() -> None:
    s = State()
    compiled = fxjit.compile(stays_held, backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2), s)[1] and not s.free()
    for _ in range(2):
        s.reentrant.release()
    assert s.free()


INSIDE = threading.Lock()


@torch.library.custom_op("test_locks::under_a_lock", mutates_args=())
def under_a_lock(x: torch.Tensor) -> torch.Tensor:
    with INSIDE:
        return x + 1


@under_a_lock.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_an_operator_of_the_programs_may_take_the_same_lock() -> None:
    def fn(x: torch.Tensor) -> torch.Tensor:
        with INSIDE:
            x = x * 2
        return under_a_lock(x)

    compiled = fxjit.compile(fn, backend="eager")
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), fn(torch.ones(2))) and not INSIDE.locked()


def test_calls_that_are_put_off_are_not_made_under_a_lock(capsys: pytest.CaptureFixture[str]) -> None:
    def fn(x: torch.Tensor, s: State) -> torch.Tensor:
        print("before", x.sum())
        with s.lock:
            s.count += 1
        x = x * s.count
        print("between", x.sum())
        with s.lock:
            s.count += 1
        return x + 1

    with config.patch(reorderable_functions=frozenset({print})):
        compiled, states = fxjit.compile(fn, backend="eager"), (State(), State())
        for _ in range(3):
            found = []
            for run, s in zip((fn, compiled), states, strict=True):
                found.append((repr(run(torch.ones(2), s)), left(s), capsys.readouterr().out))
            assert found[0] == found[1]
