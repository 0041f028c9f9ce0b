"""State of the process that decides what torch does with the same tensors: grad mode, autocast, default dtype...

The frontend captures an `AmbientState` when a trace begins and guards every item of it (`AmbientIs`), and what a backend
queried as well (process_state.py); `read` gives the present value of one; `ops` says how _conditions.c reads it, without
Python in the common case.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from dataclasses import dataclass, fields
from typing import Any, Final

import torch
import torch.overrides
import torch.utils._device
from torch.autograd import forward_ad
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

from fxjit import process_state, tensor_shim, torch_private

#: One condition of _conditions.c (kinds.Op).
Op = tuple[Any, ...]
_DeviceContext: Final = torch_private.optional("torch.utils._device.DeviceContext")
_KEEPS_DEFAULT_DEVICE: Final = not isinstance(
    torch_private.optional("torch.utils._device.CURRENT_DEVICE"), torch_private.Absent)


@dataclass(frozen=True, slots=True)
class AmbientState:
    """A snapshot of the ambient state: the result of `read` for each name."""

    grad_mode: Hashable
    inference_mode: Hashable
    autocast: Hashable
    default_dtype: Hashable
    default_device: Hashable
    deterministic: Hashable
    torch_function: Hashable
    torch_function_modes: Hashable
    dispatch_modes: Hashable
    functorch_level: Hashable
    forward_ad_level: Hashable
    jit_tracing: Hashable

    @staticmethod
    def capture() -> AmbientState:
        return AmbientState(*(reader() for reader in _READERS.values()))

    def items(self) -> Iterator[tuple[str, Hashable]]:
        """(name, value) of each, as AmbientIs takes them."""
        for field in fields(self):
            yield field.name, getattr(self, field.name)


def read(name: str) -> Hashable:
    """The present value of one item of AmbientState."""
    return (_READERS.get(name) or process_state.QUERYABLE.get(name) or process_state.OF_WRAPPERS[name])()


def ops(name: str, value: Hashable) -> tuple[Op, ...]:
    """The checks that `read(name)` is still `value`."""
    if name == "default_device" and _KEEPS_DEFAULT_DEVICE:
        return (("dict_item", torch.utils._device.__dict__, "CURRENT_DEVICE", value),)
    if name == "forward_ad_level":
        return (("dict_item", forward_ad.__dict__, "_current_level", value),)
    if name in ("grad_mode", "inference_mode"):
        return (("state", name, int(value is True), ("probe", _READERS[name], value)),)
    if name == "default_dtype":
        probe = ("probe", torch.get_default_dtype, value)
        code = tensor_shim.shim_code("dtype", value) if tensor_shim.ensure() else None
        return (probe if code is None else ("state", name, code, probe),)
    if name == "float32_precision":
        code = process_state.float32_code(str(value))
        return (("state", name, code, ("probe", process_state.float32_code_now, code)),)
    common = _COMMON.get(name)
    if common is not None and value == common[0]:
        _, state, function, result = common
        return (("state", state, 0, ("probe", function, result)),)
    return (("python", lambda: read(name) == value),)


# -- readers -------------------------------------------------------------------------------------------------------


def _autocast() -> Hashable:
    """None where it is off for all devices, else what is on, with its dtype, and the weight cache."""
    if not torch._C._is_any_autocast_enabled():
        return None
    devices = [device for device in torch._C._autocast_supported_devices() if torch.is_autocast_enabled(device)]
    return (*((device, torch.get_autocast_dtype(device)) for device in devices), torch.is_autocast_cache_enabled())


def _default_device() -> torch.device | None:
    return torch_private.get("torch.utils._device.CURRENT_DEVICE") if _KEEPS_DEFAULT_DEVICE else torch.get_default_device()


def _deterministic() -> Hashable:
    if not torch.are_deterministic_algorithms_enabled():
        return False
    return "warn only" if torch.is_deterministic_algorithms_warn_only_enabled() else True


def _torch_function() -> Hashable:
    """How much of `__torch_function__` is in force."""
    if torch._C._is_torch_function_enabled():
        return "on"
    return "off" if torch._C._is_torch_function_all_disabled() else "modes only"


def _torch_function_modes() -> Hashable:
    """The active modes, innermost last. A default device is a mode made anew by each `with`: its device says it all."""
    if not torch._C._len_torch_function_stack():
        return ()
    return tuple(_mode_key(mode) for mode in torch.overrides._get_current_function_mode_stack())


def _dispatch_modes() -> Hashable:
    if not torch._C._len_torch_dispatch_stack():
        return ()
    return tuple(_mode_key(mode) for mode in _get_current_dispatch_mode_stack())


def _mode_key(mode: Any) -> Hashable:
    if type(mode) is _DeviceContext:
        return ("device", mode.device)
    return (type(mode), id(mode))


_READERS: dict[str, Callable[[], Hashable]] = {
    "grad_mode": torch.is_grad_enabled,
    "inference_mode": torch.is_inference_mode_enabled,
    "autocast": _autocast,
    "default_dtype": torch.get_default_dtype,
    "default_device": _default_device,
    "deterministic": _deterministic,
    "torch_function": _torch_function,
    "torch_function_modes": _torch_function_modes,
    "dispatch_modes": _dispatch_modes,
    "functorch_level": torch._C._functorch.maybe_current_level,
    "forward_ad_level": lambda: forward_ad._current_level,
    "jit_tracing": lambda: torch._C._get_tracing_state() is not None,
}

# The value each nearly always has, the state of _process_state.h that is then 0, and the function of torch whose result is then
# as given.
_COMMON: dict[str, tuple[Hashable, str, Callable[[], object], object]] = {
    "autocast": (None, "autocast", torch._C._is_any_autocast_enabled, False),
    "deterministic": (False, "deterministic", torch.are_deterministic_algorithms_enabled, False),
    "torch_function": ("on", "torch_function", torch._C._is_torch_function_enabled, True),
    "torch_function_modes": ((), "torch_function_modes", torch._C._len_torch_function_stack, 0),
    "dispatch_modes": ((), "dispatch_modes", torch._C._len_torch_dispatch_stack, 0),
    "jit_tracing": (False, "jit_tracing", torch._C._get_tracing_state, None),
    "functorch_level": (None, "functorch_levels", torch._C._functorch.maybe_current_level, None),
}
