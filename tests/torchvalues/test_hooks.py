"""Hooks on tensors that the graph makes: traced where they only compute, and run as they stand where they do more."""

from __future__ import annotations

import pytest
import torch

import fxjit

FACTOR = 3.0


def scaled(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * FACTOR)
    return y * y


def several(x):
    y = x.sin()
    largest = y.detach().abs().max()

    def cut(gradient):
        return torch.where(gradient.abs() > largest, torch.zeros_like(gradient), gradient)
    y.register_hook(cut)
    y.register_hook(lambda gradient: gradient.clamp(-1, 1) + largest)
    y.register_hook(lambda gradient: None)
    return y * y * 3, y


@pytest.mark.parametrize("fn", [scaled, several])
def test_hooks_that_compute(check, fn):
    check(fn, torch.randn(4, requires_grad=True))


def test_native():
    theirs, ours = (torch.arange(4.0, requires_grad=True) for _ in range(2))
    several(theirs)[0].sum().backward()
    fxjit.compile(several, fullgraph=True)(ours)[0].sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)


def kept_handle(x):
    y = x * 2
    handle = y.register_hook(lambda gradient: gradient * 3)
    z = y * y
    handle.remove()
    return z


def on_an_input(x):
    x.register_hook(lambda gradient: gradient * 3)
    return x * 2


def saving(x):
    seen = []
    y = x * 2
    y.register_hook(lambda gradient: seen.append(gradient))
    return y * y, seen


@pytest.mark.parametrize(("fn", "reason"), [
    (kept_handle, "tensor-hook"), (on_an_input, "tensor-hook"), (saving, "call-with-effects"),
])
def test_other_hooks_break(breaks, fn, reason):
    assert breaks(fn, torch.randn(3, requires_grad=True)) == reason
    theirs, ours = (torch.arange(3.0, requires_grad=True) for _ in range(2))
    results = [fn(theirs), fxjit.compile(fn, backend="eager")(ours)]
    for result in results:
        (result[0] if isinstance(result, tuple) else result).sum().backward()
    torch.testing.assert_close(ours.grad, theirs.grad)
    if fn is saving:
        torch.testing.assert_close(results[1][1], results[0][1])
