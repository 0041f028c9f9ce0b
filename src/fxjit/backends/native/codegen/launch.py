"""A launch: a group of loops with the kernel that runs it, or one of the kernels."""

from __future__ import annotations

from dataclasses import dataclass

from ..ir import Buffer
from ..schedule.fuse import Group
from .kernel import Kernel
from .triton import TritonKernel


@dataclass(slots=True)
class Launch:
    """`entry` is the function's name, `written` the buffers that the kernel writes."""

    group: Group
    kernel: Kernel | TritonKernel
    entry: str
    written: dict[str, Buffer]
