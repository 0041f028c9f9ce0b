"""What `python -m benchmarks.gpu` checks of fxjit's modes: small programs that say how what they get differs from eager."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F

import fxjit
from benchmarks.gpu_difference import difference


def repeated(device: str, function: Callable[..., Any], mode: str, shapes: list[tuple[int, ...]], dtype: str) -> str:
    """Six calls, each on other numbers and in other memory: warm-up, recording, replays."""
    compiled = fxjit.compile(function, mode=mode)
    kept = []
    for k in range(6):
        torch.manual_seed(k)
        inputs = [torch.randn(shape, device=device).to(getattr(torch, dtype)).requires_grad_() for shape in shapes]
        problem = difference(compiled, function, inputs, dtype)
        if problem:
            return f"call {k}: {problem}"
        with torch.no_grad():
            kept.append((compiled(*inputs), function(*inputs)))
    for k, (one, other) in enumerate(kept):
        if not torch.allclose(one, other, rtol=2e-2, atol=2e-2):
            return f"what call {k} gave has changed since"
    return ""


def mutating(device: str) -> str:
    """A buffer that each call writes to, under CUDA graphs."""

    def step(total: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        total.add_(x)
        return total * 2

    compiled = fxjit.compile(step, mode="reduce-overhead")
    ours, eager = torch.zeros(64, device=device), torch.zeros(64, device=device)
    for k in range(6):
        x = torch.full((64,), float(k), device=device)
        if not torch.equal(compiled(ours, x), step(eager, x)) or not torch.equal(ours, eager):
            return f"call {k} differs"
    return ""


def drawing(device: str, mode: str) -> str:
    """Dropout: each call draws anew, the derivative has the same mask, and the same seed the same numbers."""
    compiled = fxjit.compile(lambda x: F.dropout(x * 2, 0.5, True), mode=mode)
    masks = []
    for k in (0, 1, 2, 3, 4, 4):
        torch.manual_seed(k)
        x = torch.ones(1000, device=device, requires_grad=True)
        out = compiled(x)
        out.sum().backward()
        if x.grad is None or not torch.equal(out, x.grad * x):
            return f"call {k}: what was dropped has a gradient, or what was kept none"
        masks.append(out.detach().clone())
    if not 400 < int((masks[0] != 0).sum()) < 600:
        return "not a half was kept"
    return "" if torch.equal(masks[4], masks[5]) and not torch.equal(masks[3], masks[4]) else "the seed is not followed"


def on_another_stream(device: str) -> str:
    """Work on a stream of the program's own, which is the current one."""
    if device == "cpu":
        return ""
    compiled = fxjit.compile(lambda x: (x * 2 + 1).relu().sum(0))
    stream, x = torch.cuda.Stream(), torch.randn(4096, 4096, device=device)
    expected = (x * 3 * 2 + 1).relu().sum(0)
    for k in range(5):
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            out = compiled(x * 3)
        torch.cuda.current_stream().wait_stream(stream)
        if not torch.allclose(out, expected, rtol=1e-3, atol=1e-2):
            return f"call {k}: a kernel was not on the current stream"
    return ""


def off_its_boundary(device: str) -> str:
    """Tensors at addresses that 16 does not divide."""
    memory = torch.randn(4097, device=device)
    compiled = fxjit.compile(lambda x: x.exp() * 2)
    for start in (0, 1, 2, 4, 0):
        x = memory[start : start + 4000]
        if not torch.allclose(compiled(x), x.exp() * 2):
            return f"differs {start} elements into the memory"
    return ""


def sizes_that_vary(device: str) -> str:
    def function(x: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x * 2, -1).sum(0)

    compiled = fxjit.compile(function, dynamic=True)
    for shape in ((8, 16), (33, 16), (64, 1000), (100, 5000), (1, 7), (2, 40_000)):
        x = torch.randn(shape, device=device)
        if not torch.allclose(compiled(x), function(x), atol=1e-4):
            return f"differs at {shape}"
    return ""


def without_memory(device: str) -> str:
    """More memory than there is: eager's own error, and the next call runs."""
    if device == "cpu":
        return ""
    compiled = fxjit.compile(lambda x: x[:, None] * x + 1)
    small = torch.randn(64, device=device)
    huge = torch.empty(1, device=device).expand(1 << 22)
    for _ in range(2):
        try:
            compiled(huge)
            return "16 TiB were found"
        except torch.OutOfMemoryError:
            pass
        if not torch.equal(compiled(small), small[:, None] * small + 1):
            return "a call after it differs"
    return ""


def two_devices(device: str) -> str:
    """A graph with parts on the processor, what crosses between them, and a number that is on it."""
    def function(x: torch.Tensor, y: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, ...]:
        there = (x * scale).relu().sum(1)
        here = (y * 2).tanh()
        return there + here.to(device), here + there.cpu(), scale + 1

    compiled = fxjit.compile(function)
    for k in range(4):
        torch.manual_seed(k)
        inputs = torch.randn(32, 100, device=device), torch.randn(32), torch.tensor(0.5 + k)
        for one, other in zip(compiled(*inputs), function(*inputs), strict=True):
            if one.device != other.device or not torch.allclose(one, other, atol=1e-4):
                return f"call {k} differs on {other.device}"
    return ""


def modes(device: str) -> dict[str, Callable[[], str]]:
    """name -> a program that says, in words, how what it is given differs from eager; empty if it does not."""
    def linear(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
        return F.gelu(torch.addmm(b, (x * 2).relu(), w)) + 1

    def attention(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return torch.softmax(x @ y, -1) * 2

    products, squares = [(512, 256), (256, 384), (384,)], [(64, 64), (64, 64)]
    found: dict[str, Callable[[], str]] = {
        "CUDA graphs": lambda: repeated(device, attention, "reduce-overhead", squares, "float32"),
        "CUDA graphs, mutation": lambda: mutating(device),
        "CUDA graphs, dropout": lambda: drawing(device, "reduce-overhead"),
        "dropout": lambda: drawing(device, "default"),
        "other streams": lambda: on_another_stream(device),
        "memory off its boundary": lambda: off_its_boundary(device),
        "sizes that vary": lambda: sizes_that_vary(device),
        "memory that is not there": lambda: without_memory(device),
        "two devices": lambda: two_devices(device),
    }
    for dtype in ("float32", "bfloat16", "float16"):
        found[f"max-autotune, {dtype}"] = functools.partial(
            repeated, device, linear, "max-autotune-no-cudagraphs", products, dtype
        )
    return found
