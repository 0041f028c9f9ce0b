"""Scans along a dimension: cumulative sums, products, extremes with their places, and logarithms of sums of exponentials."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ..index import sizes_of
from ..ir import Buffer, Compute, Expr, Iota, TensorExpr, compute_type, is_plain_load, loads, permute
from ..ops import cast, compare, const, op, wants_vectors, where
from ..target import by_triton
from .pointwise import as_held, result
from .reduce import stored
from .table import Lowering, NoLowering, lowers, meta_of


def scan(low: Lowering, buffer: Buffer, expr: Expr, dim: int, kind: str) -> Expr:
    """`expr` over the buffer's shape, combined along the dimension with all before. Across memory, vectors hold neighbours.
    Along it a loop goes one by one: where it would hold up what vectors compute, ATen's is the better one."""
    size = buffer.size
    if buffer.stride[dim] == 1 and not by_triton(low.device):
        computed = any(low.buffers[load.buffer].kind == "temp" for load in loads(expr))
        if computed or wants_vectors(expr):
            raise NoLowering("a scan of what vectors compute")
    kept = tuple(k for k in range(len(size)) if k != dim)
    order = (*kept, dim)
    low.statements.append(
        Compute(
            buffer, tuple(size[k] for k in kept), (size[dim],), permute(expr, order), tuple(buffer.stride[k] for k in order),
            origins=low.current_origins(), scan=kind,
        )
    )  # fmt: skip
    return low.load(buffer)


def memory_for(low: Lowering, meta: torch.Tensor) -> Buffer:
    return low.new_buffer(sizes_of(meta.shape), sizes_of(meta.stride()), meta.dtype)


def cumulative(kind: str) -> Any:
    def lower(low: Lowering, node: torch.fx.Node, x: Any, dim: int, *, dtype: Any = None) -> TensorExpr:
        x, meta = low.value(x), meta_of(node)
        if meta.dtype is torch.bool:
            raise NoLowering("a scan of bools")
        expr = cast(x.expr, compute_type(meta.dtype))
        if x.ndim == 0:
            return result(node, expr)
        return TensorExpr(x.size, meta.dtype, scan(low, memory_for(low, meta), expr, dim % x.ndim, kind))

    return lower


lowers("cumsum.default")(cumulative("sum"))
lowers("cumprod.default")(cumulative("prod"))
lowers("logcumsumexp.default")(cumulative("logaddexp"))


def extreme_so_far(kind: str) -> Any:
    def lower(low: Lowering, node: torch.fx.Node, x: Any, dim: int) -> tuple[TensorExpr, TensorExpr]:
        """(extremes, their places). The place is the last one that held the extreme so far, or was not a number."""
        x, (values, places) = low.value(x), meta_of(node)
        if x.ndim == 0 or x.dtype is torch.bool:
            raise NoLowering("a scan of one number or of bools")
        dim %= x.ndim
        if sizes_of(values.stride())[dim] == 1 and not by_triton(low.device):
            raise NoLowering("one loop of ATen's finds both, where ours would be two that go one by one")
        expr = as_held(low, x).expr
        expr = expr if is_plain_load(expr) else stored(low, expr, x.size)
        top = scan(low, memory_for(low, values), expr, dim, kind)
        hit = compare("eq", expr, top)
        if expr.dtype.is_floating_point:
            hit = op("or", hit, op("isnan", expr, dtype=torch.bool), dtype=torch.bool)
        here = Iota(tuple(int(k == dim) for k in range(x.ndim)), 0)
        place = where(hit, here, const(0, torch.int64))
        last = scan(low, memory_for(low, places), place, dim, "max")
        return TensorExpr(x.size, x.dtype, top), TensorExpr(x.size, torch.int64, last)

    return lower


lowers("cummax.default")(extreme_so_far("max"))
lowers("cummin.default")(extreme_so_far("min"))
