"""Missing, destroyed and failing process groups: every rank that lives gets eager's error, at the latest when the group's own
time limit is over."""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed._functional_collectives as functional
from torch import distributed

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
