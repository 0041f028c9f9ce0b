"""Batch norms in training in parts: what they give is recomputed in the backward graph, of what they read, and not kept."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from .convolution import Calls

aten = torch.ops.aten


def open_batch_norm(graph: torch.fx.Graph) -> None:
    """The normalized numbers as those of x, a mean and a scale a channel, as lower/norm.py has them. Run on the joint graph
    before it is cut in two: the derivative reads x anyway, of which these are then made where an activation's derivative reads
    them. Not for half types, to which eager rounds what comes between."""
    for node in list(graph.find_nodes(op="call_function", target=aten._native_batch_norm_legit_functional.default)):
        x, training = node.args[0].meta["val"], node.args[5]  # type: ignore[union-attr]  # a node
        normalized = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
        plain = x.dtype is torch.float32 and x.device.type == "cpu" and x.dim() > 1 and type(x.shape[1]) is int
        if plain and training is True and len(normalized) == 1 and 0 not in [s for s in x.shape if type(s) is int]:
            _open(graph, node, normalized[0])


def _open(graph: torch.fx.Graph, node: torch.fx.Node, normalized: torch.fx.Node) -> None:
    x, weight, bias, *_ = node.args
    call, meta = Calls(graph, node), x.meta["val"]  # type: ignore[union-attr]  # a node
    along = [1, meta.shape[1], *[1] * (meta.dim() - 2)]

    def statistic(place: int) -> Any:
        new = call(operator.getitem, node, place)
        for user in [user for user in node.users if user is not new and user.args[1] == place]:
            user.replace_all_uses_with(new)
            graph.erase_node(user)
        return new

    with graph.inserting_before(normalized):
        mean, scale = statistic(1), statistic(2)
        if weight is not None:
            scale = call(aten.mul.Tensor, scale, weight)
        centred = call(aten.sub.Tensor, x, call(aten.view.default, mean, along))
        y = call(aten.mul.Tensor, centred, call(aten.view.default, scale, along))
        if bias is not None:
            y = call(aten.add.Tensor, y, call(aten.view.default, bias, along))
    if y.meta["val"].stride() == normalized.meta["val"].stride():
        normalized.replace_all_uses_with(y)
        graph.erase_node(normalized)
