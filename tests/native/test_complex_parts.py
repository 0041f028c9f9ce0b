"""Chains of complex operators are kernels of real ones: eager's numbers to the last bit, its strides and its gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit


def mixed(z: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Any:
    return (z * w + r).conj_physical() * 2j - z, (z * z).abs(), -(z - w) * r, torch.where(r > 0, z + 1, w * 0.5), z ** 2 + w


def escaping(z: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Any:
    steps = torch.zeros(z.shape, dtype=torch.int64)
    at = torch.zeros_like(z)
    for _ in range(3):
        inside = at.abs() <= 2
        at = torch.where(inside, at * at + z, at)
        steps = steps + inside
    return at, steps


def filled(z: torch.Tensor, w: torch.Tensor, r: torch.Tensor) -> Any:
    product = torch.pow(w, torch.as_tensor(2, dtype=z.dtype)) * z
    mask = (product.real > r) | (product.imag == 0)
    return (product.masked_fill(mask, 2 - 1j) + z, product.masked_fill(mask, torch.tensor(3.0, dtype=z.dtype)), mask,
            (r[:1] * w + w).imag + r, (z * 2 - w).real.unsqueeze(0))


SPECIAL = [complex("inf"), complex("nan"), complex(float("inf"), float("nan")), complex(-0.0, 0.0), 1e30 + 1e30j, 0j]


def inputs(dtype: torch.dtype) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    z, w = (torch.randn(5, 7, dtype=dtype, generator=generator) for _ in range(2))
    z.view(-1)[: len(SPECIAL)] = torch.tensor(SPECIAL, dtype=dtype)
    return z, w, torch.randn(5, 7, dtype=dtype.to_real(), generator=generator)


@pytest.mark.parametrize("fn", [mixed, escaping, filled])
@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_numbers_are_eagers(fn: Callable[..., Any], dtype: torch.dtype) -> None:
    for found, expected in zip(fxjit.compile(fn)(*inputs(dtype)), fn(*inputs(dtype)), strict=True):
        assert (found.dtype, found.stride()) == (expected.dtype, expected.stride())
        torch.testing.assert_close(found, expected, rtol=1e-15 if dtype is torch.complex128 else 1e-6, atol=0, equal_nan=True)


@pytest.mark.parametrize("fn", [escaping, filled])
def test_chains_are_kernels(fn: Callable[..., Any]) -> None:
    from torch.profiler import ProfilerActivity, profile

    compiled = fxjit.compile(fn)
    compiled(*inputs(torch.complex128))
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        compiled(*inputs(torch.complex128))
    operators = {"aten::mul", "aten::add", "aten::where", "aten::masked_fill", "aten::pow"}
    assert not operators & {event.name for event in seen.events()}


def test_gradients() -> None:
    def loss(z: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        return ((z * w + z) * w - z).abs().sum()

    grads = []
    for fn in (loss, fxjit.compile(loss)):
        z, w = (torch.randn(4, 3, dtype=torch.complex128, generator=torch.Generator().manual_seed(seed), requires_grad=True)
                for seed in range(2))
        fn(z, w).backward()
        grads.append((z.grad, w.grad))
    torch.testing.assert_close(grads[1], grads[0])


def test_conjugates_of_numbers() -> None:
    """The derivative by `x` has the conjugate of `2 - 3j`, a tensor with a lazy bit that fake tensors do not have."""
    def loss(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = -x.exp() + (2 - 3j) * y
        return (z * z).real.sum() + (1j * x[0, 0]).imag

    grads = []
    for fn in (loss, fxjit.compile(loss)):
        x, y = (torch.randn(4, 3, generator=torch.Generator().manual_seed(seed), requires_grad=True) for seed in range(2))
        fn(x, y).backward()
        grads.append((x.grad, y.grad))
    torch.testing.assert_close(grads[1], grads[0])
