"""Objects that are known by name only: they can be passed on, stored, compared by identity and returned, and every
operation on one ends the graph with the reason given when it was wrapped.

tensor.py and modules.py make them. (Breaking already where the object is first looked at would end the graph at each
instruction that merely moves it.)
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value, _NotImplemented
from fxjit.frontend.values.extension import ExtensionPoint
from fxjit.guards.source import Source

#: A method of such an object, bound, or a fact about it; None where the name is of something else (untraceable_methods.py).
method_of: Final[ExtensionPoint[[Tracer, UntraceableValue, str], Value | None]] = ExtensionPoint("method_of")


class UntraceableValue(Value):
    """An object from outside that no rule covers."""

    def __init__(self, obj: object, source: Source | None, reason: str, **context: object) -> None:
        super().__init__(source)
        self.obj = obj
        self.reason = reason
        self.context = context

    def pytype(self) -> type:
        return type(self.obj)

    def refuse(self, t: Tracer) -> NoReturn:
        t.break_(self.reason, **self.context)

    def graph_arg(self, t: Tracer) -> Any:
        self.refuse(t)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(type(self.obj))
        if self.source is not None and type(self) is UntraceableValue:
            method = method_of(t, self, name)
            if method is not None:
                return method
        self.refuse(t)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        self.refuse(t)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        self.refuse(t)

    def tp_iter(self, t: Tracer) -> Value:
        self.refuse(t)

    def tp_iternext(self, t: Tracer) -> Value | None:
        self.refuse(t)

    def tp_repr(self, t: Tracer) -> Value:
        self.refuse(t)

    def tp_str(self, t: Tracer) -> Value:
        self.refuse(t)

    def tp_hash(self, t: Tracer) -> Value:
        self.refuse(t)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        self.refuse(t)

    def nb_bool(self, t: Tracer) -> Value:
        self.refuse(t)

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        self.refuse(t)

    def nb_inplace(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        self.refuse(t)

    def nb_unary(self, t: Tracer, op: str) -> Value | _NotImplemented:
        self.refuse(t)

    def sq_length(self, t: Tracer) -> Value:
        self.refuse(t)

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        self.refuse(t)

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        self.refuse(t)

    def mp_ass_subscript(self, t: Tracer, key: Value, value: Value | None) -> None:
        self.refuse(t)


class StandInValue(UntraceableValue):
    """One that may give another `__class__` than its type: of a class with a `__getattribute__` of its own, or a weak proxy."""

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        self.refuse(t)
