"""Constants: immutable objects known entirely while tracing (numbers, text, dtypes, devices, enum members).

`Tracer.make` builds them; wrapping one that came from outside adds a ConstIs guard. Their methods and operators
fold. Numbers that vary (dynamic shapes) are symscalar.py's.
"""

from __future__ import annotations

import datetime
import decimal
import enum
import fractions
import gc
import inspect
import pathlib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from typing import Any, Final

import torch

from fxjit._C import instance_dict
from fxjit.frontend.bytecode.versions import ALIAS_TYPES
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Raised, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.concrete import concrete, is_concrete
from fxjit.frontend.values.iteration import SequenceIteratorValue
from fxjit.frontend.values.traits import LateText
from fxjit.frontend.values.wrap import wraps, wraps_if
from fxjit.guards.constants import VALUE_TYPES
from fxjit.guards.kinds import ConstIs, IdIs, InstanceHasAttr, TypeIs
from fxjit.guards.source import ConstSource, InstanceDictSource, ItemSource, Source, qualname_of
from fxjit.homes import module_of

#: Compared by type and value.
PLAIN: Final[tuple[type, ...]] = (
    type(None), bool, int, float, complex, str, bytes, type(Ellipsis), type(NotImplemented),
    torch.dtype, torch.device, torch.layout, torch.memory_format,
)
#: What annotations are made of.
_TYPING: Final[tuple[type, ...]] = (
    type(typing.Optional), type(typing.List), type(typing.List[int]),  # noqa: UP006
    type(typing.Union[int, str]),  # noqa: UP007
)
#: What stands for types that are given later.
_TYPE_PARAMETERS: Final[tuple[type, ...]] = (typing.TypeVar, typing.ParamSpec, typing.TypeVarTuple, *ALIAS_TYPES)
#: Read from these, it runs code that was written down with them (PEP 695, PEP 696).
_EVALUATED_WHEN_READ: Final = frozenset({"__bound__", "__constraints__", "__default__", "__value__"})
#: Immutable and hashable, with pure methods; guards compare them by identity, or by value where that is all they are.
OPAQUE: Final[tuple[type, ...]] = (
    torch.finfo, torch.iinfo, datetime.timedelta, decimal.Decimal, fractions.Fraction, inspect.Signature,
    inspect.Parameter, re.Pattern, re.Match, types.GenericAlias, *_TYPING, types.UnionType, types.CodeType,
    *_TYPE_PARAMETERS, pathlib.PurePosixPath, pathlib.PosixPath, torch.Generator,
)


def is_plain_constant(obj: object) -> bool:
    """Whether `obj` is a constant by value: a plain one, an enum member, or a tuple/frozenset of such."""
    cls = type(obj)
    if cls in _PLAIN_SET or issubclass(cls, enum.Enum):
        return True
    if cls is tuple or cls is frozenset:
        return all(is_plain_constant(item) for item in obj)  # type: ignore[attr-defined]  # its type is one of containers
    return False


_PLAIN_SET: Final = frozenset(PLAIN)
#: Asked through the type: `isinstance` would run the `__class__` of a user's object.
_OPAQUE_SET: Final = frozenset(OPAQUE)


