"""Which ATen calls are one matrix product that the executor can hand to BLAS by itself, and where its operands lie.

`mm`, `addmm` with a bias row, and `linear`, of float32 and float64 in row-major or column-major memory: what ATen itself
passes to the same BLAS function with the same arguments. The operands may be views: BLAS takes their strides.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.fx

from fxjit import _C, config, process_state

from ..index import Size, Sizes, contiguous_strides, equal, prod, same_sizes, sizes_of
from ..ir import merged_stride
from .table import Lowering, is_view, meta_of, op_name

LIMIT = 2**31 - 1
#: What the BLAS multiplies.
TYPES: Final = (torch.float32, torch.float64)
#: Rows up to which bfloat16 is multiplied by our own kernel, and terms from which a sum is worth its end.
FEW_ROWS: Final = 12
LEAST_TERMS: Final = 128


@dataclass(frozen=True, slots=True)
class Operand:
    """A matrix (or a row): the node whose root is its memory, its strides, and its offset from the root's."""

    node: torch.fx.Node
    row: Size
    column: Size
    offset: Size


@dataclass(frozen=True, slots=True)
class Product:
    """out[m, n] = a[m, k] b[k, n] (+ bias[n]); out is contiguous."""

    m: Size
    n: Size
    k: Size
    a: Operand
    b: Operand
    bias: Operand | None


def product_of_few_rows(node: torch.fx.Node, low: Lowering, weight: torch.fx.Node | None = None) -> Product | None:
    """A product of few rows of bfloat16 by weights of contiguous columns, which is our own kernel's (executor/_bfloat16.c).
    `weight` holds those of eight bits that were converted for it."""
    own = config.cpp.own_products and _C.program_can("few rows")
    found = product_of(node, low, (torch.bfloat16,), weight) if own else None
    if found is None or not isinstance(found.m, int) or not isinstance(found.n, int) or not isinstance(found.k, int):
        return None
    rows_are = equal(found.a.column, 1) and equal(found.b.row, 1)
    return found if rows_are and found.m <= FEW_ROWS and found.k >= LEAST_TERMS else None


def product_by_pairs(node: torch.fx.Node, low: Lowering) -> Product | None:
    """A product of bfloat16 that our own kernel could make of pairs of numbers (executor/_pairs_product.c)."""
    found = product_of(node, low, (torch.bfloat16,)) if config.cpp.own_products and _C.program_can("pairs") else None
    if found is None or not equal(found.a.column, 1) or not (equal(found.b.row, 1) or equal(found.b.column, 1)):
        return None
    return found


def product_by_packed(node: torch.fx.Node, low: Lowering) -> Product | None:
    """A product by weights that were packed for our own kernels (`fxjit::linear_of_packed`)."""
    if op_name(node) != "linear_of_packed.default":
        return None
    x, packed, bias, n = node.args
    a, row = rows_of(x, low), None if bias is None else bias_row(bias, n, low)
    place = place_of(packed, low)  # type: ignore[arg-type]  # an argument that is a node
    if a is None or not equal(a.column, 1) or place is None or not equal(place[2], 0) or (bias is not None and row is None):
        return None
    sizes = sizes_of(meta_of(node).shape)
    return Product(prod(sizes[:-1]), sizes[-1], sizes_of(meta_of(x).shape)[-1], a, Operand(packed, 0, 0, 0), row)  # type: ignore[arg-type]  # nodes


