"""NumPy's functions called with tensors: those of C make arrays of them (`Tensor.__array__`), and a ufunc gives tensors back
(`Tensor.__array_wrap__`), since a tensor's priority is above an array's. Those of Python look for themselves.

`tensor op array` is such a ufunc: Tensor's operators take no array, so the array's are asked. `array op tensor` is left to the
tensor, which has no operator for it but `/` and `==`.

An array's own methods of C, and what stands in the brackets behind it, make arrays of tensors, too.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, Final

import numpy as np
import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Value, _NotImplemented
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.tensor import TensorValue

_DEEPEST: Final = 32
ArrayOf = Callable[[TensorValue], Value]
#: C functions that ask for the type of what they are given, or write to it, and refuse tensors.
_WANT_ARRAYS: Final = frozenset({"copyto", "putmask", "can_cast", "result_type", "min_scalar_type"})
#: What operators of arrays call.
_UFUNCS: Final[Mapping[str, np.ufunc]] = {
    "+": np.add, "-": np.subtract, "*": np.multiply, "/": np.true_divide, "//": np.floor_divide, "%": np.remainder,
    "**": np.power, "@": np.matmul, "&": np.bitwise_and, "|": np.bitwise_or, "^": np.bitwise_xor, "<<": np.left_shift,
    ">>": np.right_shift,
}
Call = Callable[[Tracer, Any, Sequence[Value], Mapping[str, Value]], Value]


def operated(t: Tracer, op: str, array: Value, other: Value, reflected: bool, call: Call) -> Value | None:
    """`tensor op array` (`reflected`), or `array op tensor`; None where this is no operation that gives a tensor. `call` calls
    a function of NumPy."""
    if not _is_plain_tensor(t, other) or op not in _UFUNCS:
        return None
    if reflected:
        return call(t, _UFUNCS[op], [other, array], {})
    if op == "/":  # as Tensor.__rtruediv__ has it
        return call(t, np.multiply, [t.emit("reciprocal", [other]), array], {})
    return None


def compared(t: Tracer, op: str, as_tensor: Callable[[Tracer], Value], other: Value) -> Value | _NotImplemented | None:
    """`tensor op array`, in either order: `==` is torch's, and the others are neither's, so that `!=` compares identities.
    None where the comparison is another one, or left to eager, which raises."""
    if not _is_plain_tensor(t, other):
        return None
    if op == "==":
        return t.emit(operator.eq, [other, as_tensor(t)])
    return NOT_IMPLEMENTED if op == "!=" else None


def _is_plain_tensor(t: Tracer, value: Value) -> bool:
    """Whether it is a tensor whose operators nothing overrides."""
    return isinstance(value, TensorValue) and value.cls is torch.Tensor and overrides.innermost(t) is None


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


#: Methods of arrays that make arrays of what they are given.
_METHODS: Final = frozenset({"compress", "dot", "put", "repeat", "searchsorted", "take"})


def method_arguments(t: Tracer, name: str, args: Sequence[Value],
                     kwargs: Mapping[str, Value]) -> tuple[Sequence[Value], Mapping[str, Value]]:
    """The arguments of a method of arrays, with arrays in the place of tensors where it makes these itself."""
    if name not in _METHODS or not holds_tensors([each.realize() for each in (*args, *kwargs.values())]):
        return args, kwargs
    made = partial(_array_of, t)
    return [as_arrays(arg.realize(), made) for arg in args], {
        key: as_arrays(arg.realize(), made) for key, arg in kwargs.items()}


def as_key(t: Tracer, key: Value) -> Value:
    """The key of an array, with arrays in the place of tensors of whole numbers or truths. One with a single element is an
    index, which NumPy takes out of it, whatever its dimensions are."""
    key = key.realize()
    if isinstance(key, TupleValue) and key.pytype() is tuple and any(map(_is_tensor, key.realized())):
        return TupleValue([as_key(t, part) if _is_tensor(part) else part for part in key.realized()])
    if not isinstance(key, TensorValue) or key.fake.is_floating_point() or key.fake.is_complex() or not _has_known_sizes(key):
        return key
    return protocol.unary(t, "index", key) if key.fake.numel() == 1 else _array_of(t, key)


def as_items(t: Tracer, array: Any, value: Value) -> Value:
    """What is written to places of an array, as an array where it is a tensor; NumPy warns of complex numbers that it has no
    place for."""
    value = value.realize()
    if not isinstance(value, TensorValue) or (value.fake.is_complex() and not array.tensor.fake.is_complex()):
        return value
    return _array_of(t, value)


def _array_of(t: Tracer, tensor: TensorValue) -> Value:
    return protocol.call_method(t, tensor, "numpy")


def _is_tensor(value: Value) -> bool:
    return isinstance(value.realize(), TensorValue)


def _has_known_sizes(tensor: TensorValue) -> bool:
    """Whether its sizes are those of this call, and not of the data."""
    return all(isinstance(size, int) or size.node.has_hint() for size in tensor.fake.shape)


def _items(value: Value) -> list[Value]:
    """The items of a plain list or tuple."""
    if not isinstance(value, (ListValue, TupleValue)) or value.pytype() not in (list, tuple):
        return []
    return [item.realize() for item in value.items]
