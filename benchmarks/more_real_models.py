"""Further models of the sizes that people run: what `python -m benchmarks.real --more` measures.

`MORE_MODELS` maps a name to a builder of (module, its arguments), as `MODELS` of benchmarks.real_models does. They are other
people's networks of torchvision, timm, transformers and diffusers (which have to be installed), and a few written out here:
kinds of layers that the first list lacks, such as convolutions of volumes and of sequences, scans, mixers and generators.
"""

from __future__ import annotations

import importlib
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.real_models import Arguments, Builder, Part


class Segments(nn.Module):
    """The scores of a model of torchvision that returns several by names."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.module(x)["out"]


def _vision(name: str, batch: int, *size: int, **options: Any) -> Builder:
    """A model of torchvision without weights."""
    def build() -> tuple[nn.Module, Arguments]:
        module, _, function = name.rpartition(".")
        models = importlib.import_module(f"torchvision.models.{module}" if module else "torchvision.models")
        return getattr(models, function)(weights=None, **options), (torch.randn(batch, 3, *size),)

    return build


def _timm(name: str, batch: int, size: int = 224) -> Builder:
    def build() -> tuple[nn.Module, Arguments]:
        import timm

        return timm.create_model(name, pretrained=False), (torch.randn(batch, 3, size, size),)

    return build


def _transformer(kind: str, head: str, field: str, arguments: Any, **config: Any) -> Builder:
    """A model of transformers: the class of its configuration less "Config", its head, and the field that is wanted."""
    def build() -> tuple[nn.Module, Arguments]:
        import transformers

        settings = getattr(transformers, f"{kind}Config")(**config)
        options = {"use_cache": False} if hasattr(settings, "use_cache") else {}
        return Part(getattr(transformers, f"{kind}{head}")(settings), field, **options), arguments()

    return build


def _words(batch: int, length: int, vocabulary: int = 30000) -> Any:
    return lambda: (torch.randint(3, vocabulary, (batch, length)),)


def _images(batch: int, size: int = 224) -> Any:
    return lambda: (torch.randn(batch, 3, size, size),)


def _segmenter() -> tuple[nn.Module, Arguments]:
    model, arguments = _vision("segmentation.deeplabv3_resnet50", 2, 256, 256, weights_backbone=None)()
    return Segments(model), arguments


def _autoencoder() -> tuple[nn.Module, Arguments]:
    from diffusers import AutoencoderKL

    model = AutoencoderKL(block_out_channels=(64, 128, 128), down_block_types=("DownEncoderBlock2D",) * 3,
                          up_block_types=("UpDecoderBlock2D",) * 3, layers_per_block=1, latent_channels=4)
    return Part(model, "sample"), (torch.randn(1, 3, 128, 128),)


def _generator() -> tuple[nn.Module, Arguments]:
    """DCGAN's generator of images of 64 x 64."""
    layers: list[nn.Module] = []
    for entering, leaving in ((512, 256), (256, 128), (128, 64)):
        layers += [nn.ConvTranspose2d(entering, leaving, 4, 2, 1, bias=False), nn.BatchNorm2d(leaving), nn.ReLU()]
    first = [nn.ConvTranspose2d(100, 512, 4, 1, 0, bias=False), nn.BatchNorm2d(512), nn.ReLU()]
    return nn.Sequential(*first, *layers, nn.ConvTranspose2d(64, 3, 4, 2, 1), nn.Tanh()), (torch.randn(16, 100, 1, 1),)


class CausalLayer(nn.Module):
    """Two dilated convolutions of a sequence that see no later steps, and a residual."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.past = 2 * dilation
        self.first, self.second = (nn.Conv1d(width, width, 3, dilation=dilation) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = F.relu(self.first(F.pad(x, (self.past, 0))))
        return F.relu(x + F.relu(self.second(F.pad(hidden, (self.past, 0)))))


def _temporal() -> tuple[nn.Module, Arguments]:
    """A temporal convolutional network (TCN)."""
    layers = [CausalLayer(128, 2**i) for i in range(6)]
    return nn.Sequential(nn.Conv1d(32, 128, 1), *layers, nn.Conv1d(128, 10, 1)), (torch.randn(8, 32, 512),)


class Attentive(nn.Module):
    """A GRU of two layers whose steps are weighed by attention."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(10_000, 256)
        self.layer = nn.GRU(256, 256, 2, batch_first=True)
        self.score, self.head = nn.Linear(256, 1), nn.Linear(256, 20)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        steps = self.layer(self.words(words))[0]
        return self.head((torch.softmax(self.score(torch.tanh(steps)), 1) * steps).sum(1))


