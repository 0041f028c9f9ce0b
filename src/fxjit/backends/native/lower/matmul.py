"""Linear layers so small that calling a BLAS costs more than the sums: loops of our own, which the layers around fuse with."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ..index import prod
from ..ir import TensorExpr, insert_dim
from ..ops import op
from .pointwise import result
from .reduce import reduce_expr
from .table import Lowering, NoLowering, lowers

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
