"""`python -m benchmarks.patterns`: operators that share a kernel, as `benchmarks.first` measures.

Loops of such kernels may step through memory, branch, or call functions in ways that the C++ compiler makes no vectors of; a
pattern far below eager's speed shows one. `--only "128 channels, float32"` and the like choose some.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.first import Case
from benchmarks.first import main as measure_cases

CHANNELS = (32, 96, 128)

Pattern = Callable[[torch.Tensor], torch.Tensor]


def turned(x: torch.Tensor) -> torch.Tensor:
    """The second half of a row, negated, before the first: rotary embeddings."""
    half = x.shape[-1] // 2
    return torch.cat([-x[..., half:], x[..., :half]], -1)


#: Of rows of channels.
ROWS: dict[str, Pattern] = {
    "GELU, a transpose": lambda x: F.gelu(x).transpose(1, 2).contiguous(),
    "GELU, a transpose of 16 x 8": lambda x: F.gelu(x).view(2, -1, 16, 8).transpose(2, 3).contiguous(),
    "GELU, a transpose of 2": lambda x: F.gelu(x).view(2, -1, 2, x.shape[-1] // 2).transpose(2, 3).contiguous(),
    "GELU, heads to the front": lambda x: F.gelu(x).view(2, -1, x.shape[-1] // 16, 16).transpose(1, 2).contiguous(),
    "sine and cosine": lambda x: x.sin() + x.cos(),
    "sine and cosine, beside each other": lambda x: torch.stack([x[..., ::2].sin(), x[..., 1::2].cos()], -1).flatten(-2),
    "rotated halves": lambda x: turned(x) * x.cos() + x * x.sin(),
    "sine where positive": lambda x: torch.where(x > 0, x.sin(), x),
    "remainder": lambda x: (x * 7) % 3.0,
    "nan_to_num": lambda x: torch.nan_to_num(x * 2),
    "a power": lambda x: (x.abs() + 0.1) ** 1.7,
    "mish and softplus": lambda x: F.mish(x) + F.softplus(x),
    "SwiGLU": lambda x: F.silu(x[..., : x.shape[-1] // 2]) * x[..., x.shape[-1] // 2 :],
    "RMS norm": lambda x: x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6),
    "layer norm, GELU": lambda x: F.gelu(F.layer_norm(x, (x.shape[-1],))),
    "GELU, mean over rows": lambda x: F.gelu(x).mean(1),
    "GELU, argmax": lambda x: F.gelu(x).argmax(-1),
    "mean and variance of 8 neighbours": lambda x: torch.var_mean(x.view(2, -1, x.shape[-1] // 8, 8) * 1.0, (1, 3))[0],
    "quantized": lambda x: (x * 127).round().clamp(-128, 127).to(torch.int8),
    "cumulative sum": lambda x: (x * 2).cumsum(1),
    "rolled": lambda x: F.gelu(torch.roll(x, 3, 1)),
}
#: Of plain images, and of channels-last ones.
IMAGES: dict[str, Pattern] = {
    "group norm, SiLU": lambda x: F.silu(F.group_norm(x, 8)),
    "instance norm, ReLU": lambda x: F.relu(F.instance_norm(x)),
    "log-softmax over channels": lambda x: torch.log_softmax(x * 2, 1),
    "normalized over channels": lambda x: F.normalize(x, dim=1),
    "GELU, maximum over channels": lambda x: F.gelu(x).amax(1),
    "SiLU, plain": lambda x: F.silu(x).contiguous(),
    "SiLU, channels last": lambda x: F.silu(x).contiguous(memory_format=torch.channels_last),
    "weighed by channel": lambda x: x * x.mean((2, 3), keepdim=True).sigmoid(),
    "pixel shuffle, SiLU": lambda x: F.silu(F.pixel_shuffle(x, 2)),
    "SiLU, mean of 2 x 2": lambda x: F.avg_pool2d(F.silu(x), 2),
    "SiLU, upsampled": lambda x: F.interpolate(F.silu(x), scale_factor=2),
}


def layer_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) / torch.sqrt((x - mean).pow(2).mean(-1, keepdim=True) + 1e-5) * weight + bias


def channel_norm(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor) -> torch.Tensor:
    mean = x.mean(1, keepdim=True)
    spread = (x - mean).pow(2).mean(1, keepdim=True)
    return weight[:, None, None] * ((x - mean) / torch.sqrt(spread + 1e-6)) + bias[:, None, None]


def response_norm(x: torch.Tensor) -> torch.Tensor:
    """Global response normalization of images, channels last in its result."""
    x = x.permute(0, 2, 3, 1)
    sizes = torch.norm(x, p=2, dim=(1, 2), keepdim=True)
    return x * (sizes / (sizes.mean(-1, keepdim=True) + 1e-6)) + x


def window(x: torch.Tensor) -> torch.Tensor:
    """Attention's weights over the nearest 16."""
    places = torch.arange(x.shape[-1])
    near = (places[:, None] - places).abs() < 16
    return torch.where(near, x, torch.full_like(x, -1e9)).softmax(-1)


