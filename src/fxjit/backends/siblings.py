"""What autograd knows of results that are views, and AOTAutograd loses.

Of several views which one operator gave of a tensor (`split`, `unbind`) autograd lets nobody write to any. AOTAutograd gives
them as tensors, or as views, that may be written to; `keep_refusals` has them refuse again. A view that was made under
`torch.no_grad()` passes no gradient on to what it is of, and AOTAutograd makes it anew where gradients are recorded. And a view
may have a gradient of the program's own: graphs of which `loses_gradients` is true run as they were captured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._C._autograd import CreationMeta, _get_creation_meta, _set_creation_meta
from torch.utils import _pytree as pytree

from .graph.facts import tensors_of


def keep_refusals(compiled: Callable[..., Any], gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """`compiled` is the graph, whose outputs are a flat tuple; it is returned as it is where no output is such a view."""
    (outputs,) = next(iter(gm.graph.find_nodes(op="output"))).args
    if not isinstance(outputs, (tuple, list)):
        return compiled
    made = [_made(node) for node in outputs]
    places = [place for place, how in enumerate(made) if how == CreationMeta.MULTI_OUTPUT_NODE]
    unrecorded = [place for place, how in enumerate(made) if how == CreationMeta.NO_GRAD_MODE and torch.is_grad_enabled()]
    if not places and not unrecorded:
        return compiled

    def run(*args: Any) -> Any:
        results = list(compiled(*args))
        for place in places:
            results[place] = _refusing(results[place])
        for place in unrecorded:
            results[place] = _unrecorded(results[place])
        return tuple(results)

    return run


def loses_gradients(gm: torch.fx.GraphModule) -> bool:
    """Whether a result is a view that stands behind, or shares memory with, one whose gradient the program itself makes or
    sees: by a `backward` of its own (`GradientReversal.apply(x)`, which is `x.view_as(x)`), or by a hook. AOTAutograd makes
    such a result anew, as a view of the input or of another result, and autograd then passes the program's part by. Or
    whether the program goes on to ask for the gradient of a result that other results are made from: it would not stand
    behind them."""
    if any("observed" in node.meta for node in gm.graph.nodes):
        return True
    watched = {each.untyped_storage()._cdata for node in gm.graph.nodes for each in _watched_views(node)}
    if not watched:
        return False
    given = [_memory_of(node) for node in gm.graph.find_nodes(op="placeholder")]
    results = [_memory_of(node) for node in pytree.tree_leaves(gm.graph.output_node().args[0])]
    return any(memory in given or results.count(memory) > 1 for memory in watched.intersection(results))


def _watched_views(node: torch.fx.Node) -> list[torch.Tensor]:
    if not getattr(node.target, "sees_gradients", False):
        return []
    given = [leaf for leaf in pytree.tree_leaves(node.args) if isinstance(leaf, torch.fx.Node)]
    return [each for at in (node, *given[:1]) for each in tensors_of(at) if each.requires_grad and each._is_view()]


def _memory_of(node: Any) -> int | None:
    tensor = next(tensors_of(node), None) if isinstance(node, torch.fx.Node) else None
    return tensor.untyped_storage()._cdata if tensor is not None and torch._C._has_storage(tensor) else None


def _refusing(result: torch.Tensor) -> torch.Tensor:
    if result.requires_grad:
        result = result if result._is_view() else result.view_as(result)
        _set_creation_meta(result, CreationMeta.MULTI_OUTPUT_NODE)
    return result


def _unrecorded(result: torch.Tensor) -> torch.Tensor:
    if result.grad_fn is None:
        return result
    with torch.no_grad():
        return result.view_as(result)


def _made(node: Any) -> CreationMeta | None:
    """How the view came about that the node gave; None: it is none that autograd looks after."""
    value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.requires_grad or not value._is_view():
        return None
    return _get_creation_meta(value)
