"""Pooling over small windows, unrolled where ATen has a scalar loop, and enlarging by whole factors; with their derivatives."""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx

from ..index import Size, Sizes, add, contiguous_strides, mul, sizes_of
from ..ir import Compute, Expr, Gather, Iota, Scatter, TensorExpr, compute_type, insert_dim, is_plain_load, reindex
from ..ops import compare, const, op, where
from ..target import by_triton
from .indexing import as_index
from .scatter import allowed
from .table import Lowering, NoLowering, lowers, meta_of

MAX_WINDOW = 16
# Elements from which on ATen is as fast at pooling neighbouring channels, if it does not have to be fed.
MANY = 1 << 18


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
) -> tuple[TensorExpr, TensorExpr]:
    """(maxima, their places in the plane). NaN wins, the first of equals is kept, as in eager."""
    x = low.value(x)
    window, pad = pair(kernel), pair(padding)
    steps = steps_of(window, stride)
    if pair(dilation) != (1, 1) or ceil_mode:
        raise NoLowering("dilated windows")
    check_windows(x, window)
    width = x.size[-1]
    expr = plane_of(low, node, x, window, steps, pad, float("-inf"))
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
    return TensorExpr(out, x.dtype, best), TensorExpr(out, torch.int64, place)


def steps_of(window: tuple[int, int], stride: Any) -> tuple[int, int]:
    return pair(stride) if isinstance(stride, int) or len(stride) else window


def check_windows(x: TensorExpr, window: tuple[int, int]) -> None:
    if math.prod(window) > MAX_WINDOW or not x.dtype.is_floating_point:
        raise NoLowering("wide windows")
    if any(not isinstance(size, int) or size == 0 for size in x.size):
        raise NoLowering("a symbolic or empty plane")


def plane_of(
    low: Lowering, node: torch.fx.Node, x: TensorExpr, window: tuple[int, int], steps: tuple[int, int], pad: tuple[int, int],
    rim: float,
) -> Expr:  # fmt: skip
    """The operand of the windows: materialised where they overlap or reach over the rim."""
    source = node.args[0]
    assert isinstance(source, torch.fx.Node)
    strides = [stride for stride in sizes_of(meta_of(source).stride()) if isinstance(stride, int)]
    if len(strides) < x.ndim:
        raise NoLowering("symbolic strides")
    if strides[-3] == 1 and math.prod(x.size) >= MANY and is_plain_load(x.expr) and not by_triton(low.device):
        raise NoLowering("ATen's vectors along channels")
    if pad != (0, 0):
        return padded(low, x, pad, rim, sorted(range(x.ndim), key=strides.__getitem__, reverse=True))
    if steps[0] < window[0] or steps[1] < window[1]:
        low.materialize(source)  # each element is computed once
        return low.value(low.env[source]).expr
    return x.expr


def padded(low: Lowering, x: TensorExpr, pad: tuple[int, int], rim: float, order: list[int]) -> Expr:
    """The plane with a rim, in memory; `order` are the dimensions from the widest stride to the narrowest."""
    size = (*x.size[:-2], add(x.size[-2], 2 * pad[0]), add(x.size[-1], 2 * pad[1]))
    strides = dict(zip(order, contiguous_strides([size[dim] for dim in order]), strict=True))
    buffer = low.new_buffer(size, tuple(strides[dim] for dim in range(x.ndim)), x.dtype)
    low.store_in(buffer, const(rim, x.expr.dtype), size, None)
    start = add(mul(buffer.stride[-2], pad[0]), mul(buffer.stride[-1], pad[1]))
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


@lowers("max_pool2d_with_indices_backward.default")
def lower_max_pool2d_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, dilation: Any,
    ceil_mode: bool, places: Any,
) -> TensorExpr:  # fmt: skip
    """Zeros, with each gradient added where its maximum was."""
    grad, places, meta = low.value(grad), low.value(places), meta_of(node)
    allowed(low, grad.dtype, "add")
    size, stride_out = sizes_of(meta.shape), sizes_of(meta.stride())
    if stride_out[-2] != mul(size[-1], stride_out[-1]):
        raise NoLowering("planes with gaps")
    buffer = low.new_buffer(size, stride_out, meta.dtype)
    low.store_in(buffer, const(0, grad.expr.dtype), size, None)
    here = Gather(as_index(places), stride_out[-1], mul(size[-2], size[-1]), False)
    strides: Sizes = (*stride_out[:-2], 0, 0)
    scatter = Scatter((here,), "add")
    low.statements.append(Compute(buffer, grad.size, (), grad.expr, strides, 0, None, low.current_origins(), scatter=scatter))
    return TensorExpr(size, meta.dtype, low.load(buffer))


# Averages


