"""Batches of matrices that lie across each other in memory, whose products are loops along the batch."""

from __future__ import annotations

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit import config
from fxjit.backends.native.ir import Extern
from fxjit.backends.native.lower import lower_graph


@pytest.fixture(autouse=True)
def compiled_anew():
    fxjit.reset()
    with config.patch(cache_graphs=False, small_graphs_as_captured=False):
        yield
    fxjit.reset()


def calls_of_atens_bmm(function, *args) -> int:
    low = lower_graph(make_fx(function, tracing_mode="fake")(*args))
    return sum(isinstance(each, Extern) and "bmm" in str(each.node.target) for each in low.statements)


def weighted(w, x):
    return torch.einsum("tsd,bsd->btd", w, x).sigmoid() * 2


@pytest.mark.parametrize(("w", "x", "loops"), [
    ((6, 5, 40), (2, 5, 40), True), ((64, 64, 64), (2, 64, 64), True), ((5, 7, 16), (1, 7, 16), True),
    ((5, 1, 33), (3, 1, 33), True), ((5, 7, 8), (2, 7, 8), False), ((90, 90, 16), (90, 90, 16), False),
    ((4, 3, 0), (2, 3, 0), False),
], ids=str)  # fmt: skip
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_along_the_batch_are_as_in_eager(w, x, loops, dtype):
    torch.manual_seed(0)
    tensors = [torch.randn(size, dtype=dtype) for size in (w, x)]
    assert (calls_of_atens_bmm(weighted, *tensors) == 0) is loops
    found, compiled = [], fxjit.compile(weighted, fullgraph=True, dynamic=False)
    for run, kind in ((weighted, dtype), (compiled, dtype), (weighted, torch.float64)):
        leaves = [each.to(kind, copy=True).requires_grad_() for each in tensors]
        y = run(*leaves)
        y.square().sum().backward()
        found.append([y.detach(), *(each.grad for each in leaves)])
    for eager, mine, exact in zip(*found, strict=True):
        assert mine.stride() == eager.stride()
        assert mine.dtype is eager.dtype
        if mine.numel():
            assert (mine - exact).abs().max() <= 2 * (eager - exact).abs().max() + 1e-6 * exact.abs().max()


@pytest.mark.parametrize(
    "pattern", ["tsd,bsd->btd", "bsd,tsd->tbd", "dts,bsd->btd", "tsd,bds->btd", "sd,bsd->bd", "td,bd->btd"])
def test_other_patterns(pattern):
    torch.manual_seed(0)
    sizes = {"t": 6, "s": 5, "d": 48, "b": 3}
    a, b = (torch.randn([sizes[letter] for letter in term]) for term in pattern.split("->")[0].split(","))

    def call(a, b):
        return torch.einsum(pattern, a.exp(), b), torch.einsum(pattern, a, b * 2).relu()

    for mine, eager in zip(fxjit.compile(call, fullgraph=True, dynamic=False)(a, b), call(a, b), strict=True):
        torch.testing.assert_close(mine, eager)
        assert mine.stride() == eager.stride()


def test_batches_that_are_expanded_or_overlap():
    base = torch.randn(2000)
    expanded = torch.randn(5, 40).expand(6, 5, 40), torch.randn(40).expand(2, 5, 40)
    overlapping = base.as_strided((40, 6, 5), (1, 3, 40)), base.as_strided((40, 5, 2), (1, 40, 7))
    infinite = torch.randn(6, 5, 40), torch.randn(2, 5, 40)
    infinite[0][1, 2, 3] = float("inf")
    infinite[1][1, 2, 5] = float("nan")

    def multiply(a, b):
        return torch.bmm(a, b) + 1

    for function, tensors in ((weighted, expanded), (multiply, overlapping), (weighted, infinite)):
        fxjit.reset()
        mine, eager = fxjit.compile(function, fullgraph=True, dynamic=False)(*tensors), function(*tensors)
        torch.testing.assert_close(mine, eager, equal_nan=True)
        assert mine.stride() == eager.stride()
