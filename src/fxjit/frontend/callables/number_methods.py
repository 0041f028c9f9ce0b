"""Methods of int and float, and functions of `statistics`: of a number that varies the guards compute what they give."""

from __future__ import annotations

import statistics
import types
from collections.abc import Callable
from typing import Any

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import fold_call, handles, pass_on, settled
from fxjit.frontend.values.computed_numbers import computed
from fxjit.frontend.values.concrete import builtin_part
from fxjit.frontend.values.sequence import ListValue, TupleValue


def _method(fn: types.MethodDescriptorType) -> None:
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        args = [builtin_part(args[0]), *args[1:]] if args else args
        found = None if args and args[0].is_constant() else computed(t, fn, args, kwargs)
        return fold_call(t, fn, args, kwargs) if found is None else found


for _cls in (int, float):
    for _name, _fn in vars(_cls).items():
        if isinstance(_fn, types.MethodDescriptorType) and not _name.startswith("__"):
            _method(_fn)


def _settled(t: Tracer, data: Value) -> Value:
    """The data with constants in the place of numbers that vary: Python's fractions are made of constants only."""
    data = data.realize()
    if not isinstance(data, (ListValue, TupleValue)) or data.pytype() not in (list, tuple):
        return settled(t, data)
    return (ListValue if data.pytype() is list else TupleValue)([settled(t, item) for item in data.items])


def _statistic(fn: Callable[..., Any]) -> None:
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found = computed(t, fn, args, kwargs)
        return pass_on(t, fn, [_settled(t, arg) for arg in args], kwargs) if found is None else found


for _function in map(vars(statistics).__getitem__, statistics.__all__):
    if isinstance(_function, types.FunctionType):
        _statistic(_function)
