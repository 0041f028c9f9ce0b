"""Products of matrices of int8 (choose/integer_products.py): the integers that ATen gives, by whatever multiplies them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

import fxjit
from fxjit.backends.native import pipeline
from fxjit.backends.native.choose import integer_products
from fxjit.backends.native.runtime import own_products

INT_MM = torch.ops.aten._int_mm.default
#: Rows, columns and terms: up to and past those whose sum float32 holds.
SIZES = [(1, 64, 96), (17, 40, 1024), (33, 24, 1025), (20, 8, 3000)]


@pytest.fixture
def left(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[int]]:
    """As floats, however long that takes; how many products of integers each graph has behind the passes."""
    counts: list[int] = []
    monkeypatch.setattr(integer_products, "integers_are_faster_as_floats", lambda m, n, k: True)
    monkeypatch.setattr(pipeline, "PASSES", (
        *pipeline.PASSES, lambda graph: counts.append(sum(node.target is INT_MM for node in graph.nodes))))
    fxjit.reset()
    with fxjit.config.patch(small_graphs_as_captured=False, cache_graphs=False):
        yield counts
    fxjit.reset()


def multiplied(a, b):
    return torch._int_mm(a, b.t())


@pytest.mark.parametrize("extreme", [False, True], ids=["drawn", "largest"])
@pytest.mark.parametrize("sizes", SIZES, ids=str)
def test_the_same_integers(sizes, extreme, left):
    """The largest: all products are 128 * 128, and their sums the most that there are."""
    m, n, k = sizes
    a, b = (torch.full(each, -128, dtype=torch.int8) if extreme else torch.randint(-128, 128, each, dtype=torch.int8)
            for each in ((m, k), (n, k)))
    found, expected = fxjit.compile(multiplied, fullgraph=True)(a, b), multiplied(a, b)
    assert left == [0]
    assert found.dtype is torch.int32 and found.stride() == expected.stride() and torch.equal(found, expected)


def test_rows_that_vary(left):
    compiled, weight = fxjit.compile(multiplied), torch.randint(-128, 128, (24, 1500), dtype=torch.int8)
    for rows in (18, 25, 64):  # of the second graph on they vary
        a = torch.randint(-128, 128, (rows, 1500), dtype=torch.int8)
        assert torch.equal(compiled(a, weight), multiplied(a, weight))
    assert left == [0, 0]


@pytest.mark.parametrize("floats,faster", [(50, True), (99, False), (200, False)])
def test_what_was_measured_decides(monkeypatch, floats, faster):
    """Of nanoseconds by ATen and as floats, by more than what two measurements may differ."""
    monkeypatch.setattr(own_products, "_integers", {})
    monkeypatch.setattr(own_products, "nanoseconds", lambda *_: [100, floats])
    with fxjit.config.patch(measure_machine=True):
        assert own_products.integers_are_faster_as_floats(64, 512, 512) is faster
        assert not own_products.integers_are_faster_as_floats(1, 2, 3)  # too small to be measured
    with fxjit.config.patch(measure_machine=False):
        assert not own_products.integers_are_faster_as_floats(64, 512, 512)


class Quantised(nn.Module):
    """A linear layer as torchao's dynamic quantisation has it: rows are rounded to 8 bits at each call, weights once."""

    def __init__(self, features: int, results: int) -> None:
        super().__init__()
        weight = torch.randn(results, features)
        self.register_buffer("scale", weight.abs().amax(1) / 127)
        self.register_buffer("weight", (weight / self.scale[:, None]).round().to(torch.int8))

    def forward(self, x):
        scale = x.abs().amax(1, keepdim=True) / 127
        return torch._int_mm((x / scale).round().to(torch.int8), self.weight.t()).float() * scale * self.scale


def test_a_layer_of_dynamic_quantisation(left):
    layer, x = Quantised(256, 64), torch.randn(32, 256)
    with torch.no_grad():
        torch.testing.assert_close(fxjit.compile(layer, fullgraph=True)(x), layer(x), rtol=1e-6, atol=1e-6)
    assert left == [0]
