"""Guarded metadata of a tensor: everything but its elements.

The frontend makes a `TensorSpec` of the real tensor it wrapped; `TensorIs` (kinds.py) holds while a tensor still fits
it; _tensor_facts.c checks the same facts through `_tensor.c`.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class TensorSpec:
    """None in `sizes` or `strides` means: any (the shape guards bound it)."""

    cls: type
    dtype: torch.dtype
    device: torch.device
    layout: torch.layout
    requires_grad: bool
    dispatch_keys: int
    ndim: int
    sizes: tuple[int | None, ...]
    strides: tuple[int | None, ...]

    @staticmethod
    def of(tensor: torch.Tensor, dynamic_dims: Collection[int] = frozenset(), fake: Any = None) -> TensorSpec:
        """`dynamic_dims`: sizes left open, with the strides that contain them. `fake`, the symbolic tensor of the
        trace, says it exactly instead: what is no plain int there is left open."""
        ndim = tensor.dim()
        sizes: tuple[int | None, ...]
        strides: tuple[int | None, ...]
        if tensor.layout is not torch.strided:
            sizes = tuple(None if dim in dynamic_dims else _static(size) for dim, size in enumerate(tensor.shape))
            strides = (None,) * ndim
        elif fake is not None:
            sizes = tuple(map(_static, fake.shape))
            strides = tuple(map(_static, fake.stride()))
        else:
            actual = tensor.stride()
            open_dims = {dim % ndim for dim in dynamic_dims}
            sizes = tuple(None if dim in open_dims else _static(size) for dim, size in enumerate(tensor.shape))
            strides = tuple(
                None if any(_inside(inner, dim, actual) for inner in open_dims) else _static(actual[dim])
                for dim in range(ndim)
            )
        return TensorSpec(
            type(tensor), tensor.dtype, tensor.device, tensor.layout, tensor.requires_grad, dispatch_keys(tensor),
            ndim, sizes, strides,
        )

    def fits(self, value: Any) -> bool:
        return self.difference(value) is None

    def difference(self, value: Any) -> tuple[str, Any, Any] | None:
        """The first fact that differs: its name, what was expected, what was found."""
        cls: type = type(value)
        if cls is not self.cls:
            return ("type", self.cls.__name__, cls.__name__)
        with torch._C.DisableTorchFunctionSubclass():
            return self._difference(value)

    def _difference(self, value: torch.Tensor) -> tuple[str, Any, Any] | None:
        facts: tuple[tuple[str, Any, Any], ...] = (
            ("dtype", self.dtype, value.dtype),
            ("device", self.device, value.device),
            ("layout", self.layout, value.layout),
            ("requires_grad", self.requires_grad, value.requires_grad),
            ("number of dimensions", self.ndim, value.dim()),
        )
        for name, expected, found in facts:
            if expected != found:
                return (name, expected, found)
        keys = dispatch_keys(value)
        if keys != self.dispatch_keys:
            return ("dispatch keys", key_names(self.dispatch_keys), key_names(keys))
        for dim, (expected_size, size) in enumerate(zip(self.sizes, value.shape, strict=True)):
            if expected_size is not None and expected_size != size:
                return (f"size({dim})", expected_size, size)
        if any(stride is not None for stride in self.strides):
            for dim, (expected_stride, stride) in enumerate(zip(self.strides, value.stride(), strict=True)):
                if expected_stride is not None and expected_stride != stride:
                    return (f"stride({dim})", expected_stride, stride)
        return None

    def __str__(self) -> str:
        sizes = ", ".join("?" if size is None else str(size) for size in self.sizes)
        grad = ", requires_grad" if self.requires_grad else ""
        strides = "" if self._contiguous() else f", strides {tuple('?' if s is None else s for s in self.strides)}"
        dtype = str(self.dtype).removeprefix("torch.")
        return f"{self.cls.__name__} {dtype}[{sizes}] on {self.device}{grad}{strides}"

    def _contiguous(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.sizes), reversed(self.strides), strict=True):
            if size is None or stride is None:
                return stride is None or stride == expected
            if size != 1 and stride != expected:
                return False
            expected *= max(size, 1)
        return True


def dispatch_keys(tensor: torch.Tensor) -> int:
    """The dispatch key set as one word: backend, inference, conjugate and negative bits, functorch wrappers."""
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def key_names(raw: int) -> str:
    return str(torch._C.DispatchKeySet.from_raw_repr(raw))


def _static(number: Any) -> int | None:
    """A plain int, or None for what the trace kept symbolic."""
    if type(number) is int:
        return number
    node = getattr(number, "node", None)
    constant = node.maybe_as_int() if node is not None else None
    return int(constant) if constant is not None else None


def _inside(inner: int, outer: int, strides: tuple[int, ...]) -> bool:
    """Whether a step along `outer` passes over all of dimension `inner`."""
    if inner == outer:
        return False
    return strides[inner] < strides[outer] or (strides[inner] == strides[outer] and inner > outer)


def marks(tensor: torch.Tensor, name: str) -> frozenset[int]:
    """The dimensions that `mark_dynamic` and its like wrote on the tensor (torch's names, so that both spellings count)."""
    return frozenset(getattr(tensor, name, None) or ())
