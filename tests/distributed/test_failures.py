"""Missing, destroyed and failing process groups: every rank that lives gets eager's error, at the latest when the group's own
time limit is over."""

from __future__ import annotations

import datetime
import os
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from torch import distributed
from torch.nn.parallel import DistributedDataParallel

import fxjit

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
#: Seconds that a group waits for a rank.
LIMIT = 3


def in_place(x: torch.Tensor, group: Any) -> torch.Tensor:
    y = x.detach() * 2
    distributed.all_reduce(y, group=group)
    return y + 1


def by_function(x: torch.Tensor, group: Any) -> torch.Tensor:
    return functional.all_reduce(x * 2, "sum", group or distributed.group.WORLD) + 1


COLLECTIVES = {each.__name__: each for each in (in_place, by_function)}


def failure(call: Callable[..., Any], *args: Any) -> tuple[str, str]:
    """The type of what a call raises, and the first line of its message."""
    try:
        call(*args)
    except Exception as error:
        return type(error).__name__, str(error).partition("\n")[0]
    return "none", ""


@pytest.mark.parametrize("name", COLLECTIVES)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_without_a_process_group(name, backend):
    run, x = COLLECTIVES[name], torch.ones(4)
    expected = failure(run, x, None)
    assert expected[0] != "none"
    assert failure(fxjit.compile(run, backend=backend), x, None) == expected


def destroyed(name: str) -> tuple[str, str]:
    """What a call of code raises that was compiled for a group, once that is destroyed."""
    run, x = COLLECTIVES[name], torch.ones(4)
    compiled = fxjit.compile(run)
    group = distributed.new_group([0, 1])
    torch.testing.assert_close(compiled(x, group) * 1, torch.full((4,), 5.0))
    distributed.destroy_process_group(group)
    return failure(compiled, x, group)


@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_destroyed_group(ranks, name):
    for kind, message in ranks(destroyed, name):
        assert kind == "RuntimeError"
        assert "process group" in message


def one_rank_raises(name: str, compiles_before: bool) -> tuple[str, float]:
    """What a rank sees, and after how many seconds: one raises in its function, the other waits for it in a collective."""
    group = distributed.new_group([0, 1], timeout=datetime.timedelta(seconds=LIMIT))
    collective = COLLECTIVES[name]

    def step(x: torch.Tensor, fails: bool) -> torch.Tensor:
        x = x * 3
        if fails:
            raise ValueError("this rank has bad data")
        return collective(x, group) * 2

    compiled, x = fxjit.compile(step), torch.ones(4)
    if compiles_before:
        compiled(x, False)
        failure(compiled, x, True) if distributed.get_rank() else None
    start = time.perf_counter()
    kind, _ = failure(compiled, x, distributed.get_rank() == 1)
    return kind, time.perf_counter() - start


@pytest.mark.parametrize("compiles_before", [True, False])
@pytest.mark.parametrize("name", COLLECTIVES)
def test_a_rank_that_raises_leaves_the_others_no_longer_than_the_time_limit(ranks, name, compiles_before):
    (waiting, seconds), (raising, _) = ranks(one_rank_raises, name, compiles_before)
    assert (waiting, raising) == ("RuntimeError", "ValueError")
    if compiles_before:  # else the time has that of the compile in it
        assert seconds < 1.8 * LIMIT, "it waited twice"


def backward_of_one_rank_fails() -> tuple[str, float]:
    """What a rank sees in its backward, and after how many seconds: the other raises between its forward and its backward."""
    group = distributed.new_group([0, 1], timeout=datetime.timedelta(seconds=LIMIT))
    layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2))
    net = DistributedDataParallel(layers, process_group=group)

    def step(x: torch.Tensor, fails: bool) -> torch.Tensor:
        loss = net(x).square().mean()
        if fails:
            raise ValueError("this rank has bad data")
        loss.backward()
        return loss

    compiled, x = fxjit.compile(step), torch.ones(3, 4)
    compiled(x, False)
    start = time.perf_counter()
    kind, _ = failure(compiled, x, distributed.get_rank() == 1)
    return kind, time.perf_counter() - start


def test_a_rank_without_a_backward_leaves_the_others_no_longer_than_the_time_limit(ranks):
    (waiting, seconds), (raising, _) = ranks(backward_of_one_rank_fails)
    assert (waiting, raising) == ("RuntimeError", "ValueError")
    assert seconds < 1.8 * LIMIT, "it waited twice"


def one_rank_dies(cache: str) -> tuple[tuple[str, str], tuple[str, str], dict[str, int]]:
    """Rank 1 ends in its step, while it puts the compiled graph into the cache that both have. What rank 0 sees, what eager
    would, and what the cache does for it afterwards."""
    groups = [distributed.new_group([0, 1], timeout=datetime.timedelta(seconds=60)) for _ in range(2)]
    fxjit.config.cache_dir, fxjit.config.cache_graphs = cache, True
    alone, x = (lambda x: x.sin() * 2 + x.cos()), torch.linspace(0, 1, 64)

    def step(x: torch.Tensor, group: Any) -> torch.Tensor:
        y = alone(x)
        fxjit.graph_break()  # the graph before it is one that the cache takes
        distributed.all_reduce(y, group=group)
        return y + 1

    if distributed.get_rank() == 1:
        os.replace = lambda *paths, **folders: os._exit(9)
    else:
        time.sleep(3)  # or this rank may be the first, and the other finds the graph in the cache
    found, expected = failure(fxjit.compile(step), x, groups[0]), failure(step, x, groups[1])
    for _ in range(2):
        fxjit.reset()
        fxjit.counters.clear()
        torch.testing.assert_close(fxjit.compile(alone)(x), alone(x))
    return found, expected, dict(fxjit.counters["cache"])


def test_a_rank_that_dies_while_it_compiles_is_eagers_error_and_the_cache_is_sound(mortal_ranks, tmp_path):
    (found, expected, cache), dead = mortal_ranks(one_rank_dies, str(tmp_path / "cache"))
    assert dead.status == 9
    assert found[0] == expected[0] == "RuntimeError"
    # Who sees the end first is told what it was, who comes later that there is no connection.
    assert "gloo" in found[1] and "gloo" in expected[1]
    assert cache["graph hit"] == 1, cache
