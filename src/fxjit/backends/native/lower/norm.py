"""Normalisations: layer, group, RMS, batch and instance norm, with their derivatives."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.fx

from ..generic_sizes import known
from ..index import Size, Sizes, prod, segments, sizes_of
from ..ir import Expr, TensorExpr, compute_type, expand, load_all, reshape, reshape_strides
from ..ops import cast, const, op
from ..target import by_triton
from .indexing import over
from .reduce import count_as, keep, mean_expr, reduce_expr, stored, variance, variance_at_once
from .table import Lowering, NoLowering, lowers, meta_of


def results(node: torch.fx.Node, *exprs: Expr | None) -> tuple[Any, ...]:
    out = []
    for meta, expr in zip(meta_of(node), exprs, strict=True):
        out.append(
            None
            if expr is None or not isinstance(meta, torch.Tensor)
            else TensorExpr(sizes_of(meta.shape), meta.dtype, cast(expr, compute_type(meta.dtype)))
        )
    return tuple(out)


def spread(expr: Expr, dims: tuple[int, ...], size: Sizes) -> Expr:
    """A reduced value back over all of `size`."""
    return expand(keep(expr, dims), tuple(1 if i in dims else s for i, s in enumerate(size)), size)


def trailing(x: TensorExpr, lead: int, ndim: int) -> Expr:
    return over(x.expr, tuple(range(lead, ndim)), ndim)


def inverse_root(var: Expr, eps: float, dtype: torch.dtype) -> Expr:
    return cast(op("rsqrt", op("add", var, const(eps, var.dtype))), dtype)


def statistics(low: Lowering, x: TensorExpr, dims: tuple[int, ...], eps: float) -> tuple[Expr, Expr]:
    """(1 / standard deviation, mean) over the dimensions kept, in the type computed with."""
    var, mean = variance(low, x, dims, 0, x.dtype)
    kept = tuple(size for dim, size in enumerate(x.size) if dim not in dims)
    compute = compute_type(x.dtype)
    return stored(low, inverse_root(var, eps, compute), kept), cast(mean, compute)


@lowers("native_layer_norm.default", rereads=True)
def lower_layer_norm(
    low: Lowering, node: torch.fx.Node, x: Any, shape: Any, weight: Any, bias: Any, eps: float
) -> tuple[Any, ...]:
    x = low.value(x)
    lead = x.ndim - len(shape)
    dims = tuple(range(lead, x.ndim))
    if any(size == 0 for size in x.size):
        raise NoLowering("an empty tensor")
    compute = compute_type(x.dtype)
    rstd, mean = statistics(low, x, dims, eps)
    y = op("mul", op("sub", x.expr, spread(mean, dims, x.size)), spread(rstd, dims, x.size))
    if weight is not None:
        y = op("mul", y, cast(trailing(low.value(weight), lead, x.ndim), compute))
    if bias is not None:
        y = op("add", y, cast(trailing(low.value(bias), lead, x.ndim), compute))
    return results(node, y, keep(mean, dims), keep(rstd, dims))


def rows_of(x: TensorExpr, shape: Any) -> tuple[int, tuple[int, ...], tuple[int, ...]]:
    """(how many dimensions count rows, the dimensions of a row of `shape`, those that count rows)"""
    lead = x.ndim - len(shape)
    if any(size == 0 for size in x.size) or not lead:
        raise NoLowering("an empty tensor, or one without rows")
    return lead, tuple(range(lead, x.ndim)), tuple(range(lead))


@lowers("native_layer_norm_backward.default")
def lower_layer_norm_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, x: Any, shape: Any, mean: Any, rstd: Any, weight: Any, bias: Any, mask: Any
) -> tuple[Any, ...]:
    grad, x, mean, rstd = map(low.value, (grad, x, mean, rstd))
    lead, inner, outer = rows_of(x, shape)
    compute = compute_type(x.dtype)
    g = cast(grad.expr, compute)
    ones = x.size[:lead] + (1,) * len(inner)
    m, r = (expand(cast(each.expr, compute), ones, x.size) for each in (mean, rstd))
    normal = op("mul", op("sub", x.expr, m), r)
    dx: Expr | None = None
    if mask[0]:
        scaled = op("mul", g, cast(trailing(low.value(weight), lead, x.ndim), compute)) if weight is not None else g
        first = spread(reduce_expr(low, scaled, x.size, inner, "sum", compute), inner, x.size)
        second = spread(reduce_expr(low, op("mul", scaled, normal), x.size, inner, "sum", compute), inner, x.size)
        count = count_as(prod(x.size[lead:]), x.ndim, compute)
        centred = op("sub", op("sub", op("mul", scaled, count), first), op("mul", normal, second))
        dx = op("mul", op("div", r, count), centred)
    dw = reduce_expr(low, op("mul", g, normal), x.size, outer, "sum", compute) if mask[1] and weight is not None else None
    db = reduce_expr(low, g, x.size, outer, "sum", compute) if mask[2] and bias is not None else None
    return results(node, dx, dw, db)


@lowers("native_group_norm.default", rereads=True)
def lower_group_norm(
    low: Lowering, node: torch.fx.Node, x: Any, weight: Any, bias: Any, n: Any, c: Any, hw: Any, groups: Any, eps: float
) -> tuple[Any, ...]:
    x = low.value(x)
    channels = x.size[1]
    split, expr = channels_apart(low, x, channels, groups)
    if not by_triton(low.device) and is_last(node.args[0].meta["val"]):  # type: ignore[union-attr]  # a node
        return group_norm_of_channels(low, node, x, weight, bias, split, eps)
    grouped = TensorExpr(split, x.dtype, expr)
    dims = tuple(range(2, len(split)))
    rstd, mean = statistics(low, grouped, dims, eps)
    y = op("mul", op("sub", expr, spread(mean, dims, split)), spread(rstd, dims, split))
    for name, parameter in (("mul", weight), ("add", bias)):
        if parameter is not None:
            per_channel = reshape(cast(low.value(parameter).expr, expr.dtype), (channels,), split[1:3])
            y = op(name, y, over(per_channel, (1, 2), len(split)))
    return (joined(low, y, split, x.size, meta_of(node)[0]), *results(node, None, mean, rstd)[1:])


def is_last(value: torch.Tensor) -> bool:
    """Whether a pixel's channels lie side by side, and there are several of either: of sizes that vary, as they were seen."""
    sizes, step = [known(each) for each in value.shape], value.stride()[1:2]
    beside = value.dim() > 2 and type(step[0]) is int and step[0] == 1
    return beside and all(isinstance(each, int) for each in sizes) and min(sizes[1], prod(sizes[2:])) > 1


