"""Real programs, small and with random weights: what `python -m benchmarks.models` captures and compares with eager.

`PROGRAMS` maps a name to a builder; a builder imports its package, and gives a `Program`. Called twice after the same
seed it gives two programs alike. What is imported lazily may be missing: the benchmark then says so.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from benchmarks.numpy_programs import kmeans

Arguments = dict[str, Any]


_DECLARED: list[torch.library.Library] = []


def declare_torchvision_operators() -> None:
    """torchvision's wheel is a CUDA build whose operators do not load beside a CPU torch; its Python registers fake
    kernels for some of them when it is imported (transformers imports it too), so their schemas are declared first."""
    if torch.version.cuda is not None or hasattr(torch.ops.torchvision, "nms"):
        return
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _DECLARED.append(library)


declare_torchvision_operators()


@dataclasses.dataclass
class Program:
    """`run(fn, **inputs(batch))` is one call; `fn` is what is compiled."""

    fn: Any
    inputs: Callable[[int], Arguments]
    #: The batch size of the first two calls, of the third and of the fourth.
    batches: tuple[int, int, int] = (2, 3, 4)
    #: Whose gradients are compared; None: nothing is differentiated from outside.
    module: nn.Module | None = None
    #: What is done with the compiled thing, where that is not a call.
    run: Callable[..., Any] | None = None
    #: The program differentiates by itself: it runs with gradients on.
    needs_grad: bool = False


Builder = Callable[[], Program]
PROGRAMS: dict[str, Builder] = {}
#: The programs that are not in the dev list.
MORE: dict[str, Builder] = {}


def program(builder: Builder) -> Builder:
    PROGRAMS[builder.__name__] = builder
    return builder


def more(builder: Builder) -> Builder:
    MORE[builder.__name__] = builder
    return builder


def _model(module: nn.Module, inputs: Callable[[int], Arguments], batches: tuple[int, int, int] = (2, 3, 4)) -> Program:
    return Program(module.eval(), inputs, batches, module)


def _ids(batch: int, length: int = 64, vocabulary: int = 1000) -> torch.Tensor:
    return torch.randint(3, vocabulary, (batch, length))


def _text(batch: int, length: int = 64) -> Arguments:
    mask = torch.ones(batch, length, dtype=torch.long)
    mask[0, -length // 4:] = 0
    tokens = _ids(batch, length)
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens.clone()}


def _images(batch: int, size: int = 64, name: str = "pixel_values") -> Arguments:
    return {name: torch.randn(batch, 3, size, size)}


_SMALL: Arguments = {"vocab_size": 1000, "hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
                     "intermediate_size": 256}
_LAYERS: Arguments = {"d_model": 64, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 4,
                      "decoder_attention_heads": 4, "encoder_ffn_dim": 128, "decoder_ffn_dim": 128}


# -- transformers -------------------------------------------------------------------------------------------------


@program
def hf_bert() -> Program:
    import transformers as hf

    def inputs(batch: int) -> Arguments:
        kinds = torch.zeros(batch, 64, dtype=torch.long)
        kinds[:, 32:] = 1
        return _text(batch) | {"token_type_ids": kinds, "labels": torch.arange(batch) % 2}

    return _model(hf.BertForSequenceClassification(hf.BertConfig(**_SMALL)), inputs)


@program
def hf_gpt2() -> Program:
    import transformers as hf

    config = hf.GPT2Config(vocab_size=1000, n_embd=128, n_layer=2, n_head=4, n_positions=128)
    return _model(hf.GPT2LMHeadModel(config), _text)


def _llama(layers: int = 2) -> nn.Module:
    import transformers as hf

    options = _SMALL | {"num_key_value_heads": 2, "max_position_embeddings": 128, "num_hidden_layers": layers}
    model: nn.Module = hf.LlamaForCausalLM(hf.LlamaConfig(**options))
    return model


def llama(layers: int) -> Program:
    """The same model at any depth."""
    return _model(_llama(layers), _text)


@program
def hf_llama() -> Program:
    return llama(2)


@program
def hf_t5() -> Program:
    import transformers as hf

    config = hf.T5Config(vocab_size=1000, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
                         decoder_start_token_id=0)
    return _model(hf.T5ForConditionalGeneration(config), _text)


@program
def hf_longformer() -> Program:
    import transformers as hf

    config = hf.LongformerConfig(attention_window=16, max_position_embeddings=128, **_SMALL)

    def inputs(batch: int) -> Arguments:
        return _text(batch, 60) | {"labels": torch.arange(batch) % 2}

    return _model(hf.LongformerForSequenceClassification(config), inputs)


@program
def hf_mixtral() -> Program:
    import transformers as hf

    config = hf.MixtralConfig(num_key_value_heads=2, num_local_experts=4, max_position_embeddings=128, **_SMALL)
    return _model(hf.MixtralForCausalLM(config), _text)


@program
def hf_mamba() -> Program:
    import transformers as hf

    config = hf.MambaConfig(vocab_size=1000, hidden_size=64, state_size=8, num_hidden_layers=2)

    def inputs(batch: int) -> Arguments:
        tokens = _ids(batch, 32)
        return {"input_ids": tokens, "labels": tokens.clone()}

    return _model(hf.MambaForCausalLM(config), inputs)


@program
def hf_vit() -> Program:
    import transformers as hf

    config = hf.ViTConfig(image_size=64, patch_size=16, num_labels=5,
                          **{key: value for key, value in _SMALL.items() if key != "vocab_size"})

    def inputs(batch: int) -> Arguments:
        return _images(batch) | {"labels": torch.arange(batch) % 5}

    return _model(hf.ViTForImageClassification(config), inputs)


@program
def hf_whisper() -> Program:
    import transformers as hf

    config = hf.WhisperConfig(vocab_size=1000, num_mel_bins=20, max_source_positions=50, max_target_positions=64,
                              pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, **_LAYERS)

    def inputs(batch: int) -> Arguments:
        return {"input_features": torch.randn(batch, 20, 100), "labels": _ids(batch, 16)}

    return _model(hf.WhisperForConditionalGeneration(config), inputs)


@program
def hf_clip() -> Program:
    import transformers as hf

    text = dict(_SMALL, eos_token_id=2, bos_token_id=1, pad_token_id=0, max_position_embeddings=32)
    vision = {key: value for key, value in _SMALL.items() if key != "vocab_size"} | {"image_size": 64, "patch_size": 16}
    model = hf.CLIPModel(hf.CLIPConfig(text_config=text, vision_config=vision, projection_dim=64))

    def inputs(batch: int) -> Arguments:
        tokens = _ids(batch, 16)
        tokens[:, -1] = 2
        return _images(batch) | {"input_ids": tokens, "attention_mask": torch.ones_like(tokens), "return_loss": True}

    return _model(model, inputs)


@program
def hf_detr() -> Program:
    import transformers as hf

    backbone = hf.ResNetConfig(embedding_size=16, hidden_sizes=[16, 32], depths=[1, 1], layer_type="basic",
                               out_features=["stage2"])
    config = hf.DetrConfig(use_timm_backbone=False, backbone=None, backbone_config=backbone, use_pretrained_backbone=False,
                           num_queries=10, num_labels=5, **_LAYERS)
    return _model(hf.DetrForObjectDetection(config), _images)


@program
def gen_llama_static_forward() -> Program:
    model = _llama().eval()

    def inputs(batch: int) -> Arguments:
        tokens = _ids(batch, 8)
        return {"input_ids": tokens, "attention_mask": torch.ones_like(tokens)}

    def run(forward: Any, **arguments: Any) -> Any:
        model.forward = forward
        return model.generate(max_new_tokens=16, cache_implementation="static", do_sample=False, disable_compile=True,
                              pad_token_id=0, eos_token_id=-1, **arguments)

    return Program(model.forward, inputs, (2, 3, 4), None, run)


# -- images --------------------------------------------------------------------------------------------------------


def _timm(name: str, size: int, **options: Any) -> Program:
    import timm

    return _model(timm.create_model(name, num_classes=10, **options), lambda batch: _images(batch, size, "x"))


@program
def timm_convnextv2_atto() -> Program:
    return _timm("convnextv2_atto", 64)


@program
def timm_mobilenetv4_small() -> Program:
    return _timm("mobilenetv4_conv_small_050", 96)


@program
def tv_mobilenet_v2() -> Program:
    import torchvision

    return _model(torchvision.models.mobilenet_v2(num_classes=10, width_mult=0.5), lambda batch: _images(batch, 64, "x"))


@program
def tv_raft_small() -> Program:
    import torchvision

    def inputs(batch: int) -> Arguments:
        return {"image1": torch.rand(batch, 3, 128, 128), "image2": torch.rand(batch, 3, 128, 128), "num_flow_updates": 2}

    return _model(torchvision.models.optical_flow.raft_small(), inputs, (1, 2, 3))


@program
def xt_decoder_rotary_swiglu() -> Program:
    from x_transformers import Decoder, TransformerWrapper

    layers = Decoder(dim=96, depth=2, heads=3, rotary_pos_emb=True, ff_glu=True, ff_swish=True, use_rmsnorm=True,
                     attn_flash=True)
    model = TransformerWrapper(num_tokens=1000, max_seq_len=64, attn_layers=layers)
    return _model(model, lambda batch: {"x": _ids(batch, 48)})


@program
def df_unet2d() -> Program:
    from diffusers import UNet2DModel

    model = UNet2DModel(sample_size=32, in_channels=3, out_channels=3, layers_per_block=1, block_out_channels=(32, 64),
                        down_block_types=("DownBlock2D", "AttnDownBlock2D"), up_block_types=("AttnUpBlock2D", "UpBlock2D"),
                        norm_num_groups=8, attention_head_dim=8)

    def inputs(batch: int) -> Arguments:
        return {"sample": torch.randn(batch, 3, 32, 32), "timestep": torch.arange(batch) * 10}

    return _model(model, inputs)


# -- graphs, equations, metrics ------------------------------------------------------------------------------------


@program
def pyg_gcn() -> Program:
    from torch_geometric.nn import GCN

    def inputs(nodes: int) -> Arguments:
        return {"x": torch.randn(nodes, 16), "edge_index": torch.randint(0, nodes, (2, 4 * nodes))}

    return _model(GCN(16, 32, 2, 8), inputs, (128, 160, 200))


@program
def torchdiffeq_rk4() -> Program:
    from torchdiffeq import odeint

    class Field(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 4))

        def forward(self, t: torch.Tensor, y: torch.Tensor) -> Any:
            return self.net(y**3) * torch.cos(t)

    field = Field()

    def solve(y: torch.Tensor, t: torch.Tensor) -> Any:
        return odeint(field, y, t, method="rk4")

    return Program(solve, lambda batch: {"y": torch.randn(batch, 4), "t": torch.linspace(0, 1, 9)}, (8, 12, 16), field)


@program
def torchmetrics_update() -> Program:
    from torchmetrics import MetricCollection
    from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix, MulticlassF1Score

    metrics = MetricCollection({"accuracy": MulticlassAccuracy(5), "f1": MulticlassF1Score(5),
                                "confusion": MulticlassConfusionMatrix(5)})

    def evaluate(scores: torch.Tensor, targets: torch.Tensor) -> Any:
        metrics.reset()
        metrics.update(scores, targets)
        metrics.update(scores * 0.5 + 0.1, targets.flip(0))
        return metrics.compute()

    return Program(evaluate, lambda batch: {"scores": torch.randn(batch, 5), "targets": torch.randint(0, 5, (batch,))},
                   (32, 48, 64))


# -- programs of our own --------------------------------------------------------------------------------------------


@program
def prog_trivial_add() -> Program:
    def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return x + y

    return Program(add, lambda batch: {"x": torch.randn(batch), "y": torch.randn(batch)}, (64, 65, 66))


@program
def prog_numpy_kmeans() -> Program:
    def inputs(count: int) -> Arguments:
        return {"points": torch.randn(count, 8).numpy(), "centres": torch.randn(4, 8).numpy()}

    return Program(kmeans, inputs, (512, 256, 128))


class CharModel(nn.Module):
    """Characters in, the loss of the next one and the state out."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(64, 32)
        self.rnn = nn.LSTM(32, 64, num_layers=2, batch_first=True)
        self.head = nn.Linear(64, 64)

    def forward(self, ids: torch.Tensor, targets: torch.Tensor, state: tuple[torch.Tensor, torch.Tensor]) -> Any:
        out, state = self.rnn(self.embed(ids), state)
        logits = self.head(out)
        return F.cross_entropy(logits.flatten(0, 1), targets.flatten()), logits, state


