"""Ranks that are not alike: one is slow, one compiles when others do not, one takes another branch. Collectives are made in the
order in which the program makes them, so that nobody waits for a compile that will not come."""

from __future__ import annotations

import datetime
import logging
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import fxjit

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
#: Seconds that a group waits for a rank.
LIMIT = 1.5
Graph = Callable[..., Any]


@contextmanager
def guard_collectives(enabled: bool) -> Iterator[None]:
    """The drop-in, with torch's switch for deciding together."""
    fxjit.install()
    try:
        assert torch.compiler.set_enable_guard_collectives(enabled) is False
        yield
    finally:
        assert torch.compiler.set_enable_guard_collectives(False) is enabled
        fxjit.uninstall()


class Heard(logging.Handler):
    """What a logger was told."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())


class Compiles:
    """A backend that counts its graphs and takes its time for each."""

    def __init__(self, backend: str, seconds: float) -> None:
        self.backend, self.seconds, self.count = fxjit.lookup_backend(backend), seconds, 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Any]) -> Graph:
        self.count += 1
        time.sleep(self.seconds)
        return self.backend(graph, inputs)


def reduced_in_the_graph(x: torch.Tensor, scale: float) -> torch.Tensor:
    return functional.all_reduce(x * scale, "sum", distributed.group.WORLD) + 1


def reduced_in_place(x: torch.Tensor, scale: float) -> torch.Tensor:
    y = x * scale
    distributed.all_reduce(y)
    return y.sin()


def reduced_at_a_break(x: torch.Tensor, scale: float) -> torch.Tensor:
    y = x * scale
    handle = distributed.all_reduce(y, async_op=True)
    handle.wait()
    return y.cos() * scale


def branches_by_rank(x: torch.Tensor, scale: float) -> torch.Tensor:
    if distributed.get_rank() == 1:
        x = (x * 2).relu() - 1
    y = functional.all_reduce(x * scale, "sum", distributed.group.WORLD)
    return y.tanh() if scale > 1 else y.exp()


PROGRAMS = {each.__name__: each for each in (reduced_in_the_graph, reduced_in_place, reduced_at_a_break, branches_by_rank)}


def calls(name: str, backend: str, together: bool) -> int:
    """Calls of which some are compiled on rank 1 alone, whose compiles are slow: with another shape, with another number."""
    run, rank = PROGRAMS[name], distributed.get_rank()
    slow = Compiles(backend, 0.1 * rank)
    with guard_collectives(together):
        compiled = torch.compile(run, backend=slow, dynamic=False)
        for turn in range(6):
            x = torch.linspace(0, 1, 8).view(8, 1) + rank
            x = x.t() if rank and turn in (2, 4) else x  # guarded: the other rank keeps its graph
            scale = 2.0 if rank and turn in (3, 4) else 1.5
            torch.testing.assert_close(compiled(x.clone(), scale).flatten(), run(x.clone(), scale).flatten())
    return slow.count


#: Each program with each backend, and with each way of deciding.
DECISIONS = [pytest.param(backend, name, (place + number) % 2 == 0, id=f"{backend}-{name}")
             for number, backend in enumerate(["aot_eager", "native"]) for place, name in enumerate(PROGRAMS)]  # fmt: skip


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("backend", "name", "together"), DECISIONS)
def test_a_rank_that_compiles_when_others_do_not(ranks: Any, backend: str, name: str, together: bool) -> None:
    steady, diverging = ranks(calls, name, backend, together)
    assert diverging == steady if together else diverging > steady


def train(backend: str, together: bool) -> int:
    """Steps under DistributedDataParallel, with sizes that change on rank 1 alone; losses and gradients are eager's."""
    rank = distributed.get_rank()
    slow, seen = Compiles(backend, 0.3 * rank), []
    with guard_collectives(together):
        for compiles in (False, True):
            torch.manual_seed(0)
            model: Any = DistributedDataParallel(nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), bucket_cap_mb=1e-4)
            step = torch.compile(model, backend=slow, dynamic=False) if compiles else model
            optimizer, found = torch.optim.SGD(model.parameters(), lr=0.1), []
            for turn in range(5):
                rows = 3 + (turn % 3 if rank else 0)
                optimizer.zero_grad()
                loss = step(torch.ones(rows, 4) * (turn + rank)).square().mean()
                loss.backward()
                optimizer.step()
                found += [loss.detach(), *(each.grad.clone() for each in model.parameters())]
            seen.append(found)
    torch.testing.assert_close(seen[1], seen[0])
    return slow.count


