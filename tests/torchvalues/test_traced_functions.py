"""Functions of autograd that a graph holds as they were traced: they read tensors that are no arguments, are given objects and
functions, or calculate with NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd.function import once_differentiable

import fxjit

WEIGHT = torch.tensor([1.0, 2.0, 3.0])
PARAMETER = torch.nn.Parameter(torch.tensor([0.5, 1.0, 2.0]))
SEEN = torch.zeros(3)


class Settings:
    def __init__(self, scale=2.0):
        self.scale = scale
        self.weight = torch.full((3,), scale)


class ReadsTensors(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * WEIGHT

    @staticmethod
    def backward(ctx, gradient):
        return gradient * PARAMETER * ctx.saved_tensors[0]


class Several(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, settings, y):
        rounded = y.floor()
        ctx.save_for_backward(y, None, x)
        ctx.mark_non_differentiable(rounded)
        ctx.settings, ctx.raised = settings, x.exp()
        return x * y * settings.weight, 3, x > 1.5, rounded

    @staticmethod
    def backward(ctx, gradient, number, mask, rounded):
        y, _, x = ctx.saved_tensors
        assert number is None
        return gradient * y * ctx.settings.scale + ctx.raised, None, gradient * x if ctx.needs_input_grad[2] else None


class Once(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, settings):
        ctx.save_for_backward(x)
        return x * settings.scale

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0], None


class Apart(torch.autograd.Function):
    @staticmethod
    def forward(x, settings):
        return torch.nn.functional.dropout(x * settings.scale)

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.settings = inputs[1]
        ctx.save_for_backward(output)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * ctx.saved_tensors[0] * ctx.settings.weight, None


class Reversed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, settings):
        ctx.settings = settings
        return x

    @staticmethod
    def backward(ctx, gradient):
        return -gradient * ctx.settings.scale, None


class Called(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, function):
        SEEN.add_(x)
        ctx.size = x.size(0)
        return function(x).sum() * ctx.size

    @staticmethod
    def backward(ctx, gradient):
        return gradient.expand(ctx.size) * 2, None


class Model(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = 3.0

    def double(self, x):
        return x * self.scale

    def forward(self, x):
        return Called.apply(x * 2, self.double)


def with_two_tensors(x):
    return Several.apply(x * 1, Settings(), x.sin())


def with_one_tensor_twice(x):
    return Several.apply(x, Settings(3.0), x)


def with_a_function(x):
    return Called.apply(x * 1, lambda each: each.sin() * 2)


def inside_autocast(x):
    with torch.autocast("cpu"):
        return Once.apply(x @ torch.ones(3, 3), Settings()).float()


class CubedByNumPy(torch.autograd.Function):
    """Arrays are not calculated with while a function runs on fake tensors."""

    @staticmethod
    def forward(ctx, x):
        ctx.array = x.detach().numpy()
        return torch.tensor(ctx.array ** 3)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return gradient * torch.from_numpy(3 * ctx.array ** 2)


class SineByNumPy(torch.autograd.Function):
    """To differentiate it twice is refused where NumPy is given what has a gradient."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return torch.from_numpy(np.sin(x.detach().numpy()))

    @staticmethod
    def backward(ctx, gradient):
        return gradient * torch.from_numpy(np.cos(ctx.saved_tensors[0].numpy()))


class ExponentialByNumPy(torch.autograd.Function):
    @staticmethod
    def forward(x):
        return torch.from_numpy(np.exp(x.detach().numpy()))

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(output)

    @staticmethod
    @once_differentiable
    def backward(ctx, gradient):
        return torch.from_numpy(gradient.numpy() * ctx.saved_tensors[0].numpy())


class SpectrumByNumPy(torch.autograd.Function):
    """NumPy's own functions, which torch has no counterpart of, are operators of the graph."""

    @staticmethod
    def forward(ctx, x):
        return torch.as_tensor(np.fft.rfft(x.detach().numpy(), norm="ortho").real, dtype=x.dtype)

    @staticmethod
    def backward(ctx, gradient):
        return torch.as_tensor(np.fft.irfft(gradient.numpy(), n=3, norm="ortho"), dtype=gradient.dtype)


