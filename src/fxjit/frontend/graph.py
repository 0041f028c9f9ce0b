"""The FX graph of one trace: placeholders with their sources, call nodes with their fake values, and what is left
of it at the end.

trace.py owns one `GraphBuilder` a trace; values reach it through `Tracer.emit`. `finish` turns it into the
GraphModule that a backend gets.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.fx

from fxjit.frontend.result import GraphInput

if TYPE_CHECKING:
    from fxjit.frontend.values.base import Value
    from fxjit.guards.source import Source

_NOT_IDENTIFIER: Final = re.compile(r"[^0-9a-zA-Z_]+")

#: Reads without an effect: dropped when nothing uses their result. Any other call stays (it may draw random numbers,
#: write to a tensor or raise), as it would in eager.
_PURE_FUNCTIONS: Final = frozenset({operator.getitem, getattr})
_PURE_METHODS: Final = frozenset({"size", "stride", "storage_offset", "numel", "dim"})


def identifier(name: str) -> str:
    """A Python identifier that still resembles `name`."""
    text = _NOT_IDENTIFIER.sub("_", name).strip("_").lower()
    return text if text and not text[0].isdigit() else f"_{text}"


class GraphBuilder:
    """Implements result.FinishedGraph."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.inputs: Sequence[GraphInput] = []
        self._by_node: dict[torch.fx.Node, GraphInput] = {}
        self._last_placeholder: torch.fx.Node | None = None

    def placeholder(self, source: Source, example: object, fake: object) -> torch.fx.Node:
        """A graph input, in the order in which they were first looked at."""
        graph = self.graph
        name = f"l_{identifier(source.name)}_"
        where = (graph.inserting_before(next(iter(graph.nodes), None)) if self._last_placeholder is None
                 else graph.inserting_after(self._last_placeholder))
        with where:
            node = graph.create_node("placeholder", name, (), {}, name)
        node.target = node.name  # two sources may read alike: `self.W` and `self.w`, two parameters as keys
        node.meta["example_value"] = fake
        self._last_placeholder = node
        self._by_node[node] = GraphInput(source, example)
        return node

    def call(self, target: Callable[..., object] | str, args: tuple[Any, ...], kwargs: Mapping[str, Any], value: object,
             stack_trace: str | None) -> torch.fx.Node:
        """A node that calls `target`; `value` is its fake result."""
        kind = "call_method" if isinstance(target, str) else "call_function"
        node = self.graph.create_node(kind, target, args, dict(kwargs))
        node.meta["example_value"] = value
        if stack_trace is not None:
            node.meta["stack_trace"] = stack_trace
        return node

    def mark(self) -> int:
        """How many calls there are, for `take_back`."""
        return self.operator_count

    def take_back(self, mark: int) -> None:
        """Remove the calls behind the first `mark` ones. Inputs met meanwhile stay until `finish` drops them."""
        calls = [node for node in self.graph.nodes if node.op != "placeholder"]
        for node in reversed(calls[mark:]):
            self.graph.erase_node(node)

    @property
    def operator_count(self) -> int:
        """Calls in the graph so far."""
        return sum(node.op in ("call_function", "call_method") for node in self.graph.nodes)

    def finish(self, outputs: Sequence[Value]) -> torch.fx.GraphModule | None:
        """See result.FinishedGraph."""
        nodes: list[torch.fx.Node] = []
        for value in outputs:
            assert value.node is not None, f"{value!r} is no value of the graph"
            nodes.append(value.node)
        self.graph.output(tuple(nodes))
        self._drop_dead_reads()
        self.inputs = [self._by_node[node] for node in self.graph.nodes if node.op == "placeholder"]
        if not nodes and not self.operator_count:
            return None
        module = torch.fx.GraphModule(torch.nn.Module(), self.graph)
        return module

    def _drop_dead_reads(self) -> None:
        for node in reversed(list(self.graph.nodes)):
            if node.users or node.op == "output":
                continue
            pure = (node.op == "placeholder" or "only_if_used" in node.meta
                    or (node.op == "call_method" and node.target in _PURE_METHODS)
                    or (node.op == "call_function" and node.target in _PURE_FUNCTIONS))
            if pure:
                self.graph.erase_node(node)
