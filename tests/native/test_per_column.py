"""What a column alone decides is computed once a column, and not for each of its numbers (schedule/per_column.py)."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional as F

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64]


def inside_loops_over_numbers(source: str, call: str) -> bool:
    """Whether a loop within one over a column's numbers has the call in it."""
    return bool(re.search(r"for \(int64_t i0 = [^\n]*\{\n#pragma[^\n]*\n[^}]*" + re.escape(call), source))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(2, 7, 5, 5), (2, 32, 20, 20), (1, 3, 700)], ids=str)
def test_norms_and_softmaxes(shape: tuple[int, ...], dtype: torch.dtype, assert_kernels_same) -> None:
    x = torch.randn(shape).to(dtype)
    x[0, 0] = 60

    def f(x):
        spread = (x * x).mean(1, keepdim=True)
        whole = torch.log_softmax(x * 2, 1), torch.softmax(x + 1, 1), F.normalize(x, dim=1)
        scaled = x / (spread + 1).sqrt(), x * (spread + 2).rsqrt() + x.sin(), (x * (x.amax(1, keepdim=True) / 3)).amax(1)
        return (*whole, *scaled, (x / (1 + spread)).sum(1))

    assert_kernels_same(f, x)


def test_a_logarithm_is_taken_once(sources, assert_kernels_same) -> None:
    assert_kernels_same(lambda x: (torch.log_softmax(x * 2, 1),), torch.randn(2, 32, 20, 20))
    assert "fx_log(" in sources[0] and not inside_loops_over_numbers(sources[0], "fx_log(")


def test_parts_that_several_read_are_one(sources, assert_kernels_same) -> None:
    def f(x):
        root = (x * x).mean(1, keepdim=True).sqrt()
        return x * root.exp(), (x + root.exp()).amax(1), (x - root).sum(1)

    assert_kernels_same(f, torch.randn(2, 24, 300))
    assert sources[0].count("fx_exp(") == 1 and not inside_loops_over_numbers(sources[0], "fx_exp(")


def test_what_the_kernel_writes_over_is_read_before(assert_kernels_same) -> None:
    """A scale of each column, which is an input that the same kernel writes to."""
    def f(x, scale):
        y = x * torch.exp(scale)
        scale.add_(y.sum(0))
        return (y.amax(0),)

    assert_kernels_same(f, torch.randn(40, 300), torch.randn(300))


def test_few_columns_whose_rows_threads_share(assert_kernels_same) -> None:
    assert_kernels_same(lambda x, b: ((x * torch.exp(b) / b.abs().sqrt()).sum(0),), torch.rand(20000, 24), torch.rand(24) + 3)
