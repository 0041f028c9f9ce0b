"""Flags of `torch.backends.cudnn` that choose an algorithm where an operator runs, and how tensors are printed: nothing that a
trace or a backend decides depends on them, so that setting one is a step of the graph (fxjit/state_steps.py).

So is setting the default dtype, the precision of products, deterministic algorithms and the kernels of attention, on which what
is made of the operators behind it depends: these are traced, and compiled, under what was set.
"""

from __future__ import annotations

import functools
import inspect
import types
from collections.abc import Callable
from typing import Any, Final, NoReturn

import torch

from fxjit import process_state, state_steps, torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.frontend.values.state_blocks import StateBlockValue, emit_step, state_block
from fxjit.guards.kinds import ConstIs
from fxjit.guards.source import AttrSource, ConstSource

_CUDNN: Final = torch.backends.cudnn
_FLAGS: Final = ("benchmark", "deterministic")
_WRITTEN: Final = "flags of torch.backends.cudnn"
_PRINT_OPTIONS: Final = inspect.signature(torch.set_printoptions)


def _cudnn_saved(name: str) -> state_steps.Saved:
    def saved() -> Callable[[], object]:
        before = getattr(_CUDNN, name)

        def set_back() -> None:
            if getattr(_CUDNN, name) != before:
                setattr(_CUDNN, name, before)
        return set_back
    return saved


_CUDNN_SAVED: Final = {name: _cudnn_saved(name) for name in _FLAGS}


def store(t: Tracer, module: types.ModuleType, name: str, value: Value | None) -> bool:
    """`torch.backends.cudnn.benchmark = True`; False where this is another attribute, or the write might raise."""
    if module is not _CUDNN or name not in _FLAGS or value is None or value.pytype() is not bool:
        return False
    if torch.backends.flags_frozen():  # type: ignore[no-untyped-call]  # untyped in torch
        return False
    wanted = value.realize()
    if not wanted.is_constant():
        return False

    def refuse(t: Tracer) -> NoReturn:
        t.break_("value-global-state", function=f"torch.backends.cudnn.{name}")

    emit_step(t, state_steps.calling(setattr, (module, name, wanted.as_constant()), {}, _CUDNN_SAVED[name]), [], refuse)
    t.new_source_state(_WRITTEN)[name] = wanted
    return True


def load(t: Tracer, module: types.ModuleType, name: str) -> Value | None:
    """A flag as it is at this point of the trace; None where this is another attribute."""
    if module is not _CUDNN:
        return None
    state = t.new_source_state(_WRITTEN)
    if state.get("blocks"):
        t.break_("attribute-unsupported", value="module torch.backends.cudnn", name=name)
    if name not in _FLAGS:
        return None
    if name not in state:
        state[name] = t.make(getattr(module, name))
        t.guard(ConstIs(AttrSource(ConstSource(module, "torch.backends.cudnn"), name), getattr(module, name)))
    found: Value = state[name]
    return found


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
#: What `torch.get_float32_matmul_precision` names, and the precision of each product once that was set: only from there can the
#: present one be set back.
_precisions: Final[dict[str, object]] = {}


def is_set(t: Tracer, query: Callable[..., Any]) -> bool:
    """Whether the trace has set what the function queries: it is known then, and nothing to guard."""
    return query in t.new_source_state(_SETTINGS).get("queries", ())


def _setting(fn: Callable[..., Any], saved: state_steps.Saved, *queries: Callable[..., Any]) -> None:
    """Calls of `fn` are steps. `queries`: the functions that tell what was set, and are guarded where the trace set nothing."""
    signature = inspect.signature(fn)

    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        def refuse(t: Tracer) -> NoReturn:
            t.break_("value-global-state", function=f"torch.{fn.__name__}")

        try:
            given, named = [concrete(arg) for arg in args], {name: concrete(arg) for name, arg in kwargs.items()}
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
        if fn is torch.set_float32_matmul_precision:
            _precisions[torch.get_float32_matmul_precision()] = process_state.read_precision()
        t.new_source_state(_SETTINGS).setdefault("queries", set()).update(queries)
        return t.make(None)


def _saved(setter: Callable[..., Any], query: Callable[..., Any]) -> state_steps.Saved:
    return lambda: functools.partial(setter, query())


def _deterministic_saved() -> Callable[[], object]:
    mode, warn_only = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    return functools.partial(torch.use_deterministic_algorithms, mode, warn_only=warn_only)


def _precision_saved() -> Callable[[], object]:
    name, now = torch.get_float32_matmul_precision(), process_state.read_precision()
    if _precisions.get(name, "" if name == "highest" else None) != now:
        raise RuntimeError("the precision of products was set otherwise")
    return functools.partial(torch.set_float32_matmul_precision, name)


_CUDA: Final = torch.backends.cuda
_setting(torch.set_default_dtype, _saved(torch.set_default_dtype, torch.get_default_dtype))
_setting(torch.use_deterministic_algorithms, _deterministic_saved)
_setting(torch.set_deterministic_debug_mode, _deterministic_saved)
_setting(torch.set_float32_matmul_precision, _precision_saved, torch.get_float32_matmul_precision,
         torch_private.optional("torch._C._get_cublas_allow_tf32"))
for _set, _query in (
    (_CUDA.enable_flash_sdp, _CUDA.flash_sdp_enabled), (_CUDA.enable_math_sdp, _CUDA.math_sdp_enabled),
    (_CUDA.enable_mem_efficient_sdp, _CUDA.mem_efficient_sdp_enabled), (_CUDA.enable_cudnn_sdp, _CUDA.cudnn_sdp_enabled),
    (_CUDA.allow_fp16_bf16_reduction_math_sdp, _CUDA.fp16_bf16_reduction_math_sdp_allowed),
):
    _setting(_set, _saved(_set, _query), _query)
