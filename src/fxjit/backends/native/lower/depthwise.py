"""Depthwise convolutions and their derivatives, where oneDNN spends most of its time turning layouts over.

Planes are laid out flat, with zeros between rows and between planes that both neighbours share: a tap of the window is then a
fixed distance, and a channel of all images is one long loop (`Layout`). What is computed at the zeros is not read.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from ..index import Size
from ..ir import Expr, Load, TensorExpr
from ..ops import const, op
from ..target import by_triton
from .pointwise import result
from .reduce import reduce_expr
from .table import Lowering, NoLowering, lowers, meta_of

#: Taps up to which a window is unrolled.
MAX_WINDOW = 49
# Up to where this is faster than oneDNN, measured on one thread from 2x2 to 112x112 pixels (docs/performance_kernels.md):
# forward in multiplications, backward in places; its derivatives of windows wider than 3x3 are slow ones.
FORWARD_WORK = 1_500_000
NARROW_TAPS, NARROW_PLACES, WIDE_PLACES = 9, 200_000, 1_000_000


@dataclass(frozen=True, slots=True)
class Layout:
    """Where element (n, c, row, column) is: `lead + n * plane + row * pitch + column` of channel c."""

    images: int
    channels: int
    window: tuple[int, int]
    step: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    pitch: int
    plane: int

    @property
    def length(self) -> int:
        return self.images * self.plane

    def distance(self, rows: int, columns: int) -> int:
        return rows * self.pitch + columns

    @property
    def reach(self) -> tuple[int, int]:
        """The distance from a window's first row and column to its last."""
        return (self.window[0] - 1) * self.dilation[0], (self.window[1] - 1) * self.dilation[1]

    @property
    def before(self) -> int:
        """Zeros in front of an input, so that a window that begins in the padding does not begin before the memory."""
        return self.distance(*self.padding)

    @property
    def after(self) -> int:
        return self.distance(self.reach[0] - self.padding[0], self.reach[1] - self.padding[1])

    @property
    def taps(self) -> list[tuple[int, int]]:
        return [(i, j) for i in range(self.window[0]) for j in range(self.window[1])]

    def tap(self, i: int, j: int) -> int:
        return self.distance(i * self.dilation[0], j * self.dilation[1])


def layout_of(
    x: TensorExpr, weight: TensorExpr, step: Any, padding: Any, dilation: Any, transposed: bool, groups: int
) -> Layout:
    sizes: list[int] = [size for size in (*x.size, *weight.size) if isinstance(size, int)]
    if transposed or len(sizes) != x.ndim + weight.ndim or x.ndim not in (3, 4):
        raise NoLowering("a transposed convolution, or one of sizes that vary")
    images, channels, *area = sizes[: x.ndim]
    filters, depth, *window = sizes[x.ndim :]
    if not groups == channels == filters or depth != 1 or x.dtype not in (torch.float32, torch.float64):
        raise NoLowering("a convolution that is not depthwise")
    if x.ndim == 3:
        area, window, step, padding, dilation = [1, *area], [1, *window], [1, *step], [0, *padding], [1, *dilation]
    if 0 in sizes or math.prod(window) > MAX_WINDOW or any(isinstance(pad, str) for pad in padding):
        raise NoLowering("a large window")
    if any(p > (k - 1) * d for p, k, d in zip(padding, window, dilation, strict=True)):
        raise NoLowering("more padding than a window is wide")
    pitch = area[1] + padding[1]
    plane = (area[0] + padding[0]) * pitch
    return Layout(images, channels, pair(window), pair(step), pair(padding), pair(dilation), pitch, plane)


def pair(values: Any) -> tuple[int, int]:
    return (int(values[0]), int(values[1]))


def spread(low: Lowering, x: TensorExpr, at: Layout, lead: int, tail: int, step: tuple[int, int] = (1, 1)) -> Load:
    """A tensor in the flat layout, with zeros around; rows and columns `step` apart. The load is over (channel, place)."""
    size: tuple[Size, ...] = (at.channels, lead + at.length + tail)
    buffer = low.new_buffer(size, (size[1], 1), x.dtype)
    low.store_in(buffer, const(0, x.dtype), size, None)
    strides: tuple[Size, ...] = (at.plane, size[1], at.pitch * step[0], step[1])
    low.store_in(buffer, x.expr, x.size, strides if x.ndim == 4 else (at.plane, size[1], step[1]), lead)
    return low.load(buffer)


def window_sum(low: Lowering, x: Load, weight: Load, at: Layout, *, turned: bool = False) -> Expr:
    """The sum over the window at each place, over (channel, place). `turned`: with the taps in reverse, for derivatives."""
    total: Expr | None = None
    last = at.distance(*at.reach)
    for i, j in at.taps:
        distance = last - at.tap(i, j) if turned else at.tap(i, j)
        value = Load(x.buffer, x.dtype, x.memory_dtype, (x.strides[0], 1), x.offset + distance)
        factor = Load(weight.buffer, weight.dtype, weight.memory_dtype, (weight.strides[0], 0), tap_offset(weight, i, j))
        product = op("mul", value, factor)
        total = product if total is None else op("add", total, product)
    assert total is not None
    return total


