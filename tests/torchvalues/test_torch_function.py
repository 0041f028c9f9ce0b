"""Modes and subclasses with a `__torch_function__`: they see what they see in eager, and tracing never calls them."""

from __future__ import annotations

import pytest
import torch
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode

import fxjit


class Counting(TorchFunctionMode):
    def __init__(self):
        self.seen = []
        super().__init__()

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.seen.append(getattr(func, "__name__", None))
        return func(*args, **(kwargs or {}))


class Doubling(TorchFunctionMode):
    def __torch_function__(self, func, types, args=(), kwargs=None):
        return func(*args, **(kwargs or {})) * (2 if func is torch.add else 1)


class Named(torch.Tensor):
    """A tensor with a name, which its results take over; each look at it is counted."""

    looks = 0

    def __new__(cls, data, name):
        made = data.as_subclass(cls)
        made.label = name
        return made

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):
        Named.looks += 1
        names = [each.label for each in args if isinstance(each, cls)]
        with torch._C.DisableTorchFunctionSubclass():
            result = func(*args, **(kwargs or {}))
        return cls(result, "+".join(names)) if isinstance(result, torch.Tensor) and names else result


def inner(x):
    return torch.add(x, 1).sin()


def entering(x, mode):
    with mode:
        y = inner(x) + 1
    return y * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("mode", [Counting, Doubling])
def test_a_mode_that_is_entered(backend, mode):
    theirs, ours = mode(), mode()
    compiled = fxjit.compile(entering, backend=backend)
    for _ in range(2):
        assert torch.equal(compiled(torch.ones(3), ours), entering(torch.ones(3), theirs))
    assert getattr(ours, "seen", None) == getattr(theirs, "seen", None)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("mode", [Counting, Doubling])
def test_a_mode_that_is_active(backend, mode):
    theirs, ours, compiled = mode(), mode(), fxjit.compile(inner, backend=backend)
    x = torch.ones(3)
    for _ in range(2):
        with theirs:
            expected = inner(x)
        with ours:
            got = compiled(x)
        assert torch.equal(got, expected)
        assert torch.equal(compiled(x), inner(x))
    assert getattr(ours, "seen", None) == getattr(theirs, "seen", None)


def test_the_mode_that_does_nothing():
    def fn(x):
        with BaseTorchFunctionMode():
            y = x + 1
        return y * 2
    assert torch.equal(fxjit.compile(fn, backend="eager", fullgraph=True)(torch.ones(3)), fn(torch.ones(3)))

    def broken(x):
        with BaseTorchFunctionMode():
            y = x + 1
            torch._dynamo.graph_break()
            y = y + len(torch.overrides._get_current_function_mode_stack())
        return y * 2
    assert torch.equal(fxjit.compile(broken, backend="eager")(torch.ones(3)), broken(torch.ones(3)))


def naming(x):
    y = x + 1
    return y * y, y.label, x.label


def made_inside(x):
    return naming(Named(x, "inside"))


def test_a_subclass_is_asked_as_often_as_in_eager():
    for fn, given in ((naming, Named(torch.ones(3), "x")), (made_inside, torch.ones(3))):
        Named.looks = 0
        expected = fn(given)
        looks, Named.looks = Named.looks, 0
        got = fxjit.compile(fn, backend="eager")(given)
        assert Named.looks == looks
        assert (type(got[0]), got[0].label, got[1:]) == (Named, expected[0].label, expected[1:])
        assert torch.equal(got[0].as_subclass(torch.Tensor), expected[0].as_subclass(torch.Tensor))
