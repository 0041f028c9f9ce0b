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
