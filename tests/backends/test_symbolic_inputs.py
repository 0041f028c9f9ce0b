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
