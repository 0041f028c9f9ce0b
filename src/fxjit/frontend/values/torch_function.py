"""Modes of `__torch_function__`, and what torch itself has for classes with one: its default, and functions that dispatch.

A mode of `__torch_function__` is entered by `with`, and from then on
overrides.py calls it; modes that see operators of ATen are not entered. In flex attention's mode a subscript is an operator,
whatever it is of.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.overrides import BaseTorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from fxjit import torch_private
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.objects import UserObjectValue
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
    if len(args) < 2:
        t.raise_(TypeError, "handle_torch_function() missing 2 required positional arguments: 'public_api' and 'relevant_args'")
    api, relevant, *rest = args
    with torch._C._EnableTorchFunction():
        overloaded = torch_private.get("torch.overrides._get_overloaded_args")
        asked: list[Value] = overloaded(protocol.unpack(t, relevant), lambda each: each.pytype())
    if overrides.innermost(t) is None and not asked:
        t.raise_(TypeError, "no implementation found for a function that nothing overrides")
    classes = [each.pytype() for each in asked]
    func = api.as_constant() if api.is_constant() else getattr(api, "fn", None)
    return overrides.call_torch_function(t, func, classes, asked, rest, kwargs)


@handles(torch.Tensor.__torch_function__.__func__)  # type: ignore[attr-defined]  # a class method
def _default(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`Tensor.__torch_function__(func, types, args=(), kwargs=None)`: torch's own result, as an instance of the class."""
    given = dict(zip(("cls", "func", "types", "args", "kwargs"), args, strict=False)) | kwargs
    cls, func, classes = given["cls"].as_constant(), given["func"], protocol.unpack(t, given["types"])
    if not all(issubclass(cls, each.as_constant()) for each in classes):
        return t.make(NotImplemented)
    passed = protocol.unpack(t, given["args"]) if "args" in given else []
    named = _keywords(t, given.get("kwargs"))
    with overrides.subclasses_disabled(t):
        result = t.call(func, passed, named)
    known = func.as_constant() if func.is_constant() else getattr(func, "fn", None)
    if known in torch.overrides.get_default_nowrap_functions():
        return result
    return t.call(t.make(torch_private.get("torch._tensor._convert")), [result, given["cls"]])


@handles(torch._C._disabled_torch_function_impl)
def _disabled(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """What `Parameter` has for `__torch_function__`: torch's own result."""
    given = dict(zip(("func", "types", "args", "kwargs"), args, strict=False)) | kwargs
    passed = protocol.unpack(t, given["args"]) if "args" in given else []
    with overrides.subclasses_disabled(t):
        return t.call(given["func"], passed, _keywords(t, given.get("kwargs")))


def _keywords(t: Tracer, mapping: Value | None) -> dict[str, Value]:
    if mapping is None or (mapping.is_constant() and mapping.as_constant() is None):
        return {}
    return {key.as_constant(): protocol.getitem(t, mapping, key) for key in protocol.unpack(t, mapping)}


@handles(torch_private.optional("torch._C._push_on_torch_function_stack"))
def _push_mode(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    mode = args[0]
    if not overrides.is_subscripts(mode) and mode.pytype() is not BaseTorchFunctionMode and not _is_entered_by_with(t.frame):
        t.break_("context-unsupported", value=mode.describe(), type=mode.pytype().__name__,
                 why="it is entered by a call, and who leaves it is not known")
    overrides.entered_modes(t).append(mode)
    return t.make(None)


def _is_entered_by_with(frame: Any) -> bool:
    """Whether the calls under way begin at a `with`, and are of nothing but `__enter__`."""
    frame = frame.parent  # out of torch's function that pushes
    while frame is not None and frame.code.code.co_name == "__enter__":
        frame = frame.parent
    return frame is not None and frame.instructions[frame.index].opname == "BEFORE_WITH"


@handles(torch_private.optional("torch._C._pop_torch_function_stack"))
def _pop_mode(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not overrides.entered_modes(t):
        t.break_("call-c-extension", function="torch._C._pop_torch_function_stack", module="torch._C")
    return overrides.entered_modes(t).pop()
