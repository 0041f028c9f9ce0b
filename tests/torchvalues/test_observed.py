"""What the program asks autograd about after the graph that made it: for autograd a compiled graph is one node, in which no
result stands behind another."""

from __future__ import annotations

import pytest
import torch

import fxjit


def gradient(x):
    h = x * 2
    y = h.sin()
    return torch.autograd.grad(y.sum(), h)[0]


def gradient_if_used(x):
    h = x * 2
    y = h.sin()
    return torch.autograd.grad(y.sum(), [x, h], allow_unused=True)


def of_a_copy(x):
    x = x.clone().requires_grad_()
    y = x.sin()
    (slope,) = torch.autograd.grad(y, x, torch.ones_like(y), create_graph=True)
    return y, slope.log1p()


def of_a_view(x):
    h = x.view(2, 2)
    y = h.sin()
    return torch.autograd.grad(y.sum(), h)[0]


def walked_to(x):
    h = x * 2
    y = h.sin()
    y.sum().backward(inputs=[h])
    return h.grad


def walked_to_by_function(x):
    h = x * 2
    y = h.sin()
    torch.autograd.backward(y.sum(), inputs=(h,))
    return h.grad


def retained(x):
    h = x * 2
    y = h.sin()
    h.retain_grad()
    y.sum().backward()
    return h.grad


def handle_kept(x):
    h = x * 2
    y = h.sin()
    handle = h.register_hook(lambda gradient: gradient * 3)
    y.sum().backward()
    handle.remove()
    return x.grad


def gradient_stored(x):
    seen = []
    h = x * 2
    y = h.sin()
    h.register_hook(lambda gradient: seen.append(gradient))
    y.sum().backward()
    return seen


def _asks(y, h):
    return torch.autograd.grad(y.sum(), h)[0]


def asked_in_a_call(x):
    h = x * 2
    y = h.sin()
    return _asks(y, h) + 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", [gradient, gradient_if_used, of_a_copy, of_a_view, walked_to, walked_to_by_function, retained,
                                handle_kept, gradient_stored, asked_in_a_call])
def test_as_in_eager(fn, backend):
    compiled = fxjit.compile(fn, backend=backend)
    for _ in range(2):
        theirs, ours = (torch.linspace(0.1, 1.4, 4, requires_grad=True) for _ in range(2))
        torch.testing.assert_close(compiled(ours), fn(theirs))


def test_inputs_are_asked_about_without_loss():
    """An input of the graph stands behind its results: such graphs are compiled."""
    def of_the_input(x):
        y = (x * 2).sin()
        return torch.autograd.grad(y.sum(), x)[0]

    before = fxjit.counters["run_as_captured"].total()
    x = torch.linspace(0.1, 1.4, 4, requires_grad=True)
    torch.testing.assert_close(fxjit.compile(of_the_input, backend="aot_eager")(x), of_the_input(x))
    assert fxjit.counters["run_as_captured"].total() == before
