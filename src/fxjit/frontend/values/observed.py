"""Values of a graph that are observed by autograd: `grad(y, h)`, `h.retain_grad()`, a hook on `h`, `h.grad_fn`.

A compiled graph is one node of autograd's graph, in which no result stands behind another. Where such a question ends a
graph, the break carries which nodes it is about, and the backend keeps what eager records of them (aot/rules.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fxjit.frontend.values.base import Value
from fxjit.frontend.values.sequence import SequenceValue
from fxjit.frontend.values.tensor_base import GraphTensor


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
    elif value is not None and value.node is not None and value.node.op not in ("placeholder", "get_attr"):
        made = value.node.meta.get("example_value")
        if isinstance(made, torch.Tensor) and made.requires_grad:
            yield value.node.name