class ConstantValue(Value):
    """An immutable object, `obj`, known while tracing."""

    def __init__(self, obj: object, source: Source | None = None) -> None:
        super().__init__(source)
        self.obj = obj

    def pytype(self) -> type:
        return type(self.obj)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> Any:
        return self.obj

    def graph_arg(self, t: Tracer) -> Any:
        """The object; a number or text of a subclass (an IntEnum member) as the plain one it is."""
        for base in (int, float, str):
            if isinstance(self.obj, base) and type(self.obj) not in _PLAIN_SET:
                return getattr(base, f"__{base.__name__}__")(self.obj)
        return self.obj

    def describe(self) -> str:
        try:
            text = repr(self.obj)
        except Exception:  # a user's __repr__ may do anything; a message must not fail for it
            text = object.__repr__(self.obj)
        return text if len(text) < 80 else text[:77] + "..."

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push_const(self.obj)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(type(self.obj))
        if isinstance(self.obj, enum.Enum):
            found = self._member_attribute(t, self.obj, name)
            if found is not None:
                return found
        if name in _EVALUATED_WHEN_READ and type(self.obj) in _TYPE_PARAMETERS:
            why = "reading it runs code that was written down with it"
            t.break_("value-attribute", name=name, value=str(self.obj), type=type(self.obj).__name__, why=why)
        try:
            found = getattr(self.obj, name)
        except AttributeError as error:
            t.raise_(AttributeError, *error.args)
        if isinstance(found, types.MethodType) and (
                isinstance(self.obj, enum.Enum) or module_of(found.__func__) == "inspect"):
            return t.call(t.make(types.MethodType), [t.make(found.__func__), self], None)
        if type(found) is types.MappingProxyType and self.source is None and type(self.obj) in _OPAQUE_SET:
            (behind,) = gc.get_referents(found)  # `signature.parameters`: as constant as what it belongs to
            return t.call(t.make(types.MappingProxyType), [t.make(behind)], None)
        if isinstance(self.obj, types.GenericAlias) and found == getattr(self.obj.__origin__, name, None):
            return protocol.getattr_(t, t.make(self.obj.__origin__), name)  # `list[int].append`
        form = any(cls in _OPAQUE_SET for cls in type(found).__mro__)  # `alias.__origin__`: can be called, and is no method
        if callable(found) and not isinstance(found, type) and not form and not is_plain_constant(found):
            return protocol.make_builtin_method(t, self, name)
        return t.make(found)

    def _member_attribute(self, t: Tracer, member: enum.Enum, name: str) -> Value | None:
        """An attribute of an enum member, or of its class in Python; None: neither."""
        raw, owner = descriptors.look_up(t, type(member), name)
        place = f"_{name}_" if owner is enum.Enum and name in ("name", "value") else name
        namespace = instance_dict(member)
        root = self.source or ConstSource(member, qualname_of(type(member)))
        if place in namespace and not isinstance(raw, property):
            return t.wrap(namespace[place], ItemSource(InstanceDictSource(root), place)).realize()
        if not name.startswith("__") and not isinstance(raw, property):
            t.guard(InstanceHasAttr(root, place, False))
        if owner is not None and isinstance(raw, (types.FunctionType, property)) and owner is not enum.Enum:
            return descriptors.bind(t, raw, owner, name, self, t.make(type(member)))
        return None

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        if isinstance(self.obj, enum.Enum):
            t.break_("attribute-unsupported", value=self.describe(), name=name)
        super().tp_setattro(t, name, value)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        return NOT_IMPLEMENTED

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        if op == "%" and not reflected and isinstance(self.obj, str):
            return protocol.printf(t, self.obj, other)
        if op == "*" and isinstance(self.obj, (str, bytes)) and other.pytype() in (int, float):
            text = None
            if type(self.obj) is str and other.pytype() is int:
                text = protocol.deferred_text(t, "times", other, self.obj)
            specialize = getattr(other, "specialize", None)
            if text is None and specialize is not None:
                return protocol.binary(t, op, self, specialize(t))
            if text is None:
                t.break_("format-symbolic", value=other.describe())
            return text
        return NOT_IMPLEMENTED

    def tp_iter(self, t: Tracer) -> Value:
        if isinstance(self.obj, (str, bytes)):
            return SequenceIteratorValue(t.make(tuple(self.obj)), origin=self)
        return super().tp_iter(t)

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        if isinstance(self.obj, (str, bytes)) and getattr(key, "specialize", None) is not None:
            key = key.specialize(t)  # type: ignore[attr-defined]  # a size that varies: which character is a fact
        if isinstance(self.obj, (str, bytes)) and key.is_constant():
            return protocol.fold(t, lambda: self.obj[key.as_constant()])  # type: ignore[index]  # fold raises what that raises
        if isinstance(self.obj, (str, bytes)):
            parts: list[Any] = [getattr(key, part, None) for part in ("start", "stop", "step")]
            parts = [part.specialize(t) if hasattr(part, "specialize") else part for part in parts]
            if all(part is not None and part.is_constant() for part in parts):
                where = slice(*[part.as_constant() for part in parts])
                return protocol.fold(t, lambda: self.obj[where])  # type: ignore[index]  # the same
        if isinstance(self.obj, (*_TYPING, types.GenericAlias, re.Match)) and is_concrete(key):  # `Callable[[int], int]`
            return protocol.fold(t, lambda: self.obj[concrete(key)])  # type: ignore[index]  # fold raises what that raises
        return super().mp_subscript(t, key)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        if isinstance(self.obj, (types.GenericAlias, *_TYPING)) and hasattr(self.obj, "__origin__"):
            made = t.call(t.make(self.obj.__origin__), args, kwargs)
            if hasattr(made, "generic_setattr"):
                try:
                    protocol.setattr_(t, made, "__orig_class__", self)
                except Raised as raised:
                    if not issubclass(raised.value.pytype(), AttributeError):
                        raise
            return made
        if isinstance(protocol.type_lookup(type(self.obj), "__call__"), types.FunctionType):  # an enum's member
            return t.call(self.tp_getattro(t, "__call__"), args, kwargs)
        return super().tp_call(t, args, kwargs)


