"""Numbers that vary, as inputs of a graph that goes through AOTAutograd."""

from __future__ import annotations

import math

import pytest
import torch

import fxjit


def scaled(x, n):
    return x * n + n


def shaped(x, n):
    return x.new_ones(n, 2) * x.sum()


def made(x, n):
    return torch.tensor([float(n), 1.0, math.pi]) + x.sum()


def decided(x, n):
    return x + 1 if n > 3 else x - 1


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", [scaled, shaped, made, decided])
def test_ints_that_vary(fn, backend):
    compiled = fxjit.compile(fn, backend=backend)
    x = torch.arange(3.0)
    for n in (5, 6, 7, 3, 2):
        torch.testing.assert_close(compiled(x, n), fn(x, n))


def test_comparing_sizes_leaves_them_symbols():
    def fn(x, y):
        if x.size() != y.size() or x.shape[0] not in [y.shape[0]]:
            raise ValueError("sizes")
        return x + y

    graphs = []

    def counting(gm, inputs):
        graphs.append(gm)
        return gm.forward

    compiled = fxjit.compile(fn, backend=counting)
    for size in (2, 3, 4, 5):
        torch.testing.assert_close(compiled(torch.ones(size), torch.ones(size)), torch.full((size,), 2.0))
    assert len(graphs) == 2


def mean_of_smooth_l1(x, y):
    return torch.nn.functional.smooth_l1_loss(x.sin(), y)


def heads_of_a_third(x):
    third = (x.shape[1] + 2) // 3
    wide = torch.cat([x[:, :third], x[:, :third] + 1], 1)
    return wide.view(x.shape[0], 2, third).softmax(-1).mul(2).transpose(0, 1).sum(-1) + wide.sum(-1)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("fn,inputs", [(mean_of_smooth_l1, 2), (heads_of_a_third, 1)])
def test_gradients_where_sizes_are_symbols(fn, inputs, backend):
    """Sizes as numbers in a derivative, and as parts of other sizes."""
    compiled = fxjit.compile(fn, backend=backend, dynamic=True, fullgraph=True)
    for size in (7, 9):
        ours = [torch.linspace(-2, 3, 5 * size).view(5, size).add(k).requires_grad_() for k in range(inputs)]
        theirs = [each.detach().clone().requires_grad_() for each in ours]
        result, expected = compiled(*ours), fn(*theirs)
        torch.testing.assert_close(result, expected)
        for a, b in zip(torch.autograd.grad(result.sum(), ours), torch.autograd.grad(expected.sum(), theirs)):
            torch.testing.assert_close(a, b)


def written_half(x):
    half = x[: x.shape[0] // 2]
    half.mul_(2)
    return half


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_written_view_of_an_input_that_begins_further_on(backend):
    compiled = fxjit.compile(written_half, backend=backend, dynamic=True)
    for rows in (10, 13):
        theirs, ours = (torch.arange(18.0 * rows).reshape(rows, 18) for _ in range(2))
        expected, actual = written_half(theirs[:, 9:]), compiled(ours[:, 9:])
        assert torch.equal(actual, expected) and torch.equal(ours, theirs)
        assert actual.storage_offset() == expected.storage_offset() and actual.stride() == expected.stride()
