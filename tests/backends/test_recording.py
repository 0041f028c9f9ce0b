"""Graphs and what autograd does around them: recording switched on inside of `no_grad`, forward differentiation."""

from __future__ import annotations

import pytest
import torch
from torch.autograd import forward_ad

import fxjit

BACKENDS = ["eager", "aot_eager", "native"]


def partly_recorded(x):
    scale = x * 2
    with torch.enable_grad():
        y = (x.sin() * scale).sum()
    return y, scale


@torch.no_grad()
def descend(x):
    for _ in range(2):
        with torch.enable_grad():
            here = x.detach().requires_grad_(True)
            (slope,) = torch.autograd.grad((here.sin() ** 2).sum(), here)
        x = x - 0.1 * slope
    return x


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_graph_that_switches_recording_on(backend):
    fxjit.reset()
    compiled = fxjit.compile(partly_recorded, backend=backend, fullgraph=True)
    x = torch.arange(3.0, requires_grad=True)
    with torch.no_grad():
        y, scale = compiled(x)
        expected, _ = partly_recorded(x)
        assert not torch.is_grad_enabled()
    assert y.requires_grad and not scale.requires_grad
    torch.testing.assert_close(torch.autograd.grad(y, x), torch.autograd.grad(expected, x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_inside_of_no_grad(backend):
    fxjit.reset()
    x = torch.randn(4)
    torch.testing.assert_close(fxjit.compile(descend, backend=backend)(x), descend(x))


@pytest.mark.parametrize("backend", BACKENDS)
def test_forward_differentiation_runs_eagerly(backend):
    fxjit.reset()
    compiled = fxjit.compile(lambda x: x.sin() * 2, backend=backend)
    x = torch.randn(3)
    compiled(x)
    with forward_ad.dual_level():
        tangent = forward_ad.unpack_dual(compiled(forward_ad.make_dual(x, torch.ones(3)))).tangent
        torch.testing.assert_close(tangent, 2 * x.cos())
    torch.testing.assert_close(compiled(x), 2 * x.sin())
