"""One cache for all ranks: each compiles the same graphs at the same time, and what is in the cache afterwards serves all."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.nn.functional as F
from torch import distributed, nn

import fxjit

pytestmark = pytest.mark.filterwarnings("ignore")


def train(model: nn.Module) -> list[torch.Tensor]:
    x = torch.linspace(-1, 1, 64 * 256).view(64, 256)
    result = model(x)
    result.square().mean().backward()
    return [result.detach(), *(each.grad for each in model.parameters() if each.grad is not None)]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.norm = nn.Linear(256, 256), nn.LayerNorm(256)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(F.gelu(self.first(x)) * x.sigmoid() + x).tanh()


def compile_at_once(cache: str) -> tuple[dict[str, int], dict[str, int]]:
    """What the cache did for a rank that compiled together with the other, and then for the same graphs again."""
    torch.manual_seed(0)
    expected, seen = train(Net()), []
    with fxjit.config.patch(cache_dir=cache, cache_graphs=True):
        for _ in range(2):
            fxjit.reset()
            fxjit.counters.clear()
            torch.manual_seed(0)
            model = fxjit.compile(Net())
            distributed.barrier()
            torch.testing.assert_close(train(model), expected)
            distributed.barrier()
            seen.append(dict(fxjit.counters["cache"]))
    return seen[0], seen[1]


def test_ranks_compile_the_same_graph_at_the_same_time(ranks, tmp_path):
    first, second = zip(*ranks(compile_at_once, str(tmp_path / "cache")), strict=True)
    assert any(each.get("graph miss") for each in first), first
    assert all(each.get("graph hit") == 1 and not each.get("graph miss") for each in second), second
    kept = [path.name for path in Path(tmp_path / "cache").rglob("*") if path.is_file()]
    assert kept and not [name for name in kept if name.startswith("fxjit-tmp-")], kept