class ConstantFromOutside(ConstantValue):
    """A str, a number or a path that the frame found outside, guarded by value as soon as the trace looks at it: one that is
    only passed on (a message that was made before a graph break, a learning rate that stays) may be another each time."""

    def __init__(self, t: Tracer, found: object, source: Source) -> None:
        Value.__init__(self, source)
        self._t = t
        self._found = found
        #: Whether the trace relies on the value.
        self.was_read = False
        t.guard(TypeIs(source, type(found)))

    @property
    def obj(self) -> object:  # type: ignore[override]  # reading it is what counts
        assert self.source is not None
        self.was_read = True
        self._t.guard(ConstIs(self.source, self._found))
        return self._found

    def peek(self) -> object:
        """The object, for a decision that needs no guard."""
        return self._found

    def pytype(self) -> type:
        return type(self._found)


class TextFromOutside(ConstantFromOutside, LateText):
    """A str that the frame found outside."""


@wraps(str)
def _wrap_text(t: Tracer, obj: object, source: Source) -> Value:
    assert isinstance(obj, str)
    return TextFromOutside(t, obj, source)


@wraps(int, float)
def _wrap_number(t: Tracer, obj: object, source: Source) -> Value:
    assert isinstance(obj, (int, float))
    return ConstantFromOutside(t, obj, source)


def wrap_constant(t: Tracer, obj: object, source: Source) -> Value:
    """A constant that the frame found outside: guarded by value."""
    t.guard(ConstIs(source, obj))
    return ConstantValue(obj, source)


wraps(*[cls for cls in PLAIN if cls not in (str, int, float)])(wrap_constant)


@wraps_if(lambda obj: issubclass(type(obj), enum.Enum), order=10)
def _wrap_enum(t: Tracer, obj: object, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return ConstantValue(obj, source)


@wraps_if(lambda obj: any(cls in _OPAQUE_SET for cls in type(obj).__mro__), order=20)
def _wrap_opaque(t: Tracer, obj: object, source: Source) -> Value:
    if isinstance(source, ConstSource):  # the trace itself has it, and it does not change: there is nothing to guard
        return ConstantValue(obj)
    if type(obj) in VALUE_TYPES:
        return ConstantFromOutside(t, obj, source)
    t.guard(IdIs(source, obj))
    return ConstantValue(obj, source)
