"""Writes in place whose functional form has another layout than the tensor that is written, as computed elsewhere and copied.

A graph of AOTAutograd's has the functional form of each write, and what follows it takes its layout from there: behind
`x.addmm_(a, b)` on a transposed `x`, `x * 2` would lie in rows, and `x.bernoulli_()` draws in the order of memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree

from fxjit.fake_execution import python_dispatcher
from fxjit.schemas import is_in_place_name, name_of, overloads_of, storages_of, uses_rng, written

from ..graph.edit import call_captured, copied
from ..graph.layout import hints

Node = torch.fx.Node
aten = torch.ops.aten


def with_strides_of_writes(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with these writes taken apart: a result of its own, and a copy of it to where it belongs."""
    if not isinstance(gm, torch.fx.GraphModule) or not any(_function(node) is not None for node in gm.graph.nodes):
        return gm
    changed = copied(gm)
    for node in list(changed.graph.nodes):
        function = _function(node)
        if function is not None:
            with changed.graph.inserting_before(node):
                _take_apart(changed.graph, node, function)
    changed.graph.lint()
    changed.recompile()
    return changed


def _take_apart(graph: torch.fx.Graph, node: Node, function: Callable[..., Any]) -> None:
    (to,) = written(node)
    if uses_rng(node):
        dims = _order(to.meta["example_value"])
        view = call_captured(graph, aten.permute.default, to, dims)
        write = call_captured(graph, getattr(torch.Tensor, name_of(node.target)), view, *node.args[1:])
        write.kwargs = node.kwargs
        new = to
    else:
        made = graph.call_function(function, node.args, node.kwargs)
        made.meta["example_value"] = _result(node, function)
        new = call_captured(graph, torch.Tensor.copy_, to, made)
    node.replace_all_uses_with(new)
    graph.erase_node(node)


def _function(node: Node) -> Callable[..., Any] | None:
    """What computes the result of a write, where that would lie in another order of dimensions than what is written."""
    if node.op not in ("call_function", "call_method"):
        return None
    name = name_of(node.target)
    function = getattr(torch.Tensor, name.removesuffix("_"), None) if is_in_place_name(name) else None
    if function is None or not overloads_of(node.target) or not node.args or (to := written(node)) != [node.args[0]]:
        return None
    if any(torch.Tag.inplace_view in overload.tags for overload in overloads_of(node.target)):
        return None  # it writes to no element
    given = [each.meta.get("example_value") for each in node.all_input_nodes]
    if not all(isinstance(each, FakeTensor) for each in given):
        return None
    order = _order(to[0].meta["example_value"])
    if order is None or order == sorted(order) or (uses_rng(node) and len(given) > 1):
        return None
    read = [each for each in pytree.tree_leaves((node.args[1:], node.kwargs)) if isinstance(each, Node)]
    if not storages_of(to).isdisjoint(storages_of(read)):  # eager reads what it wrote: a rule of its own
        return None
    result, like = _result(node, function), to[0].meta["example_value"]
    differs = isinstance(result, torch.Tensor) and result.shape == like.shape and _order(result) not in (None, order)
    return function if differs else None


def _result(node: Node, function: Callable[..., Any]) -> Any:
    """On fake tensors; None where it is refused."""
    args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta["example_value"])
    try:
        with python_dispatcher():
            return function(*args, **kwargs)
    except Exception:
        return None


def _order(x: torch.Tensor) -> list[int] | None:
    """The dimensions from the outermost in memory to the innermost, and those of one element where they stand; None where
    sizes are known by data alone, or elements lie on each other."""
    if x.layout is not torch.strided:
        return None
    size, stride = hints(x.shape), hints(x.stride())
    if None in size or None in stride or any(step == 0 and count != 1 for count, step in zip(size, stride, strict=True)):
        return None
    several = [dim for dim in range(x.dim()) if size[dim] != 1]
    ordered = iter(sorted(several, key=lambda dim: -(stride[dim] or 0)))
    return [next(ordered) if dim in several else dim for dim in range(x.dim())]
