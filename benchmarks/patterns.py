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


class Module(nn.Module):
    """A pattern as a module."""

    def __init__(self, pattern: Pattern) -> None:
        super().__init__()
        self.pattern = pattern

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pattern(x)


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
    return found


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    measure_cases(argv, cases)


if __name__ == "__main__":
    main()