@pytest.mark.parametrize("together", [True, False], ids=["guard collectives", "each by itself"])
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_rank_whose_batches_change_their_size(ranks: Any, backend: str, together: bool) -> None:
    steady, diverging = ranks(train, backend, together)
    assert diverging == steady if together else diverging > steady


def told() -> tuple[list[str], str]:
    """What the log says, and where a rank's guard failed, of a call that only rank 1 has no entry for."""
    heard = Heard()
    logger = logging.getLogger("fxjit.recompiles")
    logger.addHandler(heard)
    fxjit.set_logs("recompiles")
    try:
        with guard_collectives(True):
            compiled = fxjit.compile(lambda x: x + 1, backend="eager", dynamic=False)
            for size in (3, 3, 4 if distributed.get_rank() else 3):
                assert torch.equal(compiled(torch.ones(size)), torch.full((size,), 2.0))
            return heard.lines, fxjit.counters["recompiles"].most_common(1)[0][0]
    finally:
        fxjit.set_logs("")
        logger.removeHandler(heard)


def test_every_rank_is_told_which_guard_failed_and_where(ranks: Any) -> None:
    for lines, function in ranks(told):
        assert function == "told.<locals>.<lambda>"
        together, again = lines
        assert "an entry fits on 1 of 2 ranks" in together
        assert "rank 1 compiles it again: x: expected size(0) 3, found 4" in together
        assert "expected size(0) 3, found 4" in again


def in_a_frozen_region() -> list[float]:
    """Where nothing may be compiled, a call that one rank has no entry for runs eagerly on all."""
    rank = distributed.get_rank()
    compiled = fxjit.compile(lambda x: x * 2, backend="eager", dynamic=False)
    with guard_collectives(True):
        compiled(torch.ones(3))
        with fxjit.set_stance("eager_on_recompile"):
            return [float(compiled(torch.ones(4 if rank else 3)).sum()), float(compiled(torch.ones(3)).sum())]


def test_a_rank_may_have_nothing_to_compile(ranks: Any) -> None:
    assert ranks(in_a_frozen_region) == [[6.0, 6.0], [8.0, 6.0]]


def alone() -> bool:
    """In a process without a group there is nobody to ask."""
    distributed.destroy_process_group()
    with guard_collectives(True):
        compiled = fxjit.compile(lambda x: x + 1, backend="eager", dynamic=False)
        right = all(torch.equal(compiled(torch.ones(size)), torch.full((size,), 2.0)) for size in (3, 3, 4, 3))
    store = distributed.HashStore()
    distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    return right


def test_without_a_process_group_nobody_is_asked(ranks: Any) -> None:
    assert ranks(alone) == [True, True]


def waits_in_vain() -> str:
    """Rank 1 leaves; rank 0 looks up an entry."""
    with guard_collectives(True):
        compiled = fxjit.compile(lambda x: x + 1, backend="eager", dynamic=False)
        for _ in range(2):
            compiled(torch.ones(3))
        if distributed.get_rank():
            os._exit(3)
        try:
            compiled(torch.ones(3))
        except Exception as error:
            return type(error).__name__
    return "none"


def test_a_rank_that_has_died_is_an_error(mortal_ranks: Any) -> None:
    here, there = mortal_ranks(waits_in_vain)
    assert here in ("RuntimeError", "DistBackendError") and there.status == 3


def too_slow(name: str) -> str:
    """What a rank sees where rank 1 compiles for longer than the group waits."""
    group = distributed.new_group([0, 1], timeout=datetime.timedelta(seconds=LIMIT))
    rank = distributed.get_rank()

    def in_a_graph(x: torch.Tensor) -> torch.Tensor:
        return functional.all_reduce(x * 2, "sum", group) + 1

    def at_a_break(x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        distributed.all_reduce(y, group=group, async_op=True).wait()
        return y + 1

    run = fxjit.compile({"in a graph": in_a_graph, "at a break": at_a_break}[name], backend=Compiles("eager", 2 * LIMIT * rank))
    try:
        run(torch.ones(4))
    except Exception as error:
        return type(error).__name__
    return "none"


@pytest.mark.parametrize("name", ["in a graph", "at a break"])
def test_a_rank_that_compiles_for_too_long_is_an_error_on_all(mortal_ranks: Any, name: str) -> None:
    assert mortal_ranks(too_slow, name) == ["RuntimeError", "RuntimeError"]
