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


class Counting(nn.Module):
    """Reads what it writes to."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.register_buffer("calls", torch.ones(4))

    def forward(self, x):
        self.calls.mul_(1.5)
        return (self.linear(x) * self.calls).tanh() ** 2


class Clipping(nn.Module):
    """Writes to a parameter, without recording."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x):
        with torch.no_grad():
            self.linear.weight.mul_(0.9).clamp_(-0.3, 0.3)
        return self.linear(x).tanh() ** 2


class ReadingStatistics(nn.Module):
    """Uses the statistics that its normalization updates."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x):
        return self.norm(x) * self.norm.running_mean.clone() + self.norm.running_var.exp()


STATEFUL = {
    "a normalization": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 1)),
    "a cumulative normalization": lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, momentum=None), nn.Tanh()),
    "a dropout": lambda: nn.Sequential(nn.Linear(4, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 1), nn.Tanh()),
    "a spectral norm": lambda: nn.Sequential(nn.utils.parametrizations.spectral_norm(nn.Linear(4, 4)), nn.Tanh()),
    "an older spectral norm": lambda: nn.Sequential(nn.utils.spectral_norm(nn.Linear(4, 4)), nn.Tanh()),
    "a counter": Counting,
    "a parameter that is clipped": Clipping,
    "statistics that are read": ReadingStatistics,
}


def with_penalty(model, x):
    found = []
    for _ in range(3):  # the second and third run as captured
        model.zero_grad()
        x = x.detach().requires_grad_()
        result = model(x).sum()
        (first,) = torch.autograd.grad(result, x, create_graph=True)
        (result + (first ** 2).sum()).backward()
        found += [x.grad, *(parameter.grad for parameter in model.parameters()), *(each.clone() for each in model.buffers())]
    return found


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("kind", STATEFUL)
@fxjit.config.patch(small_graphs_as_captured=False)
def test_a_gradient_penalty_of_what_draws_or_writes(kind, backend):
    fxjit.reset()
    torch.manual_seed(0)
    model, x = STATEFUL[kind](), torch.randn(8, 4)
    compiled = fxjit.compile(copy.deepcopy(model), backend=backend)
    torch.manual_seed(1)
    expected = with_penalty(model, x)
    following = torch.rand(2)
    torch.manual_seed(1)
    torch.testing.assert_close(with_penalty(compiled, x), expected)
    torch.testing.assert_close(torch.rand(2), following)


@pytest.mark.parametrize("backend", BACKENDS)
@fxjit.config.patch(small_graphs_as_captured=False)
def test_a_gradient_penalty_under_autocast(backend):
    fxjit.reset()
    torch.manual_seed(0)
    model, x = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 4)), torch.randn(8, 4)
    compiled, found = fxjit.compile(copy.deepcopy(model), backend=backend), []
    for each in (model, compiled):
        given = x.clone().requires_grad_()
        with torch.autocast("cpu", torch.bfloat16):
            result = each(given)
        (first,) = torch.autograd.grad(result.float().sum(), given, create_graph=True)
        (first ** 2).sum().backward()
        found.append([given.grad, *(parameter.grad for parameter in each.parameters() if parameter.grad is not None)])
    torch.testing.assert_close(*found, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("backend", BACKENDS)
@fxjit.config.patch(small_graphs_as_captured=False)
def test_a_write_with_a_gradient_has_no_second_derivative(backend):
    fxjit.reset()
    x = torch.ones(8, requires_grad=True)
    given = x * 2
    result = fxjit.compile(lambda given: given.mul_(2).sin(), backend=backend)(given).sum()
    with pytest.raises(RuntimeError, match="no second derivative|does not currently support double backward"):
        (first,) = torch.autograd.grad(result, x, create_graph=True)
        first.sum().backward()


def written_and_returned(x, state):
    return x.sin_()


def written_and_used(x, state):
    x.sin_()
    return x * 2


def views_of_what_is_written(x, state):
    x.sin_()
    return (x * 2).view(-1), x.t()


def a_part_is_written(x, state):
    x[0].exp_()
    return x * x


def much_state_is_written(x, state):
    state.add_(1)
    return x.sin() * state.mean()


WRITES = [written_and_returned, written_and_used, views_of_what_is_written, a_part_is_written, much_state_is_written]


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", WRITES)
@fxjit.config.patch(small_graphs_as_captured=False)
def test_a_missing_second_derivative_is_no_zero(fn, backend):
    """Also where the first one is asked for with a constant tangent, and the second by `autograd.grad`."""
    fxjit.reset()
    compiled, state = fxjit.compile(fn, backend=backend), torch.zeros(600, 600)
    for create_graph in (False, True):
        leaf = torch.linspace(0.1, 1, 9).reshape(3, 3).requires_grad_()
        results = compiled(leaf * 1, state)
        total = sum(each.sum() for each in (results if isinstance(results, tuple) else (results,)))
        (first,) = torch.autograd.grad(total, leaf, create_graph=create_graph)
        other = torch.linspace(0.1, 1, 9).reshape(3, 3).requires_grad_()
        expected = fn(other * 1, state.clone().sub_(1))
        total = sum(each.sum() for each in (expected if isinstance(expected, tuple) else (expected,)))
        torch.testing.assert_close(first.detach(), torch.autograd.grad(total, other)[0])
    with pytest.raises(RuntimeError, match="no second derivative|does not currently support double backward"):
        torch.autograd.grad(first.sum(), leaf, allow_unused=True)


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
