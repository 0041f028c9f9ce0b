"""Flags of `torch.backends.cudnn` that choose an algorithm where an operator runs, and how tensors are printed: nothing that a
trace or a backend decides depends on them, so that setting one is a step of the graph (fxjit/state_steps.py).
"""

from __future__ import annotations

import inspect
import types
from typing import Final, NoReturn

import torch

from fxjit import state_steps
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

    emit_step(t, state_steps.calling(setattr, (module, name, wanted.as_constant()), {}), [], refuse)
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
