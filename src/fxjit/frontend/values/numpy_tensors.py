"""NumPy's functions called with tensors: those of C make arrays of them (`Tensor.__array__`), and a ufunc gives tensors back
(`Tensor.__array_wrap__`), since a tensor's priority is above an array's. Those of Python look for themselves.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import numpy as np
import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.tensor import TensorValue

_DEEPEST: Final = 32
ArrayOf = Callable[[TensorValue], Value]
#: C functions that ask for the type of what they are given, or write to it, and refuse tensors.
_WANT_ARRAYS: Final = frozenset({"copyto", "putmask", "can_cast", "result_type", "min_scalar_type"})


def holds_tensors(values: Sequence[Value], depth: int = 0) -> bool:
    """Whether one of these is a tensor, or a list or tuple that has one in it, as deep as an array has dimensions."""
    return depth < _DEEPEST and any(isinstance(each, TensorValue) or holds_tensors(_items(each), depth + 1) for each in values)


def converts_tensors(fn: Any, args: Sequence[Value], kwargs: Mapping[str, Value]) -> bool:
    """Whether a function makes arrays of all its arguments, before anything else."""
    if isinstance(fn, np.ufunc):
        return len(args) <= fn.nin and not kwargs.keys() & {"out", "where", "axis", "axes", "signature"}
    implementation = getattr(fn, "_implementation", fn)
    if isinstance(getattr(implementation, "__self__", None), np.ufunc) or implementation.__name__ in _WANT_ARRAYS:
        return False
    return isinstance(implementation, types.BuiltinFunctionType) and "out" not in kwargs


def gives_tensors(fn: Any, args: Sequence[Value]) -> bool:
    """Whether what a function calculates is given back as a tensor: a ufunc's results, where a tensor itself was given."""
    return isinstance(fn, np.ufunc) and any(isinstance(arg.realize(), TensorValue) for arg in args)


def as_arrays(value: Value, array_of: ArrayOf) -> Value:
    """An argument with arrays in the place of tensors."""
    if isinstance(value, TensorValue):
        return array_of(value)
    if not holds_tensors([value]):
        return value
    made = [as_arrays(item, array_of) for item in _items(value)]
    return ListValue(made) if value.pytype() is list else TupleValue(made)


def as_tensors(t: Tracer, result: Any) -> Value:
    """What `Tensor.__array_wrap__` makes of a ufunc's results: truths become bytes."""
    if isinstance(result, TupleValue):
        return TupleValue([as_tensors(t, part.realize()) for part in result.items])
    if result.tensor.fake.dtype is torch.bool:
        return t.emit("to", [result.tensor, torch.uint8])
    made: Value = result.as_tensor(t)
    return made


def _items(value: Value) -> list[Value]:
    """The items of a plain list or tuple."""
    if not isinstance(value, (ListValue, TupleValue)) or value.pytype() not in (list, tuple):
        return []
    return [item.realize() for item in value.items]
