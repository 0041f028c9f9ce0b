"""What functions of NumPy make of numbers out of tensors (deferred_numbers.py): NumPy makes it, too, when the graph has run.

What it gives is passed on, stored, shown in a text or, a truth, checked; whoever looks into it needs it while tracing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.deferred_numbers import DOMAINS, DeferredNumber, are_within, in_class, made
from fxjit.frontend.values.sequence import ListValue, TupleValue

_CLASSES: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    np.isnan: math.isnan, np.isinf: math.isinf, np.isfinite: math.isfinite,
}
#: Functions of one float, and those of Python's within whose bounds they do not warn.
_OF_FLOATS: Final[dict[Callable[..., Any], Callable[..., Any]]] = {
    np.exp: math.exp, np.expm1: math.expm1, np.sqrt: math.sqrt, np.log: math.log, np.log2: math.log2, np.log10: math.log10,
    np.log1p: math.log1p, np.sin: math.sin, np.cos: math.cos, np.tan: math.tan, np.tanh: math.tanh, np.arctan: math.atan,
    np.abs: math.fabs, np.float64: math.fabs,
}
#: Functions of a list of floats, and what they give.
_OF_LISTS: Final[dict[Callable[..., Any], type]] = {
    **dict.fromkeys((np.mean, np.max, np.min), np.float64), **dict.fromkeys((np.array, np.asarray), np.ndarray),
}


def of_deferred(t: Tracer, fn: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value | None:
    """`fn(number)`, or `fn(numbers)` of a list or tuple of floats; None for all else."""
    if kwargs or len(args) != 1:
        return None
    given = args[0].realize()
    if isinstance(given, (ListValue, TupleValue)) and given.pytype() in (list, tuple):
        numbers, kind = given.realized(), _OF_LISTS.get(fn)
        if kind is None or not any(isinstance(number, DeferredNumber) for number in numbers):
            return None
        if not all(number.pytype() is float for number in numbers):
            return None
        return made(t, kind, fn, [(ListValue if given.pytype() is list else TupleValue)(numbers)], numbers)
    if not isinstance(given, DeferredNumber) or given.kind is not float:
        return None
    if fn in _CLASSES:
        return made(t, np.bool_, fn, args, [given], in_class(t, _CLASSES[fn], given))
    bounds = DOMAINS[_OF_FLOATS[fn]] if fn in _OF_FLOATS else None
    return made(t, np.float64, fn, args, [given]) if bounds is not None and are_within(t, bounds, given) else None
