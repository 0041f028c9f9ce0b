"""Weak references. Calling one that existed before the frame gives its object, found again by calling it; one that is made
while tracing gives what it was made for, as long as something of the program holds that. A weak proxy that existed before is
read, written to, called and asked for items in its object's place."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.classes import ClassValue
from fxjit.frontend.values.keys import compares_by_identity
from fxjit.frontend.values.objects import UserObjectValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.traits import Indistinct, Reference
from fxjit.frontend.values.untraceable import StandInValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import TypeIs
from fxjit.guards.source import ApplySource, AttrSource, CallSource, DictKeySource, Source
from fxjit.homes import module_of


class _Reference(Reference):
    """What all of them do."""

    def refers_to(self, t: Tracer) -> Value:
        """What calling it gives."""
        raise AssertionError(f"{type(self).__name__} does not say so")

    def alive(self, t: Tracer) -> Value:
        found = self.refers_to(t).realize()
        cls = found.pytype()
        is_known = isinstance(found, UserObjectValue) and not isinstance(found, TensorValue)
        if not is_known and not _is_class_of_a_module(found):
            t.break_("value-weak-reference", why=f"it is hashed or compared, and refers to {found.describe()}")
        # References that are two objects compare their referents even where these are one.
        if compares_by_identity(cls) and descriptors.look_up(t, cls, "__eq__")[1] is not object:
            t.break_("value-weak-reference", why=f"it is compared, and {cls.__name__} has an `__eq__` of its own")
        return found

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        if args or kwargs:
            t.raise_(TypeError, f"__call__() takes no arguments ({len(args)} given)")
        return self.refers_to(t)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if op in ("==", "!=") and isinstance(other, _Reference):
            return protocol.compare(t, op, self.alive(t), other.alive(t))
        return NOT_IMPLEMENTED

    #: Whether its hash was asked for: CPython's keeps it for when the object is gone.
    hashed = False

    def tp_hash(self, t: Tracer) -> Value:
        found = protocol.hash_(t, self.alive(t))
        self.keep_hash(t)
        self.hashed = True
        return found

    def keep_hash(self, t: Tracer) -> None:
        """The program's own reference has its hash from now on."""


class WeakReferenceValue(_Reference):
    """A `weakref.ref` or `weakref.KeyedRef` that existed before."""

    def __init__(self, obj: weakref.ref[object], source: Source) -> None:
        super().__init__(source)
        self.obj = obj

    def pytype(self) -> type:
        return type(self.obj)

    def refers_to(self, t: Tracer) -> Value:
        assert self.source is not None
        return t.wrap(self.obj(), CallSource(self.source))

    def keep_hash(self, t: Tracer) -> None:
        if not self.hashed and not isinstance(self.source, DictKeySource):  # a key was hashed before
            t.effects.call_later(hash, [self])

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "key" and isinstance(self.obj, weakref.KeyedRef):
            assert self.source is not None
            return t.wrap(self.obj.key, AttrSource(self.source, name)).realize()
        return super().tp_getattro(t, name)


def _make_hashed(cls: type, *args: Any) -> Any:
    made = cls(*args)
    hash(made)
    return made


class NewWeakReferenceValue(_Reference):
    """A reference that the trace made; `more` are the arguments behind the referent."""

    #: The step of the trace that made it.
    made_at = 0

    def __init__(self, referent: Value, cls: type = weakref.ref, more: Sequence[Value] = ()) -> None:
        super().__init__(None)
        #: A function, so that whoever follows the state of values does not take the object for held by this.
        self.referent: Callable[[], Value] = lambda: referent
        self.cls, self.more = cls, tuple(more)

    def pytype(self) -> type:
        return self.cls

    def refers_to(self, t: Tracer) -> Value:
        if not _is_class_of_a_module(self.referent()) and not t.is_held(self.referent()):
            t.break_("value-weak-reference", why="whether what it refers to is still there is seen when the program runs")
        return self.referent()

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        return self.more[1] if name == "key" and self.cls is weakref.KeyedRef else super().tp_getattro(t, name)

    def rebuild(self, cg: Rebuilder) -> None:
        if self.hashed:
            cg.call(_make_hashed, self.cls, self.referent(), *self.more)
        else:
            cg.call(self.cls, self.referent(), *self.more)


class KnownWeakReferenceValue(NewWeakReferenceValue, Indistinct):
    """The same to an object that existed before, without a callback: if there is such a reference to it already,
    `weakref.ref` gives that."""

    def may_be(self, other: Value) -> bool:
        return isinstance(other, WeakReferenceValue) and type(other.obj) is weakref.ref

    def distinguish(self, t: Tracer) -> NoReturn:
        t.break_("value-weak-reference", why="which of the references to its object it is, is seen when the program runs")


def _is_class_of_a_module(value: Value) -> bool:
    """Whether it is a class that its module holds under its name: it ends no earlier than that."""
    if not isinstance(value, ClassValue):
        return False
    found: object = sys.modules.get(module_of(value.cls))
    for name in value.cls.__qualname__.split("."):
        found = namespace.get(name) if isinstance(namespace := getattr(found, "__dict__", None), Mapping) else None
    return found is value.cls


