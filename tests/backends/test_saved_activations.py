"""What a training graph keeps for its backward: no more than the derivative needs, and less by `config.memory_budget`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import fxjit
from fxjit import config

#: Whose derivatives autograd computes from their results.
FROM_RESULTS = (torch.tanh, torch.sigmoid, torch.exp, torch.sqrt, torch.rsqrt, torch.reciprocal)


def saved_bytes(out: torch.Tensor, *, except_for: tuple[torch.Tensor, ...]) -> int:
    """Of the storages that the compiled graph's node holds; those of inputs and parameters are there anyway."""
    node = out.grad_fn
    assert node is not None and "CompiledGraph" in node.name()
    known = {each.untyped_storage().data_ptr() for each in except_for}
    kept = {each.untyped_storage().data_ptr(): each.untyped_storage().nbytes() for each in node.saved_tensors}
    return sum(size for address, size in kept.items() if address not in known)


@pytest.mark.parametrize("function", FROM_RESULTS, ids=lambda each: each.__name__)
def test_results_that_a_derivative_reads_are_computed_again(function: Callable[[torch.Tensor], torch.Tensor]):
    def program(x, w, v):
        hidden = x @ w
        return (hidden * function(hidden * hidden + 1)) @ v

    torch.manual_seed(0)
    inputs = [(torch.randn(64, 64) / 8).requires_grad_() for _ in range(3)]
    with config.patch(small_graphs_as_captured=False):
        out = fxjit.compile(program)(*inputs)
    # The first product, and what is multiplied by `v`.
    assert saved_bytes(out, except_for=tuple(inputs)) == 2 * 64 * 64 * 4
    out.square().sum().backward()
    gradients = [each.grad for each in inputs]
    for each in inputs:
        each.grad = None
    program(*inputs).square().sum().backward()
    for mine, each in zip(gradients, inputs, strict=True):
        torch.testing.assert_close(mine, each.grad, rtol=1e-4, atol=1e-4)


def test_outputs_that_are_detached_stay_tensors_of_their_own():
    def program(x):
        y = torch.tanh(x)
        return y, y.detach()

    x = torch.randn(8, 8, requires_grad=True)
    with config.patch(small_graphs_as_captured=False):
        y, detached = fxjit.compile(program)(x)
    assert y is not detached and y.requires_grad and not detached.requires_grad
    assert y.data_ptr() == detached.data_ptr()
    y.sum().backward()
    torch.testing.assert_close(x.grad, 1 - torch.tanh(x.detach()) ** 2)


def test_memory_budget_trades_memory_for_time():
    torch.manual_seed(0)
    model = nn.Sequential(*(layer for _ in range(4) for layer in (nn.Linear(64, 64), nn.Tanh())))
    x = torch.randn(256, 64)
    model(x).square().sum().backward()
    expected = [each.grad.clone() for each in model.parameters()]
    kept = []
    for budget in (1.0, 0.5, 0.0):
        model.zero_grad()
        with config.patch(memory_budget=budget, small_graphs_as_captured=False):
            out = fxjit.compile(model)(x)
        kept.append(saved_bytes(out, except_for=(x, *model.parameters())))
        out.square().sum().backward()
        for each, wanted in zip(model.parameters(), expected, strict=True):
            torch.testing.assert_close(each.grad, wanted, rtol=1e-4, atol=1e-4)
        fxjit.reset()
    most, half, least = kept
    assert least == 0 < half < most


def test_memory_budget_is_a_fraction():
    with pytest.raises(fxjit.errors.ConfigError, match="memory_budget"):
        config.memory_budget = 1.5
