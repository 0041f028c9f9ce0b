"""Totals of reductions whose last loop is short: one for each of its positions (codegen/position_totals.py)."""

from __future__ import annotations

import math

import pytest
import torch

from fxjit.backends.native.codegen import position_totals

DIMS = (1, 3)


def totals(x):
    """Over rows of a short dimension, which lie apart."""
    whole = (x * 3).nan_to_num(0, 50, -50).to(torch.int64)
    return (
        *((x * 2).sum(DIMS), (x * 2).amax(DIMS), (x * 2).amin(DIMS), (x * x).mean(DIMS), torch.var_mean(x * 1.0, DIMS)[0]),
        *(whole.sum(DIMS), whole.amax(DIMS), whole.to(torch.int32).amin(DIMS), (x.double() * 2).amax(DIMS)),
        *((x > 2.5).any(3).any(1), (x > -9).all(3).all(1), torch.linalg.vector_norm(x, 2, DIMS)),
    )


def given(count: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    x = torch.randn(6, 24, 5, count)
    x[0, 3, 1, -1], x[1, 0, 0, 0], x[2, 7, 2, 1], x[3] = math.nan, math.inf, -math.inf, -0.0
    return x.to(dtype)


@pytest.mark.parametrize("count", [2, 4, 7, 8, 10, 16, 33, 64, 100, 128, 130])
def test_totals(count: int, sources, assert_kernels_same) -> None:
    torch.manual_seed(count)
    assert_kernels_same(totals, given(count))
    assert ("[i1] = (double)(w_" in sources[0]) == (position_totals.LEAST <= count <= position_totals.MOST)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.bool], ids=str)
@pytest.mark.parametrize("count", [4, 8, 24, 48])
def test_types(count: int, dtype: torch.dtype, assert_kernels_same) -> None:
    torch.manual_seed(count)
    x = given(count).nan_to_num(0, 9, -9).to(dtype)

    def f(x):
        more = (x * 2).sum(DIMS), (x + x).amax(DIMS)
        return (*more, x.ne(0).sum(DIMS)) if dtype is not torch.bool else (x.sum(DIMS), x.any(3).any(1))

    assert_kernels_same(f, x)


def test_the_threads_have_a_part_each(assert_kernels_same) -> None:
    """Of few results the loops are shared: each part has its totals."""
    x = torch.rand(1, 4096, 2, 8)
    assert_kernels_same(lambda x: ((x * 2).sum(DIMS), (x * x).sum(DIMS)), x)


def test_what_has_an_order_has_one_total(assert_kernels_same) -> None:
    x = torch.randn(5, 9, 3, 8)
    assert_kernels_same(lambda x: ((x * 2).permute(0, 2, 1, 3).flatten(2).cumsum(-1), (x + 1).flatten(1).argmax(1)), x)


def test_only_rows_of_half_a_vector_and_more_have_them() -> None:
    assert not position_totals.is_applicable((8,), [])
    assert not position_totals.is_applicable((3, 8), [])
    assert position_totals.is_applicable((64, 4), [])
    assert not position_totals.is_applicable((64, 129), [])
