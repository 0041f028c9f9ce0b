"""Sizes that are made of floats (`math.ceil(n * scale)`, a root, a rounded quotient): Python calculates them once a call, in
the order of the program, and the executor takes them as it takes the sizes of inputs. Such graphs ran node by node."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from tests.differential import assert_same_call

import fxjit


def ceil_of_two_sizes(x, scale):
    by = x.shape[-1] / 7
    return torch.arange(math.ceil(x.shape[-1] * by)) / by + x.sum()


def square_root(x, scale):
    side = math.floor(math.sqrt(x.shape[-1]))
    return x[: side * side].view(side, side) * 2


def logarithm(x, scale):
    return x[: int(math.log2(x.shape[-1]))] * 2 + torch.ones(int(math.log2(x.shape[-1])))


def rounded(x, scale):
    return x[: round(x.shape[-1] * 0.75)] * 2 + 1


def rounded_up_by_a_number(x, scale):
    return torch.ones(math.ceil(x.shape[-1] * scale)) * 2 + x.sum()


def one_of_another(x, scale):
    first = math.ceil(x.shape[-1] * scale)
    second = int(first * scale) + 1
    return torch.arange(first)[:, None] * torch.arange(second) + x[:second].sum()


def in_two_orders(x, scale):
    """What an expression says of both is the same, and is one number for none of them."""
    n = float(x.shape[-1])
    return torch.ones(math.ceil(n * 0.1 * 3.0)), torch.ones(math.ceil(n * (0.1 * 3.0))) * 2


def enlarged(x, scale):
    image = x[None, None, None].expand(1, 2, 4, x.shape[-1])
    return F.interpolate(image, size=(8, int(x.shape[-1] * scale)), mode="bilinear") + 1


def windows(x, scale):
    """A window around each place that a resized row looks at."""
    n = x.shape[-1]
    out = math.ceil(n * scale)
    support = math.ceil(4 / scale - 1e-6)
    places = torch.arange(out) / scale + (n - 1) / 2 - (out - 1) / (2 * scale)
    found = torch.ceil(places - support / 2).long()[:, None] + torch.arange(support)
    return F.pad(x[None], (support, support), mode="replicate")[0][found.clamp(-support, n) + support].mean(1)


PROGRAMS = [ceil_of_two_sizes, square_root, logarithm, rounded, rounded_up_by_a_number, one_of_another, in_two_orders, enlarged,
            windows]
CALLS = [(10, 0.8), (13, 0.7), (17, 0.55), (20, 0.9), (30, 0.31), (64, 0.77)]


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_as_in_eager(fn):
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(fn, backend="native", dynamic=True)
    for size, scale in CALLS:
        assert_same_call(fn, compiled, torch.linspace(0.1, 1, size), scale, rtol=1.3e-6)
    runs = fxjit.counters["run_as_captured"]
    assert fn is in_two_orders or not runs, dict(runs)


@pytest.mark.parametrize("fn", [enlarged, windows, square_root], ids=lambda fn: fn.__name__)
def test_gradients(fn):
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(fn, backend="native", dynamic=True)
    for size, scale in CALLS:
        found = []
        for call in (fn, compiled):
            x = torch.linspace(-1, 1, size, requires_grad=True)
            call(x, scale).square().sum().backward()
            found.append(x.grad)
        torch.testing.assert_close(found[1], found[0])
    assert not fxjit.counters["run_as_captured"], dict(fxjit.counters["run_as_captured"])
