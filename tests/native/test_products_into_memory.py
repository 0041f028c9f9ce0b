"""Large products of half types by ATen are written to memory that the executor made: eager's results, strides and memory."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit
from fxjit import config
from fxjit.backends.native.executor import plan

HALF_TYPES = (torch.bfloat16, torch.float16)


@pytest.fixture
def written(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The operators whose results are written so: here also small ones, and none is multiplied by our own kernels."""
    seen: list[str] = []
    into = plan._Planner.multiply_by_aten

    def noted(self: Any, node: torch.fx.Node) -> bool:
        done = into(self, node)
        if done:
            seen.append(plan.op_name(node))
        return done

    monkeypatch.setattr(plan._Planner, "multiply_by_aten", noted)
    monkeypatch.setattr(plan, "LARGE_RESULT", 64)
    monkeypatch.setattr(plan, "pairs_are_faster", lambda m, n, k: False)
    monkeypatch.setattr(config, "disk_cache", False)
    monkeypatch.setattr(config, "store_entries", False)
    torch.manual_seed(0)
    fxjit.reset()
    return seen


def operands(dtype: torch.dtype, rows: int = 24) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return torch.randn(rows, 40).to(dtype), torch.randn(40, 16).to(dtype), torch.randn(16).to(dtype)


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
def test_products_that_are_returned_and_read(written: list[str], dtype: torch.dtype):
    def product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> tuple[torch.Tensor, ...]:
        first, second = a @ b, torch.addmm(bias, a, b, beta=2, alpha=0.5)
        return first, first.t(), second, torch.relu(second) + first

    assert_same_as_eager(product, *operands(dtype), backend="native")
    assert sorted(set(written)) == ["addmm.default", "mm.default"]


@pytest.mark.parametrize("dtype", HALF_TYPES, ids=str)
def test_operands_in_other_layouts(written: list[str], dtype: torch.dtype):
    def product(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return (b.t() @ a[::2].t()) @ (a[::2, ::2] @ b[::2])

    assert_same_as_eager(product, *operands(dtype), backend="native")
    assert written


def test_gradients(written: list[str]):
    def loss(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
        return (torch.addmm(bias, a, b).float() ** 2).sum()

    given = [each.requires_grad_() for each in operands(torch.bfloat16)]
    assert_same_as_eager(loss, *given, backend="native")
    assert written.count("mm.default") == 2, "the gradients of both factors"


def test_sizes_that_vary(written: list[str]):
    compiled = fxjit.compile(lambda a, b, bias: torch.addmm(bias, a, b), dynamic=True)
    for rows in (24, 7, 1, 0):
        given = operands(torch.bfloat16, rows)
        found, true = compiled(*given), torch.addmm(given[2], given[0], given[1])
        assert torch.equal(found, true) and found.stride() == true.stride()
    assert written == ["addmm.default"]


def test_what_stays_as_it_was(written: list[str]):
    """Floats are multiplied by BLAS, and small results are ATen's own: no gain was measured there."""
    fxjit.compile(torch.mm)(torch.randn(24, 40), torch.randn(40, 16))
    fxjit.compile(torch.mm)(torch.randn(2, 40).bfloat16(), torch.randn(40, 16).bfloat16())
    assert written == []
