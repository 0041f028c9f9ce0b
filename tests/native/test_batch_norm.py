"""Batch norm in training: what it gives, and that its results are recomputed and not kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxjit

CASES = [(4, 12, (5, 6), True), (3, 80, (7,), True), (6, 300, (), False), (2, 70, (4, 3, 2), True), (9, 1, (3,), True)]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize(("images", "channels", "sizes", "affine"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_it_trains_as_eager_does(images, channels, sizes, affine, dtype, layout):
    torch.manual_seed(0)
    fxjit.reset()
    kind = (nn.BatchNorm1d, nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)[len(sizes)]
    found = []
    for way in (lambda fn: fn, lambda fn: fxjit.compile(fn, fullgraph=True, dynamic=False)):
        torch.manual_seed(1)
        layer = kind(channels, affine=affine, dtype=dtype)
        if affine:
            nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
        x = torch.randn(images, channels, *sizes, dtype=dtype) * 3 + 2
        if len(sizes) == 2:
            x = x.to(memory_format=layout)
        x.requires_grad_()
        y = way(lambda x, layer=layer: F.silu(layer(x)))(x)
        y.square().sum().backward()
        found.append([y.detach(), x.grad, *(each.grad for each in layer.parameters()), *layer.buffers()])
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-10, torch.bfloat16: 2e-1}[dtype]
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=tolerance, atol=tolerance)
        assert mine.stride() == eager.stride()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("affine", [False, True])
def test_its_results_are_not_kept(layout, affine):
    layer, kept = nn.BatchNorm2d(16, affine=affine), []
    x = torch.randn(2, 16, 20, 20).to(memory_format=layout).requires_grad_()
    call = fxjit.compile(lambda x: F.silu(layer(x)), fullgraph=True, dynamic=False)
    call(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        y = call(x)
    whole = {each.data_ptr() for each in kept if each.numel() == x.numel()}
    assert len(whole) == 1  # x
    y.sum().backward()
    assert x.grad.stride() == x.stride()


def test_statistics_are_outputs_too():
    """The statistics that a program asks for by itself are those that the normalized numbers are made of."""
    def call(x, weight, bias):
        y, mean, scale = torch.native_batch_norm(x, weight, bias, None, None, True, 0.1, 1e-5)
        return F.silu(y), mean, scale

    parts = [torch.randn(4, 8, 5, requires_grad=True), torch.randn(8, requires_grad=True), torch.randn(8, requires_grad=True)]
    found = []
    for way in (call, fxjit.compile(call, dynamic=False)):
        outputs = way(*parts)
        found.append([*outputs, *torch.autograd.grad(outputs[0].square().sum(), parts)])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)


def test_a_channels_scale_is_not_calculated_for_each_pixel(sources):
    mean, scale, shift = torch.randn(3, 24)
    x = torch.randn(2, 24, 9, 7).to(memory_format=torch.channels_last)

    def f(x, *given):
        return F.silu(F.batch_norm(x, *given))

    given = x, mean, torch.rand(24) + 0.5, scale, shift
    torch.testing.assert_close(fxjit.compile(f, fullgraph=True, dynamic=False)(*given), f(*given))
    kernels = sources[0].split('extern "C"')[1:]
    assert any("sqrt" in kernel for kernel in kernels) and any("fx_silu" in kernel for kernel in kernels)
    assert not any("sqrt" in kernel and "fx_silu" in kernel for kernel in kernels)


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
@pytest.mark.parametrize("parameters", [torch.float32, None], ids=["float32 parameters", "half parameters"])
@pytest.mark.parametrize("training", [True, False], ids=["training", "evaluation"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
def test_halves_are_normalized_by_kernels(sources, dtype, training, parameters, layout):
    """Their statistics are floats inside: all results are as near to float64's as eager's, whose are rounded to halves."""
    torch.manual_seed(0)
    x, grad = (torch.randn(4, 24, 9, 10).to(dtype).to(memory_format=layout) for _ in range(2))
    weight, bias, mean, scale = torch.rand(24) + 0.5, torch.randn(24), torch.randn(24), torch.rand(24) + 0.5

    def results(way, kind):
        layer = nn.BatchNorm2d(24, dtype=torch.float64 if kind is torch.float64 else parameters or dtype).train(training)
        for old, new in zip((layer.weight, layer.bias, layer.running_mean, layer.running_var), (weight, bias, mean, scale)):
            old.data.copy_(new.to(parameters or dtype))
        given = x.to(kind).requires_grad_()
        y = way(layer)(given)
        y.backward(grad.to(kind))
        return [y.detach(), given.grad, *(each.grad for each in layer.parameters()), layer.running_mean, layer.running_var]

    true, eager = results(lambda fn: fn, torch.float64), results(lambda fn: fn, dtype)
    mine = results(lambda fn: fxjit.compile(fn, fullgraph=True, dynamic=False), dtype)
    for one, other, right in zip(mine, eager, true, strict=True):
        assert one.dtype is other.dtype and one.stride() == other.stride()
        error, eagers = ((each.double() - right).norm() / right.norm() for each in (one, other))
        assert error <= max(1.1 * eagers, torch.finfo(one.dtype).eps)
    assert len(sources) >= 2, "forward and backward"
