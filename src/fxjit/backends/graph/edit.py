"""Edits of FX graphs: copies of a graph, its outputs, and calls whose values are known."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from fxjit.fake_execution import python_dispatcher

Node = torch.fx.Node
aten = torch.ops.aten


def copied(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The same graph over the same attributes, to be changed. `recompile` it afterwards."""
    return torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))


def outputs_of(graph: torch.fx.Graph) -> list[Any]:
    """The values that the graph returns, of a graph that returns a flat tuple or list."""
    return list(graph.output_node().args[0])  # type: ignore[arg-type]  # a sequence: see above


def set_outputs(graph: torch.fx.Graph, values: Sequence[Any]) -> None:
    """Has the graph return these, in a list or a tuple as before."""
    output = graph.output_node()
    output.args = (list(values) if isinstance(output.args[0], list) else tuple(values),)


def call_like(graph: torch.fx.Graph, like: Node, target: Any, *args: Any, **kwargs: Any) -> Node:
    """A call in an ATen graph, at the insertion point, that stands for `like`: with its meta, but a fake value of its own."""
    node = graph.call_function(target, args, kwargs)
    with like.meta["val"].fake_mode:
        node.meta = like.meta | {"val": target(*torch.fx.node.map_arg(args, lambda each: each.meta["val"]), **kwargs)}
    return node


def call_captured(graph: torch.fx.Graph, function: Any, *args: Any, **kwargs: Any) -> Node:
    """A call in a captured graph, at the insertion point, with its fake value if its arguments have theirs."""
    node = graph.call_function(function, args, kwargs)
    given = {each: each.meta.get("example_value") for each in node.all_input_nodes}
    if all(isinstance(value, (FakeTensor, tuple)) for value in given.values()):
        with python_dispatcher():  # sizes may be symbols
            args, kwargs = torch.fx.node.map_arg((args, kwargs), given.__getitem__)  # type: ignore[misc]  # a tuple of two
            node.meta["example_value"] = function(*args, **kwargs)
    return node


def copy_in_layout(graph: torch.fx.Graph, value: Node, like: torch.Tensor | None = None) -> Node:
    """A copy of a value of an ATen graph, at the insertion point, with its strides or with those of `like`."""
    meta = value.meta["val"] if like is None else like
    if meta.is_contiguous():
        new = graph.call_function(aten.clone.default, (value,))
    else:
        memory = graph.call_function(aten.new_empty_strided.default, (value, list(meta.shape), list(meta.stride())))
        memory.meta["val"] = meta
        new = graph.call_function(aten.copy.default, (memory, value))
    new.meta["val"] = meta
    return new


def where_or_zero(graph: torch.fx.Graph, after: Node, mask: Node, value: Any, like: Node) -> Node:
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
