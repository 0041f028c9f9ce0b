"""Group norm in training: what it gives, and that its results are recomputed and not kept."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import fxjit

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
