"""Flags of `torch.backends.cudnn` that choose an algorithm where an operator runs, and how tensors are printed: nothing that a
trace or a backend decides depends on them, so that setting one is a step of the graph (fxjit/state_steps.py).

So is setting the default dtype and device, the precision of products, deterministic algorithms and the kernels of attention, on
which what is made of the operators behind it depends: these are traced, and compiled, under what was set. Attributes of
torch.backends (`torch.backends.cuda.matmul.allow_tf32 = True`) are functions of torch.backends, which are traced to the C
function that sets.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch

from fxjit import state_steps, torch_private
from fxjit.errors import BreakGraph, leave_trace
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.frontend.values.contexts import DeviceValue, entered_managers
from fxjit.frontend.values.state_blocks import StateBlockValue, emit_step, state_block
from fxjit.guards.kinds import ConstIs
from fxjit.guards.source import CallSource, ConstSource

_CUDNN: Final = torch.backends.cudnn
_WRITTEN: Final = "flags of torch.backends.cudnn"
_PRINT_OPTIONS: Final = inspect.signature(torch.set_printoptions)


def _flag(module: types.ModuleType, name: str) -> Any:
    """The functions that get and set an attribute of a module of torch.backends; None where it is another attribute."""
    found = inspect.getattr_static(type(module), name, None) if isinstance(module, torch.backends.PropModule) else None
    return found if type(found) is torch.backends.ContextProp else None


def store(t: Tracer, module: types.ModuleType, name: str, value: Value | None) -> bool:
    """`torch.backends.cudnn.benchmark = True`; False where this is another attribute, or the write raises."""
    flag, frozen = _flag(module, name), torch.backends.flags_frozen
    if flag is None or value is None or frozen() or _in_block(t, module):  # type: ignore[no-untyped-call]  # untyped in torch
        return False
    t.guard(ConstIs(CallSource(ConstSource(frozen, "torch.backends.flags_frozen")), False))
    t.call(t.make(flag.setter), [value])
    return True


def load(t: Tracer, module: types.ModuleType, name: str) -> Value | None:
    """A flag as it is at this point of the trace; None where this is another attribute."""
    if _in_block(t, module):
        t.break_("attribute-unsupported", value="module torch.backends.cudnn", name=name)
    flag = _flag(module, name)
    return None if flag is None else t.call(t.make(flag.getter), [])


def _in_block(t: Tracer, module: types.ModuleType) -> bool:
    return module is _CUDNN and t.new_source_state(_WRITTEN).get("blocks", 0) > 0


class FlagsValue(StateBlockValue):
    """`torch.backends.cudnn.flags(...)`, in a process without a GPU: no operator is chosen by it."""

    def enter(self, t: Tracer) -> Value:
        if torch.cuda.is_available():
            self.refuse(t)
        given = super().enter(t)
        state = t.new_source_state(_WRITTEN)
        state["blocks"] = state.get("blocks", 0) + 1
        return given

    def leave(self, t: Tracer) -> None:
        super().leave(t)
        t.new_source_state(_WRITTEN)["blocks"] -= 1


state_block(_CUDNN.flags, FlagsValue, "it sets flags that operators look at")


@handles(torch.set_printoptions)
def _set_printoptions(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    def refuse(t: Tracer) -> NoReturn:
        t.break_("value-global-state", function="torch.set_printoptions")

    try:
        given, named = [concrete(arg) for arg in args], {name: concrete(arg) for name, arg in kwargs.items()}
        _PRINT_OPTIONS.bind(*given, **named)
    except (NotConcrete, TypeError):
        refuse(t)
    emit_step(t, state_steps.calling(torch.set_printoptions, given, named), [], refuse)
    return t.make(None)


# -- settings that operators, traces and backends depend on ----------------------------------------------------------


_SETTINGS: Final = "settings"
def is_set(t: Tracer, query: Callable[..., Any]) -> bool:
    """Whether the trace has set what the function queries: it is known then, and nothing to guard."""
    return query in t.new_source_state(_SETTINGS).get("queries", ())


def _setting(fn: Callable[..., Any], saved: state_steps.Saved, *queries: Callable[..., Any],
             prepare: Callable[[Tracer], None] | None = None) -> None:
    """Calls of `fn` are steps. `queries`: the functions that tell what was set, and are guarded where the trace set nothing.
    `prepare`: may break."""
    signature = inspect.signature(fn) if not isinstance(fn, types.BuiltinFunctionType) else None

    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        def refuse(t: Tracer) -> NoReturn:
            t.break_("value-global-state", function=f"torch.{fn.__name__}")

        if prepare is not None:
            prepare(t)
        try:
            given, named = [concrete(arg) for arg in args], {name: concrete(arg) for name, arg in kwargs.items()}
            if signature is not None:
                signature.bind(*given, **named)
            saved()
            step = state_steps.calling(fn, given, named, saved)
        except (NotConcrete, TypeError, RuntimeError):  # such as where both kinds of names for a precision are used
            refuse(t)
        emit_step(t, step, [], refuse)
        try:
            state_steps.apply(step)
        except Exception:  # the program raises it
            refuse(t)
        t.new_source_state(_SETTINGS).setdefault("queries", set()).update(queries)
        return t.make(None)


def _saved(setter: Callable[..., Any], query: Callable[..., Any]) -> state_steps.Saved:
    return lambda: functools.partial(setter, query())


def _deterministic_saved() -> Callable[[], object]:
    mode, warn_only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return functools.partial(torch.use_deterministic_algorithms, mode, warn_only=warn_only)


#: Backends and operators that have a precision of their own, each behind the one whose precision it has where it has none.
_PRECISIONS: Final = (("generic", "all", None), *(
    (backend, op, ("generic", "all") if op == "all" else (backend, "all"))
    for backend in ("cuda", "mkldnn") for op in ("all", "matmul", "conv", "rnn")))
_precision_of: Final = torch_private.get("torch._C._get_fp32_precision_getter")
_set_precision_of: Final = torch_private.optional("torch._C._set_fp32_precision_setter")
_cudnn_tf32: Final = torch_private.optional("torch._C._get_cudnn_allow_tf32")
_set_cudnn_tf32: Final = torch_private.optional("torch._C._set_cudnn_allow_tf32")


def _precision_saved() -> Callable[[], object]:
    """Each backend's and operator's own precision, and what the older names for them say. Raises RuntimeError where both kinds
    of names are in use, or where torch does not tell an operator's own precision from its backend's."""
    name, cudnn = torch.get_float32_matmul_precision(), _cudnn_tf32()
    own = []
    for backend, op, of in _PRECISIONS:
        found = _precision_of(backend, op)
        if of is not None and found == _precision_of(*of) != "none":
            raise RuntimeError(f"whether {backend}.{op} has a precision of its own is not known")
        own.append((backend, op, found))

    def set_back() -> None:
        torch.set_float32_matmul_precision(name)
        _set_cudnn_tf32(cudnn)
        for each in own:
            _set_precision_of(*each)
    return set_back


def _c_saved(setter: Callable[..., Any], query: Callable[..., Any]) -> state_steps.Saved:
    def saved() -> Callable[[], object]:
        before = query()
        return functools.partial(setter, *(before if isinstance(before, tuple) else (before,)))
    return saved


_global_device: Final = torch_private.get_or("torch._GLOBAL_DEVICE_CONTEXT", None)


def _device_saved() -> Callable[[], object]:
    if _global_device is None:
        raise RuntimeError("which device was set is not known")
    context = getattr(_global_device, "device_context", None)
    return functools.partial(torch.set_default_device, None if context is None else context.device)


def _outside_of_devices(t: Tracer) -> None:
    """A default device that is set in a block of `with torch.device(...)` takes the place of the block's until that ends: the
    graph breaks, and the block stays entered."""
    if any(isinstance(manager, DeviceValue) for manager in entered_managers(t)):
        leave_trace(BreakGraph("value-global-state", {"function": "torch.set_default_device"}, keeps_blocks=True))


_CUDA: Final = torch.backends.cuda
_setting(torch.set_default_device, _device_saved, torch.get_default_device, prepare=_outside_of_devices)
_setting(torch.set_default_dtype, _saved(torch.set_default_dtype, torch.get_default_dtype))
_setting(torch.use_deterministic_algorithms, _deterministic_saved)
_setting(torch.set_deterministic_debug_mode, _deterministic_saved)
for _set, _query in (
    (_CUDA.enable_flash_sdp, _CUDA.flash_sdp_enabled), (_CUDA.enable_math_sdp, _CUDA.math_sdp_enabled),
    (_CUDA.enable_mem_efficient_sdp, _CUDA.mem_efficient_sdp_enabled), (_CUDA.enable_cudnn_sdp, _CUDA.cudnn_sdp_enabled),
    (_CUDA.allow_fp16_bf16_reduction_math_sdp, _CUDA.fp16_bf16_reduction_math_sdp_allowed),
):
    _setting(_set, _saved(_set, _query), _query)

#: Setters of C and what tells each setting, which is one number of truth, or a tuple as the setter takes it.
FLAGS: Final = [
    (torch_private.optional("torch._C._set_cudnn_enabled"),
     torch_private.optional("torch._C._get_cudnn_enabled")),
    (torch_private.optional("torch._C._set_cudnn_benchmark"),
     torch_private.optional("torch._C._get_cudnn_benchmark")),
    (torch_private.optional("torch._C._set_cudnn_deterministic"),
     torch_private.optional("torch._C._get_cudnn_deterministic")),
    (torch_private.optional("torch._C._set_mkldnn_enabled"),
     torch_private.optional("torch._C._get_mkldnn_enabled")),
    (torch_private.optional("torch._C._set_mkldnn_deterministic"),
     torch_private.optional("torch._C._get_mkldnn_deterministic")),
    (torch_private.optional("torch._C._set_cublas_allow_fp16_reduced_precision_reduction"),
     torch_private.optional("torch._C._get_cublas_allow_fp16_reduced_precision_reduction")),
    (torch_private.optional("torch._C._set_cublas_allow_bf16_reduced_precision_reduction"),
     torch_private.optional("torch._C._get_cublas_allow_bf16_reduced_precision_reduction")),
    (torch_private.optional("torch._C._set_cublas_allow_fp16_accumulation"),
     torch_private.optional("torch._C._get_cublas_allow_fp16_accumulation")),
]
for _set, _query in FLAGS:
    _setting(_set, _c_saved(_set, _query), _query)
#: What tells the precision of products.
PRECISIONS: Final = (torch_private.optional("torch._C._get_cublas_allow_tf32"), _cudnn_tf32, _precision_of)
for _setter in (torch.set_float32_matmul_precision, torch_private.optional("torch._C._set_cublas_allow_tf32"),
                _set_cudnn_tf32, _set_precision_of):
    _setting(_setter, _precision_saved, torch.get_float32_matmul_precision, *PRECISIONS)
_setting(torch.set_warn_always, _saved(torch.set_warn_always, torch.is_warn_always_enabled), torch.is_warn_always_enabled)
