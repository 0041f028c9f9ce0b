"""A small language model of residual blocks, which tests of several processes shard."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(8), nn.Linear(8, 16), nn.Linear(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self, layers: int = 3, checkpoints: bool = False) -> None:
        super().__init__()
        self.words, self.head = nn.Embedding(16, 8), nn.Linear(8, 16)
        self.layers = nn.ModuleList(Block() for _ in range(layers))
        self.checkpoints = checkpoints

    def forward(self, index: torch.Tensor) -> torch.Tensor:
        x = self.words(index)
        for layer in self.layers:
            x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        return self.head(x)
