"""Passes over captured graphs, before AOTAutograd, and the example inputs that AOTAutograd is given."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any

import sympy
import torch
import torch.fx
from torch.utils import _pytree as pytree

from fxjit.schemas import name_of, storages_of, uses_rng, writes, written

from ..graph.edit import call_captured, copied, outputs_of
from ..graph.layout import expressions

_EXPANSIONS = frozenset({"expand", "expand_as", "broadcast_to"})
_RECURRENT = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


def with_plain_views(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with aliases in the place of expansions to the size that is there already, where it writes to anything.
    `mask.expand(batch, 1, n, n)` with one batch may be written to in eager. AOTAutograd writes through an expansion by adding
    what changed to what it was made of: infinities do not survive that, and booleans have no difference."""
    if not isinstance(gm, torch.fx.GraphModule) or not any(map(_expands_nothing, gm.graph.nodes)):
        return gm
    if not any(map(writes, gm.graph.nodes)):
        return gm
    changed = copied(gm)
    for node in list(changed.graph.nodes):
        if _expands_nothing(node):
            with changed.graph.inserting_before(node):
                view = changed.graph.call_function(torch.ops.aten.alias.default, (node.args[0],))
            view.meta = dict(node.meta)
            node.replace_all_uses_with(view)
            changed.graph.erase_node(node)
    changed.recompile()
    return changed


def _expands_nothing(node: torch.fx.Node) -> bool:
    if name_of(node.target) not in _EXPANSIONS or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return False
    before, after = node.args[0].meta.get("example_value"), node.meta.get("example_value")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor) or before.dim() != after.dim():
        return False
    return expressions(before.shape) == expressions(after.shape)


def with_dropout_between_layers(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with stacks of recurrent layers taken apart into layers and dropouts, in eager's order, for inductor: torch's
    decompositions of LSTM, GRU and RNN leave out the dropout between layers."""
    if not isinstance(gm, torch.fx.GraphModule) or not any(map(_is_stack_with_dropout, gm.graph.nodes)):
        return gm
    changed = copied(gm)
    for node in list(changed.graph.nodes):
        if _is_stack_with_dropout(node):
            with changed.graph.inserting_before(node):
                results = _layer_by_layer(changed.graph, node)
            for user in list(node.users):
                place: Any = user.args[1]
                user.replace_all_uses_with(results[place])
                changed.graph.erase_node(user)
            changed.graph.erase_node(node)
    changed.recompile()
    return changed


def _is_stack_with_dropout(node: torch.fx.Node) -> bool:
    """Whether it is a stack in training with dropout between its layers, of whose results each is taken by itself."""
    if node.op != "call_function" or node.target not in _RECURRENT or node.kwargs or len(node.args) != 9:
        return False
    options: Any = node.args[_first_option(node) :]
    _, _, layers, dropout, train, *_ = options
    numbers = isinstance(layers, int) and isinstance(dropout, (int, float))
    return bool(numbers and layers > 1 and dropout and train and all(user.target is getitem for user in node.users))


def _first_option(node: torch.fx.Node) -> int:
    """The place of the parameters. A PackedSequence has the sizes of its batches before the states and them."""
    packed = isinstance(node.args[1], torch.fx.Node) and (node.target is torch.lstm or isinstance(node.args[2], torch.fx.Node))
    return 3 if packed else 2



def _layer_by_layer(graph: torch.fx.Graph, node: torch.fx.Node) -> list[torch.fx.Node]:
    """The stack's results: what the last layer gives, and the last states of all layers."""
    arguments: Any = node.args
    first = _first_option(node)
    (x, *sizes), states, options = arguments[: first - 1], arguments[first - 1], arguments[first:]
    parameters, biases, layers, dropout, train, both_ways, *batch_first = options
    states = states if node.target is torch.lstm else (states,)
    each, directions, turned = len(parameters) // layers, 2 if both_ways else 1, batch_first == [True]
    x = call_captured(graph, torch.transpose, x, 0, 1) if turned else x
    ends: list[list[torch.fx.Node]] = [[] for _ in states]
    for layer in range(layers):
        mine = tuple(call_captured(graph, torch.narrow, state, 0, layer * directions, directions) for state in states)
        given = parameters[layer * each : (layer + 1) * each]
        batch_first_off = (False for _ in batch_first)
        hidden = mine if node.target is torch.lstm else mine[0]
        out = call_captured(graph, node.target, x, *sizes, hidden, given, biases, 1, 0.0, train, both_ways, *batch_first_off)
        x = call_captured(graph, getitem, out, 0)
        for place, end in enumerate(ends):
            # torch 2.11's fake kernel gives states one dimension more; others are left as they are.
            end.append(call_captured(graph, torch.flatten, call_captured(graph, getitem, out, place + 1), 0, -3))
        if layer < layers - 1:
            x = call_captured(graph, torch.dropout, x, dropout, True)
    x = call_captured(graph, torch.transpose, x, 0, 1) if turned else x
    return [x, *(call_captured(graph, torch.cat, end) for end in ends)]


def with_recording_off(gm: torch.fx.GraphModule) -> torch.fx.GraphModule | None:
    """A graph that is called where autograd does not record and switches recording on: the same for a caller that records,
    which is where AOTAutograd gives a graph a derivative at all. None for others."""
    if not any(node.args == (True,) for node in gm.graph.find_nodes(op="call_function", target=torch._C._set_grad_enabled)):
        return None
    changed = copied(gm)
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
    changed = copied(gm)
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
    output = gm.graph.output_node()
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


def with_random_outputs(
    gm: torch.fx.GraphModule, restore: Callable[[Any], Any] | None
) -> tuple[torch.fx.GraphModule, Callable[[Any], Any] | None]:
    """The graph with unused random values among its outputs, which `restore` leaves out: AOTAutograd drops operators without
    users, and the random numbers that follow would not be eager's."""
    if not isinstance(gm, torch.fx.GraphModule) or not any(map(uses_rng, gm.graph.nodes)):
        return gm, restore
    output = gm.graph.output_node()
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
    results: list[Any] = [torch.fx.node.map_arg(each, copies.__getitem__) for each in outputs_of(gm.graph)]
    for node in unused:
        value = graph.call_method("detach", (copies[node],))
        value.meta = node.meta | {"example_value": node.meta["example_value"].detach()}
        results.append(value)
    graph.output(tuple(results))
    count = len(results) - len(unused)
    return torch.fx.GraphModule(gm, graph), lambda given: (restore or tuple)(given[:count])
