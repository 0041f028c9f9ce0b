"""A size that an operator is given as a number stays a symbol where ATen is asked for the strides of its result."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

import fxjit
from fxjit import fake_strides


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_gradient_of_a_mean(monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    """It is divided by the count of elements. ATen is asked once a process: nothing is known of earlier ones here."""
    monkeypatch.setattr(fake_strides, "_answers", {})
    weight = nn.Parameter(torch.randn(4))

    def loss(x: Tensor) -> Tensor:
        return (x * weight).mean()

    fxjit.reset()
    compiled = fxjit.compile(loss, backend=backend)
    for size in (2, 3, 4, 5):
        x = torch.randn(size, 1, 4, 4)
        found, expected = (torch.autograd.grad(fn(x), weight)[0] for fn in (compiled, loss))
        torch.testing.assert_close(found, expected)
    assert fxjit.counters["stats"]["unique_graphs"] == 2
