"""Recurrent layers on their way through AOTAutograd: oneDNN's LSTM layer in a compiled forward, and dropout between layers.

The LSTM layer's kernel gives the workspace that its backward needs only where grad mode is on, and a compiled forward runs
with grad mode off, inside an autograd node of its own. `keep_workspace` puts an operator in its place that turns grad mode on
for the kernel, below autograd, which records nothing there.

Torch's decompositions of LSTM, GRU and RNN leave out the dropout between layers; `with_dropout_between_layers` puts it in.
"""

from __future__ import annotations

import copy
from operator import getitem
from typing import Any

import torch
import torch.fx
from torch._dispatch.python import enable_python_dispatcher
from torch._subclasses.fake_tensor import FakeTensor

from fxjit import process_state

_ORIGINAL = torch.ops.aten.mkldnn_rnn_layer.default
_library = torch.library.Library("fxjit", "FRAGMENT")
_library.define("mkldnn_rnn_layer" + str(_ORIGINAL._schema).removeprefix("aten::mkldnn_rnn_layer"))


def _run(*args: Any) -> Any:
    with torch.enable_grad(), torch._C._AutoDispatchBelowAutograd():
        return _ORIGINAL(*args)


_library.impl("mkldnn_rnn_layer", _run, "CPU")
_library.impl("mkldnn_rnn_layer", _ORIGINAL, "Meta")


def keep_workspace(graph: torch.fx.GraphModule, training: bool) -> None:
    """Changes the forward graph of a training pair in place. That there is such a layer at all depends on oneDNN being on."""
    for node in graph.graph.find_nodes(op="call_function", target=_ORIGINAL):
        process_state.query("mkldnn")
        if training:
            node.target = torch.ops.fxjit.mkldnn_rnn_layer.default


_STACKS = (torch.lstm, torch.gru, torch.rnn_tanh, torch.rnn_relu)


def with_dropout_between_layers(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph, in which stacks of recurrent layers with dropout between them are layers and dropouts, in eager's order."""
    if not isinstance(gm, torch.fx.GraphModule) or not any(_drops(node) for node in gm.graph.nodes):
        return gm
    changed = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
    for node in list(changed.graph.nodes):
        if _drops(node):
            with changed.graph.inserting_before(node):
                results = _one_by_one(changed.graph, node)
            for user in list(node.users):
                place: Any = user.args[1]
                user.replace_all_uses_with(results[place])
                changed.graph.erase_node(user)
            changed.graph.erase_node(node)
    changed.recompile()
    return changed


def _drops(node: torch.fx.Node) -> bool:
    """Whether it is a stack in training with dropout between its layers, of whose results each is taken by itself."""
    if node.op != "call_function" or node.target not in _STACKS or node.kwargs or len(node.args) != 9:
        return False
    options: Any = node.args[_first_option(node) :]
    _, _, layers, dropout, train, *_ = options
    numbers = isinstance(layers, int) and isinstance(dropout, (int, float))
    return bool(numbers and layers > 1 and dropout and train and all(user.target is getitem for user in node.users))


def _first_option(node: torch.fx.Node) -> int:
    """The place of the parameters. A PackedSequence has the sizes of its batches before the states and them."""
    packed = isinstance(node.args[1], torch.fx.Node) and (node.target is torch.lstm or isinstance(node.args[2], torch.fx.Node))
    return 3 if packed else 2


def _one_by_one(graph: torch.fx.Graph, node: torch.fx.Node) -> list[torch.fx.Node]:
    """The stack's results: what the last layer gives, and the last states of all layers."""
    arguments: Any = node.args
    first = _first_option(node)
    (x, *sizes), states, options = arguments[: first - 1], arguments[first - 1], arguments[first:]
    parameters, biases, layers, dropout, train, both_ways, *batch_first = options
    states = states if node.target is torch.lstm else (states,)
    each, directions, turned = len(parameters) // layers, 2 if both_ways else 1, batch_first == [True]
    x = _call(graph, torch.transpose, x, 0, 1) if turned else x
    ends: list[list[torch.fx.Node]] = [[] for _ in states]
    for layer in range(layers):
        mine = tuple(_call(graph, torch.narrow, state, 0, layer * directions, directions) for state in states)
        given = parameters[layer * each : (layer + 1) * each]
        out = _call(graph, node.target, x, *sizes, mine if node.target is torch.lstm else mine[0], given, biases, 1, 0.0, train,
                    both_ways, *(False for _ in batch_first))  # fmt: skip
        x = _call(graph, getitem, out, 0)
        for place, end in enumerate(ends):
            # torch 2.11's fake kernel gives states one dimension more; others are left as they are.
            end.append(_call(graph, torch.flatten, _call(graph, getitem, out, place + 1), 0, -3))
        if layer < layers - 1:
            x = _call(graph, torch.dropout, x, dropout, True)
    x = _call(graph, torch.transpose, x, 0, 1) if turned else x
    return [x, *(_call(graph, torch.cat, end) for end in ends)]


def _call(graph: torch.fx.Graph, function: Any, *args: Any) -> torch.fx.Node:
    """A new node, with its fake value where its arguments have theirs."""
    node = graph.call_function(function, args)
    given = {each: each.meta.get("example_value") for each in node.all_input_nodes}
    if all(isinstance(value, (FakeTensor, tuple)) for value in given.values()):
        with enable_python_dispatcher():  # sizes may be symbols
            node.meta["example_value"] = function(*torch.fx.node.map_arg(args, given.__getitem__))
    return node
