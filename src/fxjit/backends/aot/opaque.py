"""Opaque objects in AOTAutograd's graphs, such as the mesh of a distributed tensor: they pass through, since wrappers are put
together again of what a graph gives.

Each is one object for all calls (it is guarded by identity, or held by the captured graph). So compilers get graphs without
them, and the callable around a compiled graph leaves out and puts in what they are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch.fx
from torch._library.fake_class_registry import FakeScriptObject

from fxjit.tensor_wrappers import is_opaque

from ..graph.edit import outputs_of, set_outputs

Boxed = Callable[[list[Any]], Any]


def opaque_object(node: Any) -> Any:
    """The object that a node stands for; None for a node that is anything else."""
    value = node.meta.get("val") if isinstance(node, torch.fx.Node) else None
    value = value.real_obj if isinstance(value, FakeScriptObject) else value
    return value if is_opaque(value) else None


def hold_opaque_outputs(joint: torch.fx.GraphModule) -> None:
    """Outputs of a joint graph that are opaque become attributes of it. AOTAutograd takes them for any input that is the same
    object, a tangent's too, which a forward graph does not have."""
    held: dict[int, torch.fx.Node] = {}

    def holder(node: Any) -> Any:
        found = opaque_object(node)
        if found is None:
            return node
        if id(found) not in held:
            name = f"opaque_{len(held)}"
            setattr(joint, name, found)
            with joint.graph.inserting_before(joint.graph.output_node()):
                held[id(found)] = joint.graph.create_node("get_attr", name)
            held[id(found)].meta = {"val": node.meta["val"]}
        return held[id(found)]

    values = [holder(node) for node in outputs_of(joint.graph)]
    if held:
        set_outputs(joint.graph, values)
        joint.recompile()


def without_opaque(graph: torch.fx.GraphModule, inputs: Sequence[Any]) -> tuple[list[Any], Callable[[Boxed], Boxed]]:
    """Takes the opaque inputs and outputs off an ATen graph: the inputs that are left, and what makes a callable with all of
    them of one without."""
    outputs = outputs_of(graph.graph)
    put_in = {place: found for place, node in enumerate(outputs) if (found := opaque_object(node)) is not None}
    places = graph.graph.find_nodes(op="placeholder")
    if not put_in and all(opaque_object(node) is None for node in places):
        return list(inputs), lambda compiled: compiled
    set_outputs(graph.graph, [node for place, node in enumerate(outputs) if place not in put_in])
    for node in reversed(list(graph.graph.nodes)):
        if not node.users and opaque_object(node) is not None:
            graph.graph.erase_node(node)
    left = set(graph.graph.nodes)
    taken = [place for place, node in enumerate(places) if node in left]
    graph.recompile()

    def around(compiled: Boxed) -> Boxed:
        def call(given: list[Any]) -> Any:
            kept = [given[place] for place in taken]
            given.clear()
            results = iter(compiled(kept))
            return [put_in[place] if place in put_in else next(results) for place in range(len(outputs))]

        call._boxed_call = True  # type: ignore[attr-defined]  # AOTAutograd asks for it
        return call

    return [inputs[place] for place in taken], around
