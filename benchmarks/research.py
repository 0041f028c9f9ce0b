"""`python -m benchmarks.research`: steps of research code with a shape of their own, as `benchmarks.first` measures.

Solvers that fill a tensor column by column, gradients of each sample, recurrent layers between projections, networks of few
channels and many calls: each lost to eager once.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from benchmarks.first import Case
from benchmarks.first import main as measure_cases


def mixed(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor, d: torch.Tensor) -> torch.Tensor:
    """A step of implicit vertical mixing, as models of the ocean take it: a tridiagonal system in each column of water, by
    Thomas's algorithm, with diagonals `a`, `b`, `c` and right sides `d` (columns, rows, levels)."""
    b, d, levels = b + 4.0, d.clone(), a.shape[-1]
    for i in range(1, levels):
        factor = a[..., i] / b[..., i - 1]
        b[..., i] -= factor * c[..., i - 1]
        d[..., i] -= factor * d[..., i - 1]
    out = torch.empty_like(a)
    out[..., -1] = d[..., -1] / b[..., -1]
    for i in range(levels - 2, -1, -1):
        out[..., i] = (d[..., i] - c[..., i] * out[..., i + 1]) / b[..., i]
    return out


class ClippedGradients:
    """Gradients of each sample, clipped to a norm and added up: a step of private training (Abadi et al. 2016)."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.parameters = {name: each.detach() for name, each in model.named_parameters()}

    def loss(self, parameters: dict[str, torch.Tensor], image: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(functional_call(self.model, parameters, (image[None],)), target[None])

    def __call__(self, images: torch.Tensor, targets: torch.Tensor) -> list[torch.Tensor]:
        each = vmap(grad(self.loss), (None, 0, 0))(self.parameters, images, targets).values()
        norms = torch.stack([one.flatten(1).norm(dim=1) for one in each]).norm(dim=0)
        return [torch.einsum("i,i...", (1 / norms).clamp(max=1.0), one) for one in each]


class SpeakerEncoder(nn.Module):
    """Three LSTMs of 768 units, each projected to 256 by a layer behind it, and the last step's direction (as in TTS's)."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(size, 768, batch_first=True) for size in (40, 256, 256))
        self.projections = nn.ModuleList(nn.Linear(768, 256, bias=False) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer, projection in zip(self.layers, self.projections, strict=True):
            x = projection(layer(x)[0])
        return F.normalize(x[:, -1], dim=1)


class Pyramid(nn.Module):
    """torchvision's feature pyramid over four levels, flattened."""

    def __init__(self) -> None:
        super().__init__()
        self.pyramid = importlib.import_module("torchvision.ops").FeaturePyramidNetwork([64, 128, 256, 512], 128)

    def forward(self, *levels: torch.Tensor) -> torch.Tensor:
        found = self.pyramid({str(number): level for number, level in enumerate(levels)})
        return torch.cat([level.flatten(1) for level in found.values()], 1)


class Sum(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y


def similarity(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """The structural similarity of images (Wang et al. 2004), with a window of 11 x 11 as torchmetrics has it."""
    line = torch.exp(-(torch.arange(11.0) - 5) ** 2 / 4.5)
    line = line / line.sum()
    window = (line[:, None] * line).expand(a.shape[1], 1, 11, 11)
    stacked = F.conv2d(torch.cat([a, b, a * a, b * b, a * b]), window, groups=a.shape[1])
    mean_a, mean_b, square_a, square_b, product = stacked.chunk(5)
    top = (2 * mean_a * mean_b + 1e-4) * (2 * (product - mean_a * mean_b) + 9e-4)
    bottom = (mean_a ** 2 + mean_b ** 2 + 1e-4) * (square_a - mean_a ** 2 + square_b - mean_b ** 2 + 9e-4)
    return (top / bottom).mean((1, 2, 3))


def flow(first: torch.Tensor, second: torch.Tensor, network: nn.Module) -> torch.Tensor:
    return network(first, second, num_flow_updates=4)[-1]


def of_torchvision() -> dict[str, Case]:
    levels = tuple(torch.randn(2, channels, side, side) for channels, side in ((64, 64), (128, 32), (256, 16), (512, 8)))
    models = importlib.import_module("torchvision.models")
    network = models.optical_flow.raft_small(weights=None).eval()
    images = tuple(torch.rand(2, 3, 128, 128) * 2 - 1 for _ in range(2))
    private = models.resnet18(weights=None, norm_layer=lambda channels: nn.GroupNorm(min(channels, 32), channels))
    return {
        "gradients per sample, ResNet-18 of group norms, 16 x 32²": (
            ClippedGradients(private), (torch.randn(16, 3, 32, 32), torch.randint(0, 10, (16,))), False),
        "RAFT-small, 2 x 128², 4 updates, inference": (flow, (*images, network), False),
        "feature pyramid, 2 x 64², inference": (Pyramid(), levels, False),
        "feature pyramid, 2 x 64², training": (Pyramid(), levels, True),
    }


def cases() -> dict[str, Case]:
    """name -> (function or module, arguments, training)."""
    torch.manual_seed(0)
    system = tuple(torch.rand(200, 200, 26, dtype=torch.float64) for _ in range(4))
    speech: tuple[Any, ...] = (torch.randn(64, 50, 40),)
    found: dict[str, Case] = {
        "tridiagonal systems, 200 x 200 x 26, float64": (mixed, system, False),
        "speaker encoder, 64 x 50, inference": (SpeakerEncoder(), speech, False),
        "speaker encoder, 64 x 50, training": (SpeakerEncoder(), speech, True),
        "similarity of images, 2 x 3 x 64²": (similarity, (torch.rand(2, 3, 64, 64), torch.rand(2, 3, 64, 64)), False),
        "x + y, 8 floats, a module": (Sum(), (torch.randn(8), torch.randn(8)), False),
    }
    try:
        return found | of_torchvision()
    except ImportError:
        return found


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    measure_cases(argv, cases)


if __name__ == "__main__":
    main()
