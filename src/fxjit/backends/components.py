"""Parts of one captured graph that backpropagate on their own.

To autograd a compiled graph is a single node: whoever walks back from one of its results walks all of it, and what it
saved is gone. In eager a step of adversarial training may walk back from the discriminator's loss, and later from the
generator's, although both were computed before. `independent_parts` finds results that share no differentiable value,
and cuts the graph, in the order it runs in, where it goes from one such part to another; each becomes a node of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch._guards
import torch.fx
from torch.utils import _pytree as pytree

from fxjit.schemas import name_of, written

from .graph.facts import changes_state, needed, storages_of, tensors_of

Compile = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]


def compile_parts(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compile_part: Compile) -> Callable[..., Any] | None:
    """The graph with each independent part compiled by itself; None where the whole of it is one part."""
    segments = independent_parts(gm, example_inputs)
    if segments is None:
        return None
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    inputs = dict(zip(places, example_inputs, strict=True))
    wanted = needed(gm.graph)
    numbers = sorted({*segments.values()})
    parts = [Part(gm, [node for node in segments if segments[node] == number], wanted) for number in numbers]
    if not all(can_be_passed(node) for part in parts for node in part.results):
        return None
    return in_turn(gm, [(part.compiled(compile_part, inputs), part) for part in parts])


def can_be_passed(node: torch.fx.Node) -> bool:
    """Whether graphs may take its value from one another: no tuple, no number that varies, nothing whose memory is its
    negative."""
    value = node.meta.get("example_value")
    return isinstance(value, torch.Tensor) and not value.is_neg() and not value.is_conj()


def in_turn(gm: torch.fx.GraphModule, steps: Sequence[tuple[Callable[..., Any], Part]]) -> Callable[..., Any]:
    """What the graph is: its parts, each as it was compiled, one after the other."""
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    results = next(iter(gm.graph.find_nodes(op="output"))).args[0]
    ways = [(step, part.wanted, part.results) for step, part in steps]

    def run(*args: Any) -> Any:
        values = dict(zip(places, args, strict=True))
        for step, wanted, given in ways:
            values.update(zip(given, step(*[values[node] for node in wanted]), strict=True))
        return torch.fx.node.map_arg(results, values.__getitem__)

    return run


class Part:
    """The nodes of one segment as a graph of their own: what it wants of others, and which of its values others want. Values
    that only lead to results which nobody uses are given without a gradient: a walk would bring zeros for them, which times
    infinity are NaN."""

    def __init__(self, gm: torch.fx.GraphModule, nodes: Sequence[torch.fx.Node], wanted: set[torch.fx.Node]) -> None:
        here = set(nodes)
        held = {node for node in gm.graph.nodes if node.op == "get_attr"}
        used = dict.fromkeys(each for node in nodes for each in node.all_input_nodes)
        self.wanted = [node for node in used if node not in here and node not in held]
        self.results = [node for node in nodes if any(user not in here for user in node.users)]
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self.wanted:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in [*(each for each in used if each in held), *nodes]:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        for node in self.results:
            if _needs_grad(node) and not any(user in wanted and user not in here for user in node.users):
                copies[node] = graph.call_method("detach", (copies[node],))
                copies[node].meta = node.meta | {"example_value": node.meta["example_value"].detach()}
        graph.output(tuple(copies[node] for node in self.results))
        self.trivial = all(node.target == "detach" for node in nodes)
        self.module = torch.fx.GraphModule(gm, graph)

    def compiled(self, compile_part: Compile, inputs: dict[torch.fx.Node, Any]) -> Callable[..., Any]:
        if self.trivial:
            return self.module.forward
        return compile_part(self.module, [inputs[node] if node in inputs else _example(node) for node in self.wanted])


def independent_parts(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> dict[torch.fx.Node, int] | None:
    """Which segment each node of the graph belongs to, counted in order; None where there is nothing to cut."""
    if not torch.is_grad_enabled() or not isinstance(gm, torch.fx.GraphModule):
        return None
    component = _components(gm)
    (results,) = next(iter(gm.graph.find_nodes(op="output"))).args
    ends = {component[node] for node in pytree.tree_leaves(results) if isinstance(node, torch.fx.Node) and node in component}
    if len(ends) < 2 or _writes_to_inputs(gm, example_inputs, component):
        return None
    segments: dict[torch.fx.Node, int] = {}
    current, segment = None, 0
    modes = _Modes()
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        before, mine = segment, component.get(node)
        if modes.seen(node):
            return None
        if modes.plain and mine is None and node.op == "call_method" and node.target == "detach":
            segment += 1  # where one part looks at another without a gradient; not worth a compile
            segments[node], current = segment, None
            segment += 1
            continue
        if mine is not None and mine != current:
            if current is not None:
                segment += 1
            current = mine
        if segment != before and not modes.plain:
            return None
        segments[node] = segment
    segments = _joined_by_writes(gm, segments)
    return segments if len(set(segments.values())) > 1 else None


def _joined_by_writes(gm: torch.fx.GraphModule, segments: dict[torch.fx.Node, int]) -> dict[torch.fx.Node, int]:
    """Memory of the graph's own is written to only by the segment that made it: a part is compiled without knowing which of
    its inputs are one memory, nor what autograd recorded of them."""
    owned = storages_of(gm.graph.find_nodes(op="placeholder"))
    maker: dict[int, int] = {}
    joined: set[int] = set()
    for node, segment in segments.items():
        for place in storages_of(written(node)) - owned:
            joined.update(range(maker.get(place, segment) + 1, segment + 1))
        for place in storages_of([node]):
            maker.setdefault(place, segment)
    return {node: segment - sum(each <= segment for each in joined) for node, segment in segments.items()}


class _Modes:
    """Grad mode, autocast and their like, which nodes of the graph turn on and off: no cut may lie between."""

    def __init__(self) -> None:
        self.grad, self.entered = True, 0

    @property
    def plain(self) -> bool:
        return self.grad and not self.entered

    def seen(self, node: torch.fx.Node) -> bool:
        """Whether the node changes a mode that is not followed here."""
        if not changes_state(node):
            return False
        name = name_of(node.target)
        if node.target is torch._C._set_grad_enabled:
            self.grad = bool(node.args[0])
        elif name.startswith("_enter"):
            self.entered += 1
        elif name.startswith("_exit"):
            self.entered -= 1
        else:
            return True
        return False


def _components(gm: torch.fx.GraphModule) -> dict[torch.fx.Node, int]:
    """For each value that autograd records and that is no input: the number of the set that it is connected to. What runs
    under `no_grad`, as an optimizer's step, is not recorded, also where it writes to what needs a gradient."""
    parent: dict[torch.fx.Node, torch.fx.Node] = {}
    modes = _Modes()

    def find(node: torch.fx.Node) -> torch.fx.Node:
        while parent[node] is not node:
            parent[node] = parent[parent[node]]
            node = parent[node]
        return node

    for node in gm.graph.nodes:
        modes.seen(node)
        if node.op in ("placeholder", "get_attr", "output") or not modes.grad:
            continue
        if not any(map(_needs_grad, (node, *written(node)))):
            continue
        parent[node] = node
        for used in node.all_input_nodes:
            if used in parent:
                parent[find(used)] = find(node)
    numbers: dict[torch.fx.Node, int] = {}
    return {node: numbers.setdefault(find(node), len(numbers)) for node in parent}


def _needs_grad(node: torch.fx.Node) -> bool:
    return any(tensor.requires_grad for tensor in tensors_of(node))


def _writes_to_inputs(gm: torch.fx.GraphModule, example_inputs: Sequence[Any],
                      component: dict[torch.fx.Node, int]) -> bool:
    """Whether an input becomes part of what is differentiated by being written to: parts then meet in it."""
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    for node, given in zip(places, example_inputs, strict=True):
        if isinstance(given, torch.Tensor) and not given.requires_grad and _needs_grad(node):
            return True
    changed = (each for node in component for each in written(node) if _needs_grad(each))
    return not storages_of(places).isdisjoint(storages_of(changed))


def _example(node: torch.fx.Node) -> Any:
    """A tensor like the traced one, of the fake mode that the backend traces under."""
    value = node.meta.get("example_value")
    if not isinstance(value, torch.Tensor):
        return value
    context = torch._guards.TracingContext.try_get()
    if context is None or context.fake_mode is None:
        return value
    with context.fake_mode, torch.inference_mode(value.is_inference()):
        return torch.empty_strided(value.size(), value.stride(), dtype=value.dtype, device=value.device,
                                   requires_grad=value.requires_grad)
