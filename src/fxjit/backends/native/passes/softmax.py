"""Recomputation of softmax in the backward graph of a classifier's loss, which saves the memory of keeping it."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from ..decompositions import log_softmax_backward, log_softmax_parts

aten = torch.ops.aten
DERIVATIVE = aten._log_softmax_backward_data.default
LOSSES = {aten.nll_loss_forward.default, aten.nll_loss2d_forward.default}
#: They read of the logarithms how many there are.
DERIVATIVES_OF_LOSSES = {aten.nll_loss_backward.default, aten.nll_loss2d_backward.default}


def open_log_softmax(graph: torch.fx.Graph) -> None:
    """The logarithms of a softmax that a loss reads, as differences of x and two numbers a row. Run on the joint graph before
    it is cut in two: these are then enough for the derivative, where ATen's keeps as many numbers as x has. Not for half
    types, to which eager rounds the logarithms."""
    for node in graph.find_nodes(op="call_function", target=aten._log_softmax.default):
        x, readers = node.args[0].meta["val"], readers_of(node)
        known = {each.target for each in readers} <= {DERIVATIVE, *LOSSES, *DERIVATIVES_OF_LOSSES}
        wide = x.dtype is node.meta["val"].dtype and x.dtype in (torch.float32, torch.float64)
        if known and wide and x.dim() and any(each.target is DERIVATIVE for each in readers):
            open_one(graph, node, readers)


def readers_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    """The calls that read the node's numbers, looking through what autograd detaches."""
    found = []
    for user in node.users:
        found += readers_of(user) if user.target is aten.detach.default else [user]
    return found


def open_one(graph: torch.fx.Graph, node: torch.fx.Node, readers: list[torch.fx.Node]) -> None:
    def call(target: Any, *args: Any) -> torch.fx.Node:
        new = graph.call_function(target, args)
        given = torch.fx.node.map_arg(args, lambda each: each.meta["val"])
        with node.meta["val"].fake_mode:
            new.meta = {**node.meta, "val": target(*given)}
        return new

    x, dim = node.args[0], node.args[1]
    with graph.inserting_before(node):
        parts = call(log_softmax_parts(), x, dim)
        top, total = call(operator.getitem, parts, 0), call(operator.getitem, parts, 1)
        logarithms = call(aten.sub.Tensor, call(aten.sub.Tensor, x, top), total)
    for reader in readers:
        if reader.target is DERIVATIVE:
            # One operator, whose argument is x: the partitioner keeps that, and not a difference, which it takes for nearer.
            reader.target, reader.args = log_softmax_backward(), (reader.args[0], x, top, total, dim)
        elif reader.target in DERIVATIVES_OF_LOSSES:
            reader.update_arg(1, x)
    node.replace_all_uses_with(logarithms)
    graph.erase_node(node)
