"""Lowerings whose functions are better left to ATen: less accurate ones, and slow ones.

Of libm's functions in float64 libmvec errs by up to 4 units in the last place, ATen by 0.5 to 1. Only `exp` is as accurate
(codegen/elementary.py), and so is all of float32, and what is a tensor of one number, without dimensions. A function that C has
for one number at a time takes many times as long as ATen's vectors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.utils import _pytree as pytree

from fxjit import config

from ..ir import Compute, Expr, Op, TensorExpr, walk
from ..ops import MATH, NOT_VECTOR_MATH, SCALARS
from ..target import by_triton
from .table import Lowering, NoLowering

#: Functions that are made of others.
COMPOSED = frozenset({"gelu", "gelu_slope", "normal_cdf", "softplus"})
#: Those that no compiler makes vectors of. `lgamma` of float32 and bfloat16, ns a number, one thread of a Zen 5, in a kernel
#: and by ATen: 64 and 4.7, 107 and 5.0.
ONE_BY_ONE = frozenset(name for name in (*MATH, *NOT_VECTOR_MATH) if not SCALARS[name].vector)
LESS_ACCURATE = frozenset({*MATH, *NOT_VECTOR_MATH, *COMPOSED} - {"exp", "fmod"})


def require_functions(low: Lowering, value: Any, first: int) -> None:
    """Raises NoLowering where ATen has better functions than a lowering's value, or a statement that it added (from number
    `first` on), would have. `config.cpp.fast_math` allows them."""
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
    if any(isinstance(node, Op) and node.name in ONE_BY_ONE for expr in exprs for node in walk(expr)):
        raise NoLowering("a function that ATen computes for vectors, and C for one number at a time")


def is_single_number(statement: Compute) -> bool:
    return not statement.size and not statement.rsize and not is_composed(statement.expr)


def is_composed(expr: Expr) -> bool:
    return any(isinstance(node, Op) and node.name in COMPOSED for node in walk(expr))


def is_less_accurate(expr: Expr) -> bool:
    return any(
        isinstance(node, Op) and node.dtype is torch.float64 and node.name in LESS_ACCURATE for node in walk(expr)
    )
