"""`torch.autograd.forward_ad` in traced code: a level that a `with` enters and leaves, dual tensors, and their parts.

Operators of the graph compute tangents as eager's do, between a node that enters the level and one that leaves it. Such a graph
runs as it was captured (`sees_tangents`), and a block with a break in it runs eagerly: duals are none outside of their level.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.autograd import forward_ad

from fxjit import torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.contexts import GuardedValue, entered_managers
from fxjit.frontend.values.tensor import TensorValue

_active_fake_mode: Any = torch_private.optional("torch._guards.active_fake_mode")


class Level:
    """An entered level. It is left at the latest when nobody has it any more: an operator of the graph may raise."""

    def __init__(self) -> None:
        self._fake_mode: Any = _active_fake_mode()
        if self._fake_mode is not None:  # it remembers what operators gave for which arguments, and not for which tangents
            self._cached, self._fake_mode.cache_enabled = self._fake_mode.cache_enabled, False
        self._level: int | None = forward_ad.enter_dual_level()

    def __exit__(self, *error: object) -> None:
        if self._level is not None:
            forward_ad.exit_dual_level(level=self._level)
            self._level = None
            if self._fake_mode is not None:
                self._fake_mode.cache_enabled = self._cached

    __del__ = __exit__


def enter_level() -> Level:
    """Called by a node of the graph, as those below are."""
    return Level()


enter_level.sees_tangents = True  # type: ignore[attr-defined]  # for the backends


def exit_level(level: Level) -> None:
    level.__exit__()


def make_dual(tensor: torch.Tensor, tangent: torch.Tensor) -> torch.Tensor:
    made: torch.Tensor = forward_ad.make_dual(tensor, tangent)
    return made


def primal_of(tensor: torch.Tensor) -> torch.Tensor:
    primal: torch.Tensor = forward_ad.unpack_dual(tensor).primal
    return primal


def tangent_of(tensor: torch.Tensor) -> torch.Tensor | None:
    tangent: torch.Tensor | None = forward_ad.unpack_dual(tensor).tangent
    return tangent


class DualLevelValue(GuardedValue):
    """torch.autograd.forward_ad.dual_level."""

    resumable = False

    def enter(self, t: Tracer) -> Value:
        if forward_ad._current_level >= 0:
            t.raise_(RuntimeError, "Nested forward mode AD is not supported at the moment")
        if overrides.entered_transforms(t):
            _refuse(t, "dual_level", "a transform of torch.func is given it")
        self.open(t, enter_level)
        return t.make(forward_ad._current_level)

    def leave(self, t: Tracer) -> None:
        self.close(t, exit_level)


def _refuse(t: Tracer, name: str, why: str) -> Any:
    t.break_("context-unsupported", value=f"torch.autograd.forward_ad.{name}", type="function", why=why)


def _is_entered(t: Tracer) -> bool:
    return any(isinstance(manager, DualLevelValue) for manager in entered_managers(t))


@handles(forward_ad.dual_level)
def _dual_level(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return DualLevelValue(forward_ad.dual_level)


@handles(forward_ad.make_dual)
def _make_dual(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not _is_entered(t) or len(args) != 2 or kwargs or not all(isinstance(arg, TensorValue) for arg in args):
        _refuse(t, "make_dual", "it is called with other arguments than two tensors, or outside of the level's block")
    return t.emit(make_dual, args)


@handles(forward_ad.unpack_dual)
def _unpack_dual(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """No tensor is dual where no level was entered, which is guarded as ambient state."""
    if len(args) != 1 or kwargs:
        t.break_("call-autograd-engine", function="unpack_dual")
    entered = overrides.entered_transforms(t)
    if entered:
        t.break_("call-higher-order", function=entered[-1], why="its function asks for the level it runs at (`unpack_dual`)")
    parts = [args[0], t.make(None)] if not _is_entered(t) else [t.emit(primal_of, args), t.emit(tangent_of, args)]
    return t.call(t.make(forward_ad.UnpackedDualTensor), parts)
