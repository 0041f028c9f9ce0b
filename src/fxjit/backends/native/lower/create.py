"""Tensors made of nothing: constants and ranges, which cost no memory where a kernel uses them."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ..index import size_of, sizes_of
from ..ir import Expr, Iota, Value, compute_type
from ..ops import cast, compare, const, op, where
from .pointwise import held, lift
from .table import Lowering, NoLowering, lowers, meta_of


def made(node: torch.fx.Node, expr: Expr) -> Value:
    meta = meta_of(node)
    return Value(sizes_of(meta.shape), meta.dtype, cast(expr, compute_type(meta.dtype)))


def filled(low: Lowering, node: torch.fx.Node, value: Any) -> Value:
    meta = meta_of(node)
    if isinstance(value, float):
        value = held(value, meta.dtype)
    return made(node, lift(low.scalar_like(value, meta.dtype), meta.dim()))


@lowers("full.default")
def lower_full(low: Lowering, node: torch.fx.Node, size: Any, value: Any, **how: Any) -> Value:
    return filled(low, node, value)


@lowers("full_like.default", "new_full.default")
def lower_full_like(low: Lowering, node: torch.fx.Node, x: Any, *args: Any, **how: Any) -> Value:
    return filled(low, node, args[-1] if args else how["fill_value"])


@lowers("zeros.default", "zeros_like.default", "new_zeros.default", "zero.default")
def lower_zeros(low: Lowering, node: torch.fx.Node, *args: Any, **how: Any) -> Value:
    return filled(low, node, 0)


@lowers("ones.default", "ones_like.default", "new_ones.default")
def lower_ones(low: Lowering, node: torch.fx.Node, *args: Any, **how: Any) -> Value:
    return filled(low, node, 1)


@lowers("scalar_tensor.default")
def lower_scalar_tensor(low: Lowering, node: torch.fx.Node, value: Any, **how: Any) -> Value:
    return filled(low, node, value)


@lowers("fill.Scalar")
def lower_fill(low: Lowering, node: torch.fx.Node, x: Any, value: Any) -> Value:
    return filled(low, node, value)


@lowers("arange.default", "arange.start", "arange.start_step")
def lower_arange(low: Lowering, node: torch.fx.Node, *bounds: Any, **how: Any) -> Value:
    meta = meta_of(node)
    start, step = (bounds[0] if len(bounds) > 1 else 0), (bounds[2] if len(bounds) > 2 else 1)
    if any(isinstance(each, (float, torch.SymFloat)) for each in (start, step)):
        raise NoLowering("a range of floats")
    return Value(sizes_of(meta.shape), meta.dtype, cast(Iota((size_of(step),), size_of(start)), compute_type(meta.dtype)))


@lowers("iota.default")
def lower_iota(low: Lowering, node: torch.fx.Node, length: Any, *, start: Any, step: Any, **how: Any) -> Value:
    return lower_arange(low, node, start, None, step)  # type: ignore[no-any-return]


@lowers("tril.default", "triu.default")
def lower_triangle(low: Lowering, node: torch.fx.Node, x: Any, diagonal: Any = 0) -> Value:
    x = low.value(x)
    strides = (0,) * (x.ndim - 2)
    # column - row, against the diagonal
    distance = op("sub", Iota((*strides, 0, 1), 0), Iota((*strides, 1, 0), size_of(diagonal)))
    name = "le" if "tril" in str(node.target) else "ge"
    return made(node, where(compare(name, distance, const(0, torch.int64)), x.expr, const(0, x.expr.dtype)))


@lowers("eye.default", "eye.m")
def lower_eye(low: Lowering, node: torch.fx.Node, *args: Any, **how: Any) -> Value:
    on = compare("eq", Iota((1, 0), 0), Iota((0, 1), 0))
    return made(node, on)
