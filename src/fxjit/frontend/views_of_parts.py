"""Inputs that are views, of which torch's fake tensors begin with the base as a whole and view it.

Of another dtype, it is no view where its last dimension does not fit: `torch.view_as_complex(x.view(3, 4, 2))` of an `x` of
3 by 8. Of a nested tensor of the strided layout, as attention over jagged tensors gives them, there is no fake base.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import torch

from fxjit.tensor_wrappers import is_part_of_nested, is_wrapper, parts


def faked(tensor: torch.Tensor, make: Callable[[torch.Tensor], torch.Tensor]) -> torch.Tensor:
    """The fake tensor that `make` gives for `tensor`: of one in the same memory that is no view, where torch makes none."""
    if _has_fake_base(tensor):
        return make(tensor)
    fake = make(_in_its_memory(tensor))
    if tensor.is_leaf and not tensor.is_conj():
        return fake
    with torch.set_grad_enabled(not tensor.is_leaf):
        view = fake.conj() if tensor.is_conj() else fake.view_as(fake)
    return view.requires_grad_(tensor.requires_grad) if tensor.is_leaf else view


def _has_fake_base(tensor: torch.Tensor) -> bool:
    if is_part_of_nested(tensor):
        return False
    return is_wrapper(tensor) or not tensor._is_view() or tensor._base is None or _is_whole(tensor._base, tensor.dtype)


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
        if is_wrapper(tensor):
            cls: Any = type(tensor)
            flat: Any = tensor
            made = cls.__tensor_unflatten__(dict(parts(tensor)), flat.__tensor_flatten__()[1], tensor.size(), tensor.stride())
            return cast(torch.Tensor, made.requires_grad_(tensor.requires_grad))
        made = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        made.set_(tensor.untyped_storage(), tensor.storage_offset(), tensor.size(), tensor.stride())
    made.__dict__.update(tensor.__dict__)  # marks of sizes that vary
    return made.requires_grad_(tensor.requires_grad)
