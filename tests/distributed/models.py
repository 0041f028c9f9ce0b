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


def carry_over(trained: nn.Module, other: nn.Module, folder: str) -> list[str]:
    """Gives `other` the parameters of `trained` by a checkpoint of torch.distributed in `folder`; their names."""
    from torch.distributed import checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import get_model_state_dict, set_model_state_dict

    dcp.save({"model": get_model_state_dict(trained)}, checkpoint_id=folder)
    found = {"model": get_model_state_dict(other)}
    names = sorted(found["model"])  # loading takes them out
    dcp.load(found, checkpoint_id=folder)
    set_model_state_dict(other, found["model"])
    return names


def state_of(model: nn.Module) -> dict[str, torch.Tensor]:
    from torch.distributed.checkpoint.state_dict import StateDictOptions, get_model_state_dict

    return get_model_state_dict(model, options=StateDictOptions(full_state_dict=True))