def tap_offset(weight: Load, i: int, j: int) -> Size:
    rows = weight.strides[-2] if len(weight.strides) == 4 else 0
    offset = weight.offset + i * rows + j * weight.strides[-1]  # type: ignore[operator]  # a number or an expression
    return offset  # type: ignore[return-value]  # a number or an expression


def in_memory(low: Lowering, node: torch.fx.Node, position: int) -> Load:
    """An argument as a plain load."""
    argument = node.args[position]
    assert isinstance(argument, torch.fx.Node)
    low.materialize(argument)
    load = low.value(low.env[argument]).expr
    if not isinstance(load, Load):
        raise NoLowering("an argument that is not in memory")
    return load


def read_back(flat: TensorExpr, at: Layout, ndim: int, step: tuple[int, int]) -> Expr:
    """A view of the result over (channel, place) as one over the dimensions of the tensor."""
    load = flat.expr
    assert isinstance(load, Load)
    strides: tuple[Size, ...] = (at.plane, at.length, at.pitch * step[0], step[1])
    return Load(
        load.buffer, load.dtype, load.memory_dtype, strides if ndim == 4 else (at.plane, at.length, step[1]), load.offset
    )


def check_contiguous(images: torch.Tensor) -> None:
    if not images.is_contiguous():
        raise NoLowering("channels last, which oneDNN takes as it is")


@lowers("convolution.default")
def lower_convolution(
    low: Lowering, node: torch.fx.Node, x: Any, weight: Any, bias: Any, step: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int,
) -> TensorExpr:  # fmt: skip
    x, weight = low.value(x), low.value(weight)
    at = layout_of(x, weight, step, padding, dilation, transposed, groups)
    if at.channels * at.length * len(at.taps) > FORWARD_WORK:
        raise NoLowering("a convolution that oneDNN does better")
    check_contiguous(meta_of(node.args[0]))  # type: ignore[arg-type]  # an argument that is a node
    if by_triton(low.device):
        raise NoLowering("another processor")
    taps = in_memory(low, node, 1)
    flat = low.store(window_sum(low, spread(low, x, at, at.before, at.after), taps, at), (at.channels, at.length), x.dtype)
    y = read_back(flat, at, x.ndim, at.step)
    if bias is not None:
        load = in_memory(low, node, 2)
        y = op(
            "add", y, Load(load.buffer, load.dtype, load.memory_dtype, (0, load.strides[0], *(0,) * (x.ndim - 2)), load.offset)
        )
    return result(node, y)


@lowers("convolution_backward.default")
def lower_convolution_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, x: Any, weight: Any, bias_sizes: Any, step: Any, padding: Any, dilation: Any,
    transposed: bool, output_padding: Any, groups: int, mask: Any,
) -> tuple[Any, ...]:  # fmt: skip
    grad, x, weight = low.value(grad), low.value(x), low.value(weight)
    at = layout_of(x, weight, step, padding, dilation, transposed, groups)
    narrow = len(at.taps) <= NARROW_TAPS
    if at.channels * at.length > (NARROW_PLACES if narrow else WIDE_PLACES):
        raise NoLowering("a convolution that oneDNN does better")
    if narrow:
        check_contiguous(meta_of(node.args[1]))  # type: ignore[arg-type]  # an argument that is a node
    if by_triton(low.device):
        raise NoLowering("another processor")
    out: list[TensorExpr | None] = [None, None, None]
    metas = meta_of(node)
    grads = spread(low, grad, at, at.after, at.before, at.step)
    if mask[0]:
        taps = in_memory(low, node, 2)
        flat = low.store(window_sum(low, grads, taps, at, turned=True), (at.channels, at.length), x.dtype)
        out[0] = TensorExpr(x.size, x.dtype, read_back(flat, at, x.ndim, (1, 1)))
    if mask[1]:
        out[1] = weight_gradient(low, spread(low, x, at, at.before, at.after), grads, weight, at)
    if mask[2]:
        dims = (0, *range(2, grad.ndim))
        out[2] = TensorExpr((at.channels,), metas[2].dtype, reduce_expr(low, grad.expr, grad.size, dims, "sum", grad.dtype))
    return tuple(out)


def weight_gradient(low: Lowering, x: Load, grads: Load, weight: TensorExpr, at: Layout) -> TensorExpr:
    """For each tap the sum over all places of a gradient times what the tap lies on."""
    size: tuple[Size, ...] = (at.channels, *at.window, at.length)
    values = Load(
        x.buffer, x.dtype, x.memory_dtype, (x.strides[0], at.distance(at.dilation[0], 0), at.dilation[1], 1), x.offset
    )
    given = Load(grads.buffer, grads.dtype, grads.memory_dtype, (grads.strides[0], 0, 0, 1), at.after)
    total = low.value(low.store(op("mul", values, given), size[:3], weight.dtype, rsize=size[3:], reduction="sum")).expr
    assert isinstance(total, Load)
    channel, rows, columns = total.strides
    strides: tuple[Size, ...] = (channel, 0, rows, columns) if weight.ndim == 4 else (channel, 0, columns)
    return TensorExpr(weight.size, weight.dtype, Load(total.buffer, total.dtype, total.memory_dtype, strides, total.offset))
