"""Reductions, and the operators made of them: mean, variance, softmax and its derivative."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.fx

from ..index import Size, Sizes, contiguous_strides, prod, sizes_of
from ..ir import Expr, Iota, Load, TensorExpr, compute_type, expand, insert_dim, is_plain_load, permute
from ..ops import cast, compare, const, op, where
from ..target import by_triton
from .pointwise import as_held, result, truth
from .table import Lowering, NoLowering, lowers, meta_of


def axes(dims: Any, ndim: int) -> tuple[int, ...]:
    """The dimensions meant, in order; None and () mean all."""
    if dims is None or (not isinstance(dims, int) and len(dims) == 0):
        return tuple(range(ndim))
    chosen = [dims] if isinstance(dims, int) else list(dims)
    return tuple(sorted({dim % ndim if ndim else 0 for dim in chosen})) if ndim else ()


def reduce_expr(
    low: Lowering,
    expr: Expr,
    size: Sizes,
    dims: tuple[int, ...],
    kind: str,
    dtype: torch.dtype,
    shape: tuple[Sizes, Sizes] | None = None,
) -> Expr:
    """Reduces `expr` (over `size`) along `dims` into a new buffer; returns what reads it over the dimensions kept.

    `shape` is the (size, stride) of the buffer where it must be laid out as a given tensor with the reduced
    dimensions gone or of size 1. The buffer's type is the one computed with, except at a given shape.
    """
    kept = tuple(dim for dim in range(len(size)) if dim not in dims)
    outer, inner = tuple(size[dim] for dim in kept), tuple(size[dim] for dim in dims)
    if kind == "sum" and all(length == 1 for length in inner):
        expr = sum_of_one(expr)
    ordered = permute(expr, kept + dims)
    if shape is None:
        return low.store(ordered, outer, dtype, rsize=inner, reduction=kind).expr
    buffer = low.new_buffer(*shape, dtype)
    stride = buffer.stride
    if len(buffer.size) != len(kept):
        stride = tuple(stride[dim] for dim in kept)
    low.store_in(buffer, ordered, outer, stride, rsize=inner, reduction=kind)
    return low.load(buffer)


def sum_of_one(expr: Expr) -> Expr:
    """A sum begins at 0, and -0.0 + 0 is 0."""
    return op("add", expr, const(0.0, expr.dtype)) if expr.dtype.is_floating_point else expr


def keep(expr: Expr, dims: tuple[int, ...]) -> Expr:
    """Puts the reduced dimensions back, with size 1."""
    for dim in dims:
        expr = insert_dim(expr, dim)
    return expr


def direct(low: Lowering, node: torch.fx.Node, expr: Expr, size: Sizes, dims: tuple[int, ...], kind: str) -> TensorExpr:
    """A reduction that is the node's result as it stands."""
    meta = meta_of(node)
    shape = sizes_of(meta.shape), sizes_of(meta.stride())
    return TensorExpr(shape[0], meta.dtype, reduce_expr(low, expr, size, dims, kind, meta.dtype, shape))


