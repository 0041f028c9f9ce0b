"""`x[mask] = y[mask]` of two tensors of one shape is in the graph; what eager refuses is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch import Tensor


def stored(x: Tensor, y: Tensor, mask: Tensor) -> Any:
    before = x * 2
    before[mask] = y[mask]
    return before, before.sum()


def in_a_loop(x: Tensor, y: Tensor, mask: Tensor) -> Any:
    best, found = x.clone(), torch.zeros_like(x)
    for step in range(3):
        current = y * step
        better = (current > best) & mask if mask.dim() == x.dim() else mask
        best[better] = current[better]
        found[better] = x[better]
    return best, found


def in_the_input(x: Tensor, y: Tensor, mask: Tensor) -> Any:
    x[mask] = y[mask]
    return x + 1


def through_a_view(x: Tensor, y: Tensor, mask: Tensor) -> Any:
    base = torch.zeros(x.shape[::-1])
    turned = base.t()
    turned[mask] = y[mask]
    return base, turned


def of_itself(x: Tensor, y: Tensor, mask: Tensor) -> Any:
    made = torch.cat([x, y])
    upper, lower = made[1:5], made[:4]
    upper[mask] = lower[mask]
    return made


def by_choice(x: Tensor, y: Tensor, mask: Tensor) -> Any:
    made = x.clone()
    made[mask] = y[mask] if made.dim() > 1 else x[mask]
    return made


MASKS = {"elements": lambda: torch.arange(12).view(4, 3) % 2 == 0, "rows": lambda: torch.tensor([True, False, False, True]),
         "none": lambda: torch.zeros(4, 3, dtype=torch.bool)}


@pytest.mark.parametrize("name", MASKS)
@pytest.mark.parametrize("program", [stored, in_a_loop, in_the_input, through_a_view, of_itself, by_choice])
def test_as_in_eager(program: Any, name: str) -> None:
    breaks = 0 if program is not by_choice else None
    assert_same_as_eager(program, torch.randn(4, 3), torch.randn(4, 3), MASKS[name](), breaks=breaks, fullgraph=False)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_gradients(backend: str) -> None:
    x, y = torch.randn(4, 3, requires_grad=True), torch.randn(4, 3, requires_grad=True)
    assert_same_as_eager(stored, x, y, MASKS["rows"](), breaks=0, backend=backend)


def a_leaf(x: Tensor, y: Tensor, mask: Tensor) -> Any:
    x[mask] = y[mask]
    return x


def another_mask(x: Tensor, y: Tensor, mask: Tensor) -> Any:
    other, made = ~mask, x.clone()
    made[other] = y[mask]
    return made


@pytest.mark.parametrize("program, x, y, mask", [
    (a_leaf, torch.randn(4, 3, requires_grad=True), torch.randn(4, 3), MASKS["rows"]()),
    (stored, torch.randn(4, 3), torch.randn(4, 3, dtype=torch.float64), MASKS["rows"]()),
    (stored, torch.randn(4, 3), torch.randn(4, 3), torch.ones(3, dtype=torch.bool)),
    (stored, torch.randn(4, 3), torch.randn(5, 3), MASKS["rows"]()),
    (stored, torch.randn(4, 3), torch.randn(4, 1), MASKS["rows"]()),
    (stored, torch.randn(4, 3), torch.randn(4, 3), torch.tensor([0, 2])),
    (another_mask, torch.randn(4, 3), torch.randn(4, 3), MASKS["rows"]()),
    (another_mask, torch.randn(4, 3), torch.randn(4, 3), torch.tensor([True, False, False, False])),
])
def test_what_else_is_stored(program: Any, x: Tensor, y: Tensor, mask: Tensor) -> None:
    assert_same_as_eager(program, x, y, mask, fullgraph=False, calls=1)
