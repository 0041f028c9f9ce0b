"""Values of a graph that are observed by autograd: `grad(y, h)`, `h.retain_grad()`, a hook on `h`, `h.grad_fn`.

A compiled graph is one node of autograd's graph, in which no result stands behind another. Where such a question ends a
graph, the break carries which nodes it is about, and the backend keeps what eager records of them (aot/rules.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import torch
import torch.fx

from fxjit import schemas
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.sequence import SequenceValue
from fxjit.frontend.values.tensor_base import GraphTensor

#: Inputs, by their nodes, that the program gave hooks, which they get when the graph has run.
HOOKED: Final = "inputs with hooks to come"


def observation(*asked: Value | None) -> dict[str, Any]:
    """More context for the break: the graph's own nodes among the observed tensors."""
    names = tuple(dict.fromkeys(name for value in asked for name in _made_inside(value)))
    return {"observed": names} if names else {}


def view(value: GraphTensor) -> dict[str, Any]:
    """The same where the program reads what a tensor is a view of: a compiled graph's results are views of none of the graph's
    own tensors."""
    return {"observed": (value.node.name,)} if value.fake._is_view() and value.node.op != "placeholder" else {}


def _made_inside(value: Value | None) -> Iterator[str]:
    if isinstance(value, SequenceValue):
        for item in value.items:
            yield from _made_inside(item)
    elif value is not None and value.node is not None:
        made = value.node.meta.get("example_value")
        if isinstance(made, torch.Tensor) and made.requires_grad and (
                value.node.op not in ("placeholder", "get_attr") or is_made_by_write(value.node)):
            yield value.node.name


def is_made_by_write(given: torch.fx.Node) -> bool:
    """Whether an input is none of autograd's leaves, and the graph writes to its memory."""
    return not given.meta["example_value"].is_leaf and bool(
        schemas.storages_of([given]) & schemas.written_storages(given.graph))
