"""Passes over the ATen graph before it is lowered; each is a function of a graph, run in `pipeline.py` in this order."""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx
from torch.fx.operator_schemas import normalize_function

from fxjit.backends.graph.facts import is_check
from fxjit.schemas import communicates, returns_alias, target_uses_rng, writes

from .collectives import bucket_collectives, delay_wait_tensor
from .complex_parts import conjugate_numbers, split_complex
from .convolution import multiply_backward, multiply_forward
from .grouped_gradients import multiply_groups
from .grouped_products import join_groups
from .in_place import mark_in_place, write_by_aten
from .linear import join_linear
from .looked_up import add_looked_up
from .padded_products import pad_products
from .selected import join_selected
from .transposed import multiply_transposed

aten = torch.ops.aten


def drop_aliases(graph: torch.fx.Graph) -> None:
    """detach and alias mean nothing below autograd; t of t is its argument."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if node.target in (aten.detach.default, aten.alias.default, aten.lift_fresh.default):
            # An output must stay a tensor object of its own.
            if not any(user.op == "output" for user in node.users):
                replace(graph, node, node.args[0])
        elif node.target is aten.t.default and node.args[0].target is aten.t.default:
            if not any(user.op == "output" for user in node.users):
                replace(graph, node, node.args[0].args[0])


def replace(graph: torch.fx.Graph, node: torch.fx.Node, by: Any) -> None:
    node.replace_all_uses_with(by)
    graph.erase_node(node)


SPLITS = (aten.split.Tensor, aten.split_with_sizes.default, aten.unbind.int, aten.chunk.default)


def split_to_slices(graph: torch.fx.Graph) -> None:
    """The pieces of a split as slices, which kernels can read in place."""
    for node in list(graph.nodes):
        if node.target not in SPLITS or not isinstance(node.args[0], torch.fx.Node):
            continue
        source = node.args[0]
        meta = source.meta.get("val")
        if not isinstance(meta, torch.Tensor) or any(user.target is not operator.getitem for user in node.users):
            continue
        arguments = normalize_function(node.target, node.args, node.kwargs, normalize_to_only_use_kwargs=True)
        dim = (arguments.kwargs.get("dim", 0) if arguments else 0) % max(meta.dim(), 1)
        start, places = 0, []
        for piece in node.meta["val"]:
            places.append(start)
            start = start + (piece.shape[dim] if node.target is not aten.unbind.int else 1)
        if not all(isinstance(place, int) for place in (*places, start)):
            continue
        for user in list(node.users):
            index = user.args[1]
            with graph.inserting_before(user):
                if node.target is aten.unbind.int:
                    new = graph.call_function(aten.select.int, (source, dim, places[index]))
                else:
                    end = places[index] + node.meta["val"][index].shape[dim]
                    new = graph.call_function(aten.slice.Tensor, (source, dim, places[index], end))
            new.meta.update(user.meta)
            user.replace_all_uses_with(new)
            graph.erase_node(user)
        graph.erase_node(node)


def drop_dead(graph: torch.fx.Graph) -> None:
    graph.eliminate_dead_code(lambda node: is_check(node) or node.is_impure())


def share_equal(graph: torch.fx.Graph) -> None:
    """One node for equal calls of operators that depend on their arguments alone. Also run on the joint graph before it is
    cut into forward and backward (aot/driver.py)."""
    seen: dict[Any, torch.fx.Node] = {}
    returned = memory_of_outputs(graph)
    for node in list(graph.nodes):
        target = node.target
        if writes(node):
            seen.clear()  # what was read before may be another thing now
            continue
        if node.op != "call_function" or not (isinstance(target, torch._ops.OpOverload) or target is operator.getitem):
            continue
        if target_uses_rng(target) or communicates(target):
            continue
        # Two equal outputs must stay two tensors.
        if node in returned or node.meta.get("unbacked_bindings"):
            continue
        key = hashable((target, node.args, tuple(sorted(node.kwargs.items()))))
        if key is None:
            continue
        if key in seen:
            replace(graph, node, seen[key])
        else:
            seen[key] = node


def memory_of_outputs(graph: torch.fx.Graph) -> set[torch.fx.Node]:
    """The nodes that the graph returns, and those that these are views of."""
    found: set[torch.fx.Node] = set()
    waiting = [node for output in graph.find_nodes(op="output") for node in output.all_input_nodes]
    while waiting:
        node = waiting.pop()
        if node in found:
            continue
        found.add(node)
        if node.target is operator.getitem or (node.op == "call_function" and returns_alias(node.target)):
            waiting += node.all_input_nodes
    return found


def hashable(x: Any) -> Any:
    """A key that distinguishes 1, 1.0 and True, or None where there is none."""
    if isinstance(x, (list, tuple)):
        items = [hashable(each) for each in x]
        return None if any(item is None for item in items) else (type(x).__name__, *items)
    try:
        hash(x)
    except TypeError:
        return None
    return (type(x).__name__, repr(x) if isinstance(x, float) else x)


PASSES = (
    split_to_slices, drop_aliases, conjugate_numbers, split_complex, multiply_forward, multiply_transposed, multiply_backward,
    multiply_groups, join_groups, join_linear, join_selected, drop_dead, share_equal, pad_products, add_looked_up,
    bucket_collectives, mark_in_place, write_by_aten, delay_wait_tensor,
)  # fmt: skip
