"""Norms over each image by itself, and of weights (instance norm, weight standardisation): values, strides and derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import KERNELS, assert_same_as_eager
from torch import nn
from torch.nn import functional as F

import fxjit

INSTANCES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "1d": (lambda: nn.InstanceNorm1d(6), (3, 6, 17)),
    "2d": (lambda: nn.InstanceNorm2d(5), (2, 5, 7, 9)),
    "3d": (lambda: nn.InstanceNorm3d(4), (1, 4, 3, 5, 6)),
    "affine": (lambda: nn.InstanceNorm2d(5, affine=True), (2, 5, 8, 8)),
    "one image without a batch": (lambda: nn.InstanceNorm2d(5), (5, 6, 6)),
    "running statistics": (lambda: nn.InstanceNorm2d(5, affine=True, track_running_stats=True), (4, 5, 6, 6)),
    "double": (lambda: nn.InstanceNorm2d(5, affine=True).double(), (2, 5, 6, 7)),
}


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["plain", "channels last"])
@pytest.mark.parametrize("kind", INSTANCES)
def test_instance_norms_are_as_in_eager(kind: str, layout: torch.memory_format) -> None:
    make, sizes = INSTANCES[kind]
    if layout is torch.channels_last and len(sizes) != 4:
        pytest.skip("has no such layout")
    torch.manual_seed(0)
    module = make()
    for parameter in module.parameters():
        nn.init.uniform_(parameter, 0.5, 1.5)
    dtype = torch.float64 if kind == "double" else torch.float32
    x = (torch.randn(sizes, dtype=dtype) * 3 + 100).contiguous(memory_format=layout).requires_grad_()
    rtol = KERNELS | {torch.float32: (1e-4, 1e-4)}  # of values that are 30 times as far from zero as from each other
    assert_same_as_eager(lambda x, module: F.leaky_relu(module(x), 0.1), x, module, backend="native", rtol=rtol)


def standardized(weight: torch.Tensor, gain: torch.Tensor) -> torch.Tensor:
    """As in networks without batch norms (timm's `ScaledStdConv2d`)."""
    rows = weight.reshape(1, weight.shape[0], -1)
    return F.batch_norm(rows, None, None, weight=gain, training=True, momentum=0.0, eps=1e-6).reshape_as(weight)


@pytest.mark.parametrize("last", [False, True], ids=["plain", "channels last"])
def test_standardized_weights_are_as_in_eager(last: bool) -> None:
    torch.manual_seed(0)
    weight, gain, x = torch.randn(12, 8, 3, 3), torch.rand(12) + 0.5, torch.randn(2, 8, 10, 9)
    if last:
        weight = weight.contiguous(memory_format=torch.channels_last)
    weight, gain = weight.requires_grad_(), gain.requires_grad_()
    assert_same_as_eager(lambda x, w, g: F.conv2d(x, standardized(w, g)), x, weight, gain, backend="native", rtol=KERNELS)


def test_no_operator_of_atens_is_called() -> None:
    x, weight = torch.randn(2, 16, 24, 24), torch.randn(64, 8, 3, 3)
    compiled: Any = fxjit.compile(lambda x, w: (F.instance_norm(x).relu(), standardized(w, torch.ones(64)) * 2), fullgraph=True)
    compiled(x, weight)
    with torch.profiler.profile() as profile:
        compiled(x, weight)
    assert not [each.key for each in profile.key_averages() if "batch_norm" in each.key]


def test_one_number_alone_is_refused_as_in_eager() -> None:
    x = torch.ones(2, 3, 1)
    with pytest.raises(ValueError, match="more than 1 spatial element") as eager:
        F.instance_norm(x)
    with pytest.raises(ValueError, match="more than 1 spatial element") as ours:
        fxjit.compile(lambda x: F.instance_norm(x))(x)
    assert str(ours.value) == str(eager.value)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), 0.0], ids=str)
def test_numbers_that_are_not_finite_stay_in_their_image(special: float) -> None:
    x = torch.randn(2, 3, 6, 6)
    x[1, 2] = special
    assert_same_as_eager(lambda x: F.instance_norm(x), x, backend="native", rtol=KERNELS)
