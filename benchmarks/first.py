"""`python -m benchmarks.first`: the first table: small kernels, small models, forward and training, and the cost of a call.

For each case eager, torch.compile (default backend) and fxjit take turns in one process. Printed as Markdown; the
table in README.md and docs/performance_models.md is this command's output.
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

import fxjit
from benchmarks.timing import case_arguments, first_call, interleaved, markdown, measured_beside
from fxjit.demo import AttentionNet, ConvNet

Case = tuple[Callable[..., Any], tuple[Any, ...], bool]


def gelu_like(x: torch.Tensor) -> torch.Tensor:
    return 0.5 * x * (1 + torch.tanh(0.79788456 * (x + 0.044715 * x * x * x)))


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return x + y


def softmax(x: torch.Tensor) -> torch.Tensor:
    return torch.softmax(x * 0.5, dim=-1)


def layer_norm_residual(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x + y, (x.shape[-1],))


def mlp(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width), nn.LayerNorm(width))


def bert() -> tuple[nn.Module, tuple[Any, ...]]:
    """A small BERT with random weights, and ids."""
    from transformers import BertConfig, BertModel

    model = BertModel(BertConfig(vocab_size=1000, hidden_size=128, num_hidden_layers=2, num_attention_heads=4,
                                 intermediate_size=512))
    return model.eval(), (torch.randint(0, 1000, (2, 64)),)


def cases() -> dict[str, Case]:
    """name -> (function or module, arguments, training)."""
    torch.manual_seed(0)
    found: dict[str, Case] = {
        "x + y, 8 floats": (add, (torch.randn(8), torch.randn(8)), False),
        "gelu-like, 1e4": (gelu_like, (torch.randn(10_000),), False),
        "gelu-like, 1e6": (gelu_like, (torch.randn(1_000_000),), False),
        "softmax (512, 1024)": (softmax, (torch.randn(512, 1024),), False),
        "residual + layer norm (512, 1024)": (layer_norm_residual, (torch.randn(512, 1024), torch.randn(512, 1024)), False),
        "MLP 128, batch 256, inference": (mlp(128), (torch.randn(256, 128),), False),
        "MLP 128, batch 256, training": (mlp(128), (torch.randn(256, 128),), True),
        "digits convolution, training": (ConvNet(), (torch.randn(128, 1, 8, 8),), True),
        "digits attention, training": (AttentionNet(), (torch.randn(128, 1, 8, 8),), True),
    }
    try:
        model, args = bert()
    except ImportError:
        return found
    found["BERT, 2 layers of 128, inference"] = (model, args, False)
    return found


def _runner(fn: Callable[..., Any], args: tuple[Any, ...], training: bool) -> Callable[[], object]:
    if not training:
        def infer() -> object:
            with torch.no_grad():
                return fn(*args)
        return infer

    def train() -> object:
        loss = fn(*args).square().mean()
        loss.backward()
        return loss
    return train


def measure(name: str, case: Case, seconds: float, with_torch: bool) -> tuple[str, ...]:
    """One row of the table. Models of one class would share a limit of recompiles, so that no row keeps another's entries."""
    fxjit.reset()
    torch.compiler.reset()
    fn, args, training = case
    ways: dict[str, Any] = {"eager": fn}
    compilers: dict[str, Callable[..., Any]] = {"fxjit": fxjit.compile}
    if with_torch:
        compilers["torch.compile"] = torch.compile
    for way, compile_ in compilers.items():
        target = copy.deepcopy(fn) if isinstance(fn, nn.Module) else fn
        ways[way] = compile_(target)
    calls = {way: _runner(target, args, training) for way, target in ways.items()}
    first = {way: first_call(call) for way, call in calls.items()}
    for call in calls.values():
        call()
    steady = interleaved(calls, seconds)
    eager, ours, theirs = steady["eager"], steady["fxjit"], steady.get("torch.compile")
    return (name, f"{eager * 1e6:.1f}", f"{eager / ours:.2f}x",
            "" if theirs is None else f"{eager / theirs:.2f}x", "" if theirs is None else f"{theirs / ours:.2f}x",
            f"{first['fxjit']:.2f}", "" if theirs is None else f"{first['torch.compile']:.2f}")


HEADER = ("case", "eager, µs", "fxjit over eager", "torch.compile over eager", "fxjit over torch.compile",
          "first call fxjit, s", "first call torch.compile, s")


def main(argv: list[str] | None = None, cases: Callable[[], dict[str, Case]] = cases) -> None:
    """Measures and prints."""
    options = case_arguments(__doc__).parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="fxjit-bench-") as folder, fxjit.config.patch(cache_dir=f"{folder}/fxjit"):
        if not options.without_torch_compile:
            fxjit.config.set_environment(TORCHINDUCTOR_CACHE_DIR=f"{folder}/inductor")
        rows = []
        for name, case in cases().items():
            if options.only not in name:
                continue
            rows.append(measure(name, case, options.seconds, not options.without_torch_compile))
            print(" | ".join(rows[-1]), flush=True)
    print()
    print(markdown(HEADER, rows))
    print(f"\n{measured_beside()}")


if __name__ == "__main__":
    main()