PROGRAMS = [
    lambda x: ReadsTensors.apply(x * 1).sin(), lambda x: Once.apply(x * 1, Settings()),
    lambda x: Apart.apply(x * 1, Settings()), lambda x: Reversed.apply(x * 1, Settings()) * 2,
    lambda x: Several.apply(x * 1, Settings(), torch.ones(3))[0],
    with_two_tensors, with_one_tensor_twice, with_a_function, inside_autocast, Model(),
    lambda x: CubedByNumPy.apply(x * 2) * 3, lambda x: ExponentialByNumPy.apply(x / 2).sin(),
    lambda x: SineByNumPy.apply(x * 2) * 3, lambda x: SpectrumByNumPy.apply(x * 2) * 3,
]


def trained(program, twice=False):
    torch.manual_seed(0)
    SEEN.zero_()
    found = []
    for start in range(3):
        x = (torch.arange(3.0) + start).requires_grad_()
        y = program(x)
        results = y if isinstance(y, tuple) else (y,)
        tensors = [each for each in results if isinstance(each, torch.Tensor)]
        loss = sum(each.square().sum() for each in tensors if each.requires_grad)
        try:
            gradient, = torch.autograd.grad(loss, x, create_graph=twice)
            if twice:
                gradient.square().sum().backward()
        except RuntimeError as error:
            gradient = [ord(letter) for letter in str(error)]
        found.append((results, gradient, x.grad, SEEN.clone(), [each.requires_grad for each in tensors]))
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_they_are_in_the_graph(program, backend):
    torch.testing.assert_close(trained(fxjit.compile(program, backend=backend, fullgraph=True)), trained(program))


@pytest.mark.parametrize("program", PROGRAMS)
def test_they_are_differentiated_twice_as_in_eager(program):
    torch.testing.assert_close(trained(fxjit.compile(program, backend="eager", fullgraph=True), twice=True),
                               trained(program, twice=True))


class LooksAtLayout(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, settings):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return flat(gradient).view(3, 4) * 3, None


def flat(gradient):
    return (gradient if gradient.is_contiguous() else gradient.contiguous()).view(-1)


def with_a_hook(x):
    y = x * 2
    y.register_hook(lambda gradient: flat(gradient).view(3, 4) * 3)
    return y


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", [lambda x: LooksAtLayout.apply(x * 1, Settings()), with_a_hook])
@pytest.mark.parametrize("loss", [torch.sum, torch.mean, lambda y: (y.t() * torch.arange(12.0).view(4, 3)).sum(),
                                  lambda y: y[:, ::2].sum()])
def test_gradients_of_any_layout(program, loss, backend):
    compiled = fxjit.compile(program, backend=backend, fullgraph=True)
    gradients = []
    for call in (program, compiled):
        x = torch.ones(3, 4, requires_grad=True)
        loss(call(x)).backward()
        gradients.append(x.grad)
    torch.testing.assert_close(*gradients)


def test_tensors_are_saved_as_often_as_in_eager():
    def saved(program):
        shapes = []
        with torch.autograd.graph.saved_tensors_hooks(lambda each: (shapes.append(each.shape), each)[1], lambda each: each):
            program(torch.ones(3, requires_grad=True))[0].sum().backward()
        return shapes

    assert saved(fxjit.compile(with_two_tensors, backend="eager", fullgraph=True)) == saved(with_two_tensors)


class Writes(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, settings):
        ctx.mark_dirty(x)
        return x.mul_(2)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 2, None


class Gives(torch.autograd.Function):
    """Something that is none of its own."""

    @staticmethod
    def forward(ctx, x, settings):
        return WEIGHT

    @staticmethod
    def backward(ctx, gradient):
        return gradient, None


class LeavesOut(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, settings):
        ctx.set_materialize_grads(False)
        return x * 2, x * 3

    @staticmethod
    def backward(ctx, first, second):
        return (second if first is None else first + second), None


@pytest.mark.parametrize("cls", [Writes, Gives, LeavesOut])
def test_what_is_left_to_autograd(breaks, cls):
    assert breaks(lambda x: cls.apply(x * 1, Settings()), torch.ones(3, requires_grad=True)) == "call-autograd-engine"