def group_norm_of_channels(
    low: Lowering, node: torch.fx.Node, x: TensorExpr, weight: Any, bias: Any, split: Sizes, eps: float
) -> tuple[Any, ...]:
    """Of images whose channels lie side by side: each channel's statistics first, and of these its group's, which leaves the
    images to one loop over whole pixels that others can share. A group's own channels are too few for vectors."""
    wide, kept, images = torch.float64, split[:3], (x.size[0], x.size[1])
    compute = compute_type(x.dtype)
    of_channels = variance_at_once(low, x, tuple(range(2, x.ndim)))
    var, mean = (reshape(each, images, kept) for each in of_channels)
    count = const(split[2], wide)
    middle = stored(low, op("div", reduce_expr(low, mean, kept, (2,), "sum", wide), count), kept[:2])
    apart = op("sub", mean, spread(middle, (2,), kept))
    total = reduce_expr(low, op("add", var, op("mul", apart, apart)), kept, (2,), "sum", wide)
    rstd = stored(low, inverse_root(op("div", total, count), eps, compute), kept[:2])
    middle = cast(middle, compute)
    scale = spread(rstd, (2,), kept)
    if weight is not None:
        each = reshape(cast(low.value(weight).expr, compute), images[1:], split[1:3])
        scale = op("mul", scale, over(each, (1, 2), 3))
    of_images = [over(reshape(low.store(each, kept, compute).expr, kept, images), (0, 1), x.ndim)
                 for each in (spread(middle, (2,), kept), scale)]
    y = op("mul", op("sub", cast(x.expr, compute), of_images[0]), of_images[1])
    if bias is not None:
        y = op("add", y, over(cast(low.value(bias).expr, compute), (1,), x.ndim))
    return results(node, y, middle, rstd)


