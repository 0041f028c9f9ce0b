"""Python functions of torch's over tensors: one node of the graph, or the operators that they call, where the graph cannot hold
an argument, or where they look at numbers themselves to raise an error."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from tests.differential import assert_same_as_eager

import fxjit


def by_its_own_distance(x: torch.Tensor) -> Any:
    return F.triplet_margin_with_distance_loss(x, x + 1, x * 2, distance_function=lambda a, b: (a - b).abs().sum(-1)) * 2


def by_torchs_distance(x: torch.Tensor) -> Any:
    return F.triplet_margin_with_distance_loss(x, x + 1, x * 2) * 2


def looks_for_negative_numbers(x: torch.Tensor) -> Any:
    return F.gaussian_nll_loss(x, x * 2, x.abs() + 1) * 2


@pytest.mark.parametrize("fn", [by_its_own_distance, by_torchs_distance, looks_for_negative_numbers])
def test_one_graph(fn: Any) -> None:
    assert_same_as_eager(fn, torch.randn(4, 8, requires_grad=True))


@pytest.mark.skipif(not hasattr(F, "linear_cross_entropy"), reason="this torch has no linear_cross_entropy")
@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_an_object_of_options(reduction: str) -> None:
    options = torch.nn.LinearCrossEntropyOptions(batch_chunk_size=4, allow_retain_graph=True)
    weight, target = torch.randn(10, 8), torch.randint(0, 10, (16,))

    def fn(x: torch.Tensor) -> Any:
        return F.linear_cross_entropy(x, weight, target, reduction=reduction, options=options) * 2

    assert_same_as_eager(fn, torch.randn(16, 8, requires_grad=True))


def test_what_it_finds_in_the_numbers_is_raised() -> None:
    def fn(x: torch.Tensor) -> Any:
        return F.gaussian_nll_loss(x, x * 2, x - 1) * 2

    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.full((4,), 2.0)), fn(torch.full((4,), 2.0)))
    with pytest.raises(ValueError, match="var has negative") as caught:
        compiled(torch.zeros(4))
    assert any(entry.name == "gaussian_nll_loss" for entry in caught.traceback)
