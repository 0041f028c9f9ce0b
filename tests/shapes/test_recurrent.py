"""Recurrent layers over sequences of many lengths: two graphs, and eager's results."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

import fxjit
from fxjit.counters import counters

LAYERS = {"gru": nn.GRU, "lstm": nn.LSTM, "rnn": nn.RNN}


class Tagger(nn.Module):
    def __init__(self, layer: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self.layer = layer(4, 8, batch_first=True, dtype=dtype)
        self.head = nn.Linear(8, 3, dtype=dtype)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        states, _ = self.layer(x * 2 + 1)
        return self.head(states).relu()


@pytest.fixture(autouse=True)
def fresh() -> None:
    fxjit.reset()
    torch.manual_seed(0)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("grad", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_lengths_share_their_graphs(name: str, backend: str, grad: bool) -> None:
    model = Tagger(LAYERS[name], torch.float64)
    compiled = fxjit.compile(model, backend=backend)
    for length in (3, 5, 7, 4, 9, 6, 8, 11, 12, 2):
        x = torch.randn(2, length, 4, dtype=torch.float64)
        with torch.set_grad_enabled(grad):
            ours, eager = compiled(x), model(x)
        torch.testing.assert_close(ours, eager)
        if grad:
            mine, plain = (torch.autograd.grad(result.sum(), list(model.parameters())) for result in (ours, eager))
            torch.testing.assert_close(mine, plain)
    assert counters["frames"]["ok"] == 2 and not counters["graph_break"]  # one of the first length, one for all others


def test_batches_of_any_size_are_one_graph() -> None:
    model = Tagger(nn.GRU, torch.float32)
    compiled = fxjit.compile(model, backend="aot_eager")
    with torch.no_grad():
        for batch in (3, 5, 2, 7):
            x = torch.randn(batch, 4, 4)
            torch.testing.assert_close(compiled(x), model(x))
    assert counters["frames"]["ok"] == 2 and not counters["graph_break"]


@pytest.mark.parametrize("name", LAYERS)
def test_what_cudnn_runs_stands_between_graphs(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "is_acceptable", lambda tensor: True)
    model, x = Tagger(LAYERS[name], torch.float32), torch.randn(2, 5, 4)
    compiled = fxjit.compile(model, backend="aot_eager")
    for _ in range(2):
        torch.testing.assert_close(compiled(x), model(x))
    assert dict(counters["graph_break"]) == {"Recurrent layer that cuDNN runs": 1}
    assert counters["frames"]["ok"] == 2
