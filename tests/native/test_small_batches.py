"""Training on very small batches: a normalisation over two images has gradients that are differences of almost equal numbers,
which magnifies what was rounded before. Layer by layer, ours are as near to a float64 run as eager's are."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

import fxjit
from fxjit import config

#: Errors are compared as their geometric mean over the seeds; what another order of additions may cost beside eager's.
SEEDS, RATIO = 8, 1.4


class Excited(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.down, self.up = nn.Conv2d(channels, 8, 1), nn.Conv2d(8, channels, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.up(self.down(x.mean((2, 3), keepdim=True)).relu()).sigmoid()


def normalised(channels: int, results: int, size: int, groups: int = 1) -> nn.Sequential:
    """Smooth, so that no rounding decides on which side of a kink a number is."""
    convolution = nn.Conv2d(channels, results, size, padding=size // 2, groups=groups, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(results), nn.SiLU())


LAYERS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "batch_norm of one pixel": (lambda: nn.BatchNorm2d(32), (2, 32, 1, 1)),
    "batch_norm of four pixels": (lambda: nn.BatchNorm2d(32), (2, 32, 2, 2)),
    "batch_norm": (lambda: nn.BatchNorm2d(16), (2, 16, 32, 32)),
    "depthwise": (lambda: nn.Conv2d(16, 16, 3, padding=1, groups=16, bias=False), (2, 16, 16, 16)),
    "grouped": (lambda: nn.Conv2d(32, 32, 3, padding=1, groups=4), (2, 32, 8, 8)),
    "squeeze and excitation": (lambda: Excited(16), (2, 16, 8, 8)),
    "inverted residual": (
        lambda: nn.Sequential(normalised(16, 64, 1), normalised(64, 64, 3, 64), normalised(64, 16, 1)), (2, 16, 8, 8)),
    "branch of an inception": (lambda: nn.Sequential(nn.AvgPool2d(3, 1, 1), normalised(32, 16, 1)), (2, 32, 8, 8)),
    "head": (lambda: nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)), (2, 32, 8, 8)),
}  # fmt: skip


def training_step(module: nn.Module, call: Callable[..., torch.Tensor], x: torch.Tensor, y: torch.Tensor) -> list[torch.Tensor]:
    x = x.clone().requires_grad_()
    module.zero_grad()
    result = call(x)
    (result * y).sum().backward()
    statistics = [each for each in module.buffers() if each.is_floating_point()]
    return [each.detach().double().clone() for each in (result, x.grad, *(p.grad for p in module.parameters()), *statistics)]


def distances(results: list[torch.Tensor], exact: list[torch.Tensor]) -> torch.Tensor:
    return torch.stack([(mine - true).norm() / true.norm() for mine, true in zip(results, exact, strict=True)])


@pytest.mark.parametrize("name", LAYERS)
def test_gradients_are_as_near_to_the_truth_as_eagers(name: str) -> None:
    make, shape = LAYERS[name]
    torch.manual_seed(0)
    module = make()
    other, double = copy.deepcopy(module), copy.deepcopy(module).double()
    ours, eagers = [], []
    with config.patch(small_graphs_as_captured=False):
        compiled = fxjit.compile(other)
        for seed in range(SEEDS):
            torch.manual_seed(seed)
            x = torch.randn(shape)
            y = torch.randn_like(copy.deepcopy(module)(x))
            exact = training_step(double, double, x.double(), y.double())
            eagers.append(distances(training_step(module, module, x, y), exact))
            ours.append(distances(training_step(other, compiled, x, y), exact))
    mine, theirs = (torch.stack(each).clamp_min(1e-9).log().mean(0).exp() for each in (ours, eagers))
    assert bool((mine < theirs * RATIO + 2e-8).all()), (mine, theirs)
