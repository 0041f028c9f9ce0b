"""Fused or not: the limits of a group, and whether threads share its reductions."""

from __future__ import annotations

import torch

from ..hints import Hints
from ..index import Size, Sizes, prod
from ..ir import Compute
from ..target import by_triton
from .model import small_elements
from .predictions import COLUMNS_AT_ONCE, FEW_PROGRAMS, FEW_ROWS, LONG, MAX_MEMBERS, MAX_READS, SHARED


def has_room(members: int, reads: int) -> bool:
    """Whether a group of so many members may take one more, after which it reads so many buffers."""
    return members < MAX_MEMBERS and reads <= MAX_READS


def is_small(compute: Compute, hints: Hints) -> bool:
    """Whether the statement is better off in any group than in a kernel of its own."""
    return hints(prod(compute.domain)) <= small_elements()


def shares_reduction(compute: Compute, columns: bool, hints: Hints) -> bool:
    """Whether there are so few rows, and so long, that threads had better share the loop over each."""
    if compute.scan is not None:
        return False
    outer = compute.size
    rows, length = hints(prod(outer)), hints(prod(compute.rsize))
    if columns:
        last = hints(outer[-1])
        rows = rows // max(last, 1) * -(-last // COLUMNS_AT_ONCE)
    if by_triton(compute.out.device):
        return rows <= FEW_PROGRAMS and length > (LONG // COLUMNS_AT_ONCE if columns else LONG)
    return rows <= FEW_ROWS and length * min(hints(outer[-1]) if columns else 1, COLUMNS_AT_ONCE) > SHARED


def leaves_gpu_idle(rows: Size, loops: Sizes, device: torch.device, hints: Hints) -> bool:
    """Whether loops that reduce nothing are so long, in a kernel of so few rows, that they had better be a kernel of their own:
    that has as many programs as it likes."""
    return by_triton(device) and hints(rows) <= FEW_PROGRAMS and hints(prod(loops)) > LONG
