"""The gradient of looked-up rows, added to the table's other gradient where that lies.

A table that is looked up in and multiplied with (tied embeddings) has for its gradient the sum of two tables: a product's, and
zeros with the rows' gradients added at their places. That takes three tables; rows added to the product take one. A pass of
`cleanup.PASSES`, behind the one that shares equal nodes: what is marked has one reader, and keeps it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from fxjit.schemas import returns_alias

from .in_place import MARK
from .selected import same_kind

aten = torch.ops.aten
#: Sums of the half types are rounded at each row: those of many rows had better begin at zero, as eager's.
TYPES = (torch.float32, torch.float64)


def add_looked_up(graph: torch.fx.Graph) -> None:
    for node in graph.find_nodes(op="call_function", target=aten.add.Tensor):
        if node.kwargs:
            continue
        for rows, base in (node.args, node.args[::-1]):
            if is_gradient_of_rows(rows) and isinstance(base, torch.fx.Node) and rows is not base and same_kind(base, node):
                add_rows(graph, node, base, rows)
                break


def is_gradient_of_rows(node: Any) -> bool:
    """Whether it is a table of zeros with rows added, which only the sum reads."""
    if not isinstance(node, torch.fx.Node) or node.target is not aten.embedding_dense_backward.default or node.kwargs:
        return False
    arguments: tuple[Any, ...] = node.args
    val, (grad, indices, _, padding, scaled) = node.meta["val"], arguments
    given = grad.meta["val"], indices.meta["val"]
    return (len(node.users) == 1 and not scaled and isinstance(padding, int) and val.dtype in TYPES
            and all(each.device.type == "cpu" for each in (val, *given)) and given[0].dtype is val.dtype)  # fmt: skip


def add_rows(graph: torch.fx.Graph, node: torch.fx.Node, base: torch.fx.Node, rows: torch.fx.Node) -> None:
    """`base` with each row of the gradient added at its place, for the sum of both. Rows of the padding, and those that are
    not there, are none, as in eager."""
    arguments: tuple[Any, ...] = rows.args
    val, (grad, indices, count, padding, _) = node.meta["val"], arguments

    def call(target: Any, *args: Any) -> torch.fx.Node:
        new = graph.call_function(target, args)
        with val.fake_mode:
            new.meta = {**node.meta, "val": target(*torch.fx.node.map_arg(args, lambda each: each.meta["val"]))}
        return new

    free = is_free(base, node)
    with graph.inserting_before(node):
        outside = call(aten.bitwise_or.Tensor, call(aten.lt.Scalar, indices, 0), call(aten.ge.Scalar, indices, count))
        if padding >= 0:
            outside = call(aten.bitwise_or.Tensor, outside, call(aten.eq.Scalar, indices, padding))
        value = call(aten.masked_fill.Scalar, grad, call(aten.unsqueeze.default, outside, -1), 0)
        place = call(aten.masked_fill.Scalar, indices, outside, 0)
        total = graph.call_function(aten.index_put.default, (base, [place], value, True))
    total.meta.update(node.meta)
    total.meta[MARK] = free
    node.replace_all_uses_with(total)
    graph.erase_node(node)
    graph.erase_node(rows)


def is_free(base: torch.fx.Node, reader: torch.fx.Node) -> bool:
    """Whether the memory is the value's own, and nobody but the reader looks at it."""
    target = base.target
    return (base.op == "call_function" and isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "fxjit")
            and not returns_alias(target) and list(base.users) == [reader])  # fmt: skip