@lowers("avg_pool2d.default")
def lower_avg_pool2d(
    low: Lowering, node: torch.fx.Node, x: Any, kernel: Any, stride: Any = (), padding: Any = 0, ceil_mode: bool = False,
    count_rim: bool = True, divisor: Any = None,
) -> TensorExpr:  # fmt: skip
    x, window, pad = low.value(x), pair(kernel), pair(padding)
    if ceil_mode or (pad != (0, 0) and not count_rim and divisor is None):
        raise NoLowering("windows that are not all alike")
    check_windows(x, window)
    steps = steps_of(window, stride)
    total = window_sum(plane_of(low, node, x, window, steps, pad, 0.0), window, steps)
    count = const(divisor or math.prod(window), total.dtype)
    return TensorExpr(sizes_of(meta_of(node).shape), x.dtype, op("div", total, count))


def window_sum(expr: Expr, window: tuple[int, int], steps: tuple[int, int]) -> Expr:
    parts = [shifted(expr, steps, i, j) for i in range(window[0]) for j in range(window[1])]
    total = parts[0]
    for part in parts[1:]:
        total = op("add", total, part)
    return total


@lowers("_adaptive_avg_pool2d.default")
def lower_adaptive_avg_pool2d(low: Lowering, node: torch.fx.Node, x: Any, sizes: Any) -> TensorExpr:
    x = low.value(x)
    window = whole_factors(sizes_of(x.size[-2:]), sizes_of(sizes))
    check_windows(x, window)
    total = window_sum(x.expr, window, window)
    return TensorExpr(sizes_of(meta_of(node).shape), x.dtype, op("div", total, const(math.prod(window), total.dtype)))


def whole_factors(large: Sizes, small: Sizes) -> tuple[int, int]:
    """How many times each size goes into the other."""
    found = []
    for a, b in zip(large, small, strict=True):
        if not isinstance(a, int) or not isinstance(b, int) or b == 0 or a == 0 or a % b:
            raise NoLowering("no whole factor")
        found.append(a // b)
    return found[0], found[1]


@lowers("avg_pool2d_backward.default")
def lower_avg_pool2d_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, x: Any, kernel: Any, stride: Any, padding: Any, ceil_mode: bool,
    count_rim: bool, divisor: Any,
) -> TensorExpr:  # fmt: skip
    grad, window = low.value(grad), pair(kernel)
    if ceil_mode or pair(padding) != (0, 0) or steps_of(window, stride) != window:
        raise NoLowering("windows that overlap or reach over the rim")
    share = op("div", grad.expr, const(divisor or math.prod(window), grad.expr.dtype))
    return repeated(low, node, TensorExpr(grad.size, grad.dtype, share), window)


@lowers("_adaptive_avg_pool2d_backward.default")
def lower_adaptive_avg_pool2d_backward(low: Lowering, node: torch.fx.Node, grad: Any, x: Any) -> TensorExpr:
    grad = low.value(grad)
    window = whole_factors(sizes_of(meta_of(node).shape)[-2:], grad.size[-2:])
    share = op("div", grad.expr, const(math.prod(window), grad.expr.dtype))
    return repeated(low, node, TensorExpr(grad.size, grad.dtype, share), window)


def repeated(low: Lowering, node: torch.fx.Node, x: TensorExpr, window: tuple[int, int]) -> TensorExpr:
    """Each element as a window of equal ones; zeros where no window reaches."""
    meta = meta_of(node)
    size, stride = sizes_of(meta.shape), sizes_of(meta.stride())
    if any(not isinstance(each, int) for each in size):
        raise NoLowering("a symbolic plane")
    buffer = low.new_buffer(size, stride, meta.dtype)
    if any(mul(n, k) != whole for n, k, whole in zip(x.size[-2:], window, size[-2:], strict=True)):
        low.store_in(buffer, const(0, compute_type(meta.dtype)), size, None)
    (rows, columns), (down, right) = x.size[-2:], stride[-2:]
    loops: Sizes = (*x.size[:-2], rows, window[0], columns, window[1])
    steps: Sizes = (*stride[:-2], mul(down, window[0]), down, mul(right, window[1]), right)
    low.store_in(buffer, insert_dim(insert_dim(x.expr, x.ndim), x.ndim - 1), loops, steps)
    return TensorExpr(size, meta.dtype, low.load(buffer))


# Enlarging


@lowers("upsample_nearest2d.default")
def lower_upsample_nearest2d(low: Lowering, node: torch.fx.Node, x: Any, sizes: Any, *scales: Any) -> TensorExpr:
    x = low.value(x)
    factors = enlarged_by(sizes_of(meta_of(node).shape)[-2:], x.size[-2:], scales)
    return repeated(low, node, x, factors)


@lowers("upsample_nearest2d_backward.default")
def lower_upsample_nearest2d_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, sizes: Any, input_sizes: Any, *scales: Any
) -> TensorExpr:
    grad = low.value(grad)
    factors = enlarged_by(grad.size[-2:], sizes_of(meta_of(node).shape)[-2:], scales)
    check_windows(grad, factors)
    return TensorExpr(sizes_of(meta_of(node).shape), grad.dtype, window_sum(grad.expr, factors, factors))


def enlarged_by(large: Sizes, small: Sizes, scales: tuple[Any, ...]) -> tuple[int, int]:
    factors = whole_factors(large, small)
    if any(scale is not None and scale != factor for scale, factor in zip(scales, factors, strict=False)):
        raise NoLowering("a scale that is not the factor of the sizes")
    return factors
