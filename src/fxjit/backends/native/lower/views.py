"""Views as index arithmetic, and the operators that put tensors together (cat, stack, pad) as stores into slices."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx
from torch.utils._sympy.functions import Max

from ..index import Size, Sizes, add, as_size, equal, mul, size_of, sizes_of
from ..ir import (
    Expr,
    TensorExpr,
    compute_type,
    drop_dims,
    expand,
    flip,
    insert_dim,
    loads,
    narrow,
    permute,
    reshape,
    select,
    unit_free,
)
from ..ops import cast, const
from .table import Lowering, NoLowering, fitting, lowers, meta_of


def axis(dim: int, ndim: int) -> int:
    return dim % ndim if ndim else 0


def viewed(node: torch.fx.Node, expr: Expr) -> TensorExpr:
    meta = meta_of(node)
    return TensorExpr(sizes_of(meta.shape), meta.dtype, expr)


@lowers("view.default", "_unsafe_view.default", "reshape.default")
def lower_view(low: Lowering, node: torch.fx.Node, x: Any, size: Any) -> TensorExpr:
    x = low.value(x)
    return viewed(node, reshape(x.expr, x.size, sizes_of(meta_of(node).shape)))


@lowers("permute.default")
def lower_permute(low: Lowering, node: torch.fx.Node, x: Any, dims: Any) -> TensorExpr:
    x = low.value(x)
    return viewed(node, permute(x.expr, tuple(axis(dim, x.ndim) for dim in dims)))


@lowers("t.default", "transpose.int", "numpy_T.default")
def lower_transpose(low: Lowering, node: torch.fx.Node, x: Any, a: int | None = None, b: int | None = None) -> TensorExpr:
    x = low.value(x)
    order = list(range(x.ndim))
    if a is None or b is None:
        order.reverse()
    elif x.ndim:
        i, j = axis(a, x.ndim), axis(b, x.ndim)
        order[i], order[j] = order[j], order[i]
    return viewed(node, permute(x.expr, tuple(order)))


@lowers("expand.default")
def lower_expand(low: Lowering, node: torch.fx.Node, x: Any, size: Any, implicit: bool = False) -> TensorExpr:
    x = low.value(x)
    return viewed(node, expand(x.expr, x.size, sizes_of(meta_of(node).shape)))


@lowers("unsqueeze.default")
def lower_unsqueeze(low: Lowering, node: torch.fx.Node, x: Any, dim: int) -> TensorExpr:
    x = low.value(x)
    return viewed(node, insert_dim(x.expr, dim % (x.ndim + 1)))


@lowers("squeeze.default", "squeeze.dim", "squeeze.dims")
def lower_squeeze(low: Lowering, node: torch.fx.Node, x: Any, dims: Any = None) -> TensorExpr:
    x = low.value(x)
    chosen = range(x.ndim) if dims is None else [axis(dim, x.ndim) for dim in ([dims] if isinstance(dims, int) else dims)]
    return viewed(node, drop_dims(x.expr, frozenset(dim for dim in chosen if x.ndim and x.size[dim] == 1)))


@lowers("slice.Tensor")
def lower_slice(
    low: Lowering, node: torch.fx.Node, x: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> TensorExpr:
    x = low.value(x)
    dim = axis(dim, x.ndim)
    length = size_of(meta_of(node).shape[dim])
    return viewed(node, narrow(x.expr, dim, slice_start(start, x.size[dim], length, step), size_of(step)))


def slice_start(start: Any, size: Size, length: Size, step: Any) -> Size:
    """Where a slice of so many elements begins. `-9` is the first element of fewer than nine, not one before it."""
    if start is None:
        return 0
    start = size_of(start)
    if not isinstance(start, int):
        raise NoLowering("a slice from a symbolic place")
    if isinstance(size, int):
        return min(max(start + size if start < 0 else start, 0), size)
    if start >= 0:
        return start
    if step == 1 and equal(length, size):
        return 0
    return add(size, start) if step == 1 and length == -start else as_size(Max(add(size, start), 0))


@lowers("select.int")
def lower_select(low: Lowering, node: torch.fx.Node, x: Any, dim: int, index: Any) -> TensorExpr:
    x = low.value(x)
    dim, index = axis(dim, x.ndim), size_of(index)
    if not isinstance(index, int):
        raise NoLowering("a symbolic index")
    return viewed(node, select(x.expr, dim, add(x.size[dim], index) if index < 0 else index))


@lowers("alias.default", "detach.default")
def lower_alias(low: Lowering, node: torch.fx.Node, x: Any) -> TensorExpr:
    return low.value(x)


@lowers("as_strided.default", "diagonal.default", "unfold.default")
def lower_other_view(low: Lowering, node: torch.fx.Node, x: Any, *args: Any, **kwargs: Any) -> TensorExpr:
    base = node.args[0]
    assert isinstance(base, torch.fx.Node)
    low.materialize(base)
    low.storage[node] = low.storage[base]
    low.refresh_view(node)
    return low.value(low.env[node])


@lowers("flip.default")
def lower_flip(low: Lowering, node: torch.fx.Node, x: Any, dims: Any) -> TensorExpr:
    x = low.value(x)
    expr = x.expr
    for dim in {axis(dim, x.ndim) for dim in dims} if x.ndim else ():
        expr = flip(expr, dim, x.size[dim])
    return viewed(node, expr)


@lowers("repeat.default")
def lower_repeat(low: Lowering, node: torch.fx.Node, x: Any, repeats: Any) -> TensorExpr:
    x = low.value(x)
    times = sizes_of(repeats)
    if any(count != 1 and size != 1 for count, size in zip(times[len(times) - x.ndim :], x.size, strict=True)):
        raise NoLowering("repeating more than one element")
    return viewed(node, expand(x.expr, x.size, sizes_of(meta_of(node).shape)))


# Several tensors into one buffer


def store_slices(
    low: Lowering, node: torch.fx.Node, parts: list[tuple[TensorExpr, int, Size]], fill: Expr | None = None
) -> TensorExpr:
    """A buffer made of parts, each stored at an offset along a dimension; `fill` first, where the parts leave gaps."""
    meta = meta_of(node)
    size, stride = sizes_of(meta.shape), sizes_of(meta.stride())
    buffer = low.new_buffer(size, stride, meta.dtype)
    if fill is not None:
        low.store_in(buffer, fill, size, None)
    for part, dim, at in parts:
        low.store_in(
            buffer, cast(part.expr, compute_type(meta.dtype)), part.size, stride, mul(stride[dim], at) if part.size else 0
        )
    return TensorExpr(size, meta.dtype, low.load(buffer))


@lowers("cat.default")
def lower_cat(low: Lowering, node: torch.fx.Node, tensors: Any, dim: int = 0) -> TensorExpr:
    tensors = [low.value(each) for each in tensors if not (each.ndim == 1 and equal(each.size[0], 0))]
    if not tensors:
        raise NoLowering("nothing to put together")
    dim = axis(dim, tensors[0].ndim)
    parts: list[tuple[TensorExpr, int, Size]] = []
    at: Size = 0
    for each in tensors:
        parts.append((each, dim, at))
        at = add(at, each.size[dim])
    return store_slices(low, node, parts)


@lowers("constant_pad_nd.default")
def lower_pad(low: Lowering, node: torch.fx.Node, x: Any, pad: Any, value: Any = 0) -> TensorExpr:
    x = low.value(x)
    meta = meta_of(node)
    stride = sizes_of(meta.stride())
    pads = sizes_of(pad)
    if not all(isinstance(each, int) for each in pads) or not isinstance(value, (int, float)):
        raise NoLowering("symbolic padding")
    expr, inner = x.expr, list(x.size)
    place: Size = 0
    for k in range(len(pads) // 2):
        dim = x.ndim - 1 - k
        before, after = pads[2 * k], pads[2 * k + 1]
        assert isinstance(before, int) and isinstance(after, int)
        if before < 0:
            expr = narrow(expr, dim, -before)
        inner[dim] = add(inner[dim], min(before, 0) + min(after, 0))
        place = add(place, mul(stride[dim], max(before, 0)))
    value = fitting(value, meta.dtype)
    return written_over(low, node, const(value, compute_type(meta.dtype)), expr, tuple(inner), stride, place)


def written_over(
    low: Lowering, node: torch.fx.Node, base: Expr, part: Expr, size: Sizes, stride: Sizes, place: Size
) -> TensorExpr:
    """The node's result: `base`, with `part` (of `size`) over it at the strides and the offset. A part that reads the memory it
    is written to is stored first, unless it reads each number where it is written."""
    meta = meta_of(node)
    buffer = low.memory_to_change(node, base, part)
    read = [load for load in loads(part) if load.buffer == buffer.name]
    if any(load.gathers or load.offset != place or load.strides != unit_free(size, stride) for load in read):
        part = low.store(part, size, meta.dtype).expr
    low.store_in(buffer, part, size, stride, place)
    return TensorExpr(sizes_of(meta.shape), meta.dtype, low.load(buffer))


@lowers("slice_scatter.default")
def lower_slice_scatter(
    low: Lowering, node: torch.fx.Node, x: Any, source: Any, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1
) -> TensorExpr:
    return over_slice(low, node, low.value(x).expr, low.value(source), dim, start, step)


@lowers("slice_backward.default")
def lower_slice_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, sizes: Any, dim: int, start: Any, end: Any, step: Any
) -> TensorExpr:
    return over_slice(low, node, zero(node), low.value(grad), dim, start, step)


def over_slice(low: Lowering, node: torch.fx.Node, base: Expr, part: TensorExpr, dim: int, start: Any, step: Any) -> TensorExpr:
    stride, whole = sizes_of(meta_of(node).stride()), sizes_of(meta_of(node).shape)
    dim = axis(dim, len(whole))
    inner: Sizes = tuple(mul(s, size_of(step)) if i == dim else s for i, s in enumerate(stride))
    place = mul(stride[dim], slice_start(start, whole[dim], part.size[dim], step))
    return written_over(low, node, base, part.expr, part.size, inner, place)


@lowers("select_scatter.default")
def lower_select_scatter(low: Lowering, node: torch.fx.Node, x: Any, source: Any, dim: int, index: Any) -> TensorExpr:
    return over_selected(low, node, low.value(x).expr, low.value(source), dim, index)


@lowers("select_backward.default")
def lower_select_backward(low: Lowering, node: torch.fx.Node, grad: Any, sizes: Any, dim: int, index: Any) -> TensorExpr:
    return over_selected(low, node, zero(node), low.value(grad), dim, index)


def over_selected(low: Lowering, node: torch.fx.Node, base: Expr, part: TensorExpr, dim: int, index: Any) -> TensorExpr:
    stride, whole = sizes_of(meta_of(node).stride()), sizes_of(meta_of(node).shape)
    dim, index = axis(dim, len(whole)), size_of(index)
    if not isinstance(index, int):
        raise NoLowering("a symbolic index")
    place = mul(stride[dim], add(whole[dim], index) if index < 0 else index)
    return written_over(low, node, base, part.expr, part.size, stride[:dim] + stride[dim + 1 :], place)


def zero(node: torch.fx.Node) -> Expr:
    return const(0, compute_type(meta_of(node).dtype))
