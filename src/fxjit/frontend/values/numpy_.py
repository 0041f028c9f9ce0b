"""NumPy in traced code: scalars and dtypes are constants; arrays are known by name only, and every use of one breaks.

wrap.py makes them. An array may be passed on, stored and returned without a break.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NoReturn

import numpy as np

from fxjit.frontend.values.base import NOT_IMPLEMENTED, Tracer, Value, _NotImplemented
from fxjit.frontend.values.constant import ConstantValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import ConstIs, IdIs, TypeIs
from fxjit.guards.source import Source


class ArrayValue(Value):
    """A numpy.ndarray that existed before the frame."""

    def __init__(self, obj: np.ndarray, source: Source) -> None:
        super().__init__(source)
        self.obj = obj

    def pytype(self) -> type:
        return type(self.obj)

    def _refuse(self, t: Tracer, what: str) -> NoReturn:
        t.break_("numpy-function", function=f"ndarray.{what}")

    def graph_arg(self, t: Tracer) -> object:
        self._refuse(t, "as an argument of a torch function")

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(type(self.obj))
        self._refuse(t, name)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        self._refuse(t, name)

    def tp_iter(self, t: Tracer) -> Value:
        self._refuse(t, "__iter__")

    def tp_repr(self, t: Tracer) -> Value:
        self._refuse(t, "__repr__")

    def nb_bool(self, t: Tracer) -> Value:
        self._refuse(t, "__bool__")

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        self._refuse(t, f"operator {op}")

    def nb_inplace(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        self._refuse(t, f"operator {op}=")

    def nb_unary(self, t: Tracer, op: str) -> Value | _NotImplemented:
        self._refuse(t, f"operator {op}")

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if other.is_constant() and other.as_constant() is None:
            return NOT_IMPLEMENTED
        self._refuse(t, f"operator {op}")

    def sq_length(self, t: Tracer) -> Value:
        self._refuse(t, "__len__")

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        self._refuse(t, "__contains__")

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        self._refuse(t, "__getitem__")

    def mp_ass_subscript(self, t: Tracer, key: Value, value: Value | None) -> None:
        self._refuse(t, "__setitem__")


class ArrayFunctionValue(Value):
    """A NumPy universal function or other callable object of NumPy: on constants it is run, on others it breaks."""

    def __init__(self, fn: np.ufunc, source: Source | None) -> None:
        super().__init__(source)
        self.fn = fn

    def pytype(self) -> type:
        return type(self.fn)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> object:
        return self.fn

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        t.break_("numpy-function", function=f"numpy.{self.fn.__name__}")


@wraps(np.ndarray, subclasses=True)
def _wrap_array(t: Tracer, obj: np.ndarray, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    return ArrayValue(obj, source)


@wraps(np.ufunc)
def _wrap_ufunc(t: Tracer, obj: np.ufunc, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return ArrayFunctionValue(obj, source)


@wraps(np.generic, subclasses=True)
def _wrap_scalar(t: Tracer, obj: np.generic, source: Source) -> Value:
    t.guard(ConstIs(source, obj))
    return ConstantValue(obj, source)


@wraps(np.dtype, subclasses=True)
def _wrap_dtype(t: Tracer, obj: np.dtype, source: Source) -> Value:
    t.guard(ConstIs(source, obj))
    return ConstantValue(obj, source)
