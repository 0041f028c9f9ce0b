"""Convolutions along one dimension, which are compiled as those of images of one row."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import fxjit
from fxjit.backends.native.choose import channels_last
from fxjit.backends.native.passes.convolution import convolve_rows
from fxjit.counters import counters


class Sound(nn.Module):
    """One channel at first, windows with a dilation, paddings of one side, gates, groups, steps, joined channels and times."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.gate, self.one = nn.Conv1d(1, 24, 1), nn.Conv1d(24, 48, 2, dilation=3), nn.Conv1d(24, 24, 1)
        self.down, self.norm = nn.Conv1d(24, 20, 4, 2, 1, padding_mode="reflect"), nn.BatchNorm1d(20)
        self.grouped, self.depthwise = nn.Conv1d(20, 20, 3, padding=1, groups=2), nn.Conv1d(20, 20, 5, padding=2, groups=20)
        self.up = nn.ConvTranspose1d(40, 24, 5, 3, 1, 1)

    def forward(self, x):
        x = self.first(x)
        a, b = self.gate(F.pad(x, (3, 0))).chunk(2, 1)
        x = x + self.one(a.tanh() * b.sigmoid())
        y = F.relu(self.norm(self.down(x)))
        y = torch.cat([self.grouped(y), self.depthwise(y)], 1)
        y = self.up(torch.cat([y, F.max_pool1d(y, 2), y[..., :3]], -1))
        return F.pad(y, (-1, 2, 1, 0)), x


def test_a_network_of_sounds_is_as_in_eager(image_layout):
    torch.manual_seed(0)
    model = Sound()
    x = torch.randn(2, 1, 40)
    found = []
    for compiles in (False, True):
        module = copy.deepcopy(model)
        call = fxjit.compile(module, fullgraph=True, dynamic=False) if compiles else module
        leaf = x.clone().requires_grad_()
        results = call(leaf)
        sum(each.square().sum() for each in results).backward()
        module.eval()
        with torch.no_grad():
            results += call(x)
        found.append([*results, leaf.grad, *(each.grad for each in module.parameters()), *module.buffers()])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
        assert mine.stride() == eager.stride()


@pytest.mark.sweep(7)
@pytest.mark.parametrize(("groups", "affine"), [(4, True), (24, True), (24, False), (1, True)])
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.parametrize("place", ["first", "between", "last"])
def test_group_norms_beside_convolutions(image_layout, place, dims, groups, affine):
    """ATen's derivative reads the gradients as the images' strides suggest, whatever theirs are."""
    torch.manual_seed(0)
    convolution = nn.Conv1d if dims == 1 else nn.Conv2d
    norm = nn.GroupNorm(groups, 24, affine=affine)
    layers = {"first": [norm, convolution(24, 16, 3, 2)], "last": [convolution(24, 24, 3), norm],
              "between": [convolution(24, 24, 3), norm, nn.GELU(), convolution(24, 16, 3, 2), nn.GroupNorm(4, 16)]}[place]
    model, x = nn.Sequential(*layers), torch.randn(3, 24, *[12] * dims)
    found = []
    for module in (copy.deepcopy(model), fxjit.compile(copy.deepcopy(model), fullgraph=True, dynamic=False)):
        leaf = x.clone().requires_grad_()
        y = module(leaf)
        (y * torch.linspace(-1, 1, y.numel()).view_as(y)).sum().backward()
        with torch.no_grad():
            found.append([y.detach(), module(x), leaf.grad, *(each.grad for each in module.parameters())])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
        assert mine.stride() == eager.stride()


def test_a_group_norm_keeps_channels_last(image_layout):
    def call(x, first, second):
        return F.conv1d(F.group_norm(F.conv1d(x, first), 24), second)

    graph = make_fx(call, tracing_mode="fake")(torch.randn(2, 20, 30), torch.randn(24, 20, 3), torch.randn(16, 24, 3)).graph
    convolve_rows(graph)
    channels_last.use_channels_last(graph)
    (norm,) = graph.find_nodes(op="call_function", target=torch.ops.aten.native_group_norm.default)
    is_last = norm.meta["val"][0].is_contiguous(memory_format=torch.channels_last)
    assert is_last is (channels_last.channels_last_work() == 0)


@pytest.mark.parametrize("strides", ["plain", "times last", "every second", "expanded"])
@pytest.mark.parametrize("bias", [True, False])
def test_results_have_the_strides_of_eager(image_layout, strides, bias):
    x = {"plain": torch.randn(3, 18, 16), "times last": torch.randn(3, 16, 18).transpose(1, 2),
         "every second": torch.randn(3, 18, 32)[..., ::2], "expanded": torch.randn(1, 18, 16).expand(3, 18, 16)}[strides]
    weight, more = torch.randn(20, 18, 3), torch.randn(20) if bias else None

    def call(x, weight, more):
        return F.conv1d(x, weight, more, 2, 1)

    found = []
    for function in (call, fxjit.compile(call, fullgraph=True, dynamic=False)):
        leaves = [each.detach().requires_grad_() for each in (x, weight, more) if each is not None]
        y = function(*leaves, *([] if bias else [None]))
        y.square().sum().backward()
        with torch.no_grad():
            found.append([y.detach(), function(x, weight, more), *(each.grad for each in leaves)])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
        assert mine.stride() == eager.stride()


@pytest.mark.parametrize("size", [(2, 1, 12, 12), (1, 1, 20, 9)], ids=str)
def test_images_of_one_channel(image_layout, size):
    torch.manual_seed(0)
    layers = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3), nn.Tanh(), nn.Conv2d(1, 18, 1))
    x = torch.randn(size)
    with torch.no_grad():
        found, eager = fxjit.compile(layers, dynamic=False)(x), layers(x)
    torch.testing.assert_close(found, eager, rtol=1e-4, atol=1e-4)
    assert found.stride() == eager.stride()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("step", [1, 2])
@pytest.mark.parametrize("dims", [1, 2])
@pytest.mark.filterwarnings("error")
def test_lengths_that_vary_stay_so_in_training(image_layout, dims: int, step: int):
    """With gradients as eager's, and without a warning of torch.fx's of numbers that are symbols."""
    torch.manual_seed(0)
    convolution, transposed = (nn.Conv1d, nn.ConvTranspose1d) if dims == 1 else (nn.Conv2d, nn.ConvTranspose2d)
    layers = convolution(16, 20, 3, step, 1), nn.ReLU(), transposed(20, 18, 4, 2, 1), nn.ReLU(), convolution(18, 16, 1)
    model = nn.Sequential(*layers)
    compiled = fxjit.compile(model, fullgraph=True)
    before = counters["frames"]["ok"]
    for length in (12, 20, 16, 28):
        grads = []
        for run in (model, compiled):
            x = torch.linspace(-1, 1, 2 * 16 * length**dims).view(2, 16, *[length] * dims).requires_grad_()
            out = run(x)
            grads.append((out, *torch.autograd.grad(out.square().sum(), [x, *model.parameters()])))
        torch.testing.assert_close(grads[1], grads[0], rtol=1e-3, atol=1e-3)
    assert counters["frames"]["ok"] - before <= 2
