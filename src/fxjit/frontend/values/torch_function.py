"""Tensor subclasses and objects with `__torch_function__`: found out and reported, never silently bypassed.

tensor.py refuses subclasses that take part in dispatch; this module refuses to enter a mode that would, but for the mode that
does nothing, and flex attention's in which a subscript is an operator, whatever it is of.
"""

from __future__ import annotations

from typing import Any, Final

import torch
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fxjit.frontend.callables.table import handles
from fxjit.frontend.values import tensor_index
from fxjit.frontend.values.base import Tracer, Value
from fxjit.frontend.values.objects import UserObjectValue
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.tensor import TensorValue
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


#: Flex attention's mode: by name, since it lives in a compiler that is not imported here.
_SUBSCRIPTS: Final = ("torch._dynamo._trace_wrapped_higher_order_op", "TransformGetItemToIndex")


def _entered(t: Tracer) -> list[Value]:
    """The modes that the trace has entered and not left, innermost last."""
    entered: list[Value] = t.new_source_state("torch function modes").setdefault("entered", [])
    return entered


def _is_subscripts(mode: Value) -> bool:
    cls: Any = mode.pytype()
    return (cls.__module__, cls.__qualname__) == _SUBSCRIPTS


@handles(torch._C._push_on_torch_function_stack)
def _push_mode(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    mode = args[0]
    if not _is_subscripts(mode) and mode.pytype() is not BaseTorchFunctionMode:
        t.break_("context-unsupported", value=mode.describe(), type=mode.pytype().__name__,
                 why="it changes what every operator in the block does")
    _entered(t).append(mode)
    return t.make(None)


@handles(torch._C._pop_torch_function_stack)
def _pop_mode(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not _entered(t):
        t.break_("call-c-extension", function="torch._C._pop_torch_function_stack", module="torch._C")
    return _entered(t).pop()


def _load_or_index(t: Tracer, tensor: TensorValue, key: Value) -> Value | None:
    """`tensor[key]` where a mode that was entered makes an operator of it."""
    if not any(map(_is_subscripts, _entered(t))):
        return None
    keys = [each.realize() for each in (key.realized() if isinstance(key, TupleValue) else [key])]
    if not all(isinstance(each, TensorValue) or each.pytype() is int for each in keys):
        return None
    indices = [each if isinstance(each, TensorValue) else t.emit("new_full", [tensor, (), each], {"dtype": torch.int64})
               for each in keys]
    return t.emit(torch.ops.aten.index, [tensor, indices])


tensor_index.LOADS.append(_load_or_index)
