"""Writes at computed places: scatter, index_put, index_add and their like, and the derivatives of reads at such places.

Each is a copy of the tensor written to, and a statement that stores in it (`ir.Scatter`). On a CPU those follow eager's order
exactly. On a GPU they are atomic, so that what depends on an order is ATen's where the program requires determinism.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ..index import Size, Sizes, contiguous_strides, prod, sizes_of
from ..ir import COMPUTE_TYPE, Buffer, Compute, Expr, Gather, Scatter, TensorExpr, drop_dims, expand, insert_dim
from ..ops import cast, compare, const, op, where
from ..target import by_triton
from .indexing import as_index, over, places_of
from .pointwise import held, lift
from .table import Lowering, NoLowering, fitting, lowers, meta_of

# What Triton can combine with memory in one step.
ATOMIC = {
    "set": None,
    "add": (torch.float32, torch.float64, torch.float16, torch.int32, torch.int64),
    "maximum": (torch.int32, torch.int64),
    "minimum": (torch.int32, torch.int64),
    "mul": (),
}
# Values at one computed place from which threads share them, and stores below which one thread is faster.
WIDE, FEW = 16, 32768


def allowed(low: Lowering, dtype: torch.dtype, mode: str) -> None:
    if mode != "set" and dtype is torch.bool:
        raise NoLowering("sums of bools")
    if by_triton(low.device):
        kinds = ATOMIC[mode]
        if kinds is not None and dtype not in kinds:
            raise NoLowering(f"no atomic {mode} of {dtype}")
        ordered = mode == "set" or (mode == "add" and dtype.is_floating_point)
        if ordered and torch.are_deterministic_algorithms_enabled():
            raise NoLowering("a result that depends on an order")


def stored_at(
    low: Lowering, buffer: Buffer, mode: str, value: Expr, size: Sizes, stride: Sizes, gathers: tuple[Gather, ...]
) -> TensorExpr:
    scatter = Scatter(gathers, mode)
    low.statements.append(Compute(buffer, size, (), value, stride, 0, None, low.current_origins(), scatter=scatter))
    return TensorExpr(buffer.size, buffer.dtype, low.load(buffer))


# Along one dimension, with an index for each element


def along(
    low: Lowering, buffer: Buffer, dim: int, size: Sizes, index: Expr, mode: str, value: Expr, wrap: bool = False
) -> TensorExpr:
    """`buffer[.., index, ..]` combined with the value, both over `size`."""
    stride = tuple(0 if i == dim else s for i, s in enumerate(buffer.stride))
    return stored_at(low, buffer, mode, value, size, stride, (Gather(index, buffer.stride[dim], buffer.size[dim], wrap),))


def scattered(low: Lowering, node: torch.fx.Node, x: Any, dim: int, index: Any, value: Any, mode: str) -> TensorExpr:
    x, index = low.value(x), low.value(index)
    if x.ndim == 0 or index.ndim != x.ndim:
        raise NoLowering("a store in one number")
    allowed(low, x.dtype, mode)
    value = element_of(low, value, x)
    return summed(low, node, x, dim % x.ndim, index.size, as_index(index), mode, value)


def summed(
    low: Lowering, node: torch.fx.Node, x: TensorExpr, dim: int, size: Sizes, place: Expr, mode: str, value: Expr,
    wrap: bool = False,
) -> TensorExpr:  # fmt: skip
    """`x` with the values combined in at the places: in its memory, if that may be. Sums of halves are gathered in float32 and
    rounded once, as eager's are."""
    if mode != "add" or x.dtype not in COMPUTE_TYPE or by_triton(low.device):
        return along(low, low.memory_to_change(node, x.expr), dim, size, place, mode, value, wrap)
    wide = low.new_buffer(x.size, contiguous_strides(x.size), COMPUTE_TYPE[x.dtype])
    low.store_in(wide, x.expr, x.size, None)
    return TensorExpr(x.size, x.dtype, along(low, wide, dim, size, place, mode, value, wrap).expr)


def element_of(low: Lowering, value: Any, x: TensorExpr) -> Expr:
    """The stored element, tensor or number, in the computation type of `x`."""
    if isinstance(value, TensorExpr):
        if value.dtype is not x.dtype:
            raise NoLowering("values of another type")
        return value.expr
    value = fitting(value, x.dtype)
    return lift(low.scalar_like(held(value, x.dtype) if isinstance(value, float) else value, x.dtype), x.ndim)


MODES = {"add": "add", "multiply": "mul", "sum": "add", "prod": "mul", "amax": "maximum", "amin": "minimum", "mean": "add"}


@lowers("scatter.src", "scatter.value")
def lower_scatter(low: Lowering, node: torch.fx.Node, x: Any, dim: int, index: Any, value: Any) -> TensorExpr:
    return scattered(low, node, x, dim, index, value, "set")


