"""Group norm: what it gives, that its results are recomputed in training and not kept, and images in either layout."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxjit
from fxjit import config
from fxjit.backends.native import pipeline

CASES = [
    (2, 12, (5, 6), 3, True), (3, 8, (7,), 8, True), (1, 6, (4, 3, 2), 1, False), (2, 4, (), 2, True), (0, 4, (3, 3), 2, True),
]  # fmt: skip


@pytest.mark.parametrize(("images", "channels", "sizes", "groups", "affine"), CASES, ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_it_trains_as_eager_does(images, channels, sizes, groups, affine, dtype):
    torch.manual_seed(0)
    fxjit.reset()
    layer = nn.GroupNorm(groups, channels, affine=affine, dtype=dtype)
    if affine:
        nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
    found = []
    for call in (lambda x: F.silu(layer(x)), fxjit.compile(lambda x: F.silu(layer(x)), fullgraph=True, dynamic=False)):
        layer.zero_grad()
        x = torch.linspace(-2, 3, images * channels * max(1, torch.Size(sizes).numel())).view(images, channels, *sizes)
        x = x.to(dtype).requires_grad_()
        y = call(x)
        y.square().sum().backward()
        found.append([y.detach(), x.grad, *(each.grad.clone() for each in layer.parameters())])
    tolerance = {torch.float32: 1e-4, torch.float64: 1e-10, torch.bfloat16: 2e-1}[dtype]
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=tolerance, atol=tolerance)
        assert mine.stride() == eager.stride()


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=str)
def test_its_results_are_not_kept(layout):
    layer, kept = nn.GroupNorm(4, 16), []
    x = torch.randn(2, 16, 20, 20).to(memory_format=layout).requires_grad_()
    call = fxjit.compile(lambda x: F.silu(layer(x)), fullgraph=True, dynamic=False)
    call(x)
    with torch.autograd.graph.saved_tensors_hooks(lambda each: kept.append(each) or each, lambda each: each):
        y = call(x)
    whole = {each.data_ptr() for each in kept if each.numel() == x.numel()}
    assert len(whole) == 1  # x
    y.sum().backward()
    assert x.grad.stride() == x.stride()


def channels_last(x):
    """The same with the channels of a pixel side by side."""
    order = [0, *range(2, x.dim()), 1]
    return x.permute(order).contiguous().permute([0, x.dim() - 1, *range(1, x.dim() - 1)])


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("affine", [True, False])
@pytest.mark.parametrize(("images", "channels", "sizes", "groups"), [
    (2, 12, (5, 6), 3), (1, 64, (9, 7), 8), (3, 8, (7,), 8), (1, 6, (4, 3, 2), 1), (2, 40, (33, 1), 4), (0, 8, (3, 3), 2),
    (2, 160, (16, 16), 16),
], ids=str)  # fmt: skip
def test_images_whose_channels_lie_side_by_side(images, channels, sizes, groups, affine, dtype):
    torch.manual_seed(0)
    fxjit.reset()
    x = channels_last((torch.randn(images, channels, *sizes) * 2 + 3).to(dtype))
    weight, bias = (torch.randn(channels).to(dtype) if affine else None for _ in range(2))
    tolerance = {torch.float32: 2e-5, torch.float64: 1e-11, torch.bfloat16: 5e-2, torch.float16: 1e-2}[dtype]

    def forward(x, weight, bias):
        y = F.group_norm(x, groups, weight, bias)
        return y, F.silu(y) + x

    compiled = fxjit.compile(forward, fullgraph=True, dynamic=False)
    with torch.no_grad():
        for mine, eager in zip(compiled(x, weight, bias), forward(x, weight, bias), strict=True):
            torch.testing.assert_close(mine, eager, rtol=tolerance, atol=tolerance)
            assert mine.stride() == eager.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize(
    ("channels", "groups", "size"), [(12, 3, 6), (64, 8, 5), (128, 32, 9), (8, 1, 3), (96, 96, 4)], ids=str
)
def test_their_derivatives(channels, groups, size, dtype):
    torch.manual_seed(0)
    fxjit.reset()
    layer = nn.GroupNorm(groups, channels).to(dtype)
    nn.init.normal_(layer.weight), nn.init.normal_(layer.bias)
    x = channels_last(torch.randn(2, channels, size, size).to(dtype))

    def gradients(call, dtype):
        given = x.detach().to(dtype).requires_grad_()
        y = F.silu(call(given * 1.5)) + given
        weights = torch.linspace(-1, 1, y.numel()).view_as(y).to(dtype)
        return torch.autograd.grad((y * weights).sum(), [given, *layer.parameters()])

    found = gradients(fxjit.compile(layer, fullgraph=True, dynamic=False), dtype)
    for eager, mine in zip(gradients(layer, dtype), found, strict=True):
        tolerance = 1e-4 if dtype is torch.float32 else 5e-2
        torch.testing.assert_close(mine, eager, rtol=tolerance, atol=tolerance * eager.abs().max().item())
        assert mine.stride() == eager.stride()


def test_numbers_that_are_none_stay_in_their_group():
    x = channels_last(torch.randn(2, 16, 5, 5))
    x[0, 3, 2, 2], x[1, 9, 0, 0], x[1, 15, 4, 4] = float("nan"), float("inf"), float("-inf")

    def f(x):
        return F.group_norm(x, 4)

    with torch.no_grad():
        mine, eager = fxjit.compile(f, fullgraph=True)(x), f(x)
    torch.testing.assert_close(mine.isnan(), eager.isnan())
    torch.testing.assert_close(mine[~eager.isnan()], eager[~eager.isnan()], rtol=1e-5, atol=1e-5)


def test_columns_of_channels_stay_side_by_side(monkeypatch):
    """What is of a group joins no loop over channels that would leave these a group's own, four of 128 at once."""
    steps = []
    fuse = pipeline.fuse
    monkeypatch.setattr(pipeline, "fuse", lambda *args: steps.extend(made := fuse(*args)) or made)
    layer = nn.GroupNorm(32, 128)
    x = channels_last(torch.randn(2, 128, 12, 12)).requires_grad_()
    with config.patch(small_graphs_as_captured=False):
        F.silu(fxjit.compile(layer, fullgraph=True, dynamic=False)(x * 2)).sum().backward()
    over_pixels = [step.outer[-1] for step in steps if getattr(step, "column_reduction", False)
                   and any(member.inner == (12, 12) for member in step.members)]
    assert over_pixels == [128, 128]
