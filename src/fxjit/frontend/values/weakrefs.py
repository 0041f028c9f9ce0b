"""Weak references that existed before the frame: calling one gives its object, found again by calling it. What a weak proxy
stands for is left to the running program."""

from __future__ import annotations

import weakref
from collections.abc import Mapping, Sequence

from fxjit.frontend.values.base import NOT_IMPLEMENTED, Tracer, Value, _NotImplemented
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import TypeIs
from fxjit.guards.source import CallSource, Source


class WeakReferenceValue(Value):
    """A `weakref.ref`."""

    def __init__(self, obj: weakref.ref[object], source: Source) -> None:
        super().__init__(source)
        self.obj = obj

    def pytype(self) -> type:
        return type(self.obj)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        if args or kwargs:
            t.raise_(TypeError, f"__call__() takes no arguments ({len(args)} given)")
        assert self.source is not None
        return t.wrap(self.obj(), CallSource(self.source))

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if op in ("==", "!=") and isinstance(other, WeakReferenceValue):
            t.break_("value-slot", slot="__eq__", type="weakref")
        return NOT_IMPLEMENTED


@wraps(weakref.ProxyType, weakref.CallableProxyType)
def _wrap_proxy(t: Tracer, obj: object, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    return UntraceableValue(obj, source, "attribute-unsupported", value="weak proxy", name="what it stands for")


@wraps(weakref.ref)
def _wrap_reference(t: Tracer, obj: weakref.ref[object], source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    return WeakReferenceValue(obj, source)
