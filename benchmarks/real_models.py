"""Models of the sizes that people run, with random weights: what `python -m benchmarks.real` measures.

`MODELS` maps a name to a builder of (module, its arguments). Networks of other packages than transformers are written out here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

Arguments = tuple[Any, ...]
Builder = Callable[[], tuple[nn.Module, Arguments]]


# -- transformers ---------------------------------------------------------------------------------------------------


class Part(nn.Module):
    """One field of what a model of transformers returns."""

    def __init__(self, model: Any, field: str = "logits", **options: Any) -> None:
        super().__init__()
        self.model, self.field, self.options = model, field, options

    def forward(self, *arguments: Any) -> Any:
        return getattr(self.model(*arguments, **self.options), self.field)


def _ids(batch: int, length: int, vocabulary: int) -> torch.Tensor:
    return torch.randint(3, vocabulary, (batch, length))


def bert() -> tuple[nn.Module, Arguments]:
    from transformers import BertConfig, BertModel

    return Part(BertModel(BertConfig()), "last_hidden_state"), (_ids(4, 128, 30522),)


def gpt2() -> tuple[nn.Module, Arguments]:
    from transformers import GPT2Config, GPT2LMHeadModel

    return Part(GPT2LMHeadModel(GPT2Config()), use_cache=False), (_ids(2, 256, 50257),)


def llama() -> tuple[nn.Module, Arguments]:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(vocab_size=16000, hidden_size=768, intermediate_size=2048, num_hidden_layers=8, num_attention_heads=12,
                         num_key_value_heads=4)
    return Part(LlamaForCausalLM(config), use_cache=False), (_ids(1, 256, 16000),)


def t5() -> tuple[nn.Module, Arguments]:
    from transformers import T5Config, T5EncoderModel

    config = T5Config(d_model=512, d_ff=2048, num_layers=6, num_heads=8)
    return Part(T5EncoderModel(config), "last_hidden_state"), (_ids(2, 256, 32000),)


def whisper() -> tuple[nn.Module, Arguments]:
    from transformers import WhisperConfig
    from transformers.models.whisper.modeling_whisper import WhisperEncoder

    config = WhisperConfig(d_model=768, encoder_layers=4, encoder_attention_heads=12, encoder_ffn_dim=3072,
                           max_source_positions=500)
    return Part(WhisperEncoder(config), "last_hidden_state"), (torch.randn(1, 80, 1000),)


def mixtral() -> tuple[nn.Module, Arguments]:
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(vocab_size=8000, hidden_size=512, intermediate_size=1024, num_hidden_layers=4, num_attention_heads=8,
                           num_key_value_heads=4, num_local_experts=4)
    return Part(MixtralForCausalLM(config), use_cache=False), (_ids(1, 128, 8000),)


def swin() -> tuple[nn.Module, Arguments]:
    from transformers import SwinConfig, SwinModel

    return Part(SwinModel(SwinConfig()), "last_hidden_state"), (torch.randn(1, 3, 224, 224),)


# -- written out ----------------------------------------------------------------------------------------------------


def mlp() -> tuple[nn.Module, Arguments]:
    layers = [nn.Linear(1024, 4096), nn.GELU(), nn.LayerNorm(4096), nn.Linear(4096, 4096), nn.GELU(), nn.LayerNorm(4096),
              nn.Linear(4096, 1000)]
    return nn.Sequential(*layers), (torch.randn(128, 1024),)


class Bottleneck(nn.Module):
    """ResNet's block of three convolutions."""

    def __init__(self, entering: int, width: int, stride: int) -> None:
        super().__init__()
        leaving = 4 * width
        self.body = nn.Sequential(
            nn.Conv2d(entering, width, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True),
            nn.Conv2d(width, leaving, 1, bias=False), nn.BatchNorm2d(leaving),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or entering != leaving:
            self.shortcut = nn.Sequential(nn.Conv2d(entering, leaving, 1, stride, bias=False), nn.BatchNorm2d(leaving))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.relu(self.body(x) + self.shortcut(x))


def resnet50() -> tuple[nn.Module, Arguments]:
    layers: list[nn.Module] = [nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True),
                               nn.MaxPool2d(3, 2, 1)]
    entering = 64
    for width, count, stride in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for each in range(count):
            layers.append(Bottleneck(entering, width, stride if each == 0 else 1))
            entering = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, 1000)), (torch.randn(4, 3, 224, 224),)


