"""Tensor subclasses and objects with `__torch_function__`: found out and reported, never silently bypassed.

tensor.py refuses subclasses that take part in dispatch; this module refuses to enter a mode that would.
"""

from __future__ import annotations

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fxjit.frontend.callables.table import handles
from fxjit.frontend.values.base import Tracer, Value
from fxjit.frontend.values.objects import UserObjectValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import IdIs
from fxjit.guards.source import Source


class ModeValue(UserObjectValue):
    """An instance of a TorchFunctionMode or TorchDispatchMode: an ordinary object that cannot be entered."""

    def bind_special(self, t: Tracer, name: str) -> Value | None:
        if name in ("__enter__", "__exit__"):
            t.break_("context-unsupported", value=self.describe(), type=self.cls.__name__,
                     why="it changes what every operator in the block does")
        return super().bind_special(t, name)


@wraps(TorchFunctionMode, TorchDispatchMode, subclasses=True)
def _wrap_mode(t: Tracer, obj: object, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return ModeValue(type(obj), source, obj)


@handles(torch.overrides.handle_torch_function)
def _handle_torch_function(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    t.break_("tensor-subclass", type=args[1].describe() if len(args) > 1 else "an argument")
