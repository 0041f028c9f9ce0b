"""`python -m benchmarks.attention`: attention on a processor, as `benchmarks.first` measures: seconds of the first call, steady
ratios. Its kernels are fxjit's; eager's and torch.compile's are ATen's. Of each size one is `scaled_dot_product_attention`, and
one is written out, which fxjit recognises (not with FXJIT_CPP_OWN_ATTENTION=0).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.first import Case
from benchmarks.first import main as measure_cases

#: batch, heads, queries, keys, width, causal: those of models, named by them.
SIZES = {
    "BERT": (4, 12, 128, 128, 64, False), "ViT": (4, 6, 197, 197, 64, False), "GPT-2": (2, 12, 256, 256, 64, True),
    "1024 places": (1, 12, 1024, 1024, 64, True), "heads of 128": (1, 16, 512, 512, 128, True),
    "Whisper": (1, 6, 1500, 1500, 64, False), "few places": (8, 4, 32, 32, 16, False),
}  # fmt: skip


class Attention(nn.Module):
    """Heads of a projection's result, (batch, rows, heads, width), that look at others."""

    def __init__(self, causal: bool) -> None:
        super().__init__()
        self.causal = causal

    def forward(self, *heads: torch.Tensor) -> torch.Tensor:
        return scaled_dot_product_attention(*(each.transpose(1, 2) for each in heads), is_causal=self.causal)


class ByHand(nn.Module):
    """The same, written out."""

    def __init__(self, causal: bool, keys: int) -> None:
        super().__init__()
        self.causal = causal
        self.register_buffer("mask", torch.ones(1, 1, keys, keys).tril())

    def forward(self, *heads: torch.Tensor) -> torch.Tensor:
        query, key, value = (each.transpose(1, 2) for each in heads)
        scores = query @ key.transpose(-2, -1) / query.shape[-1] ** 0.5
        if self.causal:
            scores = scores.masked_fill(self.mask == 0, float("-inf"))
        return torch.softmax(scores, -1) @ value


def cases() -> dict[str, Case]:
    """name -> (module, arguments, training)."""
    torch.manual_seed(0)
    found: dict[str, Any] = {}
    for name, (batch, heads, queries, keys, width, causal) in SIZES.items():
        for dtype in (torch.float32, torch.bfloat16):
            for training in (False, True):
                given = tuple(torch.randn(batch, rows, heads, width, dtype=dtype, requires_grad=training)
                              for rows in (queries, keys, keys))
                kind = f"{str(dtype).removeprefix('torch.')}, {'training' if training else 'inference'}"
                found[f"{name}, {kind}"] = Attention(causal), given, training
                found[f"{name} by hand, {kind}"] = ByHand(causal, keys), given, training
    return found


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    measure_cases(argv, cases)


if __name__ == "__main__":
    main()
