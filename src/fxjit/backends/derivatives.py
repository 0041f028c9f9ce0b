"""Derivatives that AOTAutograd traces otherwise than eager computes them on a CPU."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

aten = torch.ops.aten


def choose_extremes(joint: torch.fx.GraphModule) -> None:
    """`max()`, `min()` and the medians of all numbers share their gradient out among those that are equal to it; the others
    get zero. Tracing has them get the gradient times zero instead, as CUDA does, which is NaN where the gradient is."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        mask, share = node.args
        if _is_where_it_was_found(mask) and _is_share(share, mask) and node.meta["val"].device.type == "cpu":
            node.replace_all_uses_with(or_zero(joint.graph, node, mask, share, node))
            joint.graph.erase_node(node)


def or_zero(graph: torch.fx.Graph, after: torch.fx.Node, mask: torch.fx.Node, value: Any, like: torch.fx.Node) -> torch.fx.Node:
    """`value` where the mask is true, and zero elsewhere: a node behind `after`, of the type and shape of `like`."""
    val = like.meta["val"]
    with graph.inserting_after(after):
        zero = graph.call_function(aten.full.default, ([], 0), {"dtype": val.dtype, "device": val.device})
    with graph.inserting_after(zero):
        chosen = graph.call_function(aten.where.self, (mask, value, zero))
    with val.fake_mode:
        zero.meta = like.meta | {"val": torch.zeros((), dtype=val.dtype, device=val.device)}
    chosen.meta = dict(like.meta)
    return chosen


def _is_where_it_was_found(mask: Any) -> bool:
    """`x == found or (isnan(x) and isnan(found))`"""
    if not _calls(mask, aten.logical_or.default):
        return False
    equal, unknown = mask.args
    return _calls(equal, aten.eq.Tensor) and _calls(unknown, aten.logical_and.default)


def _is_share(share: Any, mask: torch.fx.Node) -> bool:
    """Some number through how many are in the mask."""
    return _calls(share, aten.div.Tensor) and _calls(share.args[1], aten.sum.default) and share.args[1].args[0] is mask


def _calls(node: Any, target: Any) -> bool:
    return isinstance(node, torch.fx.Node) and node.target is target