def _checked(t: Tracer, referent: Value) -> Value:
    """The referent of a reference that is made."""
    referent = referent.realize()
    if _is_class_of_a_module(referent):
        return referent
    existed = referent.source is not None and not referent.is_constant()
    if not existed and not isinstance(referent, (TensorValue, UserObjectValue)):
        t.break_("value-weak-reference", why=f"{referent.describe()} is no tensor and no object of the program")
    if not referent.pytype().__weakrefoffset__:
        t.break_("value-weak-reference", why=f"objects of {referent.pytype().__name__} cannot be referred to weakly")
    return referent


def _with_callback(t: Tracer, cls: type, referent: Value, more: Sequence[Value]) -> Value:
    """One that calls a function of the program when its referent goes: while the frame runs, the graph breaks where that is."""
    if _is_class_of_a_module(referent):
        return NewWeakReferenceValue(referent, cls, more)
    if referent.source is None:
        t.break_("value-weak-reference", why="it has a callback, and what it refers to may go while the frame runs")
    awaited: dict[Value, None] = t.new_source_state("weak references").setdefault("with callbacks", {})
    awaited[referent] = None
    if isinstance(referent, TensorValue):
        t.ends.awaits(referent)
    return NewWeakReferenceValue(referent, cls, more)


@handles(weakref.ref)
def _make_reference(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 2 and args[1].is_constant() and args[1].as_constant() is None:
        args = args[:1]
    if len(args) not in (1, 2) or kwargs:
        t.break_("value-weak-reference", why="its arguments are others than an object and a callback")
    referent = _checked(t, args[0])
    if len(args) == 2:
        return _with_callback(t, weakref.ref, referent, args[1:])
    if isinstance(referent, ClassValue):
        classes: dict[type, Value] = t.new_source_state(_TO_CLASSES)  # type: ignore[assignment]  # tables of a trace have no types
        return classes.setdefault(referent.cls, KnownWeakReferenceValue(referent))
    known: dict[Value, NewWeakReferenceValue] = t.new_source_state("weak references").setdefault("all", {})
    if referent not in known:
        known[referent] = (NewWeakReferenceValue if referent.source is None else KnownWeakReferenceValue)(referent)
        known[referent].made_at = t.steps
    return known[referent]


def referred_before(t: Tracer, before: int | None) -> bool:
    """Whether the trace has made weak references: before that step of it, if one is given."""
    made = t.new_source_state("weak references")
    if before is None or not made or "with callbacks" in made:
        return bool(made)
    return any(each.made_at < before for each in made["all"].values())


#: The table of the references to classes that a trace made.
_TO_CLASSES: Final = "weak references to classes"


@handles(weakref.KeyedRef)
def _make_keyed(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) != 3 or kwargs:
        t.break_("value-weak-reference", why="it is no plain reference")
    return _with_callback(t, weakref.KeyedRef, _checked(t, args[0]), args[1:])


@handles(weakref.proxy)
def _make_another(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    t.break_("value-weak-reference", why="it is no plain reference")


def stands_for(proxy: Any) -> Any:
    """What a weak proxy stands for: bound methods that are read through it are the object's. Also a helper of guards and new
    code. Raises ReferenceError where that is gone, LookupError where the object does not tell."""
    found = getattr(proxy.__reduce_ex__, "__self__", None)
    if found is None or not any(each is proxy for each in weakref.getweakrefs(found)):
        raise LookupError("an object that reads its attributes otherwise")
    return found


class ProxyValue(StandInValue):
    """A weak proxy that existed before. What is not its object's here (operators, comparisons) ends the graph."""

    def __init__(self, obj: object, source: Source, referent: Value) -> None:
        super().__init__(obj, source, "attribute-unsupported", value="weak proxy", name="what it stands for")
        self.referent = referent

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        return protocol.getattr_(t, self.referent.realize(), name)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        self.referent.realize().tp_setattro(t, name, value)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        if not isinstance(self.obj, weakref.CallableProxyType):
            t.raise_(TypeError, "'weakref.ProxyType' object is not callable")
        return t.call(self.referent.realize(), args, kwargs)

    def tp_str(self, t: Tracer) -> Value:
        return protocol.str_(t, self.referent.realize())

    def tp_iter(self, t: Tracer) -> Value:
        return protocol.iter_(t, self.referent.realize())

    def nb_bool(self, t: Tracer) -> Value:
        return t.make(protocol.truth(t, self.referent.realize()))

    def sq_length(self, t: Tracer) -> Value:
        return protocol.length(t, self.referent.realize())

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        return protocol.getitem(t, self.referent.realize(), key)


@wraps(weakref.ProxyType, weakref.CallableProxyType)
def _wrap_proxy(t: Tracer, obj: object, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    try:
        referent = stands_for(obj)
    except (ReferenceError, LookupError):
        return StandInValue(obj, source, "attribute-unsupported", value="weak proxy", name="what it stands for")
    return ProxyValue(obj, source, t.wrap(referent, ApplySource(source, stands_for)))


@wraps(weakref.ref, weakref.KeyedRef)
def _wrap_reference(t: Tracer, obj: weakref.ref[object], source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    return WeakReferenceValue(obj, source)
