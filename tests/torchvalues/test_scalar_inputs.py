"""What a 0-d tensor from outside holds is data: a size made of it is never taken for a fact of the trace."""

from __future__ import annotations

import pytest
import torch

import fxjit


def new_zeros(x, n):
    return x.new_zeros(2, n) + 1


def narrow(x, n):
    return x.narrow(-1, 0, n) * 2


def both(x, n):
    return x.narrow(-1, 0, n).sum() + x.narrow(-1, n, 4 - n)


def slicing(x, n):
    y = x + 1
    return y[:, n:] * 3


def as_index(x, n):
    return (x + 1)[..., n] * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", [new_zeros, narrow, both, slicing, as_index])
def test_another_number_gives_another_result(fn, backend):
    compiled = fxjit.compile(fn, backend=backend)
    x = torch.arange(8.0).reshape(2, 4)
    for number in (2, 3, 1, 2):
        torch.testing.assert_close(compiled(x, torch.tensor(number)), fn(x, torch.tensor(number)))
