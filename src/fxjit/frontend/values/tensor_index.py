"""Subscripts of tensors: `x[key]` and `x[key] = value` as graph nodes.

tensor.py calls `load` and `store`. A key is made of integers (constant or symbolic), slices, None, Ellipsis, bools,
lists, tuples and tensors; whatever else it is, eager's own error is the answer.
"""

from __future__ import annotations

import operator
from collections.abc import Callable

import numpy as np
import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import overrides, scalar_indices
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.tensor_base import GraphTensor
from fxjit.frontend.values.traits import LateIndex


def load(t: Tracer, tensor: GraphTensor, key: Value) -> Value:
    """`tensor[key]`."""
    found = _as_operator(t, tensor, key)
    if found is not None:
        return found
    part, rest = _select_symbols(t, tensor, scalar_indices.with_numbers(t, tensor, index_of(t, key)))
    return part if rest is None else t.emit(operator.getitem, [part, rest])


def _as_operator(t: Tracer, tensor: GraphTensor, key: Value) -> Value | None:
    """`tensor[key]` where a mode that was entered makes an operator of it."""
    if not any(map(overrides.is_subscripts, overrides.entered_modes(t))):
        return None
    keys = [each.realize() for each in (key.realized() if isinstance(key, TupleValue) else [key])]
    if not all(isinstance(each, GraphTensor) or each.pytype() is int for each in keys):
        return None
    indices = [each if isinstance(each, GraphTensor) else t.emit("new_full", [tensor, (), each], {"dtype": torch.int64})
               for each in keys]
    return t.emit(torch.ops.aten.index, [tensor, indices])


def store(t: Tracer, tensor: GraphTensor, key: Value, value: Value) -> None:
    """`tensor[key] = value`, in the graph, on the tensor itself."""
    if value.is_constant() and isinstance(value.as_constant(), np.generic):
        value = t.make(value.as_constant().item())
    key = scalar_indices.with_numbers(t, tensor, index_of(t, key))
    if scalar_indices.store(t, tensor, key, value.realize()):
        return
    part, rest = _select_symbols(t, tensor, key)
    t.emit(operator.setitem, [part, t.make(...) if rest is None else rest, value])


def index_of(t: Tracer, key: Value) -> Value:
    """The key as the graph takes it: NumPy's integers are Python's, its arrays tensors, and random integers its inputs."""
    key = key.realize()
    if isinstance(key, TupleValue) and any(isinstance(each, (LateIndex, ListValue)) for each in key.realized()):
        key = TupleValue([_of_late(t, each) for each in key.realized()])
    key = _of_late(t, key)
    if key.is_constant() and isinstance(key.as_constant(), np.generic):
        return t.make(key.as_constant().item())
    if isinstance(key, TupleValue) and any(each.pytype() is np.ndarray for each in key.realized()):
        return TupleValue([_of_array(t, each) for each in key.realized()])
    return _of_array(t, key, alone=True)


def _of_late(t: Tracer, key: Value) -> Value:
    """A random integer, or a list in which there are such, as an index."""
    if isinstance(key, LateIndex):
        return key.in_graph(t) if key.pytype() is int else key
    items = key.realized() if isinstance(key, ListValue) else []
    late = next((each for each in items if isinstance(each, LateIndex)), None)
    known = all(isinstance(each, LateIndex) or each.is_constant() for each in items)
    if late is None or not known or any(each.pytype() is not int for each in items):
        return key
    return late.in_tensor(t, items, (len(items),), torch.int64)


def _of_array(t: Tracer, key: Value, alone: bool = False) -> Value:
    """An array of NumPy as an index: integers of any width as int64. Torch takes one of several dimensions that is the whole
    key for a tuple of its rows."""
    as_tensor: Callable[[Tracer, bool], GraphTensor] | None = getattr(key, "as_tensor", None)
    if as_tensor is None or key.pytype() is not np.ndarray:
        return key
    index = as_tensor(t, True)
    if index.fake.dim() == 0 or index.fake.is_floating_point() or (alone and index.fake.dim() > 1):
        return key
    return index if index.fake.dtype in (torch.bool, torch.uint8, torch.int64) else t.emit("to", [index, t.make(torch.int64)])


def _select_symbols(t: Tracer, tensor: GraphTensor, key: Value) -> tuple[Value, Value | None]:
    """The tensor after the symbolic integers of the key, and what is left of the key. As subscripts they would be fixed to
    the number that they are now, and each other one compiled for; as arguments of `select` they stay symbols."""
    keys = list(key.realized()) if isinstance(key, TupleValue) else [key]
    symbols = [place for place, each in enumerate(keys) if isinstance(getattr(each, "sym", None), torch.SymInt)]
    dims = scalar_indices.dims_of(tensor.fake.dim(), keys) if symbols else None
    if dims is None:
        return tensor, key
    part: Value = tensor
    rest: list[Value] = []
    dim = 0
    for place, (each, begin, end) in enumerate(zip(keys, dims, dims[1:], strict=False)):
        if place in symbols:
            part = t.emit(torch.select, [part, t.make(dim), each])
            continue
        if place < symbols[-1] and each.pytype() is type(None):  # a new dimension's stride is that of what is there by then
            part, each, end = t.emit(torch.unsqueeze, [part, t.make(dim)]), t.make(slice(None)), begin + 1
        rest.append(each)
        dim += end - begin
    return part, TupleValue(rest) if rest else None