@lowers("scatter_add.default")
def lower_scatter_add(low: Lowering, node: torch.fx.Node, x: Any, dim: int, index: Any, source: Any) -> TensorExpr:
    return scattered(low, node, x, dim, index, source, "add")


@lowers("scatter.reduce", "scatter.value_reduce")
def lower_scatter_combined(
    low: Lowering, node: torch.fx.Node, x: Any, dim: int, index: Any, value: Any, *, reduce: str
) -> TensorExpr:
    return scattered(low, node, x, dim, index, value, MODES[reduce])


@lowers("scatter_reduce.two")
def lower_scatter_reduce(
    low: Lowering, node: torch.fx.Node, x: Any, dim: int, index: Any, source: Any, reduce: str, *, include_self: bool = True
) -> TensorExpr:
    x, index, source = low.value(x), low.value(index), low.value(source)
    mode = MODES[reduce]
    if x.ndim == 0 or index.ndim != x.ndim:
        raise NoLowering("a store in one number")
    allowed(low, x.dtype, mode)
    dim %= x.ndim
    place = as_index(index)
    buffer = low.memory_to_change(node, x.expr)
    if not include_self:
        along(low, buffer, dim, index.size, place, "set", neutral(reduce, x.expr.dtype))
    total = along(low, buffer, dim, index.size, place, mode, element_of(low, source, x))
    if reduce != "mean":
        return total
    # Each sum over how many went into it.
    kind = x.expr.dtype
    counts = low.new_buffer(buffer.size, buffer.stride, kind)
    low.store_in(counts, const(int(include_self), kind), counts.size, None)
    count = along(low, counts, dim, index.size, place, "add", const(1, kind)).expr
    count = op("maximum", count, const(1, kind))
    return TensorExpr(x.size, x.dtype, op("div" if kind.is_floating_point else "floordiv", total.expr, count))


def neutral(reduce: str, dtype: torch.dtype) -> Expr:
    """The initial value of a written place whose own value does not count."""
    if reduce in ("sum", "mean", "prod"):
        return const(int(reduce == "prod"), dtype)
    if dtype.is_floating_point:
        return const(float("-inf" if reduce == "amax" else "inf"), dtype)
    info = torch.iinfo(dtype)
    return const(info.min if reduce == "amax" else info.max, dtype)


@lowers("index_add.default")
def lower_index_add(
    low: Lowering, node: torch.fx.Node, x: Any, dim: int, index: Any, source: Any, *, alpha: Any = 1
) -> TensorExpr:
    x, source = low.value(x), low.value(source)
    value = source.expr if alpha == 1 else op("mul", source.expr, lift(low.scalar_like(alpha, x.dtype), source.ndim))
    return by_one_index(low, node, x, dim, index, TensorExpr(source.size, source.dtype, value), "add")


@lowers("index_copy.default")
def lower_index_copy(low: Lowering, node: torch.fx.Node, x: Any, dim: int, index: Any, source: Any) -> TensorExpr:
    return by_one_index(low, node, low.value(x), dim, index, low.value(source), "set")


@lowers("index_fill.int_Scalar", "index_fill.int_Tensor")
def lower_index_fill(low: Lowering, node: torch.fx.Node, x: Any, dim: int, index: Any, value: Any) -> TensorExpr:
    x, index = low.value(x), low.value(index)
    if x.ndim == 0 or index.ndim != 1:
        raise NoLowering("a store in one number")
    if isinstance(value, TensorExpr):
        filling = cast(lift(value.expr, x.ndim), x.expr.dtype)
    else:
        filling = element_of(low, value, x)
    size = tuple(index.size[0] if i == dim % x.ndim else s for i, s in enumerate(x.size))
    return by_one_index(low, node, x, dim, index, TensorExpr(size, x.dtype, filling), "set", wrap=True)


def by_one_index(
    low: Lowering, node: torch.fx.Node, x: TensorExpr, dim: int, index: Any, source: TensorExpr, mode: str, wrap: bool = False
) -> TensorExpr:
    """The index says where each slice of `source` along the dimension goes."""
    index = low.value(index)
    if x.ndim == 0 or index.ndim != 1 or source.ndim != x.ndim or source.dtype is not x.dtype:
        raise NoLowering("a store in one number")
    allowed(low, x.dtype, mode)
    dim %= x.ndim
    place = over(as_index(index), (dim,), x.ndim)
    return summed(low, node, x, dim, source.size, place, mode, source.expr, wrap)


# With indices for some dimensions together