def turned_pairs(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    a, b = x[..., ::2], x[..., 1::2]
    return torch.stack([a * cos - b * sin, a * sin + b * cos], -1).flatten(-2)


def load(x: torch.Tensor) -> torch.Tensor:
    """A router's loss of balance."""
    shares = x.softmax(-1)
    chosen = F.one_hot(shares.argmax(-1), x.shape[-1]).to(x.dtype).mean(0)
    return (chosen * shares.mean(0)).sum() * x.shape[-1]


def edge_softmax(x: torch.Tensor, to: torch.Tensor) -> torch.Tensor:
    """Over the edges of each of a graph's 1000 nodes."""
    places = to[:, None].expand(-1, x.shape[1])
    top = torch.full((1000, x.shape[1]), -1e4, dtype=x.dtype).scatter_reduce(0, places, x, "amax")
    exps = (x - top[to]).exp()
    return exps / torch.zeros_like(top).index_add(0, to, exps)[to]


def bag(table: torch.Tensor, ids: torch.Tensor) -> torch.Tensor:
    mask = (ids != 0).unsqueeze(-1).to(table.dtype)
    return (F.embedding(ids, table) * mask).sum(1) / mask.sum(1).clamp(min=1)


def focal(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    target, p = target.to(x.dtype), x.sigmoid()
    loss = F.binary_cross_entropy_with_logits(x, target, reduction="none")
    return ((0.5 * target + 0.25) * (1 - p * target - (1 - p) * (1 - target)) ** 2 * loss).sum()


def smoothed(x: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    logs = x.log_softmax(-1)
    return (-0.9 * logs.gather(-1, target[:, None]).squeeze(1) - 0.1 * logs.mean(-1)).mean()


def quantized_rows(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = x.abs().amax(-1, keepdim=True) / 127
    return (x / scale).round().clamp(-128, 127).to(torch.int8), scale


def unpacked(x: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    return torch.stack([x & 15, x >> 4], -1).flatten(-2).to(scale.dtype).sub(8) * scale


def quaternions(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    (aw, ax, ay, az), (bw, bx, by, bz) = a.unbind(-1), b.unbind(-1)
    return torch.stack([aw * bw - ax * bx - ay * by - az * bz, aw * bx + ax * bw + ay * bz - az * by,
                        aw * by - ax * bz + ay * bw + az * bx, aw * bz + ax * by - ay * bx + az * bw], -1)


def axis_angle(x: torch.Tensor) -> torch.Tensor:
    angle = x.norm(dim=-1, keepdim=True)
    return torch.cat([(angle / 2).cos(), x * ((angle / 2).sin() / (angle + 1e-8))], -1)


def frequencies(x: torch.Tensor) -> torch.Tensor:
    """Points as sines and cosines of their coordinates."""
    angles = (x[..., None] * 2.0 ** torch.arange(10) * torch.pi).to(x.dtype).flatten(-2)
    return torch.cat([x, angles.sin(), angles.cos()], -1)


def adam(p: torch.Tensor, g: torch.Tensor, m: torch.Tensor, v: torch.Tensor) -> tuple[torch.Tensor, ...]:
    m, v = m * 0.9 + g * 0.1, v.abs() * 0.999 + g * g * 0.001
    return p * (1 - 1e-5) - 1e-3 * (m / 0.1) / ((v / 0.001).sqrt() + 1e-8), m, v


#: Of models' sizes: the function, and its arguments; those of integers as how large they are and how many.
OTHERS: dict[str, tuple[Callable[..., object], tuple[tuple[int, ...] | tuple[str, int, tuple[int, ...]], ...]]] = {
    "layer norm by hand": (layer_norm, ((8, 256, 384), (384,), (384,))),
    "norm over channels by hand": (channel_norm, ((4, 64, 56, 56), (64,), (64,))),
    "global response norm": (response_norm, ((4, 64, 56, 56),)),
    "softmax of the nearest": (window, ((4, 8, 128, 128),)),
    "rotary pairs": (turned_pairs, ((4, 8, 128, 64), (128, 32), (128, 32))),
    "running means": (lambda x: x.cumsum(1) / torch.arange(1, x.shape[1] + 1).to(x.dtype)[:, None], ((8, 2048, 64),)),
    "a router's load": (load, ((2048, 64),)),
    "softmax over edges": (edge_softmax, ((5000, 8), ("up to", 1000, (5000,)))),
    "a bag of embeddings, masked": (bag, ((10000, 64), ("up to", 10000, (256, 20)))),
    "focal loss": (focal, ((4096, 80), ("up to", 2, (4096, 80)))),
    "label smoothing": (smoothed, ((512, 1000), ("up to", 1000, (512,)))),
    "rows quantized": (quantized_rows, ((512, 2048),)),
    "four bits unpacked": (unpacked, (("up to", 256, (512, 1024)), (512, 1))),
    "windows": (lambda x: (x * 2).view(4, 64, 8, 7, 8, 7).permute(0, 2, 4, 3, 5, 1).reshape(-1, 49, 64), ((4, 64, 56, 56),)),
    "heads merged, GELU": (lambda x: F.gelu(x.transpose(1, 2).reshape(8, 128, 512)), ((8, 8, 128, 64),)),
    "products of quaternions": (quaternions, ((65536, 4), (65536, 4))),
    "axes and angles": (axis_angle, ((65536, 3),)),
    "Fourier features": (frequencies, ((4096, 3),)),
    "a histogram of bells": (lambda x: torch.exp(-(x[:, None] - torch.linspace(-3, 3, 32)).pow(2) * 8).sum(0), ((65536,),)),
    "AdamW's step": (adam, ((1_000_000,),) * 4),
}


class Module(nn.Module):
    """A pattern as a module."""

    def __init__(self, pattern: Callable[..., object]) -> None:
        super().__init__()
        self.pattern = pattern

    def forward(self, *args: torch.Tensor) -> object:
        return self.pattern(*args)


def argument(what: tuple[int, ...] | tuple[str, int, tuple[int, ...]], dtype: torch.dtype) -> torch.Tensor:
    """Random numbers of that size, or whole ones below a limit."""
    if isinstance(what[0], str):
        return torch.randint(0, what[1], what[2])  # type: ignore[call-overload]  # the second form
    return torch.randn(what).to(dtype)


def cases() -> dict[str, Case]:
    """name -> (module, arguments, training)."""
    torch.manual_seed(0)
    found: dict[str, Case] = {}
    for channels in CHANNELS:
        for dtype in (torch.float32, torch.bfloat16):
            rows, images = torch.randn(2, 2304, channels).to(dtype), torch.randn(2, channels, 48, 48).to(dtype)
            last, of = images.to(memory_format=torch.channels_last), f"{channels} channels, {str(dtype)[6:]}"
            found |= {f"{name}, {of}": (Module(pattern), (rows,), False) for name, pattern in ROWS.items()
                      if channels % 128 == 0 or "16 x 8" not in name}
            found |= {f"{name}, {layout}, {of}": (Module(pattern), (x,), False)
                      for layout, x in (("plain", images), ("last", last)) for name, pattern in IMAGES.items()}
    for dtype in (torch.float32, torch.bfloat16):
        found |= {f"{name}, {str(dtype)[6:]}": (Module(function), tuple(argument(each, dtype) for each in given), False)
                  for name, (function, given) in OTHERS.items()}
    return found


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    measure_cases(argv, cases)


if __name__ == "__main__":
    main()
