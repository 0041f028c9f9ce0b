"""Passes over AOTAutograd's joint graph before it is partitioned, and over what the partitioner made of it."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy

from ..graph.edit import copy_in_layout, outputs_of, set_outputs, where_or_zero
from ..graph.facts import view_root

aten = torch.ops.aten
_EXTREMES = {aten.max.default, aten.min.default, aten.amax.default, aten.amin.default, aten.linalg_vector_norm.default}


def select_gradients_of_extremes(joint: torch.fx.GraphModule) -> None:
    """Gradients of `max()`, `min()` and the medians of all numbers, as eager computes them on a CPU: shared out among the
    numbers that are equal to the result, zero for the others. AOTAutograd traces what CUDA does: the others get the gradient
    times zero, which is NaN where the gradient is."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.mul.Tensor):
        mask, share = node.args
        if _is_mask_of_extreme(mask) and _is_share(share, mask) and node.meta["val"].device.type == "cpu":
            node.replace_all_uses_with(where_or_zero(joint.graph, node, mask, share, node))
            joint.graph.erase_node(node)


def _is_mask_of_extreme(mask: Any) -> bool:
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


def save_operands_of_extremes(joint: torch.fx.GraphModule) -> None:
    """Has the partitioner save what an extreme was found among, of half types. The derivative divides by how many numbers equal
    the extreme: that may be none where the backward graph computes the numbers again, from what was rounded to be saved, which
    the forward graph had in registers."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.eq.Tensor):
        sides = [view_root(each) for each in node.args if isinstance(each, torch.fx.Node)]
        if any(each.target in _EXTREMES for each in sides):
            for each in sides:
                if each.op == "call_function" and each.meta["val"].dtype in (torch.float16, torch.bfloat16):
                    each.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def copy_activations_before_mutation(forward: torch.fx.GraphModule, num_outputs: int, mutated: Sequence[int] = ()) -> None:
    """Copies activations saved for backward whose memory is that of an input which the forward graph mutates at its end, or
    that AOTAutograd's wrapper mutates behind it (their indices are `mutated`). The partitioner may save such an input, to
    compute from it again what the derivative needs: that would be of the new value, and autograd refuses it."""
    graph = forward.graph
    placeholders = graph.find_nodes(op="placeholder")
    mutations = {placeholders[index]: graph.output_node() for index in mutated}
    mutations.update((view_root(node.args[0]), node) for node in reversed(graph.nodes)  # type: ignore[arg-type]  # a node
                     if node.target is aten.copy_.default)  # fmt: skip
    if not mutations:
        return
    values = outputs_of(graph)
    for place in range(num_outputs, len(values)):
        value = values[place]
        if isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor):
            mutation = mutations.get(view_root(value))
            if mutation is not None:
                values[place] = _clone_of(value) or _copy_before(mutation, value)
    set_outputs(graph, values)
    graph.lint()
    forward.recompile()


def _clone_of(value: torch.fx.Node) -> torch.fx.Node | None:
    """The copy that AOTAutograd begins with of an input which its wrapper writes to: the graph writes to none such."""
    return next((each for each in value.users if value.op == "placeholder" and _calls(each, aten.clone.default)
                 and each.meta["val"].stride() == value.meta["val"].stride()), None)  # fmt: skip


def _copy_before(mutation: torch.fx.Node, value: torch.fx.Node) -> torch.fx.Node:
    with mutation.graph.inserting_before(mutation):
        return copy_in_layout(mutation.graph, value)


def mark_integer_outputs(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule) -> None:
    """Marks the inputs of the backward graph that are auxiliary integer outputs of an operator, as indices: theirs is the one
    shape that an operator may not keep to (native/executor), so who relies on it has to look."""
    auxiliary = {node.name for node in forward.graph.find_nodes(op="call_function", target=operator.getitem)
                 if isinstance(meta := node.meta.get("val"), torch.Tensor)
                 and not (meta.is_floating_point() or meta.is_complex())}
    for node in backward.graph.find_nodes(op="placeholder"):
        if node.name in auxiliary:
            node.meta["fxjit_auxiliary_output"] = True
