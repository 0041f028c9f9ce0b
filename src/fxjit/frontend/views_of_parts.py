"""Inputs that are views of tensors of another dtype: torch's fake tensors begin with the base as a whole, viewed so.

It is no view of that dtype where its last dimension does not fit: `torch.view_as_complex(x.view(3, 4, 2))` of an `x` of 3 by 8.
"""

from __future__ import annotations

from collections.abc import Callable

import torch


def faked(tensor: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The fake tensor that `make` gives for `tensor`: of one in the same memory that is no view, where torch makes none."""
    if not tensor._is_view() or tensor._base is None or _is_whole(tensor._base, tensor.dtype):
        return make(tensor)
    fake = make(_in_its_memory(tensor))
    if tensor.is_leaf and not tensor.is_conj():
        return fake
    with torch.set_grad_enabled(not tensor.is_leaf):
        view = fake.conj() if tensor.is_conj() else fake.view_as(fake)
    return view.requires_grad_(tensor.requires_grad) if tensor.is_leaf else view


def _is_whole(base: torch.Tensor, dtype: torch.dtype) -> bool:
    """Whether all of `base` can be viewed with this dtype."""
    if base.dtype == dtype or base.layout is not torch.strided:
        return True
    shape = torch.empty_strided(base.size(), base.stride(), dtype=base.dtype, device="meta")
    try:
        if dtype.is_complex and dtype.to_real() == base.dtype:
            torch.view_as_complex(shape)
        elif not (base.dtype.is_complex and base.dtype.to_real() == dtype):
            shape.view(dtype)
    except RuntimeError:
        return False
    return True


def _in_its_memory(tensor: torch.Tensor) -> torch.Tensor:
    """Another tensor over the same memory, without a history, and not conjugated."""
    with torch.inference_mode(tensor.is_inference()), torch.no_grad():
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    made.__dict__.update(tensor.__dict__)  # marks of sizes that vary
    return made.requires_grad_(tensor.requires_grad)
