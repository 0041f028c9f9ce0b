"""Real models over many batch sizes and sequence lengths: at most two compiles each, and eager's results at every size."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit
from fxjit.counters import counters

pytest.importorskip("transformers")

Make = Callable[[], tuple[torch.nn.Module, Callable[[int, int], torch.Tensor]]]


def _ids(batch: int, length: int) -> torch.Tensor:
    return torch.randint(0, 100, (batch, length))


def bert() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor]]:
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                 intermediate_size=64))
    return model.eval(), _ids


def llama() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor]]:
    from transformers import LlamaConfig, LlamaModel

    model = LlamaModel(LlamaConfig(vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2,
                                   intermediate_size=64, use_cache=False))
    return model.eval(), _ids


def resnet() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor]]:
    from transformers import ResNetConfig, ResNetModel

    model = ResNetModel(ResNetConfig(embedding_size=8, hidden_sizes=[8, 16], depths=[1, 1], layer_type="basic"))
    return model.eval(), lambda batch, size: torch.randn(batch, 3, 8 * size, 8 * size)


@pytest.fixture(autouse=True)
def fresh() -> None:
    fxjit.reset()
    torch.manual_seed(0)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("make", [bert, llama, resnet], ids=lambda make: make.__name__)
@pytest.mark.parametrize("axis", ["batch", "length"])
def test_a_sweep_compiles_at_most_twice(backend: str, make: Make, axis: str) -> None:
    model, sample = make()
    compiled: Any = fxjit.compile(model, backend=backend)
    with torch.no_grad():
        for size in (3, 5, 2, 7, 4, 9, 6):
            given = sample(size, 4) if axis == "batch" else sample(2, size)
            for ours, eager in zip(compiled(given).to_tuple(), model(given).to_tuple(), strict=True):
                torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-4)
    assert counters["frames"]["ok"] <= 2
    assert not counters["graph_break"]


@pytest.mark.parametrize("make", [bert, llama], ids=lambda make: make.__name__)
def test_both_sizes_vary_at_once(make: Make) -> None:
    model, sample = make()
    compiled: Any = fxjit.compile(model, backend="native", dynamic=True)
    with torch.no_grad():
        for batch, length in ((3, 4), (5, 7), (2, 9), (8, 3)):
            given = sample(batch, length)
            torch.testing.assert_close(compiled(given)[0], model(given)[0], atol=1e-5, rtol=1e-4)
    assert counters["frames"]["ok"] == 1


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["contiguous", "channels last"])
def test_convolutions_of_batches_around_sixteen_share_a_graph(layout: torch.memory_format) -> None:
    """A kernel that torch picks by batch size is no reason for a guard on it."""
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3, bias=False), torch.nn.ReLU(), torch.nn.Conv2d(4, 4, 1))
    compiled: Any = fxjit.compile(model, backend="aot_eager", dynamic=True)
    for train in (True, False):
        for batch in (5, 15, 16, 20):
            x = torch.randn(batch, 3, 8, 8).to(memory_format=layout)
            with torch.set_grad_enabled(train):
                ours, eager = compiled(x), model(x)
            torch.testing.assert_close(ours, eager, atol=1e-5, rtol=1e-4)
            assert ours.stride() == eager.stride()
    assert counters["frames"]["ok"] == 2
