"""`python -m benchmarks.quantised`: layers whose weights are 8-bit integers, as `benchmarks.first` measures.

torchao (which has to be installed) quantises four gated layers of 512: weights alone, or activations at each call as well. One
row is what decoding has, 64 what a prompt or a batch has.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.first import Case
from benchmarks.first import main as measure_cases

WIDTH, INNER, LAYERS = 512, 1408, 4


class Gated(nn.Module):
    """A norm and a SwiGLU layer, added to its input."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.RMSNorm(WIDTH)
        self.gate, self.up = nn.Linear(WIDTH, INNER, bias=False), nn.Linear(WIDTH, INNER, bias=False)
        self.down = nn.Linear(INNER, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


def cases() -> dict[str, Case]:
    """name -> (module, arguments, whether it is trained)."""
    try:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_
    except ImportError as problem:
        raise SystemExit(f"benchmarks.quantised needs torchao (pip install torchao): {problem}") from problem
    found: dict[str, Case] = {}
    for kind, config in (("weights", Int8WeightOnlyConfig), ("weights and activations", Int8DynamicActivationInt8WeightConfig)):
        for dtype in (torch.float32, torch.bfloat16):
            torch.manual_seed(0)
            module = nn.Sequential(*(Gated() for _ in range(LAYERS))).to(dtype)
            quantize_(module, config())
            for rows in (1, 64):
                name = f"{kind}, {str(dtype).removeprefix('torch.')}, {rows} {'row' if rows == 1 else 'rows'}"
                found[name] = (module, (torch.randn(rows, WIDTH, dtype=dtype),), False)
    return found


def main(argv: list[str] | None = None) -> None:
    """Measures and prints."""
    measure_cases(argv, cases)


if __name__ == "__main__":
    main()
