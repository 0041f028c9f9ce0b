"""`torch.tensor` of numbers that vary, alone or in nested lists: as scalars and stacks of them.

A list is read number by number when a tensor is made of it, which would fix each of them in the graph: an agent's
position or a counter would be compiled anew for each of its values.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import torch

from fxjit.frontend.values.base import Tracer, Value
from fxjit.frontend.values.contexts import default_device
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.symscalar import SymValue

#: A longer list would be a graph of its own; its numbers are fixed.
_MOST = 64


def tensor_of_varying(t: Tracer, data: Value, kwargs: Mapping[str, Value]) -> Value | None:
    """`torch.tensor(data, dtype=, device=)` in the graph; None where no number varies, or where not all of this is known to
    be what `torch.tensor` does with them."""
    if not all(value.is_constant() for value in kwargs.values()):
        return None
    given = {name: value.graph_arg(t) for name, value in kwargs.items() if value.as_constant() not in (None, False)}
    if not given.keys() <= {"dtype", "device"}:
        return None
    numbers = list(_numbers(data))
    if not any(isinstance(number, SymValue) for number in numbers) or len(numbers) > _MOST or _shape(data) is None:
        return None
    kinds = {number.pytype() for number in numbers}
    if not kinds <= {int, float}:
        return None
    dtype = given.get("dtype", torch.get_default_dtype() if float in kinds else torch.int64)
    if not (dtype.is_floating_point or (dtype is torch.int64 and kinds == {int})):
        return None  # what does not fit raises, by its value
    device = given.get("device", default_device(t))
    how = {"dtype": t.make(dtype), **({} if device is None else {"device": t.make(device)})}
    return _made(t, data.realize(), dtype, how)


def _numbers(data: Value) -> Iterator[Value]:
    data = data.realize()
    if isinstance(data, (ListValue, TupleValue)):
        for item in data.realized():
            yield from _numbers(item)
    else:
        yield data


def _shape(data: Value) -> tuple[int, ...] | None:
    """The sizes of lists and tuples as an array; None where they are not one, or have nothing in them."""
    data = data.realize()
    if not isinstance(data, (ListValue, TupleValue)):
        return ()
    shapes = {_shape(item) for item in data.realized()}
    if data.pytype() not in (list, tuple) or len(shapes) != 1 or None in shapes:
        return None
    return (len(data.realized()), *(shapes.pop() or ()))


def _made(t: Tracer, data: Value, dtype: torch.dtype, how: dict[str, Value]) -> Value:
    if not any(isinstance(number, SymValue) for number in _numbers(data)):
        return t.emit(torch.tensor, [data], how)
    if isinstance(data, (ListValue, TupleValue)):
        return t.emit(torch.stack, [ListValue([_made(t, item.realize(), dtype, how) for item in data.realized()])])
    if dtype.is_floating_point and data.pytype() is int:
        data = t.emit(torch.sym_float, [data])  # as `torch.tensor` reads it
    return t.emit(torch.scalar_tensor, [data], how)