@lowers("sum.default", "sum.dim_IntList")
def lower_sum(
    low: Lowering, node: torch.fx.Node, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorExpr:
    x = low.value(x)
    expr = cast(x.expr, compute_type(meta_of(node).dtype))
    if x.ndim == 0:
        return result(node, sum_of_one(expr))
    return direct(low, node, expr, x.size, axes(dims, x.ndim), "sum")


@lowers("mean.default", "mean.dim")
def lower_mean(
    low: Lowering, node: torch.fx.Node, x: Any, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorExpr:
    x = low.value(x)
    chosen = axes(dims, x.ndim)
    compute = compute_type(meta_of(node).dtype)
    mean = mean_expr(low, cast(x.expr, compute), x.size, chosen)
    return result(node, keep(mean, chosen) if keepdim else mean)


def count_as(size: Size, ndim: int, dtype: torch.dtype) -> Expr:
    if isinstance(size, int):
        return const(size, dtype)
    return cast(Iota((0,) * ndim, size), dtype)


def mean_expr(low: Lowering, expr: Expr, size: Sizes, dims: tuple[int, ...]) -> Expr:
    total = reduce_expr(low, expr, size, dims, "sum", expr.dtype) if dims else sum_of_one(expr)
    return op("div", total, count_as(prod(size[dim] for dim in dims), len(size) - len(dims), expr.dtype))


@lowers("linalg_vector_norm.default")
def lower_vector_norm(
    low: Lowering, node: torch.fx.Node, x: Any, ord: Any = 2, dims: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorExpr:
    x = low.value(x)
    chosen = axes(dims, x.ndim)
    if ord not in (1, 2) or dtype not in (None, x.dtype) or not chosen or not x.dtype.is_floating_point:
        raise NoLowering("a norm that is no sum of squares or of absolute values")
    expr = cast(x.expr, compute_type(x.dtype))
    # That of one number is its size in eager, whose square may be too large or too small for the type.
    absolute = ord == 1 or all(x.size[dim] == 1 for dim in chosen)
    part = op("abs", expr) if absolute else op("mul", expr, expr)
    total = reduce_expr(low, part, x.size, chosen, "sum", expr.dtype)
    norm = total if absolute else op("sqrt", total)
    return result(node, keep(norm, chosen) if keepdim else norm)


@lowers("prod.default", "prod.dim_int")
def lower_prod(
    low: Lowering, node: torch.fx.Node, x: Any, dim: Any = None, keepdim: bool = False, *, dtype: Any = None
) -> TensorExpr:
    x = low.value(x)
    expr = cast(x.expr, compute_type(meta_of(node).dtype))
    if x.ndim == 0:
        return result(node, expr)
    if meta_of(node).dtype is torch.bool:
        raise NoLowering("a product of bools")
    return direct(low, node, expr, x.size, axes(dim, x.ndim), "prod")


def extreme(kind: str) -> Any:
    def lower(low: Lowering, node: torch.fx.Node, x: Any, dims: Any = (), keepdim: bool = False) -> TensorExpr:
        x = low.value(x)
        chosen = axes(dims, x.ndim)
        if x.ndim == 0:
            return result(node, x.expr)
        if any(x.size[dim] == 0 for dim in chosen):
            raise NoLowering("an extreme of nothing")
        if x.dtype is torch.bool:
            return direct(low, node, x.expr, x.size, chosen, "any" if kind == "max" else "all")
        return direct(low, node, x.expr, x.size, chosen, kind)

    return lower


lowers("amax.default", "max.default")(extreme("max"))
lowers("amin.default", "min.default")(extreme("min"))


# Where the extreme is: a second loop over the row looks for the first place that holds what the first loop found.


def extreme_place(low: Lowering, x: TensorExpr, dims: tuple[int, ...], kind: str) -> tuple[Expr, Expr]:
    """(extreme, its first place counted along the dimensions reduced), over the dimensions kept. NaN is the extreme."""
    expr = cast(x.expr, torch.uint8) if x.dtype is torch.bool else as_held(low, x).expr
    if not is_plain_load(expr):
        # Equal to the extreme is only what is rounded alike: as eager's tensor is, and once.
        expr = stored(low, expr, x.size)
    top = reduce_expr(low, expr, x.size, dims, kind, expr.dtype)
    ones = tuple(1 if i in dims else s for i, s in enumerate(x.size))
    hit = compare("eq", expr, expand(keep(top, dims), ones, x.size))
    if expr.dtype.is_floating_point:
        hit = op("or", hit, op("isnan", expr, dtype=torch.bool))
    along = iter(contiguous_strides([x.size[dim] for dim in dims]))
    place = Iota(tuple(next(along) if i in dims else 0 for i in range(x.ndim)), 0)
    nowhere = const(torch.iinfo(torch.int64).max, torch.int64)
    return top, reduce_expr(low, where(hit, place, nowhere), x.size, dims, "min", torch.int64)


@lowers("argmax.default", "argmin.default")
def lower_arg_extreme(low: Lowering, node: torch.fx.Node, x: Any, dim: Any = None, keepdim: bool = False) -> TensorExpr:
    x = low.value(x)
    if x.ndim == 0 or any(size == 0 for size in x.size):
        raise NoLowering("the place of one number or of none")
    chosen = axes(dim, x.ndim)
    place = extreme_place(low, x, chosen, "max" if "argmax" in str(node.target) else "min")[1]
    return result(node, keep(place, chosen) if keepdim else place)


@lowers("max.dim", "min.dim")
def lower_extreme_with_place(
    low: Lowering, node: torch.fx.Node, x: Any, dim: int, keepdim: bool = False
) -> tuple[TensorExpr, ...]:
    x = low.value(x)
    if x.ndim == 0 or any(size == 0 for size in x.size):
        raise NoLowering("the place of one number or of none")
    chosen = axes(dim, x.ndim)
    both = extreme_place(low, x, chosen, "max" if "max.dim" in str(node.target) else "min")
    return tuple(
        TensorExpr(sizes_of(meta.shape), meta.dtype, cast(keep(expr, chosen) if keepdim else expr, compute_type(meta.dtype)))
        for meta, expr in zip(meta_of(node), both, strict=True)
    )


def quantified(kind: str) -> Any:
    def lower(low: Lowering, node: torch.fx.Node, x: Any, dims: Any = None, keepdim: bool = False) -> TensorExpr:
        x = low.value(x)
        if meta_of(node).dtype is not torch.bool:
            raise NoLowering("uint8 keeps its type")
        if x.ndim == 0:
            return result(node, truth(low, x))
        if dims is not None and not isinstance(dims, int) and len(dims) == 0 and "dims" not in str(node.target):
            raise NoLowering("no dimension")
        return direct(low, node, truth(low, x), x.size, axes(dims, x.ndim), kind)

    return lower


lowers("any.default", "any.dim")(quantified("any"))
lowers("all.default", "all.dim")(quantified("all"))


# Variance: the mean first, then the squared differences, as exact as Welford and with two plain loops over a hot row. On a CPU
# both are in float64, as ATen's are: a mean that is rounded to float32 would be the wrong one to subtract where numbers are far
# from zero and near to each other, and their squares may leave float32's range where their root does not.


def variance(low: Lowering, x: TensorExpr, dims: tuple[int, ...], correction: Any, dtype: torch.dtype) -> tuple[Expr, Expr]:
    """(variance, mean) over the dimensions kept, in float64, or on a GPU in the type computed with."""
    expr = cast(x.expr, compute_type(dtype) if by_triton(low.device) else torch.float64)
    mean = mean_expr(low, expr, x.size, dims)
    mean = stored(low, mean, tuple(s for i, s in enumerate(x.size) if i not in dims))
    centred = op("sub", expr, expand(keep(mean, dims), tuple(1 if i in dims else s for i, s in enumerate(x.size)), x.size))
    total = (
        reduce_expr(low, op("mul", centred, centred), x.size, dims, "sum", expr.dtype) if dims else op("mul", centred, centred)
    )
    ndim = x.ndim - len(dims)
    count = prod(x.size[dim] for dim in dims)
    if isinstance(count, int):
        divisor: Expr = const(max(count - correction, 0), expr.dtype)
    else:
        less = op("sub", count_as(count, ndim, expr.dtype), const(correction, expr.dtype))
        divisor = op("maximum", less, const(0, expr.dtype))
    return op("div", total, divisor), mean


def variance_at_once(low: Lowering, x: TensorExpr, dims: tuple[int, ...]) -> tuple[Expr, Expr]:
    """The same with one loop over numbers of float32 or less in memory that the cache has no room for: of what each differs by
    from the first, and of its square. The first is one of them, so its own difference from the mean is at most the root of
    their number times their deviation: of float64's digits that takes no more than the number has."""
    if by_triton(low.device) or x.expr.dtype is not torch.float32 or not is_plain_load(x.expr):
        return variance(low, x, dims, 0, x.dtype)
    assert isinstance(x.expr, Load)
    kept = tuple(size for dim, size in enumerate(x.size) if dim not in dims)
    first = permute(replace(x.expr, strides=tuple(0 if dim in dims else s for dim, s in enumerate(x.expr.strides))),
                    tuple(dim for dim in range(x.ndim) if dim not in dims))
    finite = compare("lt", op("abs", first), const(float("inf"), first.dtype))
    first = stored(low, where(finite, first, const(0, first.dtype)), kept)
    ones = tuple(1 if dim in dims else size for dim, size in enumerate(x.size))
    wide = cast(first, torch.float64)
    apart = op("sub", cast(x.expr, torch.float64), expand(keep(wide, dims), ones, x.size))
    count = count_as(prod(x.size[dim] for dim in dims), len(kept), torch.float64)
    total, squares = (op("div", reduce_expr(low, each, x.size, dims, "sum", torch.float64), count)
                      for each in (apart, op("mul", apart, apart)))
    return op("sub", squares, op("mul", total, total)), stored(low, op("add", wide, total), kept)


def stored(low: Lowering, expr: Expr, size: Sizes) -> Expr:
    """The value in a buffer of its own (a register, once fused), so that its users do not each compute it."""
    return low.store(expr, size, expr.dtype).expr


def correction_of(correction: Any, unbiased: Any = None) -> Any:
    if unbiased is not None:
        return 1 if unbiased else 0
    return 1 if correction is None else correction


@lowers("var.correction", "var.dim", "var.default", "std.correction", "var_mean.correction", rereads=True)
def lower_var(
    low: Lowering,
    node: torch.fx.Node,
    x: Any,
    dims: Any = None,
    unbiased: Any = None,
    keepdim: bool = False,
    *,
    correction: Any = None,
) -> Any:
    x = low.value(x)
    metas = meta_of(node)
    dtype = metas[0].dtype if isinstance(metas, (tuple, list)) else metas.dtype
    name = str(node.target)
    if isinstance(dims, bool):
        dims, unbiased = None, dims
    if "correction" in name and isinstance(unbiased, bool):
        keepdim, unbiased = unbiased, None
    if not x.dtype.is_floating_point:
        raise NoLowering("refused by ATen")
    if not isinstance(correction_of(correction, unbiased), (int, float)):
        raise NoLowering("a symbolic correction")
    chosen = axes(dims, x.ndim)
    var, mean = variance(low, x, chosen, correction_of(correction, unbiased), dtype)
    if keepdim:
        var, mean = keep(var, chosen), keep(mean, chosen)
    if "var_mean" in name:
        return tuple(
            TensorExpr(sizes_of(meta.shape), meta.dtype, cast(each, compute_type(meta.dtype)))
            for meta, each in zip(metas, (var, mean), strict=True)
        )
    return result(node, op("sqrt", var) if ".std." in name else var)


# Softmax


def softmax_parts(low: Lowering, x: TensorExpr, dim: int, compute: torch.dtype) -> tuple[Expr, Expr]:
    """(x - max, sum of exp(x - max)), both over x's dimensions (the sum with size 1 expanded)."""
    expr = cast(x.expr, compute)
    ones = tuple(1 if i == dim else s for i, s in enumerate(x.size))
    top = reduce_expr(low, expr, x.size, (dim,), "max", compute)
    shifted = op("sub", expr, expand(keep(top, (dim,)), ones, x.size))
    total = reduce_expr(low, op("exp_below", shifted), x.size, (dim,), "sum", compute)
    return shifted, expand(keep(total, (dim,)), ones, x.size)


@lowers("_softmax.default", "_log_softmax.default", "_safe_softmax.default", rereads=True)
def lower_softmax(low: Lowering, node: torch.fx.Node, x: Any, dim: int, half_to_float: Any = False) -> TensorExpr:
    x = low.value(x)
    if x.ndim == 0 or x.size[dim % x.ndim] == 0:
        raise NoLowering("softmax of one number")
    dim %= x.ndim
    compute = compute_type(meta_of(node).dtype)
    if "_log_softmax" in str(node.target):
        shifted, total = softmax_parts(low, x, dim, compute)
        return result(node, op("sub", shifted, op("log", total)))
    expr = cast(x.expr, compute)
    ones = tuple(1 if i == dim else s for i, s in enumerate(x.size))
    top = expand(keep(reduce_expr(low, expr, x.size, (dim,), "max", compute), (dim,)), ones, x.size)
    # Stored once, used by the sum and by the quotient: after fusion it is a row in the first-level cache.
    exps = low.store(op("exp_below", op("sub", expr, top)), x.size, compute).expr
    total = expand(keep(reduce_expr(low, exps, x.size, (dim,), "sum", compute), (dim,)), ones, x.size)
    # The sum is at least 1: one division a row.
    quotient = op("mul", exps, op("div", const(1, compute), total))
    if "_safe_softmax" in str(node.target):
        nothing = compare("eq", top, const(float("-inf"), compute))
        quotient = where(nothing, const(0, compute), quotient)
    return result(node, quotient)


@lowers("_softmax_backward_data.default", "_log_softmax_backward_data.default", rereads=True)
def lower_softmax_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, output: Any, dim: int, input_dtype: torch.dtype
) -> TensorExpr:
    grad, output = low.value(grad), low.value(output)
    if grad.ndim == 0:
        raise NoLowering("softmax of one number")
    dim %= grad.ndim
    compute = compute_type(grad.dtype)
    g, y = cast(grad.expr, compute), cast(output.expr, compute)
    ones = tuple(1 if i == dim else s for i, s in enumerate(grad.size))
    logarithm = "_log_softmax" in str(node.target)
    total = reduce_expr(low, g if logarithm else op("mul", g, y), grad.size, (dim,), "sum", compute)
    total = expand(keep(total, (dim,)), ones, grad.size)
    if logarithm:
        return result(node, op("sub", g, op("mul", op("exp_below", y), total)))
    return result(node, op("mul", op("sub", g, total), y))


@lowers("log_softmax_parts.default", rereads=True)
def lower_log_softmax_parts(low: Lowering, node: torch.fx.Node, x: Any, dim: int) -> tuple[TensorExpr, ...]:
    x = low.value(x)
    dim %= x.ndim
    size = tuple(1 if i == dim else s for i, s in enumerate(x.size))
    top = keep(reduce_expr(low, x.expr, x.size, (dim,), "max", x.dtype), (dim,))
    shifted = op("sub", x.expr, expand(top, size, x.size))
    total = keep(reduce_expr(low, op("exp_below", shifted), x.size, (dim,), "sum", x.dtype), (dim,))
    return TensorExpr(size, x.dtype, top), TensorExpr(size, x.dtype, stored(low, op("log", total), size))


@lowers("log_softmax_backward.default")
def lower_own_log_softmax_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, x: Any, top: Any, total: Any, dim: int
) -> TensorExpr:
    grad, x, top, total = (low.value(each) for each in (grad, x, top, total))
    dim %= x.ndim
    ones = tuple(1 if i == dim else s for i, s in enumerate(x.size))
    logarithms = op("sub", op("sub", x.expr, expand(top.expr, ones, x.size)), expand(total.expr, ones, x.size))
    sums = keep(reduce_expr(low, grad.expr, x.size, (dim,), "sum", x.dtype), (dim,))
    return result(node, op("sub", grad.expr, op("mul", op("exp_below", logarithms), expand(sums, ones, x.size))))


@lowers("logsumexp.default", rereads=True)
def lower_logsumexp(low: Lowering, node: torch.fx.Node, x: Any, dims: Any, keepdim: bool = False) -> TensorExpr:
    x = low.value(x)
    chosen = axes(dims, x.ndim)
    compute = compute_type(meta_of(node).dtype)
    if x.ndim == 0 or not x.dtype.is_floating_point or any(x.size[dim] == 0 for dim in chosen):
        raise NoLowering("logsumexp of one number or of none")
    kept = tuple(s for i, s in enumerate(x.size) if i not in chosen)
    ones = tuple(1 if i in chosen else s for i, s in enumerate(x.size))
    top = reduce_expr(low, x.expr, x.size, chosen, "max", compute)
    infinite, endless = op("isinf", top, dtype=torch.bool), compare("eq", top, const(float("inf"), compute))
    shift = stored(low, where(infinite, const(0, compute), top), kept)
    below = op("sub", x.expr, expand(keep(shift, chosen), ones, x.size))
    total = reduce_expr(low, op("exp_below", below), x.size, chosen, "sum", compute)
    # An infinite number is above what it is shifted by: that row's sum is not used.
    value = where(endless, top, op("add", op("log", total), shift))
    return result(node, keep(value, chosen) if keepdim else value)
