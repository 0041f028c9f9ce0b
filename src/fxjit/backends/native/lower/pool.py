"""Max pooling over small windows: an unrolled comparison, where ATen has a scalar loop."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx

from ..index import Size, add, contiguous_strides, mul, sizes_of
from ..ir import Expr, Iota, Value, reindex
from ..ops import compare, const, op, where
from .table import Lowering, NoLowering, lowers, meta_of

MAX_WINDOW = 16


def pair(x: Any) -> tuple[int, int]:
    values = [x] if isinstance(x, int) else list(x)
    return (values[0], values[-1])


@lowers("max_pool2d_with_indices.default")
def lower_max_pool2d(
    low: Lowering,
    node: torch.fx.Node,
    x: Any,
    kernel: Any,
    stride: Any = (),
    padding: Any = 0,
    dilation: Any = 1,
    ceil_mode: bool = False,
) -> tuple[Value, Value]:
    """(maxima, their places in the plane). NaN wins, the first of equals is kept, as in eager."""
    x = low.value(x)
    window, pad = pair(kernel), pair(padding)
    steps = pair(stride) if isinstance(stride, int) or len(stride) else window
    if pair(dilation) != (1, 1) or ceil_mode or math.prod(window) > MAX_WINDOW or not x.dtype.is_floating_point:
        raise NoLowering("dilated or wide windows")
    if any(not isinstance(size, int) or size == 0 for size in x.size):
        raise NoLowering("a symbolic or empty plane")
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    width = x.size[-1]
    if pad != (0, 0):
        expr = padded(low, x, pad)
    elif steps[0] < window[0] or steps[1] < window[1]:
        low.materialize(source)  # windows overlap: compute each element once
        expr = low.value(low.env[source]).expr
    else:
        expr = x.expr
    # The first place that counts in each window, for a plane of nothing but -inf.
    best: Expr = const(float("-inf"), expr.dtype)
    place = first_place(x.ndim, width, steps, pad)
    zeros: tuple[Size, ...] = (0,) * (x.ndim - 2)
    for i in range(window[0]):
        for j in range(window[1]):
            value = shifted(expr, steps, i, j)
            here = Iota((*zeros, mul(width, steps[0]), steps[1]), add(mul(width, i - pad[0]), j - pad[1]))
            taken = op("or", compare("gt", value, best), op("isnan", value, dtype=torch.bool), dtype=torch.bool)
            best, place = where(taken, value, best), where(taken, here, place)
    out = sizes_of(meta_of(node)[0].shape)
    return Value(out, x.dtype, best), Value(out, torch.int64, place)


def padded(low: Lowering, x: Value, pad: tuple[int, int]) -> Expr:
    """The plane with a rim of -inf, in memory."""
    size = (*x.size[:-2], add(x.size[-2], 2 * pad[0]), add(x.size[-1], 2 * pad[1]))
    buffer = low.new_buffer(size, contiguous_strides(size), x.dtype)
    low.store_in(buffer, const(float("-inf"), x.expr.dtype), size, None)
    start = add(mul(buffer.stride[-2], pad[0]), pad[1])
    low.store_in(buffer, x.expr, x.size, buffer.stride, start)
    return low.load(buffer)


def first_place(ndim: int, width: Size, steps: tuple[int, int], pad: tuple[int, int]) -> Expr:
    zeros: tuple[Size, ...] = (0,) * (ndim - 2)
    nothing = const(0, torch.int64)
    row = op("maximum", Iota((*zeros, steps[0], 0), -pad[0]), nothing)
    column = op("maximum", Iota((*zeros, 0, steps[1]), -pad[1]), nothing)
    if pad == (0, 0):
        return Iota((*zeros, mul(width, steps[0]), steps[1]), 0)
    return op("add", op("mul", row, Iota((0,) * ndim, width)), column)


def shifted(expr: Expr, steps: tuple[int, int], i: int, j: int) -> Expr:
    """The element (i, j) of each window."""

    def change(strides: tuple[Size, ...], offset: Size) -> tuple[tuple[Size, ...], Size]:
        rows, columns = strides[-2], strides[-1]
        moved = add(offset, add(mul(rows, i), mul(columns, j)))
        return (*strides[:-2], mul(rows, steps[0]), mul(columns, steps[1])), moved

    return reindex(expr, change)