class PointNet(nn.Module):
    """Points through shared layers and a maximum over them."""

    def __init__(self) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for entering, leaving in ((3, 64), (64, 128), (128, 1024)):
            layers += [nn.Conv1d(entering, leaving, 1), nn.BatchNorm1d(leaving), nn.ReLU()]
        self.shared = nn.Sequential(*layers)
        self.head = nn.Sequential(nn.Linear(1024, 512), nn.BatchNorm1d(512), nn.ReLU(), nn.Linear(512, 40))

    def forward(self, points: torch.Tensor) -> torch.Tensor:
        return self.head(self.shared(points).amax(2))


class Fourier(nn.Module):
    """Four layers of a Fourier neural operator: products of the lowest frequencies, and a pointwise path beside."""

    def __init__(self, width: int = 32, modes: int = 12) -> None:
        super().__init__()
        self.modes = modes
        self.first, self.last = nn.Conv2d(3, width, 1), nn.Conv2d(width, 1, 1)
        self.beside = nn.ModuleList(nn.Conv2d(width, width, 1) for _ in range(4))
        self.weights = nn.ParameterList(nn.Parameter(torch.randn(width, width, modes, modes, 2) / width) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for beside, weight in zip(self.beside, self.weights, strict=True):
            low = torch.fft.rfft2(x)[:, :, : self.modes, : self.modes]
            low = torch.einsum("bixy,ioxy->boxy", low, torch.view_as_complex(weight))
            x = F.gelu(torch.fft.irfft2(low, s=x.shape[-2:]) + beside(x))
        return self.last(x)


class DeepFactors(nn.Module):
    """DeepFM: factorisation of 26 fields of a million keys, and an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.factors, self.weights = nn.Embedding(1_000_000, 16), nn.Embedding(1_000_000, 1)
        self.deep = nn.Sequential(nn.Linear(26 * 16, 400), nn.ReLU(), nn.Linear(400, 400), nn.ReLU(), nn.Linear(400, 1))

    def forward(self, keys: torch.Tensor) -> torch.Tensor:
        factors = self.factors(keys)
        pairs = 0.5 * (factors.sum(1).square() - factors.square().sum(1)).sum(1, keepdim=True)
        return torch.sigmoid(self.weights(keys).sum(1) + pairs + self.deep(factors.flatten(1)))


def _activated(entering: int, leaving: int, window: int = 1, stride: int = 1) -> nn.Module:
    """A convolution, a batch norm and SiLU."""
    convolution = nn.Conv2d(entering, leaving, window, stride, window // 2, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(leaving), nn.SiLU())


class CrossStage(nn.Module):
    """YOLO's block: half of the channels go through bottlenecks, whose results are all kept and mixed at the end."""

    def __init__(self, entering: int, leaving: int, count: int, is_added: bool = True) -> None:
        super().__init__()
        self.half, self.is_added = leaving // 2, is_added
        self.first, self.last = _activated(entering, leaving), _activated((2 + count) * self.half, leaving)
        self.parts = nn.ModuleList(
            nn.Sequential(_activated(self.half, self.half, 3), _activated(self.half, self.half, 3)) for _ in range(count))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = list(self.first(x).chunk(2, 1))
        for part in self.parts:
            more = part(found[-1])
            found.append(found[-1] + more if self.is_added else more)
        return self.last(torch.cat(found, 1))


class Detector(nn.Module):
    """A network of YOLOv8's kind, of its smallest width: a backbone of cross-stage blocks, a pyramid of pooled windows, a neck
    up and down again, and boxes and classes at three scales."""

    def __init__(self, classes: int = 80) -> None:
        super().__init__()
        self.stem = nn.Sequential(_activated(3, 16, 3, 2), _activated(16, 32, 3, 2), CrossStage(32, 32, 1))
        self.small = nn.Sequential(_activated(32, 64, 3, 2), CrossStage(64, 64, 2))
        self.middle = nn.Sequential(_activated(64, 128, 3, 2), CrossStage(128, 128, 2))
        self.large = nn.Sequential(_activated(128, 256, 3, 2), CrossStage(256, 256, 1))
        self.before, self.behind = _activated(256, 128), _activated(512, 256)
        self.up = nn.ModuleList((CrossStage(384, 128, 1, False), CrossStage(192, 64, 1, False)))
        self.smaller = nn.ModuleList((_activated(64, 64, 3, 2), _activated(128, 128, 3, 2)))
        self.down = nn.ModuleList((CrossStage(192, 128, 1, False), CrossStage(384, 256, 1, False)))
        self.boxes, self.classes = (nn.ModuleList(
            nn.Sequential(_activated(channels, width, 3), _activated(width, width, 3), nn.Conv2d(width, results, 1))
            for channels in (64, 128, 256)) for width, results in ((64, 64), (80, classes)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        small = self.small(self.stem(x))
        middle = self.middle(small)
        pooled = [self.before(self.large(middle))]
        for _ in range(3):
            pooled.append(F.max_pool2d(pooled[-1], 5, 1, 2))
        large = self.behind(torch.cat(pooled, 1))
        middle = self.up[0](torch.cat((F.interpolate(large, scale_factor=2.0), middle), 1))
        small = self.up[1](torch.cat((F.interpolate(middle, scale_factor=2.0), small), 1))
        middle = self.down[0](torch.cat((self.smaller[0](small), middle), 1))
        large = self.down[1](torch.cat((self.smaller[1](middle), large), 1))
        scales = zip((small, middle, large), self.boxes, self.classes, strict=True)
        return torch.cat([torch.cat((boxes(x), classes(x)), 1).flatten(2) for x, boxes, classes in scales], 2)


def _denoiser() -> tuple[nn.Module, Arguments]:
    """Stable Diffusion's U-Net at 0.3 of its width: time embeddings, attention to itself and to 77 words."""
    from diffusers import UNet2DConditionModel

    model = UNet2DConditionModel(block_out_channels=(96, 192, 384, 384), cross_attention_dim=192, attention_head_dim=8,
                                 layers_per_block=2)
    return Part(model, "sample"), (torch.randn(1, 4, 32, 32), torch.tensor(500), torch.randn(1, 77, 192))


MORE_MODELS: dict[str, Builder] = {
    "VGG-16, 2 x 224²": _vision("vgg16", 2, 224, 224),
    "DenseNet-121, 2 x 224²": _vision("densenet121", 2, 224, 224),
    "MobileNet-v3 large, 4 x 224²": _vision("mobilenet_v3_large", 4, 224, 224),
    "ShuffleNet-v2, 4 x 224²": _vision("shufflenet_v2_x1_0", 4, 224, 224),
    "RegNet-Y 400MF, 4 x 224²": _vision("regnet_y_400mf", 4, 224, 224),
    "DeepLab-v3 of ResNet-50, 2 x 256²": _segmenter,
    "r3d_18, 1 x 8 x 112²": _vision("video.r3d_18", 1, 8, 112, 112),
    "MobileViT-s, 2 x 256²": _timm("mobilevit_s", 2, 256),
    "Mixer-S/16, 4 x 224²": _timm("mixer_s16_224", 4),
    "CoAtNet-0, 2 x 224²": _timm("coatnet_0_rw_224", 2),
    "EVA-02-tiny, 2 x 336²": _timm("eva02_tiny_patch14_336", 2, 336),
    "NFNet-L0, 2 x 224²": _timm("nfnet_l0", 2),
    "Mamba, 3 layers of 768, 1 x 128": _transformer(
        "Mamba", "ForCausalLM", "logits", _words(1, 128, 8000), vocab_size=8000, hidden_size=768, num_hidden_layers=3),
    "DeBERTa-v2, 4 layers of 768, 2 x 128": _transformer(
        "DebertaV2", "Model", "last_hidden_state", _words(2, 128), vocab_size=30000, hidden_size=768, num_hidden_layers=4,
        num_attention_heads=12, intermediate_size=3072, relative_attention=True, position_buckets=256,
        pos_att_type=["p2c", "c2p"]),
    "Qwen3, 6 layers of 768, 1 x 256": _transformer(
        "Qwen3", "ForCausalLM", "logits", _words(1, 256), vocab_size=30000, hidden_size=768, num_hidden_layers=6,
        num_attention_heads=12, num_key_value_heads=4, head_dim=64, intermediate_size=2048),
    "wav2vec2, 4 layers of 768, 1 x 32000": _transformer(
        "Wav2Vec2", "Model", "last_hidden_state", lambda: (torch.randn(1, 32000),), num_hidden_layers=4),
    "SegFormer-b0, 1 x 256²": _transformer("Segformer", "ForSemanticSegmentation", "logits", _images(1, 256)),
    "DINOv2-small, 2 x 224²": _transformer(
        "Dinov2", "Model", "last_hidden_state", _images(2), hidden_size=384, num_attention_heads=6),
    "autoencoder of images, 1 x 128²": _autoencoder,
    "DCGAN's generator, 16": _generator,
    "TCN, 8 x 512": _temporal,
    "GRU with attention, 32 x 64": lambda: (Attentive(), (torch.randint(0, 10_000, (32, 64)),)),
    "PointNet, 8 x 1024": lambda: (PointNet(), (torch.randn(8, 3, 1024),)),
    "FNO, 4 x 64²": lambda: (Fourier(), (torch.randn(4, 3, 64, 64),)),
    "YOLO-like, 1 x 320²": lambda: (Detector(), (torch.randn(1, 3, 320, 320),)),
    "Stable-Diffusion-like U-Net, 1 x 32²": _denoiser,
    "DeepFM, 2048": lambda: (DeepFactors(), (torch.randint(0, 1_000_000, (2048, 26)),)),
}
