"""NumPy in traced code: scalars and dtypes are constants; arrays are known by name only, and every use of one breaks.

wrap.py makes them. An array may be passed on, stored and returned without a break.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NoReturn

import numpy as np

from fxjit.frontend.callables.table import NotPlain, handles, plain
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Tracer, Value, _NotImplemented
from fxjit.frontend.values.constant import ConstantValue
from fxjit.frontend.values.wrap import wraps, wraps_if
from fxjit.guards.kinds import ConstIs, IdIs, TypeIs
from fxjit.guards.source import Source

#: Universal functions, and functions that arrays may override (numpy.prod and its like).
_FUNCTION_TYPES: Final = (np.ufunc, type(np.prod))


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
    """A function of NumPy: run at once on plain Python values and NumPy scalars, a graph break on anything else."""

    def __init__(self, fn: Any, source: Source | None) -> None:
        super().__init__(source)
        self.fn = fn

    def pytype(self) -> type:
        return type(self.fn)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> object:
        return self.fn

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        return call_on_scalars(t, self.fn, args, kwargs)


def call_on_scalars(t: Tracer, fn: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    """`fn(*args, **kwargs)` where no array comes in or out."""
    name = f"numpy.{fn.__name__}"
    try:
        known, named = [plain(arg) for arg in args], {key: plain(arg) for key, arg in kwargs.items()}
    except NotPlain:
        t.break_("numpy-function", function=name)
    try:
        result = fn(*known, **named)
    except Exception as error:
        t.raise_(type(error), *error.args)
    if isinstance(result, np.ndarray):
        t.break_("numpy-function", function=name)
    return t.make(result)


@wraps_if(lambda obj: isinstance(obj, _FUNCTION_TYPES), order=5)
def _wrap_function(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return ArrayFunctionValue(obj, source)


def _scalar_type(cls: type) -> None:
    @handles(cls)
    def make(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return call_on_scalars(t, cls, args, kwargs)


for _cls in dict.fromkeys(np.sctypeDict.values()):
    if issubclass(_cls, (np.number, np.bool_)):
        _scalar_type(_cls)


@wraps(np.ndarray, subclasses=True)
def _wrap_array(t: Tracer, obj: np.ndarray, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    return ArrayValue(obj, source)


@wraps(np.generic, subclasses=True)
def _wrap_scalar(t: Tracer, obj: np.generic, source: Source) -> Value:
    t.guard(ConstIs(source, obj))
    return ConstantValue(obj, source)


@wraps(np.dtype, subclasses=True)
def _wrap_dtype(t: Tracer, obj: np.dtype, source: Source) -> Value:
    t.guard(ConstIs(source, obj))
    return ConstantValue(obj, source)
