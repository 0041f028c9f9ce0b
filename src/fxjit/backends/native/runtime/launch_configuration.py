"""How many programs a kernel takes, and other numbers that depend on sizes known at the call."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from ..codegen.triton import TritonKernel
from ..index import Size

#: Indices below this have 32 bits, those past the end of the last block included (`fits` in _cuda.c).
NARROW = 2**31 - 2**13


def is_wide(kernel: TritonKernel, integers: Sequence[int]) -> bool:
    """Whether indices take 64 bits."""
    return evaluate(kernel, kernel.span, integers) >= NARROW


def evaluate(kernel: TritonKernel, size: Size, integers: Sequence[int]) -> int:
    """The size, given the kernel's integer arguments."""
    return size if isinstance(size, int) else integers[kernel.sizes.index(size)]


def grid_of(kernel: TritonKernel, blocks: Mapping[str, int], integers: Sequence[int]) -> int:
    """The number of programs: the blocks that each axis takes, multiplied."""
    total = evaluate(kernel, kernel.rest, integers)
    for size, block in kernel.axes:
        total *= -(-evaluate(kernel, size, integers) // blocks[block])
    return total
