"""Totals over short rows, made of whole vectors (codegen/tree_reduction.py)."""

from __future__ import annotations

import math

import pytest
import torch
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
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
    x = torch.randn(40, 48)
    gm = make_fx(lambda x: (torch.softmax(x * 2, -1),))(x)
    pipeline.compile_graph(gm, [x]).finish()([x])
    assert sources[0].count("fold<") == 2 and sources[0].count("float w_") == 1


@pytest.mark.parametrize("columns", [tree_reduction.LEAST - 1, tree_reduction.MOST_OF_FLOATS + 1, tree_reduction.MOST + 1])
def test_other_rows_have_totals_of_the_compiler(columns, sources, assert_kernels_same):
    assert_kernels_same(lambda x: ((x * 2).sum(-1), (x * 2).amax(-1)), rows(columns))
    assert "fx_row<" not in sources[0]


def plain(x):
    return (x.sum(-1), x.amax(-1), x.amin(-1), torch.softmax(x, -1), torch.log_softmax(x, -1), x.mean(-1, keepdim=True) + x)


@pytest.mark.parametrize("columns", [16, 20, 31, 48, 63])
def test_rows_in_memory_are_not_copied(columns, sources, assert_kernels_same):
    assert_kernels_same(plain, rows(columns))
    for kind in ("float>::max", "float>::min", "double>::sum"):
        assert f"fold<fx_row<{kind}, {columns}>(p0 + " in sources[0]


@pytest.mark.parametrize("name", ["a part", "doubles", "integers", "beside each other", "columns", "the same row",
                                  "one number"])
def test_rows_of_other_layouts(name, assert_kernels_same):
    x = rows(64)
    made = {
        "a part": x[3:, 5:37], "doubles": x.double(), "integers": torch.arange(640).view(20, 32) % 7 - 3,
        "beside each other": x.view(8, 5, 64).transpose(0, 1), "columns": rows(40).t()[:32].t()[:, :32].t(),
        "the same row": x[20].expand(6, 64), "one number": x[21:30, :1].expand(9, 32),
    }[name]  # fmt: skip
    if made.dtype is torch.int64:
        assert_kernels_same(lambda x: (x.sum(-1), x.amax(-1), x.amin(-1), x - x.amax(-1, keepdim=True)), made)
    else:
        assert_kernels_same(plain, made)


def test_rows_that_are_written_to_meanwhile():
    def run(x):
        x.sub_(x.amax(-1, keepdim=True))
        total = x.sum(-1)
        x.div_(x.amin(-1, keepdim=True))
        return total, x.sum(-1)

    x, y = (torch.randn(12, 48, generator=torch.Generator().manual_seed(3)) for _ in range(2))
    for made, expected in zip(fxjit.compile(run, fullgraph=True)(x), run(y), strict=True):
        torch.testing.assert_close(made, expected)
    torch.testing.assert_close(x, y)


@pytest.mark.parametrize("columns", [16, 32, 100])
@pytest.mark.parametrize("name", ["copied", "twice", "of a copy", "normalised", "maximum", "half"])
def test_copies_of_the_row_in_the_same_loops(name, columns, assert_kernels_same):
    """A member that only copies the row makes no total of it."""
    program = {
        "copied": lambda x: (x.sum(-1), torch.cat([x, x + 1], -1)),
        "twice": lambda x: (x.sum(-1), torch.cat([x, x], -1), torch.stack([x, x])),
        "of a copy": lambda x: (x.sum(-1), torch.cat([torch.cat([x[:20], x[20:]]), x])),
        "normalised": lambda x: (torch.nn.functional.layer_norm(x, x.shape[-1:]), torch.cat([x, x.sin()], 0)),
        "maximum": lambda x: (x.amax(-1), x.softmax(-1), torch.stack([x, x * 2])),
        "half": lambda x: (x.half().amax(-1), torch.cat([x.half(), x.half()], -1)),
    }[name]
    assert_kernels_same(program, torch.randn(40, columns))
