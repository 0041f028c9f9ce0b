"""Tensors whose autograd graph a backward pass of the trace has used up: what it saved for the way back is freed.

Eager gives them to the program with that graph, which raises when somebody walks it again. A compiled graph gives them without
one, so that nothing is kept for a way back that nobody can go, and `UsedUp` puts a node in its place that raises the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.tensor import TensorValue

_PASSES = "backward passes"
TWICE = (
    "Trying to backward through the graph a second time (or directly access saved tensors after they have already been freed). "
    "Saved intermediate values of the graph are freed when you call .backward() or autograd.grad(). Specify retain_graph=True "
    "if you need to backward through the graph a second time or if you need to access saved tensors after calling backward."
)


def note_pass(t: Tracer) -> None:
    """The trace has run a backward pass."""
    t.new_source_state(_PASSES)["any"] = True


def detached(t: Tracer, outputs: Sequence[Value]) -> dict[int, tuple[torch.fx.Node, ...]]:
    """Which of the graph's outputs have a graph that is used up, with the graph's inputs that it goes back to; from here on
    their nodes give them without one."""
    if not t.new_source_state(_PASSES):
        return {}
    freed: dict[Any, bool] = {}
    found = {}
    for position, value in enumerate(outputs):
        if isinstance(value, TensorValue) and value.source is None and _reaches_freed(value.fake, freed):
            node = value.node
            found[position] = tuple(_inputs_behind(value.fake, node.graph))
            with node.graph.inserting_after(node):
                value.node = node.graph.call_method("detach", (node,))
            value.node.meta["example_value"] = value.fake.detach()
    return found


def _inputs_behind(fake: torch.Tensor, graph: torch.fx.Graph) -> Iterator[torch.fx.Node]:
    """The graph's inputs that a gradient of this would flow to."""
    nodes = set(_history(fake))
    leaves = {id(getattr(node, "variable", None)) for node in nodes}
    for node in graph.find_nodes(op="placeholder"):
        given = node.meta["example_value"]
        if isinstance(given, torch.Tensor) and given.requires_grad and (given.grad_fn in nodes or id(given) in leaves):
            yield node


def _history(fake: torch.Tensor) -> Iterator[Any]:
    """The nodes of autograd's graph behind a tensor."""
    waiting, known = [fake.grad_fn], set[Any]()
    while waiting:
        node: Any = waiting.pop()
        if node is not None and node not in known:
            known.add(node)
            yield node
            waiting += [following for following, _ in node.next_functions]


def is_written_to(t: Tracer, inputs: Iterable[object]) -> bool:
    """Whether one of these, fakes of the graph's inputs, has got such a graph by a write."""
    fakes = (each for each in inputs if isinstance(each, torch.Tensor))
    return bool(t.new_source_state(_PASSES)) and any(_reaches_freed(each, {}) for each in fakes)


def _reaches_freed(fake: torch.Tensor, freed: dict[Any, bool]) -> bool:
    for node in _history(fake):
        if node not in freed:
            freed[node] = _is_freed(node)
        if freed[node]:
            return True
    return False


def _is_freed(node: Any) -> bool:
    """Autograd refuses to give what a node has saved once that is freed."""
    names = [name for name in dir(node) if name.startswith("_saved_")]
    try:
        for name in [*names, *(["saved_tensors"] if isinstance(node, torch.autograd.function.BackwardCFunction) else [])]:
            getattr(node, name)
    except RuntimeError:
        return True
    return False


class _Freed(torch.autograd.Function):
    """A node in whose place there was a graph."""

    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, anchor: torch.Tensor, *inputs: torch.Tensor) -> torch.Tensor:
        ctx.mark_dirty(tensor)
        return tensor

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        raise RuntimeError(TWICE)


class UsedUp:
    """A compiled graph some of whose results have a graph that is used up; `behind`: which, with the inputs of `graph` that
    they go back to."""

    def __init__(self, compiled: Callable[..., Any], graph: torch.fx.GraphModule,
                 behind: Mapping[int, Sequence[torch.fx.Node]]) -> None:
        places = {node: place for place, node in enumerate(graph.graph.find_nodes(op="placeholder"))}
        self.compiled = compiled
        self.behind = {position: [places[node] for node in nodes if node in places] for position, nodes in behind.items()}
        self.anchor = torch.empty(0, requires_grad=True)

    def __call__(self, *args: Any) -> Any:
        results = self.compiled(*args)
        with torch.enable_grad(), torch.inference_mode(False):
            for position, places in self.behind.items():
                if results[position].grad_fn is None:  # one tensor may stand at several places
                    _Freed.apply(results[position], self.anchor, *(args[place] for place in places))
        return results
