"""Where the operands of `fxjit::grouped_mm` lie, for the executor's instruction of it (executor/_grouped_products.c)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.fx

from ..hints import Hints
from ..index import Size, Sizes, equal, prod, size_of
from .blas import LIMIT, Operand, Product, blas_is_atens, fits, place_of, suits
from .table import Lowering, meta_of, op_name

#: What groups divide, by the numbers of _grouped_products.c.
ROWS, COLUMNS, TERMS = range(3)


@dataclass(frozen=True, slots=True)
class GroupedProduct:
    """`whole`: of all groups, which divide its rows, columns or terms. Steps: from one group's matrix to the next's."""

    divided: int
    count: Size
    whole: Product
    step_a: Size
    step_b: Size

    @property
    def numbers(self) -> Sizes:
        """Those of grouped_t."""
        m, n, k, a, b = self.whole.m, self.whole.n, self.whole.k, self.whole.a, self.whole.b
        step = prod((m, n)) if self.divided == TERMS else 0
        left, right = (a.row, a.column, self.step_a, a.offset), (b.row, b.column, self.step_b, b.offset)
        return self.divided, self.count, m, n, k, *left, *right, n, 1, step, 0

    def typical(self, hints: Hints) -> Iterator[Product]:
        """Products of one group: of a group as large as the others, and of one that is four times smaller or larger. Classes of
        products (_products.c) are that far apart."""
        sizes = [hints(each) for each in (self.whole.m, self.whole.n, self.whole.k)]
        most = sizes[self.divided]
        for quarters in (1, 4, 16):
            sizes[self.divided] = min(max(most * quarters // (4 * max(hints(self.count), 1)), 1), most)
            m, n, k = sizes
            yield Product(m, n, k, self.whole.a, self.whole.b, None)


def grouped_product_of(node: torch.fx.Node, low: Lowering) -> GroupedProduct | None:
    """The products that a call is, or None where the operator's kernel is called for it."""
    if op_name(node) != "grouped_mm.default" or not blas_is_atens():
        return None
    a, b, ends = node.args
    if not all(suits(meta_of(each), torch.float32, (torch.float32,)) for each in (a, b)):  # type: ignore[arg-type]  # nodes
        return None
    where = place_of(ends, low)  # type: ignore[arg-type]  # a node
    left, right = _operand(a, low), _operand(b, low)  # type: ignore[arg-type]  # nodes
    if where is None or left is None or right is None or not equal(where[1][0], 1) or not equal(where[2], 0):
        return None
    (rows, terms, operand_a, step_a), (_, columns, operand_b, step_b) = left, right
    divided = ROWS if len(meta_of(b).shape) == 3 else COLUMNS if len(meta_of(a).shape) == 3 else TERMS  # type: ignore[arg-type]
    if not fits(operand_a, rows, terms) or not fits(operand_b, terms, columns):
        return None
    if any(isinstance(size, int) and not 0 < size <= LIMIT for size in (rows, columns, terms)):
        return None
    return GroupedProduct(divided, where[0][0], Product(rows, columns, terms, operand_a, operand_b, None), step_a, step_b)


def _operand(node: torch.fx.Node, low: Lowering) -> tuple[Size, Size, Operand, Size] | None:
    """(rows, columns, the first group's matrix, the distance of the next)."""
    place = place_of(node, low)
    if place is None:
        return None
    sizes, strides, offset = place
    step = strides[0] if len(sizes) == 3 else size_of(0)
    return sizes[-2], sizes[-1], Operand(node, strides[-2], strides[-1], offset), step