class LayerNorm2d(nn.LayerNorm):
    """Over the channels of images."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.layer_norm(x.permute(0, 2, 3, 1), self.normalized_shape, self.weight, self.bias, self.eps)
        return x.permute(0, 3, 1, 2)


class ConvNextBlock(nn.Module):
    """A depthwise convolution, then two linear layers over the channels, scaled."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(width, width, 7, padding=3, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.scale = nn.Parameter(torch.full((width,), 1e-6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.conv(x).permute(0, 2, 3, 1))
        y = self.scale * self.narrow(F.gelu(self.wide(y)))
        return x + y.permute(0, 3, 1, 2)


def convnext() -> tuple[nn.Module, Arguments]:
    layers: list[nn.Module] = [nn.Conv2d(3, 96, 4, 4), LayerNorm2d(96, eps=1e-6)]
    entering = 96
    for width, count in ((96, 3), (192, 3), (384, 9), (768, 3)):
        if width != entering:
            layers += [LayerNorm2d(entering, eps=1e-6), nn.Conv2d(entering, width, 2, 2)]
        layers += [ConvNextBlock(width) for _ in range(count)]
        entering = width
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.LayerNorm(768, eps=1e-6), nn.Linear(768, 1000)]
    return nn.Sequential(*layers, *head), (torch.randn(2, 3, 224, 224),)


class Attention(nn.Module):
    """Self-attention, by torch's operator or by hand."""

    def __init__(self, width: int, heads: int, by_hand: bool = False) -> None:
        super().__init__()
        self.heads, self.by_hand = heads, by_hand
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, width // self.heads).permute(2, 0, 3, 1, 4)
        if self.by_hand:
            scores = q @ k.transpose(-2, -1) / (width // self.heads) ** 0.5
            y = torch.softmax(scores, -1) @ v
        else:
            y = F.scaled_dot_product_attention(q, k, v)
        return self.out(y.transpose(1, 2).reshape(batch, length, width))


class Block(nn.Module):
    """A layer of a transformer, its norms first."""

    def __init__(self, width: int, heads: int, by_hand: bool = False) -> None:
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads, by_hand)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.first(x))
        return x + self.mlp(self.second(x))


