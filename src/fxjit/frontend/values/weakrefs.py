"""Weak references. Calling one that existed before the frame gives its object, found again by calling it; one that is made
while tracing gives what it was made for, as long as something of the program holds that. What a weak proxy stands for is left
to the running program."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import NoReturn

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.objects import UserObjectValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.traits import Indistinct
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


class NewWeakReferenceValue(Value):
    """A `weakref.ref`, without a callback, to an object that the trace made."""

    def __init__(self, referent: Value) -> None:
        super().__init__(None)
        #: A function, so that whoever follows the state of values does not take the object for held by this.
        self.referent: Callable[[], Value] = lambda: referent

    def pytype(self) -> type:
        return weakref.ref

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        if args or kwargs:
            t.raise_(TypeError, f"__call__() takes no arguments ({len(args)} given)")
        if not t.is_held(self.referent()):
            t.break_("value-weak-reference", why="whether what it refers to is still there is seen when the program runs")
        return self.referent()

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if op in ("==", "!=") and isinstance(other, (WeakReferenceValue, NewWeakReferenceValue)):
            t.break_("value-slot", slot="__eq__", type="weakref")
        return NOT_IMPLEMENTED

    def tp_hash(self, t: Tracer) -> Value:
        t.break_("value-slot", slot="__hash__", type="weakref")

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(weakref.ref, self.referent())


class KnownWeakReferenceValue(NewWeakReferenceValue, Indistinct):
    """The same to an object that existed before: if there is a reference to it already, `weakref.ref` gives that."""

    def may_be(self, other: Value) -> bool:
        return isinstance(other, WeakReferenceValue)

    def distinguish(self, t: Tracer) -> NoReturn:
        t.break_("value-weak-reference", why="which of the references to its object it is, is seen when the program runs")


@handles(weakref.ref)
def _make_reference(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 2 and args[1].is_constant() and args[1].as_constant() is None:
        args = args[:1]
    if len(args) != 1 or kwargs:
        t.break_("value-weak-reference", why="it has a callback")
    referent = args[0]
    if not isinstance(referent, (TensorValue, UserObjectValue)):
        t.break_("value-weak-reference", why=f"{referent.describe()} is no tensor and no object of the program")
    if not referent.pytype().__weakrefoffset__:
        t.break_("value-weak-reference", why=f"objects of {referent.pytype().__name__} cannot be referred to weakly")
    known: dict[Value, Value] = t.new_source_state("weak references").setdefault("all", {})
    if referent not in known:
        known[referent] = (NewWeakReferenceValue if referent.source is None else KnownWeakReferenceValue)(referent)
    return known[referent]


@handles(weakref.proxy, weakref.KeyedRef)
def _make_another(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    t.break_("value-weak-reference", why="it is no plain reference")


@wraps(weakref.ProxyType, weakref.CallableProxyType)
def _wrap_proxy(t: Tracer, obj: object, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    return UntraceableValue(obj, source, "attribute-unsupported", value="weak proxy", name="what it stands for")


@wraps(weakref.ref)
def _wrap_reference(t: Tracer, obj: weakref.ref[object], source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    return WeakReferenceValue(obj, source)
