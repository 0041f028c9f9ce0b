"""Max pooling over small windows without padding: an unrolled comparison, where ATen has a scalar loop."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx

from ..index import Size, add, mul, sizes_of
from ..ir import Expr, Iota, Value, reindex
from ..ops import compare, op, where
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
    window = pair(kernel)
    steps = pair(stride) if isinstance(stride, int) or len(stride) else window
    if (
        pair(padding) != (0, 0)
        or pair(dilation) != (1, 1)
        or ceil_mode
        or math.prod(window) > MAX_WINDOW
        or not x.dtype.is_floating_point
    ):
        raise NoLowering("padded, dilated or wide windows")
    if any(not isinstance(size, int) or size == 0 for size in x.size):
        raise NoLowering("a symbolic or empty plane")
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    if steps[0] < window[0] or steps[1] < window[1]:
        low.materialize(source)  # windows overlap: compute each element once
        x = low.value(low.env[source])
    out, width = sizes_of(meta_of(node)[0].shape), x.size[-1]
    best: Expr | None = None
    place: Expr | None = None
    zeros: tuple[Size, ...] = (0,) * (x.ndim - 2)
    for i in range(window[0]):
        for j in range(window[1]):
            value = shifted(x.expr, steps, i, j)
            here = Iota((*zeros, mul(width, steps[0]), steps[1]), add(mul(width, i), j))
            if best is None or place is None:
                best, place = value, here
                continue
            taken = op("or", compare("gt", value, best), op("isnan", value, dtype=torch.bool), dtype=torch.bool)
            best, place = where(taken, value, best), where(taken, here, place)
    assert best is not None and place is not None
    return Value(out, x.dtype, best), Value(out, torch.int64, place)


def shifted(expr: Expr, steps: tuple[int, int], i: int, j: int) -> Expr:
    """The element (i, j) of each window."""

    def change(strides: tuple[Size, ...], offset: Size) -> tuple[tuple[Size, ...], Size]:
        rows, columns = strides[-2], strides[-1]
        moved = add(offset, add(mul(rows, i), mul(columns, j)))
        return (*strides[:-2], mul(rows, steps[0]), mul(columns, steps[1])), moved

    return reindex(expr, change)
