"""What a forward graph saves for its backward graph must be what it read, also where it writes to the input afterwards, and
what it found extremes among.

functorch's partitioner may save an input, to compute from it again what the derivative needs, and end the forward graph
with a write to that same input: the derivative would then be that of the new value.
"""

from __future__ import annotations

import operator

import torch
import torch.fx
from torch.utils.checkpoint import CheckpointPolicy

from .graph.facts import view_root

aten = torch.ops.aten
EXTREMES = {aten.max.default, aten.min.default, aten.amax.default, aten.amin.default, aten.linalg_vector_norm.default}


def save_what_extremes_are_of(joint: torch.fx.GraphModule) -> None:
    """The derivative of an extreme divides by how many numbers equal it. Of a half type that may be none where the backward
    graph computes the numbers again: from what was rounded to be saved, which the forward graph had in registers."""
    for node in joint.graph.find_nodes(op="call_function", target=aten.eq.Tensor):
        sides = [view_root(each) for each in node.args if isinstance(each, torch.fx.Node)]
        if any(each.target in EXTREMES for each in sides):
            for each in sides:
                if each.op == "call_function" and each.meta["val"].dtype in (torch.float16, torch.bfloat16):
                    each.meta["recompute"] = CheckpointPolicy.MUST_SAVE


def keep_old_values(forward: torch.fx.GraphModule, num_outputs: int) -> None:
    """Saved values in the memory of an input that the graph writes to are copied before that."""
    graph = forward.graph
    written = {view_root(node.args[0]): node for node in reversed(graph.nodes) if node.target is aten.copy_.default}
    if not written:
        return
    output = next(iter(graph.find_nodes(op="output")))
    values = list(output.args[0])
    for place in range(num_outputs, len(values)):
        value = values[place]
        if isinstance(value, torch.fx.Node) and isinstance(value.meta.get("val"), torch.Tensor) and view_root(value) in written:
            with graph.inserting_before(written[view_root(value)]):
                values[place] = _copy(graph, value)
    output.args = (values if isinstance(output.args[0], list) else tuple(values),)
    graph.lint()
    forward.recompile()


def mark_results_beside(forward: torch.fx.GraphModule, backward: torch.fx.GraphModule) -> None:
    """Marks the inputs of the backward graph that are integers beside an operator's result: theirs is the one shape that an
    operator may not keep to (see native/codegen/wrapper.py), so who relies on it has to look."""
    beside = {node.name for node in forward.graph.find_nodes(op="call_function", target=operator.getitem)
              if isinstance(meta := node.meta.get("val"), torch.Tensor) and not (meta.is_floating_point() or meta.is_complex())}
    for node in backward.graph.find_nodes(op="placeholder"):
        if node.name in beside:
            node.meta["fxjit_result_beside"] = True


def _copy(graph: torch.fx.Graph, value: torch.fx.Node) -> torch.fx.Node:
    """In the same layout, since the backward graph was made for that."""
    meta = value.meta["val"]
    if meta.is_contiguous():
        new = graph.call_function(aten.clone.default, (value,))
    else:
        memory = graph.call_function(aten.new_empty_strided.default, (value, list(meta.shape), list(meta.stride())))
        memory.meta["val"] = meta
        new = graph.call_function(aten.copy.default, (memory, value))
    new.meta["val"] = meta
    return new
