"""A `backward` of an `autograd.Function` that runs the autograd engine: reversible layers, checkpoints made by hand."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxjit


class Reversible(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, f, g, *parameters):
        one, two = x.chunk(2, -1)
        one = one + f(two)
        two = two + g(one)
        ctx.f, ctx.g = f, g
        ctx.save_for_backward(one, two)
        return torch.cat([one, two], -1)

    @staticmethod
    def backward(ctx, gradient):
        (one, two), (for_one, for_two) = ctx.saved_tensors, gradient.chunk(2, -1)
        with torch.enable_grad():
            one = one.detach().requires_grad_()
            moved = ctx.g(one)
            of_one, *of_g = torch.autograd.grad(moved, [one, *ctx.g.parameters()], for_two)
        two, for_one = two - moved, for_one + of_one
        with torch.enable_grad():
            two = two.detach().requires_grad_()
            of_two, *of_f = torch.autograd.grad(ctx.f(two), [two, *ctx.f.parameters()], for_one)
        return torch.cat([for_one, for_two + of_two], -1), None, None, *of_f, *of_g


class Recomputed(torch.autograd.Function):
    """As checkpoints that accumulate gradients in copies of their arguments."""

    @staticmethod
    def forward(ctx, function, *given):
        ctx.function = function
        ctx.save_for_backward(*given)
        return function(*given)

    @staticmethod
    def backward(ctx, gradient):
        copies = [each.detach().requires_grad_() for each in ctx.saved_tensors]
        with torch.enable_grad():
            result = ctx.function(*copies)
        torch.autograd.backward(result, gradient)
        return None, *(each.grad for each in copies)


class OfTensors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        ctx.save_for_backward(x, y)
        return x * y.sin()

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x, y = [each.detach().requires_grad_() for each in ctx.saved_tensors]
            return torch.autograd.grad(x * y.sin(), (x, y), gradient * 3, create_graph=True)


class Penalty(torch.autograd.Function):
    """A gradient of a gradient."""

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return (x * weight).sum()

    @staticmethod
    def backward(ctx, gradient):
        with torch.enable_grad():
            x = ctx.saved_tensors[0].detach().requires_grad_()
            first, = torch.autograd.grad(x.pow(3).sum(), x, create_graph=True)
            second, = torch.autograd.grad(first.square().sum(), x)
        return gradient * second, None


class Layers(nn.Module):
    def __init__(self):
        super().__init__()
        self.f, self.g = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 4), nn.Tanh())

    def forward(self, x):
        return Reversible.apply(x, self.f, self.g, *self.f.parameters(), *self.g.parameters()).sin()


class Blocks(nn.Module):
    """Whose parameters get gradients from the engine that `backward` runs."""

    def __init__(self):
        super().__init__()
        self.f = nn.Linear(8, 8)

    def forward(self, x):
        return Recomputed.apply(self.f, x * 2).cos()


def product(x, y):
    return (x * y).sin() * y


class Plain(nn.Module):
    def __init__(self, call):
        super().__init__()
        self.call = call

    def forward(self, x):
        return self.call(x)


WEIGHT = torch.arange(8.0)
PROGRAMS = {
    "reversible": Layers, "function": lambda: Plain(lambda x: Recomputed.apply(product, x.cos(), x * 2)),
    "tensors": lambda: Plain(lambda x: OfTensors.apply(x.cos(), x * 2)),
    "reads": lambda: Plain(lambda x: Recomputed.apply(lambda y: y * WEIGHT, x * 2)),
    "twice": lambda: Plain(lambda x: Penalty.apply(x * 2, WEIGHT)),
}


def trained(module, compiled, keeps_gradients=False):
    found = []
    for call in range(3):
        x = torch.linspace(-1, 1, 24).view(3, 8).add(call).requires_grad_()
        module.zero_grad(set_to_none=not keeps_gradients)
        result = compiled(x)
        result.square().sum().backward()
        found.append((result.detach(), x.grad, [each.grad.clone() for each in module.parameters()]))
    return found


def seeded(make):
    torch.manual_seed(0)
    return make()


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_they_are_in_the_graph(name, backend):
    module = seeded(PROGRAMS[name])
    mine = copy.deepcopy(module)
    found = trained(mine, fxjit.compile(mine, backend=backend, fullgraph=True))
    torch.testing.assert_close(found, trained(module, module))


@pytest.mark.parametrize("keeps_gradients", [False, True])
def test_gradients_that_the_engine_accumulates_in_parameters(keeps_gradients):
    module = seeded(Blocks)
    mine = copy.deepcopy(module)
    found = trained(mine, fxjit.compile(mine, backend="eager"), keeps_gradients)
    torch.testing.assert_close(found, trained(module, module, keeps_gradients))


def test_a_second_derivative_of_what_was_traced_with_other_modes_raises():
    """Behind a block with gradients, eager code goes on to record, and the traced backward does not."""
    module = seeded(Layers)
    x = torch.ones(3, 8, requires_grad=True)
    result = fxjit.compile(module, backend="eager", fullgraph=True)(x)
    gradient, = torch.autograd.grad(result.square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiate twice"):
        gradient.sum().backward()
