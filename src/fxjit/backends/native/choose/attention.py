"""Whether attention that a program writes out is to be one call of attention, which our kernels run."""

from __future__ import annotations

import torch

from fxjit import _C, config

from ..runtime.low_precision import LOW_PRECISION


def is_attention_preferred(dtype: torch.dtype) -> bool:
    """By our kernels attention is faster than two products and a softmax at all sizes that were measured
    (docs/performance_kernels.md). It was not measured with half types on a processor with tiles of bfloat16, which multiplies
    those faster than our kernels do."""
    if not config.cpp.own_attention or not _C.program_can("attention"):
        return False
    return dtype not in LOW_PRECISION or not _C.program_can("tiles")
