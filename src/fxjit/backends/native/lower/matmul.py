"""Products that are loops of our own, which what is around them fuses with: linear layers so small that calling a BLAS costs
more than the sums, and batches of matrices that lie across each other in memory, which a BLAS takes only as copies.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ..choose.predictions import BATCHES_ACROSS, LEAST_BATCHES
from ..index import prod
from ..ir import Expr, TensorExpr, insert_dim, is_plain_load, permute
from ..ops import op
from ..target import by_triton
from .pointwise import result
from .reduce import reduce_expr
from .table import LOWERINGS, Lowering, NoLowering, is_view, lowers, meta_of, op_name

#: Multiplications up to which this is faster than ATen's call.
FEW = 2048


@lowers("linear.default")
def lower_linear(low: Lowering, node: torch.fx.Node, x: Any, weight: Any, bias: Any = None) -> TensorExpr:
    x, weight = low.value(x), low.value(weight)
    count = prod((*x.size[:-1], *weight.size)) if x.ndim and weight.ndim == 2 else None
    if not isinstance(count, int) or not 0 < count <= FEW or x.dtype not in (torch.float32, torch.float64):
        raise NoLowering("a product that BLAS does better")
    rows = insert_dim(x.expr, x.ndim - 1)
    columns = weight.expr
    for _ in range(x.ndim - 1):
        columns = insert_dim(columns, 0)
    size = (*x.size[:-1], *weight.size)
    total = reduce_expr(low, op("mul", rows, columns), size, (x.ndim,), "sum", x.dtype)
    if bias is None:
        return result(node, total)
    added = low.value(bias).expr
    for _ in range(x.ndim - 1):
        added = insert_dim(added, 0)
    return result(node, op("add", total, added))


@lowers("bmm.default")
def lower_bmm(low: Lowering, node: torch.fx.Node, a: Any, b: Any) -> TensorExpr:
    """Vectors go along the batch, where its matrices' numbers are neighbours in memory: `einsum("tsd,bsd->btd")`."""
    a, b = low.value(a), low.value(b)
    operands = [meta_of(arg) for arg in node.args]  # type: ignore[arg-type]  # arguments that are nodes
    if by_triton(low.device) or not all(map(lies_across, operands)):
        raise NoLowering("products that BLAS does better")
    (batch, rows, terms), columns = a.size, b.size[2]
    copied = rows * terms + terms * columns + (rows * columns if is_read_by_kernels(node) else 0)
    if rows * terms * columns > BATCHES_ACROSS * copied:
        raise NoLowering("products that BLAS does better, even of copies")
    left = insert_dim(across(low, a, (1, 2, 0), (0, 2, 1)), 1)
    right = insert_dim(across(low, b, (2, 1, 0), (0, 2, 1)), 0)
    size = rows, columns, batch, terms
    total = reduce_expr(low, op("mul", left, right), size, (3,), "sum", a.dtype)
    return result(node, permute(total, (2, 0, 1)))


def lies_across(batch: torch.Tensor) -> bool:
    """Whether a number's neighbours in memory are those in its place in the batch's other matrices."""
    sizes = (*batch.shape, *batch.stride())
    if batch.dtype not in (torch.float32, torch.float64) or not all(type(size) is int for size in sizes):
        return False
    count, *matrix = batch.shape
    step, *steps = batch.stride()
    apart = all(size == 1 or each == 0 or each >= count for size, each in zip(matrix, steps, strict=True))
    return count >= LEAST_BATCHES and step == 1 and apart and 0 not in matrix


def is_read_by_kernels(node: torch.fx.Node) -> bool:
    """Whether nothing else reads it, which would want it as ATen lays it out."""
    return all(is_read_by_kernels(user) if is_view(user) else op_name(user) in LOWERINGS for user in node.users)


def across(low: Lowering, batch: TensorExpr, in_memory: tuple[int, int, int], wanted: tuple[int, int, int]) -> Expr:
    """The numbers along (rows or columns, batch, terms), in memory: each is read more than once."""
    expr = permute(batch.expr, in_memory)
    if not is_plain_load(expr):
        expr = low.store(expr, tuple(batch.size[dim] for dim in in_memory), batch.dtype).expr
    return permute(expr, wanted)