def channels_apart(low: Lowering, x: TensorExpr, channels: Any, groups: Any) -> tuple[Sizes, Expr]:
    """Images as [images, groups, channels of a group, height, width], in the type computed with."""
    if any(size == 0 for size in x.size) or not isinstance(channels, int) or not isinstance(groups, int):
        raise NoLowering("an empty tensor or symbolic channels")
    split: Sizes = (x.size[0], groups, channels // groups, *x.size[2:])
    return split, reshape(cast(x.expr, compute_type(x.dtype)), x.size, split)


def joined(low: Lowering, y: Expr, split: Sizes, size: Sizes, meta: torch.Tensor) -> TensorExpr:
    """The images, stored by the split shape: the statistics have no stride over the whole channel dimension."""
    buffer = low.new_buffer(size, sizes_of(meta.stride()), meta.dtype)
    runs = segments(size, split)
    assert runs is not None
    low.store_in(buffer, y, split, reshape_strides(size, buffer.stride, split, runs))
    return load_all(buffer)


def mean_of_groups(low: Lowering, of_channels: Expr, split: Sizes) -> Expr:
    """[images, groups]: the mean over all pixels of a group, of the sums over the pixels of its channels."""
    total = reduce_expr(low, of_channels, split[:3], (2,), "sum", of_channels.dtype)
    return stored(low, op("div", total, count_as(prod(split[2:]), 2, of_channels.dtype)), split[:2])


@lowers("group_norm_of_last.default")
def lower_group_norm_of_last(
    low: Lowering, node: torch.fx.Node, x: Any, weight: Any, bias: Any, n: Any, c: Any, pixels: Any, groups: Any, eps: float
) -> tuple[Any, ...]:
    """The pixels of a channel are added up first, side by side with those of the next; then the channels of a group."""
    x = low.value(x)
    split, grouped = channels_apart(low, x, c, groups)
    kind, own = grouped.dtype, (2, 3, 4)
    mean = mean_of_groups(low, reduce_expr(low, grouped, split, (3, 4), "sum", kind), split)
    centred = op("sub", grouped, spread(mean, own, split))
    squares = reduce_expr(low, op("mul", centred, centred), split, (3, 4), "sum", kind)
    rstd = stored(low, inverse_root(mean_of_groups(low, squares, split), eps, kind), split[:2])
    y = op("mul", centred, spread(rstd, own, split))
    for name, parameter in (("mul", weight), ("add", bias)):
        if parameter is not None:
            y = op(name, y, over(reshape(cast(low.value(parameter).expr, kind), (c,), split[1:3]), (1, 2), 5))
    return (joined(low, y, split, x.size, meta_of(node)[0]), *results(node, None, mean, rstd)[1:])


@lowers("native_group_norm_backward.default")
def lower_group_norm_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: Any, c: Any, pixels: Any,
    groups: Any, mask: Any,
) -> tuple[Any, ...]:  # fmt: skip
    """Of images whose channels lie side by side: each channel's sums over its pixels first, and of these its group's. ATen's
    is as fast where pixels do."""
    if by_triton(low.device) or not all(is_last(each.meta["val"]) for each in node.args[:2]):  # type: ignore[union-attr]
        raise NoLowering("a group norm of plain images")
    for given in node.args[:2]:  # which two kernels read
        low.materialize(given)  # type: ignore[arg-type]  # a node
    grad, x, mean, rstd = (low.value(low.env[given]) for given in node.args[:4])  # type: ignore[index]  # nodes
    split, _ = channels_apart(low, x, c, groups)
    kept, images, pixel = split[:3], x.size[:2], tuple(range(2, x.ndim))
    kind = compute_type(x.dtype)

    def of_images(each: Expr) -> Expr:
        """A number of each channel of an image, beside its pixels."""
        return over(reshape(low.store(each, kept, kind).expr, kept, images), (0, 1), x.ndim)

    middle, scale = (spread(cast(each.expr, kind), (2,), kept) for each in (mean, rstd))
    outside, centred = cast(grad.expr, kind), op("sub", cast(x.expr, kind), of_images(middle))
    plain, along = (reshape(reduce_expr(low, each, x.size, pixel, "sum", kind), images, kept)
                    for each in (outside, op("mul", outside, centred)))
    along = op("mul", along, scale)
    dw, db = (reshape(reduce_expr(low, each, kept, (0,), "sum", kind), split[1:3], (c,)) if asked else None
              for each, asked in zip((along, plain), mask[1:], strict=True))  # fmt: skip
    dx: Expr | None = None
    if mask[0]:
        slope = scale
        if weight is not None:
            each = over(reshape(cast(low.value(weight).expr, kind), (c,), split[1:3]), (1, 2), 3)
            plain, along, slope = (op("mul", total, each) for total in (plain, along, scale))
        of_group = [spread(op("div", reduce_expr(low, each, kept, (2,), "sum", kind), count_as(prod(split[2:]), 2, kind)),
                           (2,), kept) for each in (plain, along)]
        level, steep = (op("mul", scale, of_group[0]), op("mul", op("mul", scale, scale), of_group[1]))
        dx = op("sub", op("sub", op("mul", outside, of_images(slope)), op("mul", centred, of_images(steep))), of_images(level))
    return results(node, dx, dw, db)


