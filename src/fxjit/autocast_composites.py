"""Autocast in composite operators (`einsum`, `tensordot`) that are traced under inference mode.

Where autograd is off for good, a dispatch mode sees a composite operator whole, and by then torch has put autocast aside: the
products inside of it would be of the type that they are given. Eager casts them. Here they are taken apart with autocast as
the program has it, but for those that autocast itself has cast already, or what those call.
"""

from __future__ import annotations

import contextlib
from typing import Any, Final

import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from fxjit import torch_private
from fxjit.schemas import has_kernel

_KEYS: Final = {"cpu": torch._C.DispatchKey.AutocastCPU, "cuda": torch._C.DispatchKey.AutocastCUDA}


def autocast_in_composites() -> contextlib.AbstractContextManager[Any]:
    """The mode, where composite operators reach one while autocast is on."""
    needed = torch.is_inference_mode_enabled() and any(map(torch.is_autocast_enabled, _KEYS))
    return _TakenApart() if needed else contextlib.nullcontext()


class _TakenApart(TorchDispatchMode):
    """Composite operators by those that they are made of, with autocast as it is when the mode is made."""

    supports_higher_order_operators = True

    def __init__(self) -> None:
        super().__init__()
        names = ("_ForceDispatchKeyGuard", "_dispatch_tls_local_include_set", "_dispatch_tls_local_exclude_set")
        self._guard, self._included, self._excluded = (torch_private.get(f"torch._C.{name}") for name in names)
        self._keys = [key for device, key in _KEYS.items() if torch.is_autocast_enabled(device)]
        self._is_cast = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not isinstance(func, OpOverload) or not has_kernel(func, "CompositeImplicitAutograd"):
            return func(*args, **(kwargs or {}))
        cast_outside = self._is_cast
        self._is_cast = cast_outside or any(has_kernel(func, key.name) for key in self._keys)
        excluded = self._excluded()
        for key in () if self._is_cast else self._keys:
            excluded = excluded.remove(key)
        try:
            with self._guard(self._included(), excluded), self:
                result = func.decompose(*args, **(kwargs or {}))
        finally:
            self._is_cast = cast_outside
        return func(*args, **(kwargs or {})) if result is NotImplemented else result
