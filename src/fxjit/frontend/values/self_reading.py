"""Classes whose metaclass has a `__getattribute__` in Python, which answers whatever is read of them: the trace follows that
function, and reads nothing of such a class but through `type`'s own descriptors, since any other reading would run it."""

from __future__ import annotations

import enum
import types
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Raised, Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.natives import call_on_constants
from fxjit.frontend.values.untraceable import StandInValue
from fxjit.frontend.values.wrap import wraps_if
from fxjit.guards.kinds import IdIs
from fxjit.guards.source import Source, name_of, namespace_of

#: What reading through a class is known to make of a class attribute; others are known where they bind nothing.
_BOUND: Final = (types.FunctionType, staticmethod, classmethod, property)


class SelfReadingClassValue(StandInValue):
    """A class with such a metaclass, known by identity. Its attributes are read; all else ends the graph."""

    def __init__(self, t: Tracer, cls: type, source: Source) -> None:
        super().__init__(cls, source, "attribute-unsupported", value="a class of a metaclass", name="__getattribute__")
        t.guard(IdIs(source, cls))
        self.cls = cls

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        meta = descriptors.metaclass_of(t, self.cls)
        hook, owner = descriptors.look_up(t, meta, "__getattribute__")
        if owner is None or not isinstance(hook, types.FunctionType):
            self.refuse(t)
        try:
            return t.call(descriptors.bind(t, hook, owner, "__getattribute__", self, t.make(meta)), [t.make(name)], None)
        except Raised as error:
            fallback, owner = descriptors.look_up(t, meta, "__getattr__")
            if owner is None or not issubclass(error.value.pytype(), AttributeError):
                raise
            if not isinstance(fallback, types.FunctionType):
                self.refuse(t)
            return t.call(descriptors.bind(t, fallback, owner, "__getattr__", self, t.make(meta)), [t.make(name)], None)

    def plain_getattr(self, t: Tracer, name: str) -> Value:
        """`type.__getattribute__(cls, name)`."""
        cls, meta = self.cls, descriptors.metaclass_of(t, self.cls)
        meta_raw, meta_owner = descriptors.look_up(t, meta, name)
        if meta_owner is not None and descriptors.is_data_descriptor(t, meta_raw):
            if type(meta_raw) is not property:
                self.refuse(t)
            return descriptors.bind(t, meta_raw, meta_owner, name, self, t.make(meta))
        inherited = descriptors.written(t, cls, name)
        if inherited is not None:
            return inherited
        raw, owner = descriptors.look_up(t, cls, name)
        if owner is not None:
            members = namespace_of(cls).get("_member_map_") if issubclass(cls, enum.Enum) else None
            if members is not None and name in members:
                return t.make(members[name])
            return self._bound(t, raw, owner, name, None)
        if meta_owner is not None:
            return self._bound(t, meta_raw, meta_owner, name, t.make(meta))
        t.raise_(AttributeError, f"type object '{name_of(cls)}' has no attribute '{name}'")

    def _bound(self, t: Tracer, raw: Any, owner: type, name: str, meta: Value | None) -> Value:
        """`raw`, found in the class, or in its metaclass (`meta`)."""
        if type(raw) not in _BOUND and descriptors.look_up(t, type(raw), "__get__")[0] is not NOT_IMPLEMENTED:
            self.refuse(t)
        return descriptors.bind(t, raw, owner, name, *((None, self) if meta is None else (self, meta)))


@handles(type.__getattribute__)
def _type_getattribute(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls, *rest = args
    if isinstance(cls, SelfReadingClassValue) and len(rest) == 1 and not kwargs and rest[0].pytype() is str:
        return cls.plain_getattr(t, rest[0].as_constant())
    return call_on_constants(t, cls, "__getattribute__", rest, kwargs, type)


def _reads_by_itself(obj: object) -> bool:
    """Whether a metaclass has a `__getattribute__` for the class `obj`, or for the class of the object `obj`. A member of an
    enumeration is read as the constant that it is."""
    cls = type(obj)
    meta = type(cls)
    if (meta is type and not issubclass(cls, type)) or issubclass(cls, enum.Enum):
        return False
    return (meta is not type and descriptors.has_own_reading(meta)) or _is_self_reading_class(obj)


def _is_self_reading_class(obj: object) -> bool:
    cls = type(obj)
    return cls is not type and issubclass(cls, type) and descriptors.has_own_reading(cls)


@wraps_if(_reads_by_itself, order=0)
def _wrap_unreadable(t: Tracer, obj: object, source: Source) -> Value:
    if _is_self_reading_class(obj) and not descriptors.has_own_reading(type(type(obj))):
        assert isinstance(obj, type)
        return SelfReadingClassValue(t, obj, source)
    return StandInValue(obj, source, "attribute-unsupported", value="an object of a metaclass", name="__getattribute__")
