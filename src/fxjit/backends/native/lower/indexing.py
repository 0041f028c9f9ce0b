"""Reads at computed places: embedding, gather, index, index_select. An index out of bounds raises as eager's does."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from ..index import Size, Sizes, prod, sizes_of
from ..ir import Expr, Gather, Iota, Load, NotAffine, TensorExpr, expand, is_plain_load, rebuild, reindex
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
    if value.expr.dtype is not value.expr.memory_dtype and value.expr.dtype is not torch.float32:
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
    return Load(load.buffer, load.dtype, load.memory_dtype, strides, load.offset, gathers)


def looked_up(low: Lowering, node: torch.fx.Node, x: TensorExpr, dim: int, index: Expr) -> Expr:
    """Argument 0 of `node` at `index` along `dim`: computed from what it is made of, or read from memory."""
    try:
        return at(x.expr, dim, index, x.size[dim])
    except NotAffine:
        base = node.args[0]
        assert isinstance(base, torch.fx.Node)
        low.materialize(base)
        return at(low.value(low.env[base]).expr, dim, index, x.size[dim])


def at(expr: Expr, dim: int, index: Expr, size: Size) -> Expr:
    """`expr` with a computed number for the loop variable `dim`, in bounds of `size` or an IndexError. Raises NotAffine where
    the number would not go into addresses alone, or into none."""
    checked = False

    def leaf(node: Expr) -> Expr:
        nonlocal checked
        if not isinstance(node, (Load, Iota)) or node.strides[dim] == 0:
            return node
        if isinstance(node, Iota) or node.gathers or (node.dtype is not node.memory_dtype and node.dtype is not torch.float32):
            raise NotAffine("a place that is a value, a second computed place, or a converted load")
        checked = True
        strides = node.strides[:dim] + (0,) + node.strides[dim + 1 :]
        return gathered(node, strides, (Gather(index, node.strides[dim], size, False),))

    found = rebuild(expr, leaf)
    if not checked:
        raise NotAffine("nothing to look up in")
    return found


def as_index(value: TensorExpr) -> Expr:
    if value.dtype.is_floating_point or value.dtype is torch.bool:
        raise NoLowering("an index that is not an integer")
    return cast(value.expr, torch.int64)


@lowers("embedding.default")
def lower_embedding(low: Lowering, node: torch.fx.Node, weight: Any, indices: Any, *args: Any) -> TensorExpr:
    load, weight, indices = source_load(low, node), low.value(weight), low.value(indices)
    ndim = indices.ndim + 1
    index = over(as_index(indices), tuple(range(indices.ndim)), ndim)
    strides: Sizes = (0,) * indices.ndim + (load.strides[1],)
    return read(node, gathered(load, strides, (Gather(index, load.strides[0], weight.size[0], False),)))


@lowers("gather.default")
def lower_gather(low: Lowering, node: torch.fx.Node, x: Any, dim: int, index: Any, *, sparse_grad: bool = False) -> TensorExpr:
    x, index = low.value(x), low.value(index)
    if x.ndim == 0 or index.ndim != x.ndim:
        raise NoLowering("gather from one number")
    if not fewer(index, x):
        source_load(low, node)
        x = low.value(low.env[node.args[0]])  # type: ignore[index]  # a node
    dim %= x.ndim
    return TensorExpr(sizes_of(meta_of(node).shape), x.dtype, looked_up(low, node, x, dim, as_index(index)))


def fewer(index: TensorExpr, x: TensorExpr) -> bool:
    """Whether it is known that no number would be computed more often than in a pass over `x`."""
    sizes = (*index.size, *x.size)
    return all(isinstance(size, int) for size in sizes) and prod(index.size) <= prod(x.size)  # type: ignore[operator]  # ints


@lowers("index_select.default")
def lower_index_select(low: Lowering, node: torch.fx.Node, x: Any, dim: int, index: Any) -> TensorExpr:
    load, x, index = source_load(low, node), low.value(x), low.value(index)
    if x.ndim == 0 or index.ndim != 1:
        raise NoLowering("index_select from one number")
    dim %= x.ndim
    strides = tuple(0 if i == dim else s for i, s in enumerate(load.strides))
    where = over(as_index(index), (dim,), x.ndim)
    return read(node, gathered(load, strides, (Gather(where, load.strides[dim], x.size[dim], False),)))


@lowers("index.Tensor", "_unsafe_index.Tensor")
def lower_index(low: Lowering, node: torch.fx.Node, x: Any, indices: Any) -> TensorExpr:
    load, x = source_load(low, node), low.value(x)
    given = {dim: low.value(each) for dim, each in enumerate(indices) if each is not None}
    if not given or any(value.dtype in (torch.bool, torch.uint8) for value in given.values()):
        raise NoLowering("indexing by a mask")
    if any(x.size[dim] == 0 for dim in given):
        raise NoLowering("an index into nothing")
    first, size = first_place(given), sizes_of(meta_of(node).shape)
    shape = size[first : first + len(size) - x.ndim + len(given)]
    _, strides, gathers = places_of(x.size, load.strides, given, shape)
    return read(node, gathered(load, strides, gathers))


def first_place(given: dict[int, TensorExpr]) -> int:
    """Where the dimensions of the indices come in the result: in place of those indexed if they are neighbours."""
    dims = sorted(given)
    return dims[0] if dims == list(range(dims[0], dims[-1] + 1)) else 0


def places_of(
    whole: Sizes, stride: Sizes, given: dict[int, TensorExpr], shape: Sizes
) -> tuple[Sizes, Sizes, tuple[Gather, ...]]:
    """Elements of a tensor (`whole`, `stride`) by indices for some of its dimensions, which make `shape` together: the size of
    what is indexed, its strides in the tensor, and what the indices add to the place."""
    first, count = first_place(given), len(shape)
    rest = [dim for dim in range(len(whole)) if dim not in given]
    size = tuple(whole[dim] for dim in rest[:first]) + shape + tuple(whole[dim] for dim in rest[first:])
    strides: Sizes = tuple(stride[dim] for dim in rest[:first]) + (0,) * count + tuple(stride[dim] for dim in rest[first:])
    block = tuple(range(first, first + count))
    gathers = tuple(
        Gather(over(expand(as_index(value), value.size, shape), block, len(size)), stride[dim], whole[dim], True)
        for dim, value in given.items()
    )
    return size, strides, gathers


def read(node: torch.fx.Node, load: Load) -> TensorExpr:
    meta = meta_of(node)
    return TensorExpr(sizes_of(meta.shape), meta.dtype, load)
