"""Scans against eager: along memory and across it, in and out of kernels with reductions, types, special values, gradients."""

from __future__ import annotations

import pytest
import torch

import fxjit
from fxjit.counters import counters

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8, torch.bool]
SHAPES = [(6, 7), (1, 9), (70, 3), (3, 1, 130), (5,), (0, 4), (4, 0), ()]


def every_scan(x, dims):
    out = []
    for dim in dims:
        out += [x.cumsum(dim), x.cumprod(dim)]
        if x.dtype is not torch.bool and (x.ndim == 0 or x.shape[dim]):
            out += [*x.cummax(dim), *x.cummin(dim)]
        if x.dtype.is_floating_point:
            out += [x.logcumsumexp(dim)]
    return out


# Fixed and symbolic sizes by turns; a plain shape and one that is long in memory with both.
@pytest.mark.parametrize("shape,mode", [*((shape, ("fake", "symbolic")[k % 2]) for k, shape in enumerate(SHAPES)),
                                        ((6, 7), "symbolic"), ((3, 1, 130), "fake"), ((), "fake")], ids=str)
def test_shapes(assert_kernels_same, shape, mode):
    torch.manual_seed(0)
    assert_kernels_same(lambda x: every_scan(x, range(-1, max(x.ndim - 1, 0))), torch.randn(shape), mode=mode)


@pytest.mark.parametrize("dtype", FLOATS + INTS, ids=str)
def test_types(assert_kernels_same, dtype):
    x = (torch.arange(60).reshape(4, 5, 3).cos() * 2).to(dtype)

    def function(x):
        more = [x.cumsum(0, dtype=torch.float32), x.cumprod(2, dtype=torch.int32)]
        return every_scan(x, (0, 1, 2)) + every_scan(x.transpose(0, 2), (1,)) + every_scan(x[:, ::2].flip(0), (0, -1)) + more

    assert_kernels_same(function, x)


def test_special_values(assert_kernels_same):
    nan, inf = float("nan"), float("inf")
    x = torch.tensor([
        [1.0, nan, 2.0, inf, -inf], [inf, -inf, nan, 0.0, 1.0], [-inf, -inf, -inf, 3.0, inf], [0.0, -0.0, 0.0, -0.0, nan],
        [2.0, 2.0, 1.0, 2.0, 0.0],
    ])  # fmt: skip
    assert_kernels_same(lambda x: every_scan(x, (0, 1)), x)


def test_long_sums_are_as_exact_as_eagers(kernels):
    torch.manual_seed(0)
    x = torch.rand(200_000)
    exact = x.double().cumsum(0)
    actual = kernels(lambda x: x.cumsum(0), x)(x)
    assert (actual - exact).abs().max() <= (x.cumsum(0) - exact).abs().max() * 1.01


FUSED = {
    "nucleus of a distribution": lambda x: (torch.softmax(x, -1).cumsum(-1) < 0.9).sum(-1),
    "mask of positions": lambda x: ((x > 0).int().cumsum(1) * (x > 0)).long() + 1,
    "sum of a scan": lambda x: (x.exp().cumsum(1) / 2).sum(1),
    "a scan of a scan": lambda x: (x.cumsum(1) * 0.1).exp().cumsum(1),
    "across memory": lambda x: (x.sigmoid().cumsum(0) + 1).log(),
    "and its sum": lambda x: ((x > 0).long().cumsum(1) * 2).sum(1),
    "of rows": lambda x: x.mean(1).cumsum(0),
}


@pytest.mark.parametrize("shape", [(5, 12), (3, 20_000)], ids=str)
@pytest.mark.parametrize("name", list(FUSED))
def test_fused(assert_kernels_same, name, shape):
    torch.manual_seed(1)
    x = torch.randn(shape) * 0.5
    assert_kernels_same(lambda x: [FUSED[name](x)], x)


@pytest.mark.parametrize("name", ["mask of positions", "across memory", "and its sum"])
def test_a_scan_shares_a_kernel(kernels, name):
    before = counters["native"]["kernels"]
    kernels(FUSED[name], torch.randn(8, 64))
    assert counters["native"]["kernels"] - before == 1


@pytest.mark.parametrize("dynamic", [None, True])
def test_gradients(dynamic):
    def function(x):
        return x.cumsum(1).sin() + x.cumprod(0) + x.logcumsumexp(1) + x.cummax(0)[0] * x.cummin(1)[0]

    results = []
    for each in (function, fxjit.compile(function, dynamic=dynamic)):
        torch.manual_seed(0)
        x = torch.randn(4, 6, requires_grad=True)
        out = each(x)
        out.backward(out.detach())
        results.append((out.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0])
