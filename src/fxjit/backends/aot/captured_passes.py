"""Passes over captured graphs, before AOTAutograd, and the example inputs that AOTAutograd is given."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import sympy
import torch
import torch.fx
from torch.utils import _pytree as pytree

from fxjit.schemas import uses_rng, written

from ..graph.facts import storages_of


def with_recording_off(gm: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """A graph that is called where autograd does not record and switches recording on: the same for a caller that records,
    which is where AOTAutograd gives a graph a derivative at all. None for others."""
    if not any(node.args == (True,) for node in gm.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)):
        return None
    changed = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    first = next(node for node in changed.graph.nodes if node.op != "placeholder")
    with changed.graph.inserting_before(first):
        changed.graph.call_function(torch._C._set_grad_enabled, (False,))
    changed.recompile()
    return changed


def with_symbols(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> list[Any]:
    """The example inputs, with the front end's symbol in the place of a number that varies: AOTAutograd would make a symbol
    of its own for it, which no guard could name, as it would for the number in a tensor without dimensions."""
    symbols = [node.meta.get("example_value") for node in gm.graph.nodes if node.op == "placeholder"]
    if len(symbols) != len(example_inputs):
        return list(example_inputs)
    return [symbol if isinstance(symbol, torch.SymInt) and isinstance(each, int) else without_number(each)
            for symbol, each in zip(symbols, example_inputs, strict=True)]


def without_number(example: Any) -> Any:
    """A fake tensor for a real one of no dimensions, with no symbol for what it holds."""
    context = torch._guards.TracingContext.try_get()
    if context is None or context.fake_mode is None or not is_plain_scalar(example):
        return example
    return context.fake_mode.from_tensor(example, static_shapes=True)


def is_plain_scalar(example: Any) -> bool:
    return type(example) is torch.Tensor and example.dim() == 0 and example.layout is torch.strided


def with_size_inputs(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any]
) -> tuple[torch.fx.GraphModule, list[Any], list[tuple[int, int]]]:
    """The graph with one more input for each symbol that is a size of an input, its example inputs, and of which input and
    dimension each is the size."""
    changed = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    placeholders = changed.graph.find_nodes(op="placeholder")
    found: dict[sympy.Symbol, tuple[torch.SymInt, tuple[int, int]]] = {}
    for position, node in enumerate(placeholders):
        for dim, size in enumerate(getattr(node.meta.get("example_value"), "shape", ())):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                found.setdefault(size.node.expr, (size, (position, dim)))
    last = placeholders[-1]
    for symbol, (size, _) in found.items():
        with changed.graph.inserting_after(last):
            last = changed.graph.placeholder(f"size_{symbol}")
        last.meta["example_value"] = size
    changed.recompile()
    return changed, [*example_inputs, *(size for size, _ in found.values())], [place for _, place in found.values()]


def with_flat_outputs(gm: torch.fx.GraphModule) -> tuple[torch.fx.GraphModule, Callable[[Any], Any] | None]:
    """A graph that returns a flat tuple, as AOTAutograd wants it, and what puts the results back into their structure."""
    if not isinstance(gm, torch.fx.GraphModule):
        return gm, None
    output = next(iter(gm.graph.find_nodes(op="output")))
    given = output.args[0]
    if isinstance(given, (tuple, list)) and not any(isinstance(each, (tuple, list, dict)) for each in given):
        return gm, None
    leaves, spec = pytree.tree_flatten(given)
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(gm.graph, copies)
    graph.output(tuple(copies[leaf] if isinstance(leaf, torch.fx.Node) else leaf for leaf in leaves))
    return torch.fx.GraphModule(gm, graph), lambda results: pytree.tree_unflatten(list(results), spec)


def _is_tensor(node: torch.fx.Node) -> bool:
    return isinstance(node.meta.get("example_value"), torch.Tensor)


def with_unused_draws(
    gm: torch.fx.GraphModule, restore: Callable[[Any], Any] | None
) -> tuple[torch.fx.GraphModule, Callable[[Any], Any] | None]:
    """Random numbers that nobody uses are drawn too, so that those that follow are eager's: AOTAutograd drops operators without
    users, so what these give becomes a result of the graph, which `restore` leaves out."""
    if not isinstance(gm, torch.fx.GraphModule) or not any(map(uses_rng, gm.graph.nodes)):
        return gm, restore
    output = next(iter(gm.graph.find_nodes(op="output")))
    used = {output}
    for node in reversed(gm.graph.nodes):
        if not used.isdisjoint(node.users):
            used.add(node)
    inputs = storages_of(gm.graph.find_nodes(op="placeholder"))  # what is written to them stays in AOTAutograd's graphs, too
    unused = [node for node in gm.graph.nodes if node not in used and uses_rng(node) and _is_tensor(node)
              and inputs.isdisjoint(storages_of(written(node)))]
    if not unused:
        return gm, restore
    graph = torch.fx.Graph()
    copies: dict[torch.fx.Node, torch.fx.Node] = {}
    graph.graph_copy(gm.graph, copies)
    results = [torch.fx.node.map_arg(each, copies.__getitem__) for each in output.args[0]]
    for node in unused:
        drawn = graph.call_method("detach", (copies[node],))
        drawn.meta = node.meta | {"example_value": node.meta["example_value"].detach()}
        results.append(drawn)
    graph.output(tuple(results))
    count = len(results) - len(unused)
    return torch.fx.GraphModule(gm, graph), lambda given: (restore or tuple)(given[:count])
