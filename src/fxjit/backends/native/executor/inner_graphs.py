"""Graphs of ATen that a program's higher-order operators take, as plain values: the branches of `torch.cond`, say."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.fx

from .aten_calls import FunctionName, python_function


@dataclass(frozen=True, slots=True)
class Place:
    """In the place of a node among arguments: its number."""

    number: int


@dataclass(frozen=True, slots=True)
class InnerGraph:
    """Its nodes, each with its kind, name, target and arguments."""

    nodes: tuple[tuple[str, str, Any, Any, Any], ...]

    def find(self) -> torch.fx.GraphModule:
        """The graph; AttributeError where torch has none of its operators."""
        root, graph, made = torch.nn.Module(), torch.fx.Graph(), list[torch.fx.Node]()
        for op, name, target, args, kwargs in self.nodes:
            if op == "get_attr":
                setattr(root, name, target.find() if isinstance(target, InnerGraph) else target)
                made.append(graph.create_node(op, name, name=name))
                continue
            function = target.find() if isinstance(target, FunctionName) else target
            made.append(graph.create_node(op, function, _read(args, made), _read(kwargs, made), name=name))
        return torch.fx.GraphModule(root, graph)


def described(value: Any) -> Any:
    """A graph as plain values, where its operators are torch's; any other object as it is."""
    if not isinstance(value, torch.fx.GraphModule):
        return value
    places: dict[torch.fx.Node, int] = {}
    nodes: list[tuple[str, str, Any, Any, Any]] = []
    for node in value.graph.nodes:
        target: Any = node.target
        if node.op == "get_attr":
            target = described(getattr(value, str(target), None))
        elif isinstance(target, torch._ops.OpOverload) and target.namespace in ("aten", "prims"):
            target = FunctionName("overload", f"{target.namespace}.{target._opname}.{target._overloadname}")
        elif node.op == "call_function":
            target = python_function(target)
        if isinstance(target, torch.fx.GraphModule) or not isinstance(target, (str, FunctionName, InnerGraph, torch.Tensor)):
            return value
        nodes.append((node.op, node.name, target, _write(node.args, places), _write(node.kwargs, places)))
        places[node] = len(places)
    return InnerGraph(tuple(nodes))


def _write(value: Any, places: dict[torch.fx.Node, int]) -> Any:
    """Arguments with numbers for nodes, as plain lists, tuples and dicts."""
    if isinstance(value, torch.fx.Node):
        return Place(places[value])
    if isinstance(value, dict):
        return {name: _write(each, places) for name, each in value.items()}
    if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
        return (list if isinstance(value, list) else tuple)(_write(each, places) for each in value)
    return value


def _read(value: Any, made: list[torch.fx.Node]) -> Any:
    if isinstance(value, Place):
        return made[value.number]
    if isinstance(value, dict):
        return {name: _read(each, made) for name, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(_read(each, made) for each in value)
    return value
