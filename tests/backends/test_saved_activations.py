"""What a training graph keeps for its backward: no more than the derivative needs, and less by `config.memory_budget`."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

import fxjit
from fxjit import config
from fxjit.backends.aot import joint_passes

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


ACTIVATIONS: dict[str, tuple[Callable[..., torch.Tensor], int]] = {
    # What stands between products, and how many values are kept: one less than there would be, in the first four.
    "gelu": (lambda a, b: nn.functional.gelu(a) @ b, 3),
    "gelu_tanh": (lambda a, b: nn.functional.gelu(a, approximate="tanh") @ b, 3),
    "mish": (lambda a, b: nn.functional.mish(a) @ b, 3),
    "relu": (lambda a, b: torch.relu(a + 1) @ b, 3),
    "gated": (lambda a, b: nn.functional.silu(a) * b, 3),  # of two values
    "two functions": (lambda a, b: torch.sin(a) * torch.exp(-b * b), 3),  # takes longer than keeping it
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_large_values_that_a_product_reads_are_computed_again(activation: str, dtype: torch.dtype, monkeypatch):
    monkeypatch.setattr(joint_passes, "LARGE", 64 * 64 * dtype.itemsize)
    fxjit.reset()  # one code object for all of them
    between, kept = ACTIVATIONS[activation]

    def program(x, w, u, v):
        return between(x @ w, x @ u) @ v

    torch.manual_seed(0)
    inputs = [(torch.randn(64, 64) / 8).to(dtype).requires_grad_() for _ in range(4)]
    with config.patch(small_graphs_as_captured=False, cache_graphs=False, store_entries=False):
        out = fxjit.compile(program)(*inputs)
    assert saved_bytes(out, except_for=tuple(inputs)) == kept * 64 * 64 * dtype.itemsize
    out.square().sum().backward()
    exact = [each.detach().double().requires_grad_() for each in inputs]
    program(*exact).square().sum().backward()
    eager = [each.detach().requires_grad_() for each in inputs]
    program(*eager).square().sum().backward()
    for mine, its, wanted in zip(inputs, eager, exact, strict=True):
        # A bend is on its other side for some rounded numbers, eager's as well.
        error, eagers = ((each.grad.double() - wanted.grad).abs().max() for each in (mine, its))
        assert mine.grad.dtype == dtype and error <= 2 * eagers + 16 * torch.finfo(dtype).eps * wanted.grad.abs().max()


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
