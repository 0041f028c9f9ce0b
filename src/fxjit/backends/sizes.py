"""Sizes and strides that may be symbols, looked at without asking anything of them: that would be a guard, or an error where
only data tells."""

from __future__ import annotations

from collections.abc import Sequence

import sympy
import torch


def expressions(sizes: Sequence[int | torch.SymInt]) -> list[int | sympy.Expr]:
    return [size.node.expr if isinstance(size, torch.SymInt) else size for size in sizes]


def hints(sizes: Sequence[int | torch.SymInt]) -> list[int | None]:
    """What they are of the inputs at hand; None for what is not known."""
    return [size.node.hint if isinstance(size, torch.SymInt) else size for size in sizes]