@program
def prog_char_lstm() -> Program:
    def inputs(batch: int) -> Arguments:
        state = (torch.zeros(2, batch, 64), torch.zeros(2, batch, 64))
        return {"ids": _ids(batch, 24, 64), "targets": _ids(batch, 24, 64), "state": state}

    return _model(CharModel(), inputs)


@dataclasses.dataclass
class Walk:
    """An environment with Python state: a point on a line that wants to reach 3."""

    position: float = 0.0
    steps: int = 0
    history: list[int] = dataclasses.field(default_factory=list)

    def observe(self) -> torch.Tensor:
        return torch.tensor([self.position, float(self.steps), 1.0, math.sin(self.position)])

    def step(self, action: int) -> tuple[float, bool]:
        self.position += 1.0 if action == 1 else -0.5
        self.steps += 1
        self.history.append(action)
        return -abs(3.0 - self.position), self.steps >= 12 or self.position >= 3.0


@program
def prog_rl_rollout() -> Program:
    policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))

    def episode(noise: torch.Tensor) -> Any:
        env = Walk()
        total, done, odd = 0.0, False, 0
        while not done:
            logits = policy(env.observe()) + noise
            reward, done = env.step(int(logits.argmax()))
            if bool(logits.sum() > 0):
                odd += 1
            total += reward
        return total, env.history, odd

    return Program(episode, lambda batch: {"noise": torch.zeros(2) + 0.1 * batch}, (1, 2, 3))


