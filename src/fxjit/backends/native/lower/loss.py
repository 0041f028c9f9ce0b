"""The negative log-likelihood of targets, for rows or images, and its derivative.

What is looked up is computed where it is: the logarithms of a softmax, which feed the loss of a classifier, are not stored.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ..index import Sizes
from ..ir import Expr, Gather, Iota, Load, TensorExpr, compute_type, drop_dims, expand, insert_dim
from ..ops import cast, compare, const, op, where
from .indexing import as_index, looked_up
from .pointwise import result
from .reduce import reduce_expr
from .table import Lowering, NoLowering, lowers, meta_of

#: Of the reductions that ATen's losses know.
NONE, MEAN = 0, 1


def weighed(low: Lowering, x: TensorExpr, target: TensorExpr, weight: Any, ignored: int) -> tuple[Expr, Expr, Expr]:
    """Whether a target counts, the target or 0 in its place, and its weight or 1; each over the targets' dimensions."""
    index = as_index(target)
    counts = compare("ne", index, const(ignored, torch.int64))
    index = where(counts, index, const(0, torch.int64))
    compute = compute_type(x.dtype)
    if weight is None:
        return counts, index, const(1, compute)
    weight = low.value(weight)
    load = weight.expr
    if not isinstance(load, Load) or load.gathers:
        raise NoLowering("weights that are computed")
    gather = Gather(index, load.strides[0], weight.size[0], False)
    of_target = Load(load.buffer, load.dtype, load.memory_dtype, (0,) * target.ndim, load.offset, (gather,))
    return counts, index, cast(of_target, compute)


def check_sizes(x: TensorExpr, target: TensorExpr) -> None:
    if x.ndim != target.ndim + 1 or x.ndim < 2:
        raise NoLowering("a single row")
    if any(size == 0 for size in x.size):
        raise NoLowering("no targets or no classes")


@lowers("nll_loss_forward.default", "nll_loss2d_forward.default")
def lower_nll_loss(
    low: Lowering, node: torch.fx.Node, x: Any, target: Any, weight: Any, reduction: int, ignore_index: Any
) -> tuple[TensorExpr, TensorExpr]:
    x, target = low.value(x), low.value(target)
    check_sizes(x, target)
    loss_meta, weight_meta = meta_of(node)
    compute = compute_type(x.dtype)
    counts, index, share = weighed(low, x, target, weight, size_as_int(ignore_index))
    zero = const(0, compute)
    found = drop_dims(looked_up(low, node, x, 1, insert_dim(index, 1)), frozenset({1}))
    loss = op("mul", op("neg", cast(found, compute)), share)
    loss = where(counts, loss, zero)
    if reduction == NONE:
        return TensorExpr(target.size, loss_meta.dtype, loss), TensorExpr((), weight_meta.dtype, zero)
    every = tuple(range(target.ndim))
    total = reduce_expr(low, loss, target.size, every, "sum", compute)
    weights = reduce_expr(low, where(counts, share, zero), target.size, every, "sum", compute)
    if reduction == MEAN:
        total = op("div", total, weights)
    return TensorExpr((), loss_meta.dtype, total), TensorExpr((), weight_meta.dtype, weights)


def size_as_int(number: Any) -> int:
    if not isinstance(number, int):
        raise NoLowering("a number that varies")
    return number


@lowers("nll_loss_backward.default", "nll_loss2d_backward.default")
def lower_nll_loss_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, x: Any, target: Any, weight: Any, reduction: int, ignore_index: Any,
    total_weight: Any,
) -> TensorExpr:  # fmt: skip
    grad, x, target = low.value(grad), low.value(x), low.value(target)
    check_sizes(x, target)
    compute = compute_type(x.dtype)
    index = as_index(target)
    counts = compare("ne", index, const(size_as_int(ignore_index), torch.int64))
    step = op("neg", cast(grad.expr, compute))
    if reduction == MEAN:
        step = op("div", step, cast(low.value(total_weight).expr, compute))
    if reduction != NONE:
        step = expand(step, (), target.size)
    step = insert_dim(step, 1)
    if weight is not None:
        classes: Sizes = (x.size[1], *((1,) * (x.ndim - 2)))
        share = low.value(weight).expr
        for _ in range(x.ndim - 2):
            share = insert_dim(share, 1)
        step = op("mul", expand(cast(share, compute), classes, x.size), step)
    place = Iota(tuple(int(dim == 1) for dim in range(x.ndim)), 0)
    hit = op("and", compare("eq", place, insert_dim(index, 1)), insert_dim(counts, 1), dtype=torch.bool)
    return result(node, where(hit, step, const(0, compute)))
