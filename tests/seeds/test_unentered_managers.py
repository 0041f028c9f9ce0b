"""Managers that are not traced and do nothing before they are entered: one break, where the block begins."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


def forks(x: torch.Tensor) -> Any:
    y = x * 2
    with torch.random.fork_rng(devices=[]):
        y = y + torch.rand(3)
    return y + torch.rand(3)


def saves(x: torch.Tensor) -> Any:
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t * 2, unpack_hook=lambda t: t / 2):
        return (x * x).tanh().sum()


def keeps(x: torch.Tensor) -> Any:
    with torch.autograd.graph.save_on_cpu():
        return (x * x).tanh().sum()


def quiet(x: torch.Tensor) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return x * 2


def returned(x: torch.Tensor) -> Any:
    manager = torch.random.fork_rng(devices=[])
    return x + 1, type(manager).__name__


@pytest.mark.parametrize("fn", [forks, saves, keeps, quiet, returned])
def test_as_in_eager(fn: Any) -> None:
    assert_same_as_eager(fn, torch.ones(3, requires_grad=True), fullgraph=False)


@pytest.mark.parametrize(("fn", "count"), [(saves, 1), (keeps, 1)])
def test_entering_is_the_only_break_of_a_block_that_returns(fn: Any, count: int) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(fn, backend="eager")
    compiled(torch.ones(3, requires_grad=True))
    assert fxjit.counters["graph_break"]["Context manager that is not traced"] == count
