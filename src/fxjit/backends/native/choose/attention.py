"""Whether attention that a program writes out is to be one call of attention, which our kernels run."""

from __future__ import annotations

import torch
import torch.fx

from fxjit import _C, config
from fxjit.backends.aot.attention_by_hand import with_attention

from ..runtime import own_attention
from ..runtime.low_precision import LOW_PRECISION


def with_own_attention(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The captured graph with calls of attention where our kernels run them and are faster."""
    if not config.cpp.own_attention or not _C.program_can("attention"):
        return gm
    return with_attention(gm, _is_preferred)


def _is_preferred(query: torch.Tensor, key: torch.Tensor) -> bool:
    """By our kernels attention is faster than two products and a softmax at all sizes that were measured
    (docs/performance_kernels.md). It was not measured with half types on a processor with tiles of bfloat16, which multiplies those
    faster than our kernels do."""
    return query.dtype in own_attention.KINDS and not (query.dtype in LOW_PRECISION and _C.program_can("tiles"))