@lowers("index_put.default", "_unsafe_index_put.default")
def lower_index_put(
    low: Lowering, node: torch.fx.Node, x: Any, indices: Any, values: Any, accumulate: bool = False
) -> TensorExpr:
    x, values = low.value(x), low.value(values)
    if values.dtype is not x.dtype:
        raise NoLowering("values of another type")
    given = {dim: low.value(each) for dim, each in enumerate(indices) if each is not None}
    masks = [dim for dim, each in given.items() if each.dtype is torch.bool]
    if masks and len(given) == 1:
        return masked(low, x, masks[0], given[masks[0]], values, accumulate)
    if masks or not given or any(each.dtype is torch.uint8 for each in given.values()):
        raise NoLowering("indexing by a mask")
    if any(x.size[dim] == 0 for dim in given):
        raise NoLowering("an index into nothing")
    mode = "add" if accumulate else "set"
    allowed(low, x.dtype, mode)
    buffer_stride = sizes_of(meta_of(node).stride())
    shape = broadcast([each.size for each in given.values()])
    size, stride, gathers = places_of(x.size, buffer_stride, given, shape)
    if mode == "set" and threads_in_eager(low, prod(s for s, step in zip(size, stride, strict=True) if step != 0), shape):
        raise NoLowering("stores of single numbers, by all threads")
    value = expand(values.expr, values.size, size)
    return stored_at(low, low.memory_to_change(node, x.expr), mode, value, size, stride, gathers)


def threads_in_eager(low: Lowering, width: Size, shape: Sizes) -> bool:
    """Eager has all threads store, in no order. Where little is stored at each place, there is nothing for ours to share."""
    count = prod(shape)
    narrow = isinstance(width, int) and width < WIDE
    return not by_triton(low.device) and narrow and not (isinstance(count, int) and count < FEW)


def broadcast(shapes: list[Sizes]) -> Sizes:
    """The shape that these make together; their dimensions agree or are 1."""
    ndim = max(map(len, shapes))
    out: list[Size] = [1] * ndim
    for shape in shapes:
        for k, size in enumerate(shape, ndim - len(shape)):
            if out[k] == 1:
                out[k] = size
    return tuple(out)


def masked(low: Lowering, x: TensorExpr, at: int, mask: TensorExpr, values: TensorExpr, accumulate: bool) -> TensorExpr:
    """One value for all places of a mask, which covers the dimensions from `at` on: a choice."""
    ndim = x.ndim - mask.ndim + 1
    lead = ndim - values.ndim
    if lead <= at:
        if lead < 0 or values.size[at - lead] != 1:
            raise NoLowering("as many values as the mask has places")
        value, kept = drop_dims(values.expr, frozenset({at - lead})), values.size[: at - lead] + values.size[at - lead + 1 :]
    else:
        value, kept = values.expr, values.size
    if mask.ndim == 0 or (accumulate and x.dtype is torch.bool):
        raise NoLowering("a mask of one number")
    # Without the dimension of the mask's places, and then with the mask's own.
    rest = x.size[:at] + x.size[at + mask.ndim :]
    value = expand(value, kept, rest)
    for dim in range(at, at + mask.ndim):
        value = insert_dim(value, dim)
    inside = over(mask.expr, tuple(range(at, at + mask.ndim)), x.ndim)
    return TensorExpr(x.size, x.dtype, where(inside, op("add", x.expr, value) if accumulate else value, x.expr))


# Derivatives of reads


@lowers("embedding_dense_backward.default")
def lower_embedding_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, indices: Any, rows: Any, padding: Any, scale_by_frequency: bool
) -> TensorExpr:
    grad, indices = low.value(grad), low.value(indices)
    if scale_by_frequency or not isinstance(padding, int):
        raise NoLowering("scaled by frequency")
    allowed(low, grad.dtype, "add")
    buffer = low.new_buffer(sizes_of(meta_of(node).shape), sizes_of(meta_of(node).stride()), grad.dtype)
    low.store_in(buffer, const(0, grad.expr.dtype), buffer.size, None)
    ndim = grad.ndim
    index = over(as_index(indices), tuple(range(ndim - 1)), ndim)
    # Eager passes over rows that are not there.
    inside = op(
        "and",
        compare("ge", index, const(0, torch.int64)),
        compare("lt", index, lift(low.scalar_like(rows, torch.int64), ndim)),
        dtype=torch.bool,
    )
    if padding >= 0:
        inside = op("and", inside, compare("ne", index, const(padding, torch.int64)), dtype=torch.bool)
    value = where(inside, grad.expr, const(0, grad.expr.dtype))
    safe = where(inside, index, const(0, torch.int64))
    stride: Sizes = (0,) * (ndim - 1) + (buffer.stride[1],)
    return stored_at(low, buffer, "add", value, grad.size, stride, (Gather(safe, buffer.stride[0], buffer.size[0], False),))