def has_kernel_for_few_rows(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Whether a product of matrices of these sizes and strides is one of those, wherever its operands lie."""
    if not config.cpp.own_products or not _C.program_can("few rows") or a.dtype is not torch.bfloat16 or a.dim() != 2:
        return False
    known = all(type(each) is int for each in (*a.shape, a.stride(1), b.stride(0)))
    return known and a.shape[0] <= FEW_ROWS and a.shape[1] >= LEAST_TERMS and a.stride(1) == b.stride(0) == 1


def second_operand(node: torch.fx.Node) -> Any:
    return node.args[1 if op_name(node) == "linear.default" else -1]


def weight_of_eight_bits(node: torch.fx.Node) -> torch.fx.Node | None:
    """The weights of int8 that are converted to bfloat16 for a product: numbers that bfloat16 holds."""
    if op_name(node) not in ("mm.default", "addmm.default", "linear.default"):
        return None
    second = second_operand(node)
    if op_name(second) != "_to_copy.default" or second.kwargs != {"dtype": torch.bfloat16}:
        return None
    weight: torch.fx.Node = second.args[0]
    return weight if meta_of(weight).dtype is torch.int8 else None


def product_of(node: torch.fx.Node, low: Lowering, types: tuple[torch.dtype, ...] = TYPES,
               weight: torch.fx.Node | None = None) -> Product | None:
    """The product that a call is, or None where ATen is called for it. `weight` stands for the second operand, converted."""
    name = op_name(node)
    if name not in ("mm.default", "addmm.default", "linear.default") or node.kwargs or not blas_is_atens():
        return None
    second = second_operand(node)
    arguments = [arg for arg in node.args if arg is not None and (weight is None or arg is not second)]
    second = second if weight is None else weight
    metas = [meta_of(node), *(meta_of(arg) for arg in arguments if isinstance(arg, torch.fx.Node))]
    if len(metas) != len(arguments) + 1 or not all(suits(meta, metas[0].dtype, types) for meta in metas):
        return None
    out = metas[0]
    if not same_sizes(sizes_of(out.stride()), contiguous_strides(sizes_of(out.shape))):
        return None
    bias: Any = None
    if name == "linear.default":
        a = rows_of(node.args[0], low)
        b = None if meta_of(second).dim() != 2 else turned(matrix(second, low))
        bias = node.args[2] if len(node.args) > 2 else None
        k, n = sizes_of(meta_of(node.args[0]).shape)[-1:], sizes_of(out.shape)[-1]  # type: ignore[arg-type]  # an argument that is a node
        m = prod(sizes_of(out.shape)[:-1])
    else:
        a, b = (matrix(arg, low) for arg in (node.args[-2], second))  # type: ignore[arg-type]  # arguments that are nodes
        bias = node.args[0] if name == "addmm.default" else None
        (m, n), k = sizes_of(out.shape), sizes_of(meta_of(node.args[-2]).shape)[-1:]  # type: ignore[arg-type]  # an argument that is a node
    row = None if bias is None else bias_row(bias, n, low)
    if a is None or b is None or not k or (bias is not None and row is None):
        return None
    if not fits(a, m, k[0]) or not fits(b, k[0], n):
        return None
    if any(isinstance(size, int) and not 0 < size <= LIMIT for size in (m, n, k[0])):
        return None
    return Product(m, n, k[0], a, b, row)


def blas_is_atens() -> bool:
    """A setting may have ATen multiply float32 in less than its precision; then it does not call this BLAS."""
    if not _C.program_can("gemm") or torch.is_autocast_enabled("cpu"):
        return False
    return "mkldnn.matmul" not in process_state.query("float32_precision")


def suits(meta: Any, dtype: torch.dtype, types: tuple[torch.dtype, ...]) -> bool:
    return (isinstance(meta, torch.Tensor) and meta.dtype is dtype and dtype in types
            and meta.layout is torch.strided and meta.device.type == "cpu")


def origin(node: torch.fx.Node) -> torch.fx.Node:
    """The root of a chain of views."""
    while is_view(node):
        node = node.args[0]  # type: ignore[assignment]  # a view's first argument is a node
    return node


def place_of(node: torch.fx.Node, low: Lowering) -> tuple[Sizes, Sizes, Size] | None:
    """(sizes, strides, offset from its root) of a value in memory."""
    root = origin(node)
    meta, base = meta_of(node), meta_of(root)
    if base.dtype is not meta.dtype or (node not in low.storage and root not in low.storage):
        return None
    return sizes_of(meta.shape), sizes_of(meta.stride()), low.relative_offset(meta, base)


def matrix(node: torch.fx.Node, low: Lowering) -> Operand | None:
    place = place_of(node, low)
    if place is None:
        return None
    _, strides, offset = place
    return Operand(node, strides[0], strides[1], offset)


def rows_of(node: Any, low: Lowering) -> Operand | None:
    """A tensor of any dimensions as a matrix of its last one."""
    place = place_of(node, low)
    if place is None or len(place[0]) < 2:
        return None
    sizes, strides, offset = place
    row = merged_stride(list(sizes[:-1]), list(strides[:-1]))
    return None if row is None else Operand(node, row, strides[-1], offset)


def bias_row(node: Any, columns: Size, low: Lowering) -> Operand | None:
    """A row to begin each row of the result with; one number for all of them is none."""
    place = place_of(node, low)
    if place is None or len(place[0]) != 1 or not equal(place[0][0], columns):
        return None
    if not equal(place[1][0], 1) and not equal(columns, 1):
        return None
    return Operand(node, 0, 1, place[2])


def turned(operand: Operand | None) -> Operand | None:
    return None if operand is None else Operand(operand.node, operand.column, operand.row, operand.offset)


def fits(operand: Operand, rows: Size, columns: Size) -> bool:
    """Rows or columns are contiguous, and the lines between them do not overlap: the choice of `_program.c: leading`."""
    if equal(operand.column, 1) or equal(columns, 1):
        return equal(rows, 1) or at_least(operand.row, columns)
    return (equal(operand.row, 1) or equal(rows, 1)) and at_least(operand.column, rows)


def at_least(stride: Size, size: Size) -> bool:
    if isinstance(stride, int) and isinstance(size, int):
        return size <= stride <= LIMIT
    return equal(stride, size)
