"""Threads that compile, call, mutate what is guarded and recompile, all at once: no crash, no wrong result, nothing kept.

Each thread checks each result. The number of calls is a share that costs seconds; for a million:
FXJIT_TEST_CALLS=1000000 python -m pytest -p no:logging tests/hook/test_concurrency.py
(pytest's logging plugin keeps a record of all that torch logs of each compile, some 250 objects a step.)
"""

from __future__ import annotations

import gc
import itertools
import linecache
import os
import random
import resource
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import fxjit
from fxjit.counters import counters

CALLS = int(os.environ.get("FXJIT_TEST_CALLS", "16000"))
THREADS = 8


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)  # as many switches as there can be
    yield
    sys.setswitchinterval(before)
    fxjit.reset()


def in_threads(work: Callable[[int], None]) -> None:
    errors: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            torch.set_num_threads(1)
            work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ModuleList(nn.Identity() for _ in range(4))
        self.factor = 1

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for part in self.inner:
            x = part(x)
        return x * self.factor


def test_modules_of_all_threads_share_code_and_change_while_they_are_called() -> None:
    x = torch.ones(4)
    wrong: list[str] = []

    def work(index: int) -> None:
        chance = random.Random(index)
        net = Scaled()
        compiled = fxjit.compile(net, backend="eager")
        for _ in range(CALLS // THREADS):
            if chance.random() < 0.05:
                net.factor = chance.randrange(1, 4)
            if chance.random() < 0.02:
                net.inner[chance.randrange(4)] = nn.Identity()
            if chance.random() < 0.01:
                net.train(not net.training)
            if float(compiled(x)[0]) != net.factor:
                wrong.append(f"thread {index}: factor {net.factor}")

    with fxjit.config.patch(recompile_limit=64, accumulated_recompile_limit=10_000):
        in_threads(work)
    assert not wrong


def test_one_function_is_compiled_called_and_reset_by_all() -> None:
    scale = {"by": 2}

    def fn(x: torch.Tensor, add: int) -> torch.Tensor:
        return x * scale["by"] + add

    compiled = fxjit.compile(fn, backend="eager")
    x = torch.ones(4)

    def work(index: int) -> None:
        chance = random.Random(index)
        for step in range(CALLS // THREADS):
            if chance.random() < 0.002:
                scale["by"] = chance.randrange(2, 4)
            if step % 500 == 499 and index == 0:
                fxjit.reset()
            add = chance.randrange(5)
            assert float(compiled(x, add)[0]) in (2 + add, 3 + add)

    in_threads(work)


@pytest.mark.parametrize("way", ["eager", "wait"])
def test_a_frame_that_another_thread_compiles(way: str) -> None:
    """One compile, whoever comes first; the others run it eagerly, or wait for the result."""
    started, go_on = threading.Event(), threading.Event()
    eager_runs: list[int] = []

    def backend(graph: torch.fx.GraphModule, examples: list[torch.Tensor]) -> Callable[..., object]:
        started.set()
        assert go_on.wait(30)
        return graph.forward

    @fxjit.disable
    def note() -> None:
        eager_runs.append(1)

    def fn(x: torch.Tensor) -> torch.Tensor:
        if not fxjit.is_compiling():
            note()
        return x + 1

    compiled = fxjit.compile(fn, backend=backend)
    results: list[torch.Tensor] = []
    with fxjit.config.patch(concurrent_compile=way):
        first = threading.Thread(target=lambda: results.append(compiled(torch.ones(2))))
        first.start()
        assert started.wait(30)
        second = threading.Thread(target=lambda: results.append(compiled(torch.ones(2))))
        second.start()
        second.join(0.5 if way == "wait" else 30)
        assert second.is_alive() == (way == "wait")
        go_on.set()
        first.join(30)
        second.join(30)
    assert [result.tolist() for result in results] == [[2.0, 2.0]] * 2
    assert len(eager_runs) == (way == "eager")
    assert counters["frames"]["ok"] == 1


def test_calls_and_recompiles_leave_nothing_behind() -> None:
    """As many calls again must not make the process hold more objects, nor much more memory."""
    x = torch.ones(4)

    def work(index: int) -> None:
        chance = random.Random(index)
        net = Scaled()
        compiled = fxjit.compile(net, backend="eager")
        for _ in range(CALLS // THREADS // 4):
            if chance.random() < 0.05:
                net.factor = chance.randrange(1, 4)
            assert float(compiled(x)[0]) == net.factor
        fxjit.reset()

    held = []
    for _ in range(4):  # the first fills caches, as does what is imported meanwhile
        in_threads(work)
        fxjit.reset()
        gc.collect()
        held.append((len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
    steps = list(itertools.pairwise(held[1:]))
    assert min(objects_then - objects for (objects, _), (objects_then, _) in steps) < 200
    assert min(memory_then - memory for (_, memory), (_, memory_then) in steps) < 50_000  # kilobytes


def test_texts_of_generated_code_go_with_what_was_compiled() -> None:
    def texts() -> int:
        return sum("eval_with_key" in name for name in linecache.cache)

    before = texts()
    for by in range(4):
        compiled = fxjit.compile(lambda x, by=by: (x * by).sin(), backend="aot_eager", dynamic=False)
        compiled(torch.ones(3, requires_grad=True)).sum().backward()
    assert texts() > before
    del compiled
    fxjit.reset()
    gc.collect()
    assert texts() <= before


def test_nothing_is_kept_of_models_that_threads_compiled_and_dropped() -> None:
    gone: list[weakref.ref[nn.Module]] = []

    def work(index: int) -> None:
        for _ in range(4):
            net = Scaled()
            compiled = fxjit.compile(net, backend="eager")
            for _ in range(8):
                compiled(torch.ones(3))
            gone.append(weakref.ref(net))

    in_threads(work)
    gc.collect()
    assert [ref for ref in gone if ref() is not None] == []


def test_what_is_asked_for_while_another_thread_imports_the_compiler() -> None:
    """The first compile of a process imports it: its modules are in `sys.modules` before they have their names."""
    program = """
import threading, torch, fxjit

found = []

def compile_two():  # both on one thread: with torch 2.11 fake tensors on a second one crash (docs/troubleshooting.md)
    fxjit.compile(lambda x: x.sin() * 2, backend="aot_eager")(torch.ones(3))
    found.append(fxjit.compile(lambda x: x + 1, backend="aot_eager")(torch.ones(3)))

thread = threading.Thread(target=compile_two)
thread.start()
while thread.is_alive():
    fxjit.reset()
    fxjit.wait_for_compiles(0)
assert torch.equal(found[0], torch.full((3,), 2.0))
"""
    done = subprocess.run([sys.executable, "-c", program], env=fxjit.config.child_environment(OMP_NUM_THREADS="1"),
                          capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
