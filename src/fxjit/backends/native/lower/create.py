"""Tensors made of nothing: constants and ranges, which cost no memory where a kernel uses them."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx

from fxjit import config

from ..index import contiguous_strides, size_of, sizes_of
from ..ir import Expr, Extern, Iota, TensorExpr, compute_type
from ..ops import cast, compare, const, op, where
from ..target import by_triton
from .pointwise import held, lift, rounded
from .table import Lowering, NoLowering, Number, fitting, lowers, meta_of


def made(node: torch.fx.Node, expr: Expr) -> TensorExpr:
    meta = meta_of(node)
    return TensorExpr(sizes_of(meta.shape), meta.dtype, cast(expr, compute_type(meta.dtype)))


def filled(low: Lowering, node: torch.fx.Node, value: Any) -> TensorExpr:
    meta = meta_of(node)
    value = fitting(value, meta.dtype)
    if isinstance(value, float):
        value = held(value, meta.dtype)
    expr = lift(low.scalar_like(value, meta.dtype), meta.dim())
    return made(node, rounded(expr, meta.dtype) if isinstance(value, Number) else expr)


@lowers("full.default")
def lower_full(low: Lowering, node: torch.fx.Node, size: Any, value: Any, **how: Any) -> TensorExpr:
    return filled(low, node, value)


@lowers("full_like.default", "new_full.default", of_shape=True)
def lower_full_like(low: Lowering, node: torch.fx.Node, x: Any, *args: Any, **how: Any) -> TensorExpr:
    return filled(low, node, args[-1] if args else how["fill_value"])


@lowers("zeros.default", "zeros_like.default", "new_zeros.default", "zero.default", of_shape=True)
def lower_zeros(low: Lowering, node: torch.fx.Node, *args: Any, **how: Any) -> TensorExpr:
    return filled(low, node, 0)


@lowers("ones.default", "ones_like.default", "new_ones.default", of_shape=True)
def lower_ones(low: Lowering, node: torch.fx.Node, *args: Any, **how: Any) -> TensorExpr:
    return filled(low, node, 1)


@lowers("scalar_tensor.default")
def lower_scalar_tensor(low: Lowering, node: torch.fx.Node, value: Any, **how: Any) -> TensorExpr:
    return filled(low, node, value)


@lowers("lift_fresh_copy.default")
def lower_lifted(low: Lowering, node: torch.fx.Node, x: Any) -> TensorExpr:
    """A constant that the traced code made (`torch.tensor(2.0)`), copied at each call, since the result may be written to."""
    known = low.constants.get(node.args[0])  # type: ignore[arg-type]  # a node
    return low.value(x) if known is None else filled(low, node, known)


@lowers("fill.Scalar", of_shape=True)
def lower_fill(low: Lowering, node: torch.fx.Node, x: Any, value: Any) -> TensorExpr:
    return filled(low, node, value)


@lowers("arange.default", "arange.start", "arange.start_step")
def lower_arange(low: Lowering, node: torch.fx.Node, *bounds: Any, **how: Any) -> TensorExpr:
    meta = meta_of(node)
    start, step = (bounds[0] if len(bounds) > 1 else 0), (bounds[2] if len(bounds) > 2 else 1)
    if any(isinstance(each, (float, Number)) for each in (start, step)):
        raise NoLowering("a range of floats")
    return TensorExpr(sizes_of(meta.shape), meta.dtype, cast(Iota((size_of(step),), size_of(start)), compute_type(meta.dtype)))


@lowers("iota.default")
def lower_iota(low: Lowering, node: torch.fx.Node, length: Any, *, start: Any, step: Any, **how: Any) -> TensorExpr:
    return lower_arange(low, node, start, None, step)  # type: ignore[no-any-return]  # lowerings are untyped


@lowers("tril.default", "triu.default")
def lower_triangle(low: Lowering, node: torch.fx.Node, x: Any, diagonal: Any = 0) -> TensorExpr:
    x = low.value(x)
    strides = (0,) * (x.ndim - 2)
    # column - row, against the diagonal
    distance = op("sub", Iota((*strides, 0, 1), 0), Iota((*strides, 1, 0), size_of(diagonal)))
    name = "le" if "tril" in str(node.target) else "ge"
    return made(node, where(compare(name, distance, const(0, torch.int64)), x.expr, const(0, x.expr.dtype)))


@lowers("eye.default", "eye.m")
def lower_eye(low: Lowering, node: torch.fx.Node, *args: Any, **how: Any) -> TensorExpr:
    on = compare("eq", Iota((1, 0), 0), Iota((0, 1), 0))
    return made(node, on)


# Random numbers, by Philox inside kernels


#: Bits of a uniform number: as many as the type holds below 1.
UNIFORM_BITS = {torch.float64: 53, torch.float32: 24, torch.float16: 11, torch.bfloat16: 8}


def random_bits(low: Lowering, node: torch.fx.Node) -> Expr:
    """64 bits for each element, the same in whatever kernel and however often they are computed."""
    if config.fallback_random or not by_triton(low.device):
        raise NoLowering("random numbers are eager's")
    sizes = sizes_of(tensor_metas(node)[0].shape)
    low.draws += 1
    number = const(low.draws, torch.int64)
    return op("philox", lift(seed(low, node).expr, len(sizes)), number, Iota(contiguous_strides(sizes), 0))


def seed(low: Lowering, node: torch.fx.Node) -> TensorExpr:
    """ATen computes it: the generator then moves on as a program expects, under a CUDA graph too."""
    device = low.device
    if device not in low.seeds:
        bounds = torch.iinfo(torch.int64)
        with low.graph.inserting_before(node):
            drawn = low.graph.call_function(torch.ops.aten.randint.low, (bounds.min, bounds.max, []),
                                            {"dtype": torch.int64, "device": device})
        drawn.meta["val"] = tensor_metas(node)[0].new_empty((), dtype=torch.int64)
        buffer = low.new_buffer((), (), torch.int64, "extern")
        low.set_storage(drawn, buffer)
        low.statements.append(Extern(drawn, frozenset(), frozenset(), frozenset({buffer.name})))
        low.seeds[device] = low.value(low.env[drawn])
    return low.seeds[device]


def tensor_metas(node: torch.fx.Node) -> list[torch.Tensor]:
    meta = meta_of(node)
    return list(meta) if isinstance(meta, (tuple, list)) else [meta]


def uniform(bits: Expr, dtype: torch.dtype) -> Expr:
    """In [0, 1), as many steps as the type distinguishes."""
    kind, count = compute_type(dtype), UNIFORM_BITS[dtype]
    return op("mul", cast(op("and", bits, const((1 << count) - 1, torch.int64)), kind), const(2.0**-count, kind))


def normal(bits: Expr, dtype: torch.dtype) -> Expr:
    """By Box and Muller, of two words of 32 bits."""
    kind = compute_type(dtype)
    word = const((1 << 32) - 1, torch.int64)
    first = cast(op("and", bits, word), kind)
    second = cast(op("and", op("shr", bits, const(32, torch.int64)), word), kind)
    one = op("mul", op("add", first, const(1.0, kind)), const(2.0**-32, kind))
    length = op("sqrt", op("mul", op("log", one), const(-2.0, kind)))
    return op("mul", length, op("cos", op("mul", second, const(2 * math.pi * 2.0**-32, kind))))


def bernoulli(low: Lowering, node: torch.fx.Node, p: float) -> Expr:
    return compare("lt", uniform(random_bits(low, node), torch.float32), const(p, torch.float32))


@lowers("rand.default", "rand_like.default", of_shape=True)
def lower_rand(low: Lowering, node: torch.fx.Node, *args: Any, **how: Any) -> TensorExpr:
    return lower_random(low, node, uniform)


@lowers("randn.default", "randn_like.default", of_shape=True)
def lower_randn(low: Lowering, node: torch.fx.Node, *args: Any, **how: Any) -> TensorExpr:
    return lower_random(low, node, normal)


def lower_random(low: Lowering, node: torch.fx.Node, how: Callable[[Expr, torch.dtype], Expr]) -> TensorExpr:
    dtype = meta_of(node).dtype
    if dtype not in UNIFORM_BITS:
        raise NoLowering(f"random numbers of {dtype}")
    return made(node, how(random_bits(low, node), dtype))


@lowers("mask_like.default", "bernoulli.p")
def lower_bernoulli(low: Lowering, node: torch.fx.Node, x: Any, p: float, **how: Any) -> TensorExpr:
    if how.get("generator") is not None:
        raise NoLowering("a generator of the program's own")
    return made(node, bernoulli(low, node, p))


@lowers("native_dropout.default")
def lower_dropout(low: Lowering, node: torch.fx.Node, x: Any, p: float, train: bool | None) -> tuple[TensorExpr, TensorExpr]:
    """Dropout. The kept mask is materialised, since the derivative reads it."""
    x, (_, kept_meta) = low.value(x), tensor_metas(node)
    kept: Expr = const(p < 1, torch.bool)
    scale = 1.0
    if (train is None or train) and 0 < p < 1:
        kept, scale = bernoulli(low, node, 1 - p), 1 / (1 - p)
    elif train is not None and not train:
        kept = const(True, torch.bool)
    buffer = low.new_buffer(x.size, sizes_of(kept_meta.stride()), torch.bool)
    mask = low.store_in(buffer, kept, x.size, None)
    kind = x.expr.dtype
    result = op("mul", x.expr, op("mul", cast(mask.expr, kind), const(scale, kind)))
    return TensorExpr(x.size, x.dtype, result), mask