@program
def prog_train_step_adamw() -> Program:
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.LayerNorm(32), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=10)

    def step(x: torch.Tensor, y: torch.Tensor) -> Any:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        scheduler.step()
        return loss.detach(), norm.detach(), [each.detach().clone() for each in model.parameters()]

    def inputs(batch: int) -> Arguments:
        return {"x": torch.randn(batch, 16), "y": torch.arange(batch) % 4}

    return Program(step, inputs, (32, 48, 64), needs_grad=True)


# Of nothing but torch: for machines that have no package of models.


class _Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.after = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attend, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.widen, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        parts = self.attend(self.before(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(parts[0], parts[1], parts[2], is_causal=True)
        x = x + self.out(seen.transpose(1, 2).reshape(batch, length, width))
        return x + self.narrow(F.gelu(self.widen(self.after(x))))


@more
def plain_gpt() -> Program:
    large = torch.cuda.is_available()
    width, length = (768, 512) if large else (64, 32)
    blocks = nn.Sequential(*(_Block(width, 8) for _ in range(4)), nn.LayerNorm(width), nn.Linear(width, 1000))
    return _model(blocks, lambda batch: {"input": torch.randn(batch, length, width)}, (8, 4, 2) if large else (2, 3, 4))


class _Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = (nn.Conv2d(width, width, 3, padding=1, bias=False) for _ in range(2))
        self.norms = nn.ModuleList(nn.BatchNorm2d(width) for _ in range(2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = F.relu(self.norms[0](self.first(x)))
        return F.relu(self.norms[1](self.second(y)) + x)


@more
def plain_convnet() -> Program:
    width, size = (64, 56) if torch.cuda.is_available() else (8, 16)
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(width, 100))
    layers = nn.Sequential(nn.Conv2d(3, width, 3, padding=1), *(_Residual(width) for _ in range(4)), *head)
    return _model(layers, lambda batch: {"input": torch.randn(batch, 3, size, size)}, (16, 8, 4) if size > 16 else (2, 3, 4))
