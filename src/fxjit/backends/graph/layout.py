"""Layouts in memory of tensors whose sizes and strides may be symbols: order of dimensions, gaps, overlap, extent.

Symbols are looked at without asking anything of them: that would be a guard, or an error where only data tells.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    import sympy


def expressions(sizes: Sequence[int | torch.SymInt]) -> list[int | sympy.Expr]:
    return [size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes]


def hints(sizes: Sequence[int | torch.SymInt]) -> list[int | None]:
    """Hints of the symbols, by the inputs at hand; None for an unknown one."""
    return [size.node.hint if isinstance(size, torch.SymInt) else size for size in sizes]


def dimension_order(x: Any) -> tuple[int, ...] | None:
    """The dimensions from the outermost in memory to the innermost, without those of one element; None for a layout with
    gaps, an empty tensor, or data-dependent sizes."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return None
    rows: list[Any] = [hints(x.shape), hints(x.stride())]
    size, stride = rows
    if None in size or None in stride or not math.prod(size):
        return None
    order = sorted((dim for dim in range(x.dim()) if size[dim] != 1), key=lambda dim: -stride[dim])
    step = 1
    for dim in reversed(order):
        if stride[dim] != step:
            return None
        step *= size[dim]
    return tuple(order)


def has_gaps(x: torch.Tensor) -> bool:
    """Whether there is memory between the elements of a tensor of known sizes, which all lie apart."""
    if x.layout is not torch.strided or not all(type(each) is int for each in x.shape):
        return False
    if not all(type(stride) is int for stride, size in zip(x.stride(), x.shape, strict=True) if size > 1):
        return False
    reach = _reach(x.shape, x.stride())
    return reach is not None and reach + 1 > x.numel() > 0


def overlaps_itself(size: Sequence[Any], stride: Sequence[Any]) -> bool:
    """Whether elements lie on each other, as those of an unfolding; of symbols, with the sizes at hand."""
    return _reach(size, stride) is None


def _reach(size: Sequence[Any], stride: Sequence[Any]) -> int | None:
    """The distance of the last element from the first; None where elements lie on each other."""
    known: Any = zip(hints(stride), hints(size), strict=True)
    reach = 0
    for step, extent in sorted(pair for pair in known if None not in pair and pair[1] > 1):
        if step <= reach:
            return None
        reach += step * (extent - 1)
    return reach


def byte_range(x: torch.Tensor) -> tuple[int, int]:
    """The first byte of its storage that is the tensor's, and the one behind the last; of symbols, with the sizes at hand."""
    rows: list[Any] = [hints(x.shape), hints(x.stride()), hints([x.storage_offset()])]
    sizes, strides, (offset,) = rows
    if any(None in row for row in rows) or 0 in sizes:
        return 0, 0
    last = offset + sum((size - 1) * stride for size, stride in zip(sizes, strides, strict=True))
    return offset * x.element_size(), (last + 1) * x.element_size()
