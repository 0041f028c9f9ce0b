"""`python -m benchmarks.recurrent`: recurrent layers, as `benchmarks.first` measures: seconds of the first call, steady ratios.

torch.compile leaves nn.LSTM, nn.GRU and nn.RNN to eager, so that its column says what that costs.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from benchmarks.first import Case
from benchmarks.first import main as measure_cases


class Tagger(nn.Module):
    """What is in front of the layer, the layer, and what is made of its outputs."""

    def __init__(self, front: nn.Module, layer: Any, width: int) -> None:
        super().__init__()
        self.front, self.layer, self.head = front, layer, nn.Linear(width, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out, _ = self.layer(self.front(x))
        return torch.relu(self.head(out))


def cases() -> dict[str, Case]:
    """name -> (module, arguments, training)."""
    torch.manual_seed(0)
    words = torch.randint(0, 1000, (16, 100))
    models = {
        "GRU of 128, 8 x 200": (Tagger(nn.ReLU(), nn.GRU(64, 128, batch_first=True), 128), torch.randn(8, 200, 64)),
        "LSTM, 2 layers of 256, 8 x 64": (Tagger(nn.ReLU(), nn.LSTM(256, 256, 2, batch_first=True), 256),
                                          torch.randn(8, 64, 256)),
        "Embedding, LSTM of 128, 16 x 100": (Tagger(nn.Embedding(1000, 128), nn.LSTM(128, 128, batch_first=True), 128), words),
        "Linear, LSTM of 512, 8 x 50": (Tagger(nn.Linear(80, 512), nn.LSTM(512, 512, batch_first=True), 512),
                                        torch.randn(8, 50, 80)),
        "RNN of 128, both ways, 8 x 100": (Tagger(nn.ReLU(), nn.RNN(64, 128, bidirectional=True, batch_first=True), 256),
                                           torch.randn(8, 100, 64)),
    }
    return {f"{name}, {'training' if training else 'inference'}": (model, (x,), training)
            for name, (model, x) in models.items() for training in (False, True)}


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    measure_cases(argv, cases)


if __name__ == "__main__":
    main()
