"""Which ATen operators are broken up while AOTAutograd traces.

Few are: a decomposition costs tracing time for each use, so operators that models use a lot have lowerings of their own
(lower/). These here are rare, pointwise or nearly so, and would otherwise be extern calls that nothing fuses with.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch

NAMES = (
    "binary_cross_entropy", "binary_cross_entropy_backward", "binary_cross_entropy_with_logits", "celu", "elu_backward",
    "glu", "glu_backward", "hardshrink", "hardsigmoid_backward", "hardswish_backward", "heaviside", "huber_loss",
    "huber_loss_backward",
    "log_sigmoid_backward", "log_sigmoid_forward", "logaddexp", "logaddexp2", "logit", "logit_backward", "mish",
    "mish_backward", "mse_loss",
    "mse_loss_backward", "nan_to_num", "selu", "smooth_l1_loss", "smooth_l1_loss_backward", "soft_margin_loss",
    "softplus_backward", "softshrink", "special_xlog1py", "std_mean", "xlogy", "trace", "stack", "unsafe_split",
)  # fmt: skip


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """The decompositions that torch has for these names."""
    from torch._decomp import get_decompositions

    packets = [getattr(torch.ops.aten, name) for name in NAMES if hasattr(torch.ops.aten, name)]
    return dict(get_decompositions(packets))