@lowers("group_norm_of_last_backward.default")
def lower_group_norm_of_last_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, x: Any, mean: Any, rstd: Any, weight: Any, n: Any, c: Any, pixels: Any,
    groups: Any, mask: Any,
) -> tuple[Any, ...]:  # fmt: skip
    grad, x, mean, rstd = map(low.value, (grad, x, mean, rstd))
    (split, grouped), (_, outside) = (channels_apart(low, each, c, groups) for each in (x, grad))
    kind, own = grouped.dtype, (2, 3, 4)
    scale = spread(cast(rstd.expr, kind), own, split)
    normal = op("mul", op("sub", grouped, spread(cast(mean.expr, kind), own, split)), scale)
    by_normal = reduce_expr(low, op("mul", outside, normal), split, (3, 4), "sum", kind)
    plain = reduce_expr(low, outside, split, (3, 4), "sum", kind)
    dw, db = (reshape(reduce_expr(low, each, split[:3], (0,), "sum", kind), split[1:3], (c,)) if asked else None
              for each, asked in zip((by_normal, plain), mask[1:], strict=True))  # fmt: skip
    dx: Expr | None = None
    if mask[0]:
        if weight is not None:
            each = reshape(cast(low.value(weight).expr, kind), (c,), split[1:3])
            by_normal, plain = (op("mul", total, over(each, (1, 2), 3)) for total in (by_normal, plain))
            outside = op("mul", outside, over(each, (1, 2), 5))
        along, level = (spread(mean_of_groups(low, total, split), own, split) for total in (by_normal, plain))
        dx = op("mul", op("sub", op("sub", outside, level), op("mul", normal, along)), scale)
    first = None if dx is None else joined(low, dx, split, x.size, meta_of(node)[0])
    return (first, *results(node, None, dw, db)[1:])


