"""Subscripts of tensors: `x[key]` and `x[key] = value` as graph nodes.

tensor.py calls `load` and `store`. A key is made of integers (constant or symbolic), slices, None, Ellipsis, bools,
lists, tuples and tensors; whatever else it is, eager's own error is the answer.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

import numpy as np

from fxjit.frontend.values.base import Tracer, Value

if TYPE_CHECKING:
    from fxjit.frontend.values.tensor import TensorValue


def load(t: Tracer, tensor: TensorValue, key: Value) -> Value:
    """`tensor[key]`."""
    return t.emit(operator.getitem, [tensor, index_of(t, key)])


def store(t: Tracer, tensor: TensorValue, key: Value, value: Value) -> None:
    """`tensor[key] = value`, in the graph, on the tensor itself."""
    if value.is_constant() and isinstance(value.as_constant(), np.generic):
        value = t.make(value.as_constant().item())
    t.emit(operator.setitem, [tensor, index_of(t, key), value])


def index_of(t: Tracer, key: Value) -> Value:
    """The key as the graph takes it: NumPy's integers are Python's."""
    key = key.realize()
    if key.is_constant() and isinstance(key.as_constant(), np.generic):
        return t.make(key.as_constant().item())
    return key
