"""The losses of small models trained on several processes, compiled, beside those of eager: `python -m benchmarks.distributed
--losses`.

A model like GPT-2 and one like a ResNet, under DistributedDataParallel, FSDP2 and tensor parallel, on data that differs from
rank to rank (but for tensor parallel, whose ranks see the same).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

import fxjit

Batch = tuple[torch.Tensor, torch.Tensor]
WORDS, LENGTH, CLASSES = 32, 8, 8


class Layer(nn.Module):
    """A layer of GPT-2: attention over 4 heads, and two linear layers. The heads may be on several ranks."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.query, self.key, self.value, self.project = (nn.Linear(width, width) for _ in range(4))
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.head_size = width // 4

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, _ = x.shape
        seen = self.first(x)
        q, k, v = (each(seen).view(batch, length, -1, self.head_size).transpose(1, 2)
                   for each in (self.query, self.key, self.value))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(batch, length, -1)
        x = x + self.project(mixed)
        return x + self.down(F.gelu(self.up(self.second(x))))


class Language(nn.Module):
    """Like GPT-2."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(WORDS, width), nn.Parameter(torch.zeros(LENGTH, width))
        self.layers = nn.ModuleList(Layer(width) for _ in range(depth))
        self.head = nn.Linear(width, WORDS)

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.words(index) + self.places
        for layer in self.layers:
            x = layer(x)
        return self.head(x).flatten(0, 1)


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(channels, channels, 3, padding=1, bias=False) for _ in range(2))
        self.norm, self.last = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.last(self.second(self.norm(self.first(x)).relu()))).relu()


class Images(nn.Module):
    """Like a ResNet, with two linear layers behind it."""

    def __init__(self, width: int, depth: int) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, width, 3, padding=1)
        self.layers = nn.ModuleList(Residual(width) for _ in range(depth))
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.stem(x)
        for layer in self.layers:
            x = layer(x)
        return self.down(self.up(x.mean((2, 3))).relu())


def _sentences(generator: torch.Generator) -> Batch:
    index = torch.randint(0, WORDS, (2, LENGTH), generator=generator)
    return index, index.flatten()


def _pictures(generator: torch.Generator) -> Batch:
    return torch.randn(4, 3, 8, 8, generator=generator), torch.randint(0, CLASSES, (4,), generator=generator)


MODELS: dict[str, tuple[Callable[[int, int], nn.Module], Callable[[torch.Generator], Batch]]] = {
    "GPT-2": (Language, _sentences), "ResNet": (Images, _pictures),
}


def _data_parallel(model: Any, mesh: Any, compiles: Any) -> Any:
    return compiles(DistributedDataParallel(model))


def _sharded(model: Any, mesh: Any, compiles: Any) -> Any:
    from torch.distributed.fsdp import fully_shard

    for place, layer in enumerate(model.layers):
        model.layers[place] = compiles(fully_shard(layer, mesh=mesh))
    return fully_shard(model, mesh=mesh)


def _tensor_parallel(model: Any, mesh: Any, compiles: Any) -> Any:
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    by_name = {"query": ColwiseParallel, "key": ColwiseParallel, "value": ColwiseParallel, "up": ColwiseParallel,
               "project": RowwiseParallel, "down": RowwiseParallel}
    plan = {name: by_name[last]() for name, _ in model.named_modules() if (last := name.rpartition(".")[2]) in by_name}
    return compiles(parallelize_module(model, mesh, plan))


STRATEGIES: dict[str, Callable[[Any, Any, Any], Any]] = {
    "DDP": _data_parallel, "FSDP2": _sharded, "tensor parallel": _tensor_parallel,
}


def losses(name: str, strategy: str, compiles: Callable[[Any], Any], steps: int, width: int, depth: int) -> list[float]:
    """The losses of this rank's batches, one a step of AdamW."""
    torch.manual_seed(0)
    build, batch = MODELS[name]
    mesh = distributed.device_mesh.init_device_mesh("cpu", (distributed.get_world_size(),))
    model = STRATEGIES[strategy](build(width, depth), mesh, compiles)
    optimizer, found = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False), []
    for step in range(steps):
        rank = 0 if strategy == "tensor parallel" else distributed.get_rank()
        x, target = batch(torch.Generator().manual_seed(1000 * step + rank))
        loss = F.cross_entropy(model(x), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    return found


def compare(name: str, strategy: str, steps: int = 20, width: int = 32, depth: int = 4) -> tuple[float, float, float]:
    """The first and the last loss of the eager run, and the largest difference of the compiled one, relative to eager's. Graphs
    that are too small to profit are compiled too: as captured, they would be eager compared with itself."""
    expected = losses(name, strategy, lambda model: model, steps, width, depth)
    with fxjit.config.patch(small_graphs_as_captured=False):
        found = losses(name, strategy, fxjit.compile, steps, width, depth)
    return expected[0], expected[-1], max(abs(a - b) / abs(a) for a, b in zip(expected, found, strict=True))


def rows() -> list[tuple[str, ...]]:
    """The table's rows, on each rank."""
    table = []
    for name in MODELS:
        for strategy in STRATEGIES:
            first, last, difference = compare(name, strategy)
            table.append((name, strategy, f"{first:.4f}", f"{last:.4f}", f"{difference:.1e}"))
    return table


HEADER = ("model", "under", "first loss, eager", "loss after 20 steps", "largest relative difference, fxjit")
