"""The program's own code that a trace runs on fake tensors may fill a table by types, as einops' does of its backends: a guard
that looked at the table before does not hold then, and the frame is traced once more."""

from __future__ import annotations

import pytest
import torch

import fxjit

TABLE = {}


def scale_of(x):
    if type(x) not in TABLE:
        TABLE[type(x)] = 2.0
    return TABLE[type(x)]


class Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * scale_of(x)

    @staticmethod
    def backward(ctx, gradient):
        return gradient * scale_of(gradient)


def scaled(x):
    return x * scale_of(x)


def of_a_function_of_autograd(x):
    return Scaled.apply(x * scale_of(x)) + len(TABLE)


def of_a_function_in_the_graph(x):
    return scaled(x * scale_of(x))


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [of_a_function_of_autograd, of_a_function_in_the_graph])
def test_a_table_that_is_filled_while_a_frame_is_compiled(fn, backend):
    if fn is of_a_function_in_the_graph:
        fxjit.allow_in_graph(scaled)
    TABLE.clear()
    TABLE[torch.Tensor] = 2.0
    compiled = fxjit.compile(fn, backend=backend)
    x = torch.arange(3.0, requires_grad=True)
    for _ in range(2):
        y = compiled(x)
        assert torch.equal(y, x * 4 + (len(TABLE) if fn is of_a_function_of_autograd else 0))
        assert torch.equal(torch.autograd.grad(y.sum(), x)[0], torch.full((3,), 4.0))
    assert not fxjit.counters["recompiles"]