class VisionTransformer(nn.Module):
    """ViT of 16 x 16 patches."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(3, width, 16, 16)
        self.token = nn.Parameter(torch.randn(1, 1, width))
        self.place = nn.Parameter(torch.randn(1, 197, width))
        self.blocks = nn.Sequential(*(Block(width, heads) for _ in range(depth)))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 1000)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.patches(x).flatten(2).transpose(1, 2)
        x = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1) + self.place
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit() -> tuple[nn.Module, Arguments]:
    return VisionTransformer(384, 12, 6), (torch.randn(4, 3, 224, 224),)


def attention_by_hand() -> tuple[nn.Module, Arguments]:
    return nn.Sequential(*(Block(512, 8, by_hand=True) for _ in range(4))), (torch.randn(4, 256, 512),)


class Twice(nn.Module):
    """Two convolutions of 3 x 3, each with group norm and SiLU."""

    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for channels in (entering, leaving):
            parts += [nn.Conv2d(channels, leaving, 3, padding=1), nn.GroupNorm(8, leaving), nn.SiLU()]
        self.body = nn.Sequential(*parts)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.body(x)  # type: ignore[no-any-return]  # untyped in torch


class UNet(nn.Module):
    """Three levels down and up again."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([Twice(3, width), Twice(width, 2 * width), Twice(2 * width, 4 * width)])
        self.up = nn.ModuleList([Twice(6 * width, 2 * width), Twice(3 * width, width)])
        self.head = nn.Conv2d(width, 3, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.down[0](x)
        second = self.down[1](F.max_pool2d(first, 2))
        third = self.down[2](F.max_pool2d(second, 2))
        y = self.up[0](torch.cat([F.interpolate(third, scale_factor=2), second], 1))
        y = self.up[1](torch.cat([F.interpolate(y, scale_factor=2), first], 1))
        return self.head(y)  # type: ignore[no-any-return]  # untyped in torch


def unet() -> tuple[nn.Module, Arguments]:
    return UNet(64), (torch.randn(2, 3, 64, 64),)


class Tagger(nn.Module):
    """A recurrent layer and a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.head = nn.LSTM(256, 256, 2, batch_first=True), nn.Linear(256, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.head(self.layer(x)[0]))


def lstm() -> tuple[nn.Module, Arguments]:
    return Tagger(), (torch.randn(8, 64, 256),)


def _layers(*widths: int) -> nn.Sequential:
    return nn.Sequential(*(layer for pair in itertools.pairwise(widths) for layer in (nn.Linear(*pair), nn.ReLU())))


class Dlrm(nn.Module):
    """26 tables of embeddings, their products among each other, and two MLPs."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList([nn.Embedding(10_000, 64) for _ in range(26)])
        self.bottom = _layers(13, 512, 256, 64)
        self.top = nn.Sequential(_layers(64 + 27 * 26 // 2, 512, 256), nn.Linear(256, 1))

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        x = self.bottom(dense)
        rows = torch.stack([x, *(table(sparse[:, k]) for k, table in enumerate(self.tables))], 1)
        products = rows @ rows.transpose(1, 2)
        i, j = torch.tril_indices(27, 27, -1)
        return torch.sigmoid(self.top(torch.cat([x, products[:, i, j]], 1)))


def dlrm() -> tuple[nn.Module, Arguments]:
    return Dlrm(), (torch.randn(512, 13), torch.randint(0, 10_000, (512, 26)))


class InvertedResidual(nn.Module):
    """EfficientNet's block: wide, depthwise, squeeze and excite, narrow."""

    def __init__(self, entering: int, leaving: int, stride: int) -> None:
        super().__init__()
        wide = 6 * entering
        self.before = nn.Sequential(
            nn.Conv2d(entering, wide, 1, bias=False), nn.BatchNorm2d(wide), nn.SiLU(),
            nn.Conv2d(wide, wide, 3, stride, 1, groups=wide, bias=False), nn.BatchNorm2d(wide), nn.SiLU(),
        )
        self.gate = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Conv2d(wide, entering // 4, 1), nn.SiLU(),
                                  nn.Conv2d(entering // 4, wide, 1), nn.Sigmoid())
        self.after = nn.Sequential(nn.Conv2d(wide, leaving, 1, bias=False), nn.BatchNorm2d(leaving))
        self.residual = stride == 1 and entering == leaving

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.before(x)
        y = self.after(y * self.gate(y))
        return x + y if self.residual else y


def efficientnet() -> tuple[nn.Module, Arguments]:
    layers: list[nn.Module] = [nn.Conv2d(3, 32, 3, 2, 1, bias=False), nn.BatchNorm2d(32), nn.SiLU()]
    entering = 32
    for width, count, stride in ((24, 2, 2), (40, 2, 2), (80, 3, 2), (112, 3, 1), (192, 4, 2)):
        for each in range(count):
            layers.append(InvertedResidual(entering, width, stride if each == 0 else 1))
            entering = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(192, 1000)), (torch.randn(2, 3, 224, 224),)


class GraphNet(nn.Module):
    """Two layers that add up messages along 100,000 edges."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64), nn.Linear(64, 64)])

    def forward(self, x: torch.Tensor, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = F.relu(torch.zeros_like(x).index_add(0, target, layer(x)[source]) + x)
        return x


def gnn() -> tuple[nn.Module, Arguments]:
    return GraphNet(), (torch.randn(10_000, 64), torch.randint(0, 10_000, (100_000,)), torch.randint(0, 10_000, (100_000,)))


MODELS: dict[str, Builder] = {
    "MLP 1024-4096-4096-1000, 128": mlp,
    "BERT-base, 4 x 128": bert,
    "GPT-2 124M, 2 x 256": gpt2,
    "Llama, 8 layers of 768, 1 x 256": llama,
    "ResNet-50, 4 x 224²": resnet50,
    "ConvNeXt-tiny, 2 x 224²": convnext,
    "ViT-small, 4 x 224²": vit,
    "U-Net, 2 x 64²": unet,
    "LSTM, 2 layers of 256, 8 x 64": lstm,
    "attention by hand, 4 layers of 512, 4 x 256": attention_by_hand,
    "DLRM, 26 tables, 512": dlrm,
    "T5-small's encoder, 2 x 256": t5,
    "Whisper-small's encoder, 4 layers, 1 x 500": whisper,
    "Mixtral-like, 4 layers of 512, 1 x 128": mixtral,
    "Swin-tiny, 1 x 224²": swin,
    "EfficientNet-like, 2 x 224²": efficientnet,
    "GNN, 100,000 edges": gnn,
}
