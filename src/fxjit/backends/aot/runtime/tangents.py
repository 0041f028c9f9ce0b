"""Tangents at run time: zeros for undefined ones, masks that say which are defined, and the layout that the backward graph was
compiled for.

The tangent of an output that no backward pass reaches is undefined. A backward graph gets zeros in its place; where these could
become NaN (0 * inf), it has a mask among its inputs, a boolean tensor, and takes them for zeros.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from .call_plan import TangentLayout, TangentMask

_MASKS: dict[tuple[bool, str], torch.Tensor] = {}


def defined_tangents(given: list[Any], tangents: tuple[int, ...], like: Sequence[tuple[Any, Any, Any]]) -> int:
    """Puts zeros, of these shapes, types and devices, in the place of undefined tangents; which are defined, as bits."""
    defined = 0
    for place, (index, (shape, dtype, device)) in enumerate(zip(tangents, like, strict=True)):
        if given[index] is None:
            given[index] = torch.zeros(shape, dtype=dtype, device=device)
        else:
            defined |= 1 << place
    return defined


def with_layout(tangent: torch.Tensor, layout: TangentLayout) -> torch.Tensor:
    """The tangent as the backward graph was compiled for it."""
    if layout.memory_format is not None:
        return tangent.contiguous(memory_format=layout.memory_format)
    assert layout.size is not None and layout.stride is not None
    if tangent.shape == layout.size and tangent.stride() == layout.stride:
        return tangent
    return torch.empty_strided(layout.size, layout.stride, dtype=tangent.dtype, device=tangent.device).copy_(tangent)


def runs_operators(tangent: torch.Tensor) -> bool:
    """Whether its class has a `__torch_dispatch__`."""
    return type(tangent) is not torch.Tensor and type(tangent).__torch_dispatch__ != torch.Tensor.__torch_dispatch__


def plain_tangent(tangent: torch.Tensor, index: int) -> torch.Tensor:
    """The tangent of this output, which is of a subclass, as a plain tensor: a class that runs operators is more than that."""
    if runs_operators(tangent):
        raise RuntimeError(f"the gradient of output {index} of a compiled graph is a {type(tangent).__name__}; "
                           "compiled backward graphs take plain tensors")
    with torch._C.DisableTorchFunctionSubclass():
        return tangent.as_subclass(torch.Tensor)  # type: ignore[no-any-return]  # not in the stubs


def mask_tensors(masks: Sequence[TangentMask], defined: int) -> list[torch.Tensor]:
    """The masks where the tangents of the bits `defined` are."""
    return [_mask(bool(bits & defined), device) for bits, device in masks]


def with_all_defined(compiled: Callable[[list[Any]], Any], masks: Sequence[TangentMask]) -> Callable[[list[Any]], Any]:
    """The compiled backward graph for a caller that does not know which tangents are defined."""
    def run(args: list[Any]) -> Any:
        args += mask_tensors(masks, -1)
        return compiled(args)

    run._boxed_call = True  # type: ignore[attr-defined]  # what AOTAutograd looks for
    return run


def _mask(value: bool, device: str) -> torch.Tensor:
    if (value, device) not in _MASKS:
        _MASKS[value, device] = torch.tensor(value, device=device)
    return _MASKS[value, device]