@lowers("_native_batch_norm_legit_no_training.default")
def lower_batch_norm_inference(
    low: Lowering, node: torch.fx.Node, x: Any, weight: Any, bias: Any, mean: Any, var: Any, momentum: float, eps: float
) -> tuple[Any, ...]:
    """On a GPU the statistics are results too: the running ones, as they were used."""
    x = low.value(x)
    compute = compute_type(x.dtype)
    average = cast(low.value(mean).expr, compute)
    invstd = op("rsqrt", op("add", cast(low.value(var).expr, compute), const(eps, compute)))
    scale = invstd if weight is None else op("mul", invstd, cast(low.value(weight).expr, compute))
    shift = op("neg", op("mul", average, scale))
    if bias is not None:
        shift = op("add", shift, cast(low.value(bias).expr, compute))
    if not by_triton(low.device) and is_last(node.args[0].meta["val"]):  # type: ignore[union-attr]  # a node
        scale, shift = (stored(low, each, x.size[1:2]) for each in (scale, shift))  # and not for each pixel again
    y = op("add", op("mul", x.expr, over(scale, (1,), x.ndim)), over(shift, (1,), x.ndim))
    _, *metas = meta_of(node)
    used = (each if meta.numel() else const(0, compute) for each, meta in zip((average, invstd), metas, strict=True))
    return results(node, y, *used)


@lowers("_native_batch_norm_legit_functional.default", rereads=True)
def lower_batch_norm(
    low: Lowering,
    node: torch.fx.Node,
    x: Any,
    weight: Any,
    bias: Any,
    mean: Any,
    var: Any,
    training: bool,
    momentum: float,
    eps: float,
) -> tuple[Any, ...]:
    """(y, mean, 1/std, new running mean, new running variance)."""
    normalized = by_batch(low, x, weight, bias, training, eps)
    kind = compute_type(normalized.dtype)
    count = count_as(normalized.numbers, 1, kind)
    unbiased = op("div", op("mul", normalized.var, count), op("sub", count, const(1, kind)))
    running = [
        op("add", op("mul", low.value(old).expr, const(1 - momentum, kind)), op("mul", new, const(momentum, kind)))
        for old, new in ((mean, normalized.mean), (var, unbiased))
    ]
    return results(node, normalized.y, normalized.mean, normalized.invstd, *running)


@lowers("_native_batch_norm_legit.no_stats", rereads=True)
def lower_instance_norm(
    low: Lowering, node: torch.fx.Node, x: Any, weight: Any, bias: Any, training: bool, momentum: float, eps: float
) -> tuple[Any, ...]:
    """(y, mean, 1/std): instance norms are these of as many channels as there are in all images."""
    normalized = by_batch(low, x, weight, bias, training, eps)
    return results(node, normalized.y, normalized.mean, normalized.invstd)


class Normalized(NamedTuple):
    """A batch's norm, its statistics, and of how many numbers these are."""

    y: Expr
    mean: Expr
    invstd: Expr
    var: Expr
    numbers: Size
    dtype: torch.dtype


def by_batch(low: Lowering, x: Any, weight: Any, bias: Any, training: bool, eps: float) -> Normalized:
    """Normalized over all dimensions but the second."""
    x = low.value(x)
    if not training or any(size == 0 for size in x.size) or compute_type(x.dtype) is not torch.float32:
        raise NoLowering("batch norm without training, of nothing, or of doubles")
    dims, kind = (0, *range(2, x.ndim)), compute_type(x.dtype)
    wide_var, wide_mean = variance_at_once(low, x, dims)
    wide_var = stored(low, wide_var, x.size[1:2])
    invstd = stored(low, inverse_root(wide_var, eps, kind), x.size[1:2])
    var, mean = cast(wide_var, kind), stored(low, cast(wide_mean, kind), x.size[1:2])
    y = op("mul", op("sub", x.expr, over(mean, (1,), x.ndim)), over(scaled(low, invstd, weight), (1,), x.ndim))
    if bias is not None:
        y = op("add", y, over(low.value(bias).expr, (1,), x.ndim))
    return Normalized(y, mean, invstd, var, prod(x.size[dim] for dim in dims), x.dtype)


def scaled(low: Lowering, invstd: Expr, weight: Any) -> Expr:
    return invstd if weight is None else op("mul", invstd, low.value(weight).expr)


