"""Group norms in parts: recomputation in the backward graph, which saves the memory of keeping results; and on a GPU those of
channels-last images, which ATen has no kernels for."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from ..decompositions import group_norm_of_last, group_norm_of_last_backward
from .convolution import Calls

aten = torch.ops.aten


def open_group_norm(graph: torch.fx.Graph) -> None:
    """The normalized numbers as those of x and two numbers a group. Run on the joint graph before it is cut in two: these are
    then enough for what reads the results (an activation's derivative), where those of ATen's operator, whose statistics are
    not calculated twice, are kept beside x. Not for half types, to which eager rounds what comes between."""
    for node in list(graph.find_nodes(op="call_function", target=aten.native_group_norm.default)):
        x = node.args[0].meta["val"]  # type: ignore[union-attr]  # a node
        normalized = [user for user in node.users if user.target is operator.getitem and user.args[1] == 0]
        plain = x.dtype in (torch.float32, torch.float64) and x.device.type == "cpu" and x.numel() != 0 and not node.kwargs
        if plain and len(normalized) == 1 and all(type(size) is int for size in x.shape):
            _open(graph, node, normalized[0])


def _open(graph: torch.fx.Graph, node: torch.fx.Node, normalized: torch.fx.Node) -> None:
    x, weight, bias, images, channels, _, groups, _ = node.args
    call, ones = Calls(graph, node), [1] * (x.meta["val"].dim() - 2)  # type: ignore[union-attr]  # a node

    def of_channels(statistic: int) -> torch.fx.Node:
        each = call(aten.unsqueeze.default, call(operator.getitem, node, statistic), 2)
        spread: Any = call(aten.expand.default, each, [images, groups, channels // groups])  # type: ignore[operator]  # numbers
        return call(aten.view.default, call(aten.clone.default, spread, memory_format=torch.contiguous_format),
                    [images, channels, *ones])

    with graph.inserting_before(normalized):
        y = call(aten.mul.Tensor, call(aten.sub.Tensor, x, of_channels(1)), of_channels(2))
        for target, parameter in ((aten.mul.Tensor, weight), (aten.add.Tensor, bias)):
            if parameter is not None:
                y = call(target, y, call(aten.view.default, parameter, [1, channels, *ones]))
    if y.meta["val"].stride() == normalized.meta["val"].stride():
        normalized.replace_all_uses_with(y)
        graph.erase_node(normalized)


def use_group_norm_of_last(graph: torch.fx.Graph) -> None:
    """Group norms of channels-last images on a GPU, and their derivatives, as our own operators: ATen's kernels there read
    plain images."""
    for target, own, at in (
        (aten.native_group_norm.default, group_norm_of_last, 0),
        (aten.native_group_norm_backward.default, group_norm_of_last_backward, 1),
    ):
        for node in graph.find_nodes(op="call_function", target=target):
            x = node.args[at].meta["val"]  # type: ignore[union-attr]  # a node
            if not x.is_contiguous() and x.device.type == "cuda" and not node.kwargs:
                node.target = own()
