"""Autocast and views in composite operators (`einsum`, `reshape`) that are traced under inference mode.

Where autograd is off for good, a dispatch mode sees a composite operator whole, and by then torch has put autocast aside, and
what notes views: the products inside of it would be of the type that they are given, and views of a tensor from outside of the
mode would be none of it, and require no grad. Here they are taken apart with both as the program has them, but for those that
autocast has cast already, or whose result is noted as a whole, and what those call.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from fxjit import torch_private
from fxjit.schemas import has_kernel

_KEYS: Final = {"cpu": torch._C.DispatchKey.AutocastCPU, "cuda": torch._C.DispatchKey.AutocastCUDA}
#: What notes that a result is a view.
_NOTES: Final = (torch._C.DispatchKey.ADInplaceOrView,)


def taking_composites_apart(args: Sequence[object]) -> contextlib.AbstractContextManager[Any]:
    """The mode, where composite operators reach one while autocast is on, or where one of the arguments' views are noted."""
    if not torch.is_inference_mode_enabled():
        return contextlib.nullcontext()
    needed = any(map(torch.is_autocast_enabled, _KEYS)) or any(map(_is_from_outside, args))
    return _TakenApart() if needed else contextlib.nullcontext()


def _is_from_outside(value: object) -> bool:
    """Whether it is a tensor that was not made in inference mode, or has one."""
    if isinstance(value, (list, tuple)):
        return any(map(_is_from_outside, value))
    return isinstance(value, torch.Tensor) and not value.is_inference()


class _TakenApart(TorchDispatchMode):
    """Composite operators by those that they are made of, with autocast as it is when the mode is made, and views noted."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        names = ("_ForceDispatchKeyGuard", "_dispatch_tls_local_include_set", "_dispatch_tls_local_exclude_set")
        self._guard, self._included, self._excluded = (torch_private.get(f"torch._C.{name}") for name in names)
        self._keys = [key for device, key in _KEYS.items() if torch.is_autocast_enabled(device)]
        self._is_cast = self._is_noted = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, OpOverload) or not has_kernel(func, "CompositeImplicitAutograd"):
            return func(*args, **(kwargs or {}))
        outside = self._is_cast, self._is_noted
        self._is_cast |= any(has_kernel(func, key.name) for key in self._keys)
        self._is_noted |= has_kernel(func, "ADInplaceOrView")
        excluded = self._excluded()
        for key in (*(() if self._is_cast else self._keys), *(() if self._is_noted else _NOTES)):
            excluded = excluded.remove(key)
        try:
            with self._guard(self._included(), excluded), self:
                result = func.decompose(*args, **(kwargs or {}))
        finally:
            self._is_cast, self._is_noted = outside
        return func(*args, **(kwargs or {})) if result is NotImplemented else result
