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


def _images(channels: int, step: int) -> Callable[[int, int], torch.Tensor]:
    return lambda batch, size: torch.randn(batch, channels, step * size, step * size)


def vit() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor]]:
    from transformers import ViTConfig, ViTModel

    model = ViTModel(ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64,
                               image_size=120, patch_size=8))
    forward = model.forward
    model.forward = lambda pixels: forward(pixels, interpolate_pos_encoding=True)  # type: ignore[method-assign]
    return model.eval(), _images(3, 8)


def convnext() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor]]:
    from transformers import ConvNextConfig, ConvNextModel

    model = ConvNextModel(ConvNextConfig(hidden_sizes=[8, 16], depths=[1, 1], num_stages=2))
    return model.eval(), _images(3, 8)


class _Seq2Seq(torch.nn.Module):
    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: torch.Tensor) -> Any:
        return self.model(input_ids=ids, decoder_input_ids=ids, use_cache=False)


def t5() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor]]:
    from transformers import T5Config, T5Model

    model = T5Model(T5Config(vocab_size=100, d_model=32, d_kv=16, d_ff=64, num_layers=2, num_heads=2, use_cache=False))
    return _Seq2Seq(model).eval(), _ids


class _Denoiser(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        diffusers = pytest.importorskip("diffusers")
        self.model = diffusers.UNet2DModel(
            sample_size=16, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(8, 16), norm_num_groups=4,
            down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"))

    def forward(self, x: torch.Tensor) -> Any:
        return self.model(x, 3)


def unet() -> tuple[torch.nn.Module, Callable[[int, int], torch.Tensor]]:
    return _Denoiser().eval(), _images(3, 4)


@pytest.fixture(autouse=True)
def fresh() -> None:
    fxjit.reset()
    torch.manual_seed(0)


#: What is guarded is the same for all backends but for what lowering adds: `eager` takes two of the models.
SWEEPS = [(backend, make) for backend in ("native", "eager") for make in (bert, llama, resnet, vit, convnext, t5, unet)
          if backend == "native" or make in (bert, convnext)]  # fmt: skip


@pytest.mark.sweep(5)
@pytest.mark.parametrize(("backend", "make"), SWEEPS, ids=lambda each: getattr(each, "__name__", each))
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
