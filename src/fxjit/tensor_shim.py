"""Brings torch's stable C shim into use for `_tensor.c`, once, before the first compile.

`ensure()` hands `_C.tensor_init` torch's libraries and a few example tensors with what Python knows of them. If
anything is not as it should be, a warning says so and tensors are read through Python attributes: slower, and as
correct.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fxjit import _C, process_state, torch_compat, torch_private

_LIBRARIES = ("libtorch_cpu.so", "libc10.so", "libtorch_python.so", "libtorch.so", "libtorch_cuda.so")


@cache
def ensure() -> bool:
    """Whether tensors can be read in C. The first call finds out."""
    torch_compat.warn_if_untried(torch.__version__)
    problem = _problem()
    if problem is None:
        return True
    warnings.warn(
        f"fxjit reads tensors through Python, which makes calls slower: {problem} (torch {torch.__version__}). "
        "Please report this.",
        RuntimeWarning,
        stacklevel=2,
    )
    return False


def shim_code(kind: str, name: object) -> int | None:
    """The shim's number for a dtype, device type or layout (`shim_code('dtype', torch.float32)`), if it has one."""
    code: int | None = _C.shim_code(f"{kind}_{str(name).removeprefix('torch.')}")
    return code


def _problem() -> str | None:
    folder = os.path.join(os.path.dirname(torch.__file__), "lib")
    libraries = tuple(os.path.join(folder, name) for name in _LIBRARIES)
    with torch._C.DisableTorchFunction(), torch.utils._python_dispatch._disable_current_modes():
        examples = _examples()
        keysets = tuple(map(_keys, examples))
        python = torch._C.DispatchKeySet(torch._C.DispatchKey.Python).raw_repr()
        autocast = _autocast_keys()
        counts_writes = torch._C.DispatchKeySet(torch._C.DispatchKey.ADInplaceOrView).raw_repr()

        def facts(codes: Callable[[str], int | None]) -> tuple[Any, ...]:
            return tuple(_facts(tensor, codes) for tensor in examples)

        problem: str | None = _C.tensor_init(torch.Tensor, libraries, examples, keysets, facts, python, autocast, counts_writes)
        if problem is None:
            _learn_words()
    return problem


def _learn_words() -> str | None:
    """Lets C see at a glance that a tensor is still of the same kind. Why not, where it cannot: it looks closer then."""
    with torch.inference_mode(False), torch.enable_grad():
        plain = tuple(torch.empty(3, 5, dtype=torch.float32, device="cpu") for _ in range(4))
        with_grad = tuple(torch.empty(3, 5, dtype=torch.float32, device="cpu", requires_grad=True) for _ in range(4))
        storages = tuple(tensor.untyped_storage()._cdata for tensor in plain)
        reason: str | None = _C.tensor_learn(plain, with_grad, storages, tuple(tensor.detach() for tensor in plain))
    return reason


def _examples() -> tuple[torch.Tensor, ...]:
    """Tensors that differ in every fact that is read."""
    complex_ = torch.empty(2, 3, dtype=torch.complex64, device="cpu")
    with torch.inference_mode():
        inference = torch.empty(2, dtype=torch.int64, device="cpu")
    with torch.inference_mode(False), torch.enable_grad():
        return (
            torch.empty(2, 3, dtype=torch.float32, device="cpu"),
            torch.empty(5, 7, dtype=torch.float64, device="cpu", requires_grad=True),
            torch.empty(4, 6, 2, dtype=torch.int32, device="cpu").permute(2, 0, 1)[:, 1:, ::2],
            torch.empty((), dtype=torch.bool, device="cpu"),
            torch.empty(2, 0, 3, 1, 1, 2, 4, dtype=torch.bfloat16, device="cpu"),
            torch.empty(3, 4, device="meta"),
            complex_.conj(),
            complex_.conj().imag,
            inference,
        )


def _keys(tensor: torch.Tensor) -> int:
    return int(torch._C._dispatch_keys(tensor).raw_repr())


def _facts(tensor: torch.Tensor, codes: Callable[[str], int | None]) -> tuple[Any, ...]:
    device = tensor.device
    return (
        codes(f"dtype_{str(tensor.dtype).removeprefix('torch.')}"),
        codes(f"device_type_{device.type}"),
        -1 if device.index is None else device.index,
        codes(f"layout_{str(tensor.layout).removeprefix('torch.')}"),
        tensor.requires_grad,
        _keys(tensor),
        tuple(tensor.shape),
        tensor.stride(),
        tensor.storage_offset(),
    )


# -- state of the process ------------------------------------------------------------------------------------------


@cache
def readable_states() -> frozenset[str]:
    """The states (`_C.state_now`) that C reads as Python does, now and where they are changed for a moment."""
    if not ensure():
        return frozenset()
    states = _states().items()
    return frozenset(name for name, (asked, change) in states if _reads_right(name, asked, change))


def _reads_right(name: str, asked: Callable[[], int], change: Callable[[], Any] | None) -> bool:
    try:
        before = _C.state_now(name)
        if before != asked() or change is None:
            return before == asked()
        with change():
            inside = _C.state_now(name)
            # What was not 0 before may not change by being switched on once more.
            return inside == asked() and (inside != before or before != 0)
    except (ValueError, torch_private.MissingName):  # torch does not export what it takes
        return False


def _states() -> dict[str, tuple[Callable[[], int], Callable[[], Any] | None]]:
    """For each state: its number as Python reads it, and a way to change it for this thread alone."""
    functorch = torch._C._functorch
    return {
        "grad_mode": (
            lambda: int(torch.is_grad_enabled()), lambda: torch.set_grad_enabled(not torch.is_grad_enabled()),
        ),
        "inference_mode": (
            lambda: int(torch.is_inference_mode_enabled()),
            lambda: torch.inference_mode(not torch.is_inference_mode_enabled()),
        ),
        "autocast": (lambda: int(torch._C._is_any_autocast_enabled()), lambda: torch.autocast("cpu")),
        "default_dtype": (lambda: shim_code("dtype", torch.get_default_dtype()) or -1, None),
        "deterministic": (lambda: int(torch.are_deterministic_algorithms_enabled()), None),
        "torch_function": (
            lambda: 0 if torch._C._is_torch_function_enabled() else 1, torch._C.DisableTorchFunctionSubclass,
        ),
        "torch_function_modes": (torch._C._len_torch_function_stack, BaseTorchFunctionMode),
        "dispatch_modes": (torch._C._len_torch_dispatch_stack, TorchDispatchMode),
        "functorch_levels": (lambda: int(functorch.maybe_current_level() is not None), _functorch_level),
        "float32_precision": (process_state.float32_code_now, None),
        "jit_tracing": (lambda: int(torch._C._get_tracing_state() is not None), None),
    }


@contextmanager
def _functorch_level() -> Iterator[None]:
    enter = torch_private.get("torch._C._functorch._grad_increment_nesting")
    leave = torch_private.get("torch._C._functorch._grad_decrement_nesting")
    enter()
    try:
        yield
    finally:
        leave()


def _autocast_keys() -> int:
    """The dispatch keys of autocast, one bit a device; not all of them have a name in Python."""
    keys = 0
    for bit in range(64):
        try:
            name = str(torch._C.DispatchKeySet.from_raw_repr(1 << bit))
        except RuntimeError:  # past the last key
            break
        if name.startswith("DispatchKeySet(Autocast"):
            keys |= 1 << bit
    return keys
