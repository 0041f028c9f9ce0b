"""Pooling, enlarging and their derivatives against eager: windows, rims, layouts, types; whole powers of integers."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import config
from fxjit.counters import counters

aten = torch.ops.aten
FORMATS = [torch.contiguous_format, torch.channels_last]


def pooled(x, y, grad):
    maxima, places = aten.max_pool2d_with_indices(x, [3, 3], [2, 2], [1, 1])
    return [
        F.avg_pool2d(x, 2), F.avg_pool2d(x * 2, 3, 2, 1), F.avg_pool2d(x, (2, 3), 1, divisor_override=5),
        F.avg_pool2d(x, 3, 2, 1, count_include_pad=False), F.avg_pool2d(x, 3, 2, ceil_mode=True), F.avg_pool2d(x.relu(), 2) * 2,
        F.adaptive_avg_pool2d(x, (4, 3)), F.adaptive_avg_pool2d(x, (5, 7)), maxima, places,
        aten.avg_pool2d_backward(grad, x, [2, 2], [2, 2], [0, 0], False, True, None),
        aten.avg_pool2d_backward(grad[:, :, :, :4], y, [2, 2], [], [0, 0], False, True, 3),
        aten.avg_pool2d_backward(x, x, [3, 3], [1, 1], [1, 1], False, True, None),
        aten._adaptive_avg_pool2d_backward(grad, x), aten._adaptive_avg_pool2d_backward(grad, y),
        aten.max_pool2d_with_indices_backward(maxima * 2, x, [3, 3], [2, 2], [1, 1], [1, 1], False, places),
        aten.upsample_nearest2d(x, [16, 36], 2.0, 3.0) + 1, aten.upsample_nearest2d(x, [24, 24]),
        aten.upsample_nearest2d(x, [16, 24], 1.9, 2.0), aten.upsample_nearest2d(x, [13, 17]),
        aten.upsample_nearest2d_backward(x, [8, 12], [2, 3, 4, 6]), aten.upsample_nearest2d_backward(x, [8, 12], [2, 3, 5, 7]),
    ]  # fmt: skip


FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]


@pytest.mark.sweep(2)
# Each type in one layout, float32 in both, also as Triton's kernels.
@pytest.mark.parametrize("dtype,form,interpret", [
    *((dtype, FORMATS[k % 2], False) for k, dtype in enumerate(FLOATS)),
    (torch.float32, FORMATS[1], False), (torch.float32, FORMATS[0], True), (torch.float32, FORMATS[1], True)], ids=str)
def test_planes(kernels, assert_same, dtype, form, interpret):
    if interpret:
        pytest.importorskip("triton")
    torch.manual_seed(0)
    shapes = [(2, 3, 8, 12), (2, 3, 9, 9), (2, 3, 4, 6)]
    inputs = [torch.randn(shape).to(dtype).contiguous(memory_format=form) for shape in shapes]
    with config.patch(**{"triton.interpret": interpret}):
        compiled = kernels(pooled, *inputs)
    for k, (actual, expected) in enumerate(zip(compiled(*inputs), pooled(*inputs), strict=True)):
        assert_same(actual, expected, str(k))


@pytest.mark.parametrize("interpret", [False, True])
def test_a_maximum_that_several_windows_share(kernels, interpret):
    """Its gradients add up, in whatever order the windows come."""
    if interpret:
        pytest.importorskip("triton")
    x = torch.zeros(1, 2, 5, 5)
    x[0, :, 2, 2] = 1

    def function(x):
        maxima, places = aten.max_pool2d_with_indices(x, [3, 3], [1, 1])
        return [aten.max_pool2d_with_indices_backward(maxima + 1, x, [3, 3], [1, 1], [0, 0], [1, 1], False, places)]

    with config.patch(**{"triton.interpret": interpret}):
        assert torch.equal(kernels(function, x)(x)[0], function(x)[0])


LAYERS = {
    "avg": lambda x: F.avg_pool2d(x.sin(), 2).cos(), "rim": lambda x: F.avg_pool2d(x, 3, 2, 1) ** 2,
    "adaptive": lambda x: F.adaptive_avg_pool2d(x.sin(), 3).cos(), "max": lambda x: F.max_pool2d(x.sin(), 3, 2, 1).cos(),
    "nearest": lambda x: F.interpolate(x.sin(), scale_factor=2).cos(), "plane": lambda x: F.avg_pool2d(x[0], 2).exp(),
    "nearest sizes": lambda x: torch.cat([F.interpolate(x[:, :1], size=(12, 18)), x.new_ones(2, 1, 12, 18)], 1).exp(),
}  # fmt: skip


@pytest.mark.sweep(2)
# Each layer in both layouts, one with fixed sizes and the other with varying ones, by turns.
@pytest.mark.parametrize("name,dynamic,form", [(name, dynamic, FORMATS[(k + bool(dynamic)) % 2])
                                               for k, name in enumerate(LAYERS) for dynamic in (None, True)], ids=str)
def test_gradients(name, dynamic, form):
    results = []
    fxjit.reset()
    for each in (LAYERS[name], fxjit.compile(LAYERS[name], dynamic=dynamic)):
        torch.manual_seed(0)
        x = torch.randn(2, 3, 6, 9).contiguous(memory_format=form).requires_grad_()
        out = each(x)
        out.backward(out.detach())
        results.append((out.detach(), x.grad))
    torch.testing.assert_close(results[1], results[0])
    assert results[1][0].stride() == results[0][0].stride()


def test_pooling_takes_in_what_is_around_it():
    def function(x):
        return F.avg_pool2d((x * 2).relu(), 2) + 1

    x = torch.randn(2, 3, 40, 40)
    before = counters["native"]["kernels"]
    torch.testing.assert_close(fxjit.compile(function)(x), function(x))
    assert counters["native"]["kernels"] - before == 1


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8], ids=str)
def test_whole_powers(assert_kernels_same, dtype):
    x = torch.tensor([0, 1, 2, 3, 7, 11, 100, 127]).to(dtype)
    x = torch.cat([x, -x]) if dtype is not torch.uint8 else x

    def function(x):
        return [x**power for power in (0, 1, 2, 3, 4, 5, 7, 13, 63, 64, 65)]

    assert_kernels_same(function, x)


def test_a_negative_power_of_integers_raises():
    with pytest.raises(RuntimeError, match="negative integer powers"):
        fxjit.compile(lambda x: x**-2)(torch.arange(4))
