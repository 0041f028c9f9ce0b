"""Subscripts with tensors that have no dimensions: eager asks them for their numbers. A number that is known while tracing,
or that may be a symbol of the graph, takes their place; so does that of a tensor that the frame was given (given_numbers.py).
What is stored at others is an operator that takes the tensors."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Final, TypeGuard

import torch

from fxjit import config
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import given_numbers, overrides, tensor_methods
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.tensor_base import GraphTensor

#: Of these dtypes a scalar is taken for a mask of everything or nothing, of the others for a number.
_MASKS: Final = frozenset({torch.bool, torch.uint8})
_INDICES: Final = frozenset({torch.int8, torch.int16, torch.int32, torch.int64}) | _MASKS


def _is_scalar(key: Value) -> TypeGuard[GraphTensor]:
    return isinstance(key, GraphTensor) and key.fake.dim() == 0 and key.fake.dtype in _INDICES


def _parts(key: Value) -> list[Value]:
    return [each.realize() for each in key.realized()] if isinstance(key, TupleValue) else [key]


def with_numbers(t: Tracer, tensor: GraphTensor, key: Value) -> Value:
    """The key of `tensor` with numbers in the place of scalar tensors: those that are known, and symbols where these can be
    made. The tensor is looked at first: inputs of the graph are in the order of their use."""
    keys = _parts(key)
    if tensor.fake.dim() == 0 or not any(map(_is_scalar, keys)):
        return key
    numbers = [_number_of(t, each) if _is_scalar(each) else each for each in keys]
    return TupleValue(numbers) if isinstance(key, TupleValue) else numbers[0]


def _number_of(t: Tracer, scalar: GraphTensor) -> Value:
    known = None if scalar.fake.dtype is torch.uint8 else tensor_methods.known_item(scalar)
    if known is not None:
        return t.make(known)
    if config.capture_scalar_outputs and scalar.fake.dtype not in _MASKS:
        return tensor_methods.as_number(t, scalar, "index")
    given = given_numbers.number_in(t, scalar)
    return scalar if given is None else given


def store(t: Tracer, tensor: GraphTensor, key: Value, value: Value) -> bool:
    """`tensor[key] = value` where the key has scalar tensors. False where it has none, or eager is to say what is wrong."""
    keys = _parts(key)
    scalars = [each for each in keys if _is_scalar(each)]
    if not scalars or tensor.cls is not torch.Tensor or overrides.entered_transforms(t):
        return False
    fake = tensor.fake  # of one that is written under inference mode it cannot be asked whether it is a leaf
    if fake.requires_grad and (torch.is_inference_mode_enabled() or fake.is_leaf):
        return False
    if len(keys) == 1 and scalars[0].fake.dtype is torch.bool:
        return _store_masked(t, tensor, scalars[0], value)
    if any(each.fake.dtype in _MASKS for each in scalars):
        return False
    return _store_indexed(t, tensor, keys, value)


def _store_masked(t: Tracer, tensor: GraphTensor, mask: GraphTensor, value: Value) -> bool:
    given = _as_stored(t, tensor, tensor.fake.dim(), value)
    if given is None:
        return False
    if given.fake.dim() == 0:
        t.emit("masked_fill_", [tensor, mask, given])
    else:
        t.emit("copy_", [tensor, t.emit(torch.where, [mask, given, tensor])])
    return True


def _store_indexed(t: Tracer, tensor: GraphTensor, keys: Sequence[Value], value: Value) -> bool:
    dims = dims_of(tensor.fake.dim(), list(keys))
    if dims is None or not all(_is_scalar(each) or each.pytype() in (int, slice, type(Ellipsis)) for each in keys):
        return False
    rows = t.make(slice(None))
    part = t.emit(operator.getitem, [tensor, TupleValue([rows if _is_scalar(each) else each for each in keys])])
    assert isinstance(part, GraphTensor)
    indices: list[Value] = []
    for each, begin, end in zip(keys, dims, dims[1:], strict=False):
        if each.pytype() is not int:
            indices += [each] if _is_scalar(each) else [t.make(None)] * (end - begin)
    given = _as_stored(t, part, part.fake.dim() - sum(map(_is_scalar, keys)), value)
    if given is None:
        return False
    t.emit(torch.ops.aten.index_put_, [part, ListValue(indices), given])
    return True


def _as_stored(t: Tracer, part: GraphTensor, ndim: int, value: Value) -> GraphTensor | None:
    """What is stored, as a tensor of the part's kind; None where storing converts more than a dtype, or the two overlap."""
    fake = part.fake
    if isinstance(value, GraphTensor):
        other = value.fake
        if value.cls is not torch.Tensor or other.device != fake.device or other.dim() > ndim:
            return None
        if other.is_complex() > fake.is_complex() or other.untyped_storage()._cdata == fake.untyped_storage()._cdata:
            return None
        stored = value if other.dtype is fake.dtype else t.emit("to", [value, t.make(fake.dtype)])
    else:
        if not value.is_constant() or type(value.as_constant()) not in (bool, int, float):
            return None
        number = value.as_constant()
        if isinstance(number, float) and not (fake.is_floating_point() or fake.is_complex()):
            return None
        if fake.dtype is torch.bool and not isinstance(number, bool):
            return None
        stored = t.emit("new_full", [part, (), value])
    return stored if isinstance(stored, GraphTensor) else None


def dims_of(ndim: int, keys: list[Value]) -> list[int] | None:
    """The dimension that each part of a key begins at. None where that is for eager to find out."""
    widths = [_width(each) for each in keys]
    used = sum(width for width in widths if width is not None)
    if used > ndim or widths.count(None) > 1 or -1 in widths:
        return None
    dims = [0]
    for width in widths:
        dims.append(dims[-1] + (ndim - used if width is None else width))
    return dims


def _width(key: Value) -> int | None:
    """How many dimensions a part of a key takes: None for an Ellipsis, -1 where its type does not say."""
    cls = key.pytype()
    if cls in (bool, type(None)):
        return 0
    if cls in (int, slice):
        return 1
    fake = getattr(key, "fake", None)
    if isinstance(fake, torch.Tensor):
        return fake.dim() if fake.dtype in (torch.bool, torch.uint8) else 1
    return None if cls is type(Ellipsis) else -1
