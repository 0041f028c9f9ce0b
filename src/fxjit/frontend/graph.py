"""The FX graph of one trace: placeholders with their sources, call nodes with their fake values, and what is left
of it at the end.

trace.py owns one `GraphBuilder` a trace; values reach it through `Tracer.emit`. `finish` turns it into the
GraphModule that a backend gets.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import torch
import torch.fx

from fxjit.frontend.result import GraphInput
from fxjit.guards.source import is_of_module
from fxjit.schemas import MODULE_STATE, drops_nothing

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


def _in_text(arg: Any) -> Any:
    """NumPy's numbers as Python's, which operators take them for: the text of a graph has no word for them."""
    return arg.item() if isinstance(arg, np.generic) else arg


def _printed_right(target: Callable[..., object] | str, args: tuple[Any, ...]) -> Callable[..., object] | str:
    """`pow` for `**` with a negative number on its left: torch.fx prints `-2 ** x`, which is `-(2 ** x)`."""
    if target is operator.pow and isinstance(args[0], (int, float, complex)) and repr(args[0]).startswith("-"):
        return pow
    return target


#: Operators that raise for no numbers.
_OF_NUMBERS: Final = frozenset({operator.eq, operator.ne, operator.lt, operator.le, operator.gt, operator.ge, operator.add,
                                operator.sub, operator.mul, operator.neg})


def _is_of_numbers(node: torch.fx.Node) -> bool:
    """Whether it computes with numbers alone: what was decided on it is a guard."""
    return node.op == "call_function" and node.target in _OF_NUMBERS and all(
        isinstance(each.meta.get("example_value"), torch.SymInt | torch.SymFloat) for each in node.all_input_nodes)


def _looks_up(node: torch.fx.Node) -> bool:
    """Whether it is an item at places that a tensor holds, which may be out of range."""
    return node.target is operator.getitem and any(
        isinstance(each.meta.get("example_value"), torch.Tensor) for each in node.all_input_nodes if each is not node.args[0])


class GraphBuilder:
    """Implements result.FinishedGraph."""

    def __init__(self) -> None:
        self.graph = torch.fx.Graph()
        self.inputs: Sequence[GraphInput] = []
        self._by_node: dict[torch.fx.Node, GraphInput] = {}
        self._last_placeholder: torch.fx.Node | None = None
        self._numbers: set[torch.fx.Node] = set()
        self._root = torch.nn.Module()

    def release(self) -> None:
        """Let go of what the inputs were in the traced call: the trace is given up, and values may hold it in a cycle."""
        self.inputs = []
        self._by_node.clear()

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
        if is_of_module(source):
            node.meta[MODULE_STATE] = True
        self._last_placeholder = node
        self._by_node[node] = GraphInput(source, example)
        return node

    def replace_input(self, node: torch.fx.Node, source: Source, example: object, fake: object) -> None:
        """What a placeholder that nothing uses yet stands for is another object."""
        node.meta["example_value"] = fake
        self._by_node[node] = GraphInput(source, example)

    def number_in(self, placeholder: torch.fx.Node, symbol: object) -> torch.fx.Node:
        """The number in an input without dimensions. It stands with the inputs, which all graphs may read: also where a
        function that is captured by itself met it first."""
        with self.graph.inserting_after(self._last_placeholder):
            node = self.call("item", (placeholder,), {}, symbol, None)
        node.meta["only_if_used"] = True
        self._numbers.add(node)
        return node

    def input_of(self, node: torch.fx.Node) -> GraphInput | None:
        """The input that a placeholder stands for."""
        return self._by_node.get(node)

    def call(self, target: Callable[..., object] | str, args: tuple[Any, ...], kwargs: Mapping[str, Any], value: object,
             stack_trace: str | None) -> torch.fx.Node:
        """A node that calls `target`; `value` is its fake result."""
        kind = "call_method" if isinstance(target, str) else "call_function"
        args, kwargs = torch.fx.node.map_aggregate((args, dict(kwargs)), _in_text)
        node = self.graph.create_node(kind, _printed_right(target, args), args, kwargs)
        node.meta["example_value"] = value
        if stack_trace is not None:
            node.meta["stack_trace"] = stack_trace
        return node

    def mark(self) -> torch.fx.Node | None:
        """The last node so far, for `since`; None if there are only inputs, which stand before all others."""
        last = next(iter(reversed(self.graph.nodes)), None)
        return None if last is None or self._is_input(last) else last

    def since(self, mark: torch.fx.Node | None) -> list[torch.fx.Node]:
        """The nodes behind the mark (None: all), without inputs met meanwhile."""
        behind = takewhile(lambda node: node is not mark and not self._is_input(node), reversed(self.graph.nodes))
        return list(behind)[::-1]

    def _is_input(self, node: torch.fx.Node) -> bool:
        return node.op == "placeholder" or node in self._numbers

    def discard(self, nodes: Sequence[torch.fx.Node]) -> None:
        """Remove these, whom nothing else uses. Inputs met meanwhile stay until `finish` drops them."""
        for node in reversed(nodes):
            self.graph.erase_node(node)

    def subgraph(self, nodes: Sequence[torch.fx.Node], inputs: Sequence[torch.fx.Node],
                 outputs: torch.fx.Node | Sequence[torch.fx.Node]) -> torch.fx.Node:
        """A graph of its own that does what `nodes` do, from `inputs` to `outputs`; the node that stands for it."""
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].target = copies[node].name  # an input may be given twice
            copies[node].meta = dict(node.meta)
        for node in nodes:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        graph.output(torch.fx.map_arg(outputs if isinstance(outputs, torch.fx.Node) else tuple(outputs), copies.__getitem__))
        name = f"subgraph_{len(list(self._root.children()))}"
        self._root.add_module(name, torch.fx.GraphModule(self._root, graph))
        return self._standing(name)

    def reuse_subgraph(self, standing: torch.fx.Node) -> torch.fx.Node:
        """Another node that stands for the graph."""
        return self._standing(str(standing.target))

    def _standing(self, name: str) -> torch.fx.Node:
        node = self.graph.create_node("get_attr", name, name=name)
        node.meta["example_value"] = getattr(self._root, name)
        return node

    @property
    def operator_count(self) -> int:
        """Calls in the graph so far."""
        return sum(node.op in ("call_function", "call_method") for node in self.graph.nodes)

    def mark_observed(self, names: Collection[str]) -> None:
        """Marks nodes whose autograd metadata the program reads after the graph; the names are those of an earlier attempt,
        which made the same nodes."""
        for node in self.graph.nodes:
            if node.name in names:
                node.meta["observed"] = True

    def finish(self, outputs: Sequence[Value]) -> torch.fx.GraphModule | None:
        """See result.FinishedGraph."""
        nodes: list[torch.fx.Node] = []
        for value in outputs:
            assert value.node is not None, f"{value!r} is no value of the graph"
            nodes.append(value.node)
        self.graph.output(tuple(nodes))
        self._drop_dead_reads()
        self.inputs = [self._by_node[node] for node in self.graph.nodes if node.op == "placeholder"]
        if not nodes and (not self.operator_count or self._only_sets_and_resets()):
            return None
        module = torch.fx.GraphModule(self._root, self.graph)
        return module

    def _only_sets_and_resets(self) -> bool:
        """Whether all it does is to set the grad mode and to set it back (a block that breaks before any operator)."""
        calls = [node for node in self.graph.nodes if node.op in ("call_function", "call_method")]
        modes = [node.args[0] for node in calls if node.target is torch._C._set_grad_enabled]
        alternates = all(mode == (modes[0] if place % 2 == 0 else not modes[0]) for place, mode in enumerate(modes))
        return len(modes) == len(calls) and len(modes) % 2 == 0 and alternates

    def _drop_dead_reads(self) -> None:
        for node in reversed(list(self.graph.nodes)):
            if node.users or node.op == "output":
                continue
            pure = (node.op in ("placeholder", "get_attr") or "only_if_used" in node.meta or drops_nothing(node)
                    or (node.op == "call_method" and node.target in _PURE_METHODS)
                    or (node.op == "call_function" and node.target in _PURE_FUNCTIONS and not _looks_up(node))
                    or _is_of_numbers(node))
            if pure:
                self.graph.erase_node(node)
