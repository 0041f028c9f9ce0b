"""Functions of autograd whose `backward` changes the context that `forward` left for it, so that a second one finds it
otherwise (`retain_graph=True`), raises, or gives what autograd refuses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxjit


class Checkpoint(torch.autograd.Function):
    """As many diffusion models have it."""

    @staticmethod
    def forward(ctx, function, length, *args):
        ctx.function, ctx.tensors, ctx.parameters = function, list(args[:length]), list(args[length:])
        with torch.no_grad():
            return ctx.function(*ctx.tensors)

    @staticmethod
    def backward(ctx, *gradients):
        ctx.tensors = [each.detach().requires_grad_(True) for each in ctx.tensors]
        with torch.enable_grad():
            outputs = ctx.function(*[each.view_as(each) for each in ctx.tensors])
        found = torch.autograd.grad(outputs, ctx.tensors + ctx.parameters, gradients, allow_unused=True)
        del ctx.tensors
        del ctx.parameters
        return (None, None, *found)


class Freed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, settings):
        ctx.settings, ctx.y = settings, x * settings.scale
        return ctx.y + 1

    @staticmethod
    def backward(ctx, gradient):
        y = ctx.y
        del ctx.y
        return gradient * y * ctx.settings.scale, None


class SetToNone(Freed):
    @staticmethod
    def backward(ctx, gradient):
        y, ctx.y = ctx.y, None
        return y * gradient, None


class Counted(torch.autograd.Function):
    """The second one comes to something else."""

    @staticmethod
    def forward(ctx, x, settings):
        ctx.settings, ctx.number = settings, 1
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        ctx.number += 1
        return gradient * ctx.number, None


class Raises(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, settings):
        return x * settings.scale

    @staticmethod
    def backward(ctx, gradient):
        raise NotImplementedError("there is no derivative")


class RaisesForSome(Raises):
    @staticmethod
    def forward(ctx, x, settings):
        ctx.size = x.shape[0]
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        if ctx.size > 2:
            raise ValueError(f"{ctx.size} rows")
        return gradient * 2, None


class KeepsWhatItIsGiven(Raises):
    """What it writes it does not read before: the second one finds it written, which is the same to it."""

    @staticmethod
    def backward(ctx, gradient):
        ctx.gradient = gradient * 2
        ctx.gradient = ctx.gradient + 1
        return ctx.gradient, None


class ReadsItsDict(Freed):
    @staticmethod
    def backward(ctx, gradient):
        scale = len(ctx.__dict__)
        ctx.more = 1
        return gradient * scale, None


class SavesAgain(Freed):
    """What is saved after `forward` is not saved."""

    @staticmethod
    def forward(ctx, x, settings):
        ctx.save_for_backward(x)
        ctx.settings = settings
        return x * 2

    @staticmethod
    def backward(ctx, gradient):
        x, = ctx.saved_tensors
        ctx.save_for_backward(gradient, x)
        ctx.mark_dirty(gradient)
        return gradient * x + ctx.saved_tensors[0], None


class GivesOneTooMany(Raises):
    @staticmethod
    def backward(ctx, gradient):
        return gradient, gradient


class Settings:
    scale = 3.0


class Block(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = torch.nn.Linear(4, 4), torch.nn.GroupNorm(2, 4)

    def inner(self, x):
        return x + self.norm(self.linear(x)).relu()

    def forward(self, x):
        return Checkpoint.apply(self.inner, 1, x, *self.parameters())


def outcome(program: Any, sizes: tuple[int, ...], times: int = 1) -> list[Any]:
    found: list[Any] = []
    for size in sizes:
        x = torch.linspace(0.1, 1.0, size * 4, dtype=torch.float64).view(size, 4).requires_grad_()
        try:
            y = program(x)
            for _ in range(times):
                y.square().sum().backward(retain_graph=times > 1)
                found.append(x.grad.clone())
        except Exception as error:
            found.append(f"{type(error).__name__}: {error}")
        found.append(y.detach())
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_checkpoints_of_the_programs_own_are_in_the_graph(backend):
    torch.manual_seed(0)
    model = torch.nn.Sequential(Block()).double()

    def gradients(program):
        model.zero_grad()
        return outcome(program, (3, 2)), [each.grad for each in model.parameters()]

    expected = gradients(model)
    torch.testing.assert_close(gradients(fxjit.compile(lambda x: model(x), backend=backend, fullgraph=True)), expected)


FUNCTIONS = [Freed, SetToNone, Counted, Raises, RaisesForSome, KeepsWhatItIsGiven, ReadsItsDict, SavesAgain, GivesOneTooMany]


@pytest.mark.parametrize("cls", FUNCTIONS)
@pytest.mark.parametrize("times", [1, 3])
def test_backward_does_as_in_eager(cls, times):
    def program(x):
        return cls.apply(x.sin(), Settings()) + 1

    expected = outcome(program, (2, 2, 3), times)
    found = outcome(fxjit.compile(program, backend="eager"), (2, 2, 3), times)
    assert [str(each) for each in found] == [str(each) for each in expected]


@pytest.mark.parametrize("cls", FUNCTIONS)
def test_compiled_backward_does_as_in_eager(cls):
    def program(x):
        return cls.apply(x.sin(), Settings()) + 1

    found, expected = (outcome(call, (2, 3)) for call in (fxjit.compile(program, backend="native"), program))
    assert [each for each in found if isinstance(each, str)] == [each for each in expected if isinstance(each, str)]
    torch.testing.assert_close([each for each in found if not isinstance(each, str)],
                               [each for each in expected if not isinstance(each, str)])


@pytest.mark.parametrize("cls", [Freed, KeepsWhatItIsGiven])
def test_what_comes_of_it_is_in_the_graph(cls):
    def program(x):
        return cls.apply(x.sin(), Settings()) + 1

    found, expected = (outcome(call, (2,)) for call in (fxjit.compile(program, backend="eager", fullgraph=True), program))
    assert not any(isinstance(each, str) for each in expected)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("cls", [Counted, Raises])
def test_what_else_comes_of_it_is_left_to_autograd(breaks, cls):
    assert breaks(lambda x: cls.apply(x.sin(), Settings()), torch.ones(3, requires_grad=True)) == "call-with-effects"


def test_a_hook_that_raises_does_so_when_it_runs():
    def program(x):
        y = x * 2

        def refuse(gradient):
            raise ValueError("no gradient goes here")

        y.register_hook(refuse)
        return y + 1

    assert [str(each) for each in outcome(fxjit.compile(program, backend="eager"), (2,))] == [
        str(each) for each in outcome(program, (2,))]
