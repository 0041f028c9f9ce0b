"""Reads at computed places: embedding, gather, index, index_select. An index out of bounds raises as eager's does."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ..index import Size, Sizes, sizes_of
from ..ir import Expr, Gather, Load, NotAffine, Value, expand, is_plain_load, reindex
from ..ops import cast
from .table import Lowering, NoLowering, lowers, meta_of


def source_load(low: Lowering, node: torch.fx.Node, position: int = 0) -> Load:
    """The tensor that is read from, as memory."""
    base = node.args[position]
    assert isinstance(base, torch.fx.Node)
    value = low.value(low.env[base])
    if not is_plain_load(value.expr):
        low.materialize(base)
        value = low.value(low.env[base])
    assert isinstance(value.expr, Load)
    if value.expr.dtype is not value.expr.storage and value.expr.dtype is not torch.float32:
        raise NotAffine("a converted load")
    return value.expr


def over(expr: Expr, dims: tuple[int, ...], ndim: int) -> Expr:
    """An expression over some dimensions, as one over all `ndim` of the result: `dims[k]` is where its k-th goes."""

    def change(strides: Sizes, offset: Size) -> tuple[Sizes, Size]:
        out: list[Size] = [0] * ndim
        for dim, stride in zip(dims, strides, strict=True):
            out[dim] = stride
        return tuple(out), offset

    return reindex(expr, change)


def gathered(load: Load, strides: Sizes, gathers: tuple[Gather, ...]) -> Load:
    return Load(load.buffer, load.dtype, load.storage, strides, load.offset, gathers)


def as_index(value: Value) -> Expr:
    if value.dtype.is_floating_point or value.dtype is torch.bool:
        raise NoLowering("an index that is not an integer")
    return cast(value.expr, torch.int64)


@lowers("embedding.default")
def lower_embedding(low: Lowering, node: torch.fx.Node, weight: Any, indices: Any, *args: Any) -> Value:
    load, weight, indices = source_load(low, node), low.value(weight), low.value(indices)
    ndim = indices.ndim + 1
    index = over(as_index(indices), tuple(range(indices.ndim)), ndim)
    strides: Sizes = (0,) * indices.ndim + (load.strides[1],)
    return read(node, gathered(load, strides, (Gather(index, load.strides[0], weight.size[0], False),)))


@lowers("gather.default")
def lower_gather(low: Lowering, node: torch.fx.Node, x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> Value:
    load, x, index = source_load(low, node), low.value(x), low.value(index)
    if x.ndim == 0 or index.ndim != x.ndim:
        raise NoLowering("gather from one number")
    dim %= x.ndim
    strides = tuple(0 if i == dim else s for i, s in enumerate(load.strides))
    return read(node, gathered(load, strides, (Gather(as_index(index), load.strides[dim], x.size[dim], False),)))


@lowers("index_select.default")
def lower_index_select(low: Lowering, node: torch.fx.Node, x: Any, dim: int, index: Any) -> Value:
    load, x, index = source_load(low, node), low.value(x), low.value(index)
    if x.ndim == 0 or index.ndim != 1:
        raise NoLowering("index_select from one number")
    dim %= x.ndim
    strides = tuple(0 if i == dim else s for i, s in enumerate(load.strides))
    where = over(as_index(index), (dim,), x.ndim)
    return read(node, gathered(load, strides, (Gather(where, load.strides[dim], x.size[dim], False),)))


@lowers("index.Tensor", "_unsafe_index.Tensor")
def lower_index(low: Lowering, node: torch.fx.Node, x: Any, indices: Any) -> Value:
    load, x = source_load(low, node), low.value(x)
    given = {dim: low.value(each) for dim, each in enumerate(indices) if each is not None}
    if not given or any(value.dtype in (torch.bool, torch.uint8) for value in given.values()):
        raise NoLowering("indexing by a mask")
    if any(x.size[dim] == 0 for dim in given):
        raise NoLowering("an index into nothing")
    meta = meta_of(node)
    size = sizes_of(meta.shape)
    broadcast = max(value.ndim for value in given.values())
    dims = sorted(given)
    adjacent = dims == list(range(dims[0], dims[-1] + 1))
    first = dims[0] if adjacent else 0
    rest = [dim for dim in range(x.ndim) if dim not in given]
    # Where each dimension of x that is not indexed goes in the result: around the indexed block, or all after it.
    places = {dim: (k if adjacent and k < first else k + broadcast) for k, dim in enumerate(rest)}
    block = tuple(range(first, first + broadcast))
    shape = tuple(size[dim] for dim in block)
    strides: list[Size] = [0] * len(size)
    for dim, place in places.items():
        strides[place] = load.strides[dim]
    gathers = tuple(
        Gather(over(expand(as_index(value), value.size, shape), block, len(size)), load.strides[dim], x.size[dim], True)
        for dim, value in given.items()
    )
    return read(node, gathered(load, tuple(strides), gathers))


def read(node: torch.fx.Node, load: Load) -> Value:
    meta = meta_of(node)
    return Value(sizes_of(meta.shape), meta.dtype, load)
