"""Attention of one query a head, which decoding asks for at each token: a pass over the keys and one over the values.

ATen's kernel calls a product of matrices for each head, which for one row costs more than the sums do, by far where it has to
convert half types. Of more queries it is ATen's.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ..index import Size, Sizes, equal, sizes_of
from ..ir import Expr, TensorExpr, compute_type, expand, insert_dim, is_plain_load, permute, reshape
from ..ops import cast, compare, const, op, where
from ..target import by_triton
from .reduce import reduce_expr
from .table import Lowering, NoLowering, lowers, meta_of

TYPES = (torch.float32, torch.bfloat16, torch.float16)


@lowers("_scaled_dot_product_flash_attention_for_cpu.default")
def lower_attention(
    low: Lowering, node: torch.fx.Node, query: Any, key: Any, value: Any, dropout_p: float = 0.0, is_causal: bool = False,
    *, attn_mask: Any = None, scale: float | None = None,
) -> tuple[TensorExpr, ...]:  # fmt: skip
    query, key, value = low.value(query), low.value(key), low.value(value)
    batch, heads, rows, width = query.size
    sets, count = key.size[1], key.size[2]
    if by_triton(low.device) or query.dtype not in TYPES or not equal(rows, 1):
        raise NoLowering("attention of several queries")
    if query.dtype is torch.float32 and not equal(heads, sets):
        raise NoLowering("keys that several heads look at, of which a product reads each once")
    if dropout_p or is_causal or not isinstance(width, int) or 0 in (width, count) or not equal(value.size[3], width):
        raise NoLowering("attention that is not plain")
    if not (isinstance(heads, int) and isinstance(sets, int)) or heads % sets:
        raise NoLowering("heads that vary")
    # Several heads of the query look at one of the keys: (batch, set of keys, head of the set).
    grouped: Sizes = (batch, sets, heads // sets)
    shape, places = (*grouped, width), (*grouped, count)
    compute = compute_type(query.dtype)
    scaled = op("mul", cast(query.expr, compute), const(width**-0.5 if scale is None else scale, compute))
    asked = reshape(low.store(scaled, query.size, compute).expr, query.size, shape)
    products = op("mul", insert_dim(asked, 3), insert_dim(cast(in_memory(low, key), compute), 2))
    scores = reduce_expr(low, products, (*places, width), (4,), "sum", compute)
    if attn_mask is not None:
        scores = op("add", scores, cast(over_places(low.value(attn_mask), places), compute))
    top = reduce_expr(low, scores, places, (3,), "max", compute)
    # Where there is nothing to look at, the result is zero, as ATen's.
    top = where(compare("eq", top, const(float("-inf"), compute)), const(0, compute), top)
    shares = low.store(op("exp_below", op("sub", scores, insert_dim(top, 3))), places, compute).expr
    total = reduce_expr(low, shares, places, (3,), "sum", compute)
    divisor = where(compare("eq", total, const(0, compute)), const(1, compute), total)
    looked_up = insert_dim(permute(cast(in_memory(low, value), compute), (0, 1, 3, 2)), 2)
    sums = reduce_expr(low, op("mul", insert_dim(shares, 3), looked_up), (*shape, count), (4,), "sum", compute)
    output = reshape(op("div", sums, insert_dim(divisor, 3)), shape, query.size)
    logarithm = reshape(op("add", top, op("log", divisor)), grouped, query.size[:3])
    metas = meta_of(node)
    return tuple(TensorExpr(sizes_of(meta.shape), meta.dtype, cast(expr, compute_type(meta.dtype)))
                 for meta, expr in zip(metas, (output, logarithm), strict=True))


def in_memory(low: Lowering, x: TensorExpr) -> Expr:
    """The numbers, where they are not computed anew for each head."""
    return x.expr if is_plain_load(x.expr) else low.store(x.expr, x.size, x.dtype).expr


def over_places(mask: TensorExpr, places: Sizes) -> Expr:
    """The mask over (batch, set of keys, head of the set, key)."""
    _, sets, grouped, _ = places
    rows: tuple[Size, ...] = (1,) * (4 - mask.ndim) + tuple(mask.size)
    expr = expand(mask.expr, mask.size, rows)
    if equal(rows[1], 1):
        return expand(expr, rows, places)
    if not is_plain_load(mask.expr):
        raise NoLowering("a mask for each head that is computed")
    return expand(reshape(expr, rows, (rows[0], sets, grouped, rows[3])), (rows[0], sets, grouped, rows[3]), places)
