"""Convolutions of volumes along their frames, or along the sequence of these, which are compiled as those of images."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn
from torch.fx.experimental.proxy_tensor import make_fx
from torch.nn import functional as F

import fxjit
from fxjit.backends.native.choose import channels_last
from fxjit.backends.native.passes.frames import convolve_frames

aten = torch.ops.aten


class Video(nn.Module):
    """Windows of both kinds, of one number and of all dimensions, steps, dilations, groups, norms, pools of frames and of
    volumes, a residual and joined channels."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Conv3d(3, 16, (1, 5, 3), (1, 2, 1), (0, 2, 1)), nn.BatchNorm3d(16)
        self.along, self.down = nn.Conv3d(16, 18, (3, 1, 1), padding=(1, 0, 0), bias=False), nn.Conv3d(18, 16, 1, 2)
        self.grouped = nn.Conv3d(18, 16, (1, 3, 3), (1, 2, 2), (0, 1, 1), groups=2)
        self.apart = nn.Conv3d(16, 16, (2, 1, 1), (2, 1, 1), dilation=(2, 1, 1))
        self.depthwise = nn.Conv3d(16, 16, (3, 1, 1), groups=16)
        self.whole = nn.Conv3d(34, 4, 2)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)))
        x = self.along(x)
        y = F.max_pool3d(self.grouped(x), 1, (2, 1, 1)) + self.down(x)
        y = torch.cat([F.max_pool3d(y, 3, 1, 1), F.max_pool3d(x, (1, 2, 2), (2, 2, 2), ceil_mode=True)], 1)
        z = self.whole(y)
        return z, self.apart(y[:, :16]), self.depthwise(F.max_pool3d(y[:, 3:19], (1, 3, 1))), F.avg_pool3d(y, 2)


@pytest.mark.parametrize("images", [1, 2])
def test_a_network_of_videos_is_as_in_eager(image_layout, images):
    torch.manual_seed(0)
    model, x = Video(), torch.randn(images, 3, 9, 16, 10)
    found = []
    for compiles in (False, True):
        module = copy.deepcopy(model)
        call = fxjit.compile(module, fullgraph=True, dynamic=False) if compiles else module
        leaf = x.clone().requires_grad_()
        results = call(leaf)
        sum((each * torch.linspace(-1, 1, each.numel()).view_as(each)).sum() for each in results).backward()
        module.eval()
        with torch.no_grad():
            results += call(x)
        found.append([*results, leaf.grad, *(each.grad for each in module.parameters()), *module.buffers()])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4)
        assert mine.stride() == eager.stride()


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize(
    ("window", "how"), [((1, 3, 3), {"padding": (0, 1, 1)}), ((3, 1, 1), {"stride": (2, 1, 1)}), ((1, 1, 1), {})]
)
def test_windows_along_frames_are_those_of_images(window, how, images, monkeypatch):
    monkeypatch.setattr(channels_last, "channels_last_work", lambda: 0)
    monkeypatch.setattr(channels_last, "work_of_copy", lambda: 0)

    def call(x, weight):
        y = F.conv3d(x, weight, **how)
        return y, torch.autograd.grad(y.square().sum(), [x, weight])

    x, weight = torch.randn(images, 16, 6, 8, 8, requires_grad=True), torch.randn(20, 16, *window, requires_grad=True)
    gm = make_fx(call, tracing_mode="fake")(x, weight)
    gm.graph.eliminate_dead_code()
    channels_last.use_channels_last(gm.graph)
    convolve_frames(gm.graph)
    gm.recompile()
    targets = aten.convolution.default, aten.convolution_backward.default
    calls = [node for node in gm.graph.nodes if node.target in targets]
    assert len(calls) == 2
    for node in calls:
        volume = node.args[0].meta["val"]
        assert volume.dim() == 4 and volume.is_contiguous(memory_format=torch.channels_last)
    (y, (dx, dw)), (eager_y, (eager_dx, eager_dw)) = gm(x, weight), call(x, weight)
    # A weight's gradient is a sum of some hundred numbers of some ten: both libraries err by 1e-4.
    torch.testing.assert_close([y, dx, dw], [eager_y, eager_dx, eager_dw], rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("window", [(3, 3, 3), (1, 3, 3), (3, 1, 1), (2, 1, 3)])
@pytest.mark.parametrize("how", [{}, {"stride": 2}, {"padding": 1}], ids=str)
def test_other_windows_stay_those_of_volumes(image_layout, window, how):
    x, weight = torch.randn(2, 16, 6, 7, 8), torch.randn(18, 16, *window)

    def call(x, weight):
        return F.conv3d(F.relu(F.conv3d(x, weight[:16])), weight, **how)

    with torch.no_grad():
        found, eager = fxjit.compile(call, fullgraph=True, dynamic=False)(x, weight), call(x, weight)
    torch.testing.assert_close(found, eager, rtol=1e-4, atol=1e-3)
    assert found.stride() == eager.stride()


@pytest.mark.sweep(2)
@pytest.mark.parametrize("numbers", ["equal", "not a number", "infinite"])
@pytest.mark.parametrize(
    "pool", [((2, 2, 2), 2), ((1, 2, 2), (1, 2, 2)), ((3, 3, 3), 1, 1), ((2, 1, 3), 1, (1, 0, 1), 1, True)], ids=str
)
def test_places_of_the_largest_numbers(image_layout, pool, numbers):
    torch.manual_seed(0)
    x, weight = torch.randn(2, 16, 5, 6, 7), torch.randn(16, 16, 1, 1, 1).round()
    if numbers == "equal":
        x = x.round().clamp(-1, 1)
    else:
        x[0, 3, 2, 2, 2] = float("nan") if numbers == "not a number" else float("inf")

    def call(x, weight):
        return F.max_pool3d(F.conv3d(x, weight), *pool, return_indices=True)

    found = []
    for function in (call, fxjit.compile(call, fullgraph=True, dynamic=False)):
        leaves = x.clone().requires_grad_(), weight.clone().requires_grad_()
        values, places = function(*leaves)
        values.nan_to_num(0, 0, 0).square().sum().backward()
        with torch.no_grad():
            found.append([values.detach(), places, *function(x, weight), *(each.grad for each in leaves)])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-4, atol=1e-4, equal_nan=True)
        assert mine.stride() == eager.stride()