@lowers("native_batch_norm_backward.default")
def lower_batch_norm_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, x: Any, weight: Any, running_mean: Any, running_var: Any,
    mean: Any, invstd: Any, train: bool, eps: float, mask: Any,
) -> tuple[Any, ...]:  # fmt: skip
    grad, x = low.value(grad), low.value(x)
    if any(size == 0 for size in x.size) or compute_type(x.dtype) is not torch.float32:
        raise NoLowering("batch norm of nothing, or of doubles")
    dims, kind = (0, *range(2, x.ndim)), compute_type(x.dtype)
    if train:
        m, r = low.value(mean).expr, low.value(invstd).expr
    else:
        m = low.value(running_mean).expr
        r = stored(low, op("rsqrt", op("add", low.value(running_var).expr, const(eps, kind))), x.size[1:2])
    centred = op("sub", x.expr, over(m, (1,), x.ndim))
    total = reduce_expr(low, grad.expr, x.size, dims, "sum", kind)
    dot = reduce_expr(low, op("mul", grad.expr, centred), x.size, dims, "sum", kind)
    dx: Expr | None = None
    if mask[0] and not train:
        dx = op("mul", grad.expr, over(stored(low, scaled(low, r, weight), x.size[1:2]), (1,), x.ndim))
    elif mask[0]:
        count = count_as(prod(x.size[dim] for dim in dims), 1, kind)
        average = stored(low, op("div", total, count), x.size[1:2])
        slope = stored(low, op("div", op("mul", op("mul", dot, r), r), count), x.size[1:2])
        factor = stored(low, scaled(low, r, weight), x.size[1:2])
        less = op("sub", op("sub", grad.expr, over(average, (1,), x.ndim)), op("mul", centred, over(slope, (1,), x.ndim)))
        dx = op("mul", less, over(factor, (1,), x.ndim))
    return results(node, dx, op("mul", dot, r) if mask[1] else None, total if mask[2] else None)


@lowers("_fused_rms_norm.default", rereads=True)
def lower_rms_norm(low: Lowering, node: torch.fx.Node, x: Any, shape: Any, weight: Any, eps: Any) -> tuple[Any, ...]:
    x = low.value(x)
    lead = x.ndim - len(shape)
    dims = tuple(range(lead, x.ndim))
    if any(size == 0 for size in x.size):
        raise NoLowering("an empty tensor")
    compute = compute_type(x.dtype)
    epsilon = torch.finfo(compute).eps if eps is None else eps
    square = mean_expr(low, op("mul", x.expr, x.expr), x.size, dims)
    rstd = stored(low, op("rsqrt", op("add", square, const(epsilon, compute))), x.size[:lead])
    y = op("mul", x.expr, spread(rstd, dims, x.size))
    if weight is not None:
        y = op("mul", y, cast(trailing(low.value(weight), lead, x.ndim), compute))
    return results(node, y, keep(rstd, dims))


@lowers("_fused_rms_norm_backward.default")
def lower_rms_norm_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, x: Any, shape: Any, rstd: Any, weight: Any, mask: Any
) -> tuple[Any, ...]:
    grad, x, rstd = map(low.value, (grad, x, rstd))
    lead, inner, outer = rows_of(x, shape)
    compute = compute_type(x.dtype)
    g = cast(grad.expr, compute)
    r = expand(cast(rstd.expr, compute), x.size[:lead] + (1,) * len(inner), x.size)
    normal = op("mul", x.expr, r)
    dx: Expr | None = None
    if mask[0]:
        scaled = op("mul", g, cast(trailing(low.value(weight), lead, x.ndim), compute)) if weight is not None else g
        average = mean_expr(low, op("mul", normal, scaled), x.size, inner)
        dx = op("mul", op("sub", scaled, op("mul", normal, spread(average, inner, x.size))), r)
    dw = reduce_expr(low, op("mul", g, normal), x.size, outer, "sum", compute) if mask[1] and weight is not None else None
    return results(node, dx, dw)
