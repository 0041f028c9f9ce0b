"""Linear layers put together again: AOTAutograd breaks `linear` up into views, a transpose and a matrix product, and each
of those that ATen is called for costs a call. A pass of `cleanup.PASSES`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx

from fxjit.backends.graph.layout import expressions

aten = torch.ops.aten
_VIEWS = (aten.view.default, aten._unsafe_view.default, aten.reshape.default)


def join_linear(graph: torch.fx.Graph) -> None:
    """`view(addmm(bias, view(x), t(weight)))` and `view(mm(view(x), t(weight)))` become `linear(x, weight, bias)`."""
    for node in list(graph.nodes):
        if node.op != "call_function" or node.kwargs:
            continue
        if node.target is aten.addmm.default:
            bias, rows, turned = node.args
            if not _is_vector(bias):
                continue
        elif node.target is aten.mm.default:
            bias, (rows, turned) = None, node.args
        else:
            continue
        if turned.target is not aten.t.default or not _is_strided(node, rows, turned.args[0]):
            continue
        _join(graph, node, rows, turned.args[0], bias)


def _is_vector(node: Any) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.dim() == 1


def _is_strided(*nodes: torch.fx.Node) -> bool:
    values = [node.meta.get("val") for node in nodes]
    return all(
        isinstance(value, torch.Tensor) and value.layout is torch.strided and value.device.type == "cpu" for value in values
    )


def _join(
    graph: torch.fx.Graph, node: torch.fx.Node, rows: torch.fx.Node, weight: torch.fx.Node, bias: torch.fx.Node | None
) -> None:
    last, source = node, rows
    user = next(iter(node.users)) if len(node.users) == 1 else None
    if user is not None and user.target in _VIEWS and rows.target in _VIEWS:
        wide = rows.args[0]
        assert isinstance(wide, torch.fx.Node), "a view is of another node"
        before, after = wide.meta["val"], user.meta["val"]
        features_in, features_out = rows.meta["val"].shape[-1], node.meta["val"].shape[-1]
        if not before.is_contiguous() or before.dim() == 0:
            return
        if _same_shape(after.shape, (*before.shape[:-1], features_out)) and _same_shape(before.shape[-1:], (features_in,)):
            last, source = user, wide
    with graph.inserting_before(last):
        new = graph.call_function(aten.linear.default, (source, weight) if bias is None else (source, weight, bias))
    new.meta.update(last.meta)
    last.replace_all_uses_with(new)
    graph.erase_node(last)
    if last is not node:
        graph.erase_node(node)


def _same_shape(a: Sequence[Any], b: Sequence[Any]) -> bool:
    """Equal for certain: the same numbers or the same expressions."""
    return expressions(a) == expressions(b)
