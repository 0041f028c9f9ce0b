"""What is compiled can be differentiated twice: PINNs, gradient penalties, meta-learning."""

from __future__ import annotations

import copy
import weakref

import pytest
import torch
from torch import nn

import fxjit

BACKENDS = ["aot_eager", "native"]


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(1, 8), nn.Tanh(), nn.Linear(8, 1))


def residual(model, x):
    u = model(x)
    (du,) = torch.autograd.grad(u, x, torch.ones_like(u), create_graph=True)
    (ddu,) = torch.autograd.grad(du, x, torch.ones_like(du), create_graph=True)
    return ((ddu + u) ** 2).mean()


def gradients_of(fn, model, x):
    model, x = copy.deepcopy(model), x.clone().requires_grad_()
    loss = fn(model, x)
    loss.backward()
    return [loss.detach(), x.grad, *(parameter.grad for parameter in model.parameters())]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_loss_of_derivatives(backend):
    fxjit.reset()
    x = torch.randn(5, 1)
    expected = gradients_of(residual, network(), x)
    torch.testing.assert_close(gradients_of(fxjit.compile(residual, backend=backend), network(), x), expected)

    def outside(model, x):
        return residual(fxjit.compile(model, backend=backend), x)

    torch.testing.assert_close(gradients_of(outside, network(), x), expected)


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradcheck_of_second_derivatives(backend):
    fxjit.reset()
    compiled = fxjit.compile(lambda x, y: ((x.sin() * y).exp(), x + y), backend=backend)
    inputs = [torch.randn(3, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    assert torch.autograd.gradgradcheck(compiled, inputs)


@pytest.mark.parametrize("backend", BACKENDS)
def test_results_that_nobody_used_and_inputs_without_gradients(backend):
    def two(x, y, z):
        return x * y * z, y.sin()

    fxjit.reset()
    found = []
    for fn in (two, fxjit.compile(two, backend=backend)):
        x, y = (torch.arange(1.0, 4.0).requires_grad_() for _ in range(2))
        (first,) = torch.autograd.grad(fn(x, y, torch.full((3,), 2.0))[0].sum(), x, create_graph=True)
        found.append((first, *torch.autograd.grad(first.pow(2).sum(), [x, y], allow_unused=True)))
    torch.testing.assert_close(found[1][0], found[0][0])
    torch.testing.assert_close(found[1][2], found[0][2])


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_input_that_was_written_to_since(backend):
    fxjit.reset()
    weight = torch.ones(3, requires_grad=True)
    result = fxjit.compile(lambda w: w.exp() * w, backend=backend)(weight).sum()
    with torch.no_grad():
        weight.add_(1)
    with pytest.raises(RuntimeError, match="written to in place"):
        torch.autograd.grad(result, weight, create_graph=True)


@pytest.mark.parametrize("backend", BACKENDS)
def test_random_numbers_are_not_drawn_twice(backend):
    fxjit.reset()
    x = torch.ones(8, requires_grad=True)
    result = fxjit.compile(lambda x: nn.functional.dropout(x * x), backend=backend)(x).sum()
    (first,) = torch.autograd.grad(result, x, create_graph=True)
    with pytest.raises(RuntimeError, match="no second derivative"):
        first.sum().backward()


@pytest.mark.parametrize("backend", BACKENDS)
def test_inputs_do_not_outlive_the_backward(backend):
    fxjit.reset()
    compiled = fxjit.compile(lambda w, x: (w * x.sin()).sum(), backend=backend)
    weight, x = torch.ones(3, requires_grad=True), torch.randn(3)
    seen = weakref.ref(x)
    loss = compiled(weight, x)
    loss.backward()
    del x
    assert seen() is None and loss.grad_fn is not None


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_derivative_after_a_first_backward(backend):
    def cubed(x):
        return (x * x * x).sin().sum()

    fxjit.reset()
    found = []
    for fn in (cubed, fxjit.compile(cubed, backend=backend)):
        x = torch.arange(3.0).requires_grad_()
        loss = fn(x)
        torch.autograd.grad(loss, x, retain_graph=True)
        (first,) = torch.autograd.grad(loss, x, create_graph=True)
        found.append(torch.autograd.grad(first.sum(), x)[0])
    torch.testing.assert_close(*found)


def test_a_graph_that_was_derived_twice_runs_as_captured_from_then_on():
    """Its compiled forward would be run for nothing beside it."""
    fxjit.reset()
    compiled = fxjit.compile(lambda x: (x.sin() * x.exp()).tanh())
    x = torch.linspace(0.1, 1, 7, requires_grad=True)
    for ran in ("CompiledGraphBackward", "TanhBackward0"):
        y = compiled(x)
        assert y.grad_fn.name() == ran
        (first,) = torch.autograd.grad(y.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(first.sum(), x)
        (expected,) = torch.autograd.grad((x.sin() * x.exp()).tanh().sum(), x, create_graph=True)
        torch.testing.assert_close(first, expected)
        torch.testing.assert_close(second, torch.autograd.grad(expected.sum(), x)[0])
