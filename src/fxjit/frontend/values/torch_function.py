"""Tensor subclasses and objects with `__torch_function__`: found out and reported, never silently bypassed.

tensor.py refuses subclasses that take part in dispatch. A mode of `__torch_function__` is entered by `with`, and from then on
modes.py asks it; modes that see operators of ATen are not entered. In flex attention's mode a subscript is an operator,
whatever it is of.
"""

from __future__ import annotations

from typing import Any, Protocol

import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fxjit.frontend.callables.table import handles
from fxjit.frontend.values import modes, protocol, tensor_index
from fxjit.frontend.values.base import Tracer, Value
from fxjit.frontend.values.objects import UserObjectValue
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import IdIs
from fxjit.guards.source import Source


class ModeValue(UserObjectValue):
    """An instance of a TorchDispatchMode: an ordinary object that cannot be entered."""

    def bind_special(self, t: Tracer, name: str) -> Value | None:
        if name in ("__enter__", "__exit__"):
            t.break_("context-unsupported", value=self.describe(), type=self.cls.__name__,
                     why="it changes what every operator in the block does")
        return super().bind_special(t, name)


@wraps(TorchDispatchMode, subclasses=True)
def _wrap_mode(t: Tracer, obj: object, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return ModeValue(type(obj), source, obj)


@handles(torch.overrides.handle_torch_function)
def _handle_torch_function(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) > 1 and modes.innermost(t) is not None:
        api, relevant, *rest = args
        classes = {cls: None for cls in (each.pytype() for each in protocol.unpack(t, relevant)) if _takes_part(cls)}
        return modes.tell(t, api.as_constant() if api.is_constant() else getattr(api, "fn", None), tuple(classes), rest, kwargs)
    t.break_("tensor-subclass", type=args[1].describe() if len(args) > 1 else "an argument")


def _takes_part(cls: type) -> bool:
    disabled = torch._C._disabled_torch_function_impl
    return getattr(cls, "__torch_function__", disabled) is not disabled


class FrameTracer(Tracer, Protocol):
    """The trace, as this file sees it."""

    frame: Any


@handles(torch._C._push_on_torch_function_stack)
def _push_mode(t: FrameTracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    mode = args[0]
    if not modes.is_subscripts(mode) and mode.pytype() is not BaseTorchFunctionMode and not _is_entered_by_with(t.frame):
        t.break_("context-unsupported", value=mode.describe(), type=mode.pytype().__name__,
                 why="it is entered by a call, and who leaves it is not known")
    modes.entered(t).append(mode)
    return t.make(None)


def _is_entered_by_with(frame: Any) -> bool:
    """Whether the calls under way begin at a `with`, and are of nothing but `__enter__`."""
    frame = frame.parent  # out of torch's function that pushes
    while frame is not None and frame.code.code.co_name == "__enter__":
        frame = frame.parent
    return frame is not None and frame.instructions[frame.index].opname == "BEFORE_WITH"


@handles(torch._C._pop_torch_function_stack)
def _pop_mode(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not modes.entered(t):
        t.break_("call-c-extension", function="torch._C._pop_torch_function_stack", module="torch._C")
    return modes.entered(t).pop()


def _load_or_index(t: Tracer, tensor: TensorValue, key: Value) -> Value | None:
    """`tensor[key]` where a mode that was entered makes an operator of it."""
    if not any(map(modes.is_subscripts, modes.entered(t))):
        return None
    keys = [each.realize() for each in (key.realized() if isinstance(key, TupleValue) else [key])]
    if not all(isinstance(each, TensorValue) or each.pytype() is int for each in keys):
        return None
    indices = [each if isinstance(each, TensorValue) else t.emit("new_full", [tensor, (), each], {"dtype": torch.int64})
               for each in keys]
    return t.emit(torch.ops.aten.index, [tensor, indices])


tensor_index.LOADS.append(_load_or_index)
