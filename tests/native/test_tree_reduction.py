"""Totals over short rows, made of whole vectors (codegen/tree_reduction.py)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from fxjit.backends.native import pipeline
from fxjit.backends.native.codegen import tree_reduction


def rows(columns: int) -> torch.Tensor:
    """Random rows; then in some of them NaN or an infinity at the beginning, in the middle, at the end, or everywhere."""
    x = torch.randn(40, columns)
    for k, value in enumerate((math.nan, -math.nan, math.inf, -math.inf)):
        for place, row in ((0, 4 * k), (columns // 2, 4 * k + 1), (columns - 1, 4 * k + 2), (slice(None), 4 * k + 3)):
            x[row, place] = value
    x[20] = 0.0
    x[21, ::2], x[21, 1::2] = 0.0, -0.0
    x[22, 3], x[22, 4] = math.inf, math.nan
    return x


def totals(x, mask):
    whole, double = (x * 3).nan_to_num(0, 50, -50).to(torch.int64), x.double() * 2
    shown = (x * 0.5).masked_fill(mask, float("-inf"))
    return (
        *((x * 2).sum(-1), (x * 2).amax(-1), (x * 2).amin(-1), (x * x).mean(-1)),
        *(double.sum(-1), double.amax(-1), double.amin(-1)),
        *(whole.sum(-1), whole.amax(-1), whole.to(torch.int32).amin(-1), (x + 1).argmax(-1)),
        *(torch.softmax(shown, -1), torch.log_softmax(shown, -1), torch.logsumexp(shown, -1)),
    )


@pytest.mark.parametrize("columns", [16, 20, 31, 64, 100, 512])
def test_totals(columns, sources, assert_kernels_same):
    torch.manual_seed(columns)
    assert_kernels_same(totals, rows(columns), torch.rand(40, columns) > 0.7)
    assert "fx_row<float>::max" in sources[0] and "fx_row<double>::sum" in sources[0] and "fx_row<int64_t>::max" in sources[0]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("columns", [32, 50])
def test_half_types(dtype, columns, sources, assert_kernels_same):
    x = rows(columns).to(dtype)
    assert_kernels_same(lambda x: (torch.softmax(x, -1), (x * 2).sum(-1), (x * 2).amax(-1), (x + x).amin(-1)), x)
    assert "fx_row<float>::max" in sources[0]


def test_norms_and_their_derivatives(sources, assert_kernels_same):
    x, y = torch.randn(33, 48), torch.randn(33, 48)
    weight, bias = torch.randn(48), torch.randn(48)

    def function(x, y, weight, bias):
        return torch.nn.functional.layer_norm(x + y, (48,), weight, bias), torch.nn.functional.rms_norm(x * y, (48,), weight)

    assert_kernels_same(function, x, y, weight, bias)
    assert "fx_row<double>::sum" in sources[0]


def test_a_row_that_is_kept_is_not_put_down_twice(sources):
    """The exponentials of a softmax are in an array of their own already."""
    x = torch.randn(40, 64)
    gm = make_fx(lambda x: (torch.softmax(x * 2, -1),))(x)
    pipeline.compile_graph(gm, [x]).finish()([x])
    assert sources[0].count("fold<") == 2 and sources[0].count("float w_") == 1


@pytest.mark.parametrize("columns", [tree_reduction.LEAST - 1, tree_reduction.MOST + 1])
def test_other_rows_have_totals_of_the_compiler(columns, sources, assert_kernels_same):
    assert_kernels_same(lambda x: ((x * 2).sum(-1), (x * 2).amax(-1)), rows(columns))
    assert "fx_row<" not in sources[0]
