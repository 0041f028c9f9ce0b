"""Wrappers of functions that a class of C binds to an instance: wrapt's decorators on methods.

Each read of such a method makes another object. It is made while tracing as this value, called as its twin of Python is
(skips/functions.py), and made for real only where it leaves the trace.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value
from fxjit.frontend.values.calls import resolve
from fxjit.frontend.values.functions import FunctionValue, MethodValue
from fxjit.skips.functions import bound_class_of, twin_of

#: What a bound wrapper has of the one that it was read from.
_OF_PARENT: Final = frozenset(("_self_wrapper", "_self_enabled", "_self_binding"))
#: What both answer as the function does.
_OF_FUNCTION: Final = frozenset(("__name__", "__qualname__", "__module__", "__doc__", "__self__", "__defaults__", "__code__"))
#: Where a wrapper is bound that says what it wraps is one of these.
_BINDING: Final = ("function", "callable")


class BoundWrapperValue(Value):
    """What reading a wrapper through `instance` (None: through its class) gives."""

    def __init__(self, cls: type, parent: Value, wrapped: Value, instance: Value | None, owner: Value) -> None:
        super().__init__()
        self.cls = cls
        self.parent = parent
        self.wrapped = wrapped
        self.instance = instance
        self.owner = owner

    def pytype(self) -> type:
        return self.cls

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__wrapped__":
            return self.wrapped
        if name == "_self_parent":
            return self.parent
        if name == "_self_owner":
            return self.owner
        if name == "_self_instance":
            return t.make(None) if self.instance is None else self.instance
        if name in _OF_PARENT:
            return protocol.getattr_(t, self.parent, name)
        if name in _OF_FUNCTION:
            return protocol.getattr_(t, self.wrapped, name)
        t.break_("attribute-unsupported", value=self.describe(), name=name)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        t.break_("attribute-unsupported", value=self.describe(), name=name)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        handler = resolve(descriptors.find(self.cls, "__call__")[0])
        assert handler is not None, "it has a twin"
        return handler(t, [self, *args], dict(kwargs))

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(bound_wrapper, self.parent, self.instance, self.owner)


def bound_wrapper(parent: Any, instance: object, owner: type) -> object:
    """Run-time helper of rebuilt values: what reading `parent` through `instance` gives."""
    return type(parent).__get__(parent, instance, owner)


@descriptors.bound_by_c.provide
def bound_by_c(t: Tracer, parent: Value, kind: type, obj: Value | None, cls: Value) -> Value | None:
    """What `parent`, a descriptor of the C class `kind`, gives; None where that is not known."""
    made = bound_class_of(kind)
    if made is None or twin_of(descriptors.find(made, "__call__")[0]) is None:
        return None
    if descriptors.look_up(t, kind, "__bound_function_wrapper__")[0] is not NOT_IMPLEMENTED:
        return None  # it says which class it makes
    binding, above = protocol.getattr_(t, parent, "_self_binding"), protocol.getattr_(t, parent, "_self_parent")
    if not binding.is_constant() or binding.as_constant() not in _BINDING:
        return None
    if not above.is_constant() or above.as_constant() is not None:
        return None
    function = protocol.getattr_(t, parent, "__wrapped__")
    if isinstance(function, FunctionValue):
        wrapped: Value | None = function if obj is None else MethodValue(function, obj)
    else:
        wrapped = bound_by_c(t, function, function.pytype(), obj, cls)
    return None if wrapped is None else BoundWrapperValue(made, parent, wrapped, obj, cls)
