"""Results that are some of several views which one operator gave of a tensor (`split`, `unbind`): autograd lets nobody write
to them. AOTAutograd gives them as tensors, or as views, that may be written to; `keep_refusals` has them refuse again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._C._autograd import CreationMeta, _get_creation_meta, _set_creation_meta


def keep_refusals(compiled: Callable[..., Any], gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """`compiled` is the graph, whose outputs are a flat tuple; it is returned as it is where no output is such a view."""
    (outputs,) = next(iter(gm.graph.find_nodes(op="output"))).args
    if not isinstance(outputs, (tuple, list)):
        return compiled
    places = [place for place, node in enumerate(outputs) if _is_sibling(node)]
    if not places:
        return compiled

    def run(*args: Any) -> Any:
        results = list(compiled(*args))
        for place in places:
            results[place] = _refusing(results[place])
        return tuple(results)

    return run


def _refusing(result: torch.Tensor) -> torch.Tensor:
    if result.requires_grad:
        result = result if result._is_view() else result.view_as(result)
        _set_creation_meta(result, CreationMeta.MULTI_OUTPUT_NODE)
    return result


def _is_sibling(node: Any) -> bool:
    value = node.meta.get("example_value") if isinstance(node, torch.fx.Node) else None
    if not isinstance(value, torch.Tensor) or not value.requires_grad or not value._is_view():
        return False
    return bool(_get_creation_meta(value) == CreationMeta.MULTI_OUTPUT_NODE)
