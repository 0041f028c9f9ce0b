"""Lowerings that would be less accurate than ATen: of libm's functions in float64, of which libmvec errs by up to 4 units in
the last place, ATen by 0.5 to 1. Only `exp` is as accurate (codegen/elementary.py), and so is all of float32, and what is a
tensor of one number, without dimensions."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from fxjit import config

from ..ir import Compute, Expr, Op, TensorExpr, walk
from ..ops import MATH, NOT_VECTOR_MATH
from ..target import by_triton
from .table import Lowering, NoLowering

#: Functions that are made of others.
COMPOSED = frozenset({"gelu", "gelu_slope", "normal_cdf", "softplus"})
LESS_ACCURATE = frozenset({*MATH, *NOT_VECTOR_MATH, *COMPOSED} - {"exp", "fmod"})


def require_accuracy(low: Lowering, value: Any, first: int) -> None:
    """Raises NoLowering where a lowering's value, or a statement that it added (from number `first` on), would be less accurate
    than ATen's. `config.cpp.fast_math` allows it."""
    if config.cpp.fast_math or by_triton(low.device):
        return
    added = [each for each in low.statements[first:] if isinstance(each, Compute) and not is_single_number(each)]
    tensors = [each for each in pytree.tree_leaves(value) if isinstance(each, TensorExpr)]
    if not added and all(each.size == () for each in tensors) and not any(is_composed(each.expr) for each in tensors):
        return  # a single number is no vector: libm's own functions are as accurate
    exprs = [*(each.expr for each in tensors), *(expr for statement in added for expr in statement.exprs)]
    if any(statement.scan == "logaddexp" and statement.expr.dtype is torch.float64 for statement in added):
        raise NoLowering("a scan in float64 that ATen computes more accurately")
    if any(is_less_accurate(expr) for expr in exprs):
        raise NoLowering("a function in float64 that ATen computes more accurately")


def is_single_number(statement: Compute) -> bool:
    return not statement.size and not statement.rsize and not is_composed(statement.expr)


def is_composed(expr: Expr) -> bool:
    return any(isinstance(node, Op) and node.name in COMPOSED for node in walk(expr))


def is_less_accurate(expr: Expr) -> bool:
    return any(
        isinstance(node, Op) and node.dtype is torch.float64 and node.name in LESS_ACCURATE for node in walk(expr)
    )
