"""The callable of an entry's graph as data: its recipe, with the captured graph operator by operator.

The captured graph is only made again where it runs: as captured by a rule, for a second derivative, or for inputs that share
memory otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import torch
import torch.fx

from fxjit import generated
from fxjit.applied import applied_class, apply_function
from fxjit.backends.aot import decisions
from fxjit.backends.aot.call_context import call_context
from fxjit.backends.aot.runtime.input_aliasing import AliasedInputs
from fxjit.backends.aot.runtime.wrappers import compiled_call
from fxjit.backends.eager import as_a_block
from fxjit.backends.graph.facts import state_changed_by
from fxjit.backends.graph.recipe import AnyRecipe, PartsRecipe, PendingRecipe, RecordedRecipe, SizedRecipe, with_sizes
from fxjit.backends.graph.split import in_inference_mode, run_in_order
from fxjit.backends.native.stored import NativePrograms
from fxjit.backends.store.graphs import StoredGraph
from fxjit.backends.store.operators import Unknown, function_text
from fxjit.schemas import inner_graphs

from .objects import Changed, NotStorable, find, is_pinned, refer, text_digest
from .values import pack, unpack

_ATOMS: Final = (type(None), bool, int, float, complex, str, bytes)


def pack_graph(recipe: AnyRecipe) -> dict[str, Any]:
    """As plain data: "kind" says which recipe. Raises NotStorable."""
    if isinstance(recipe, PendingRecipe):
        if recipe.made is None:
            raise NotStorable("a graph that is compiled in the background, or was and is not in the store")
        return pack_graph(recipe.made)
    if isinstance(recipe, PartsRecipe):
        return _pack_parts(recipe)
    if isinstance(recipe, RecordedRecipe):
        return {"kind": "recorded", "inner": pack_graph(recipe.recipe)}
    if isinstance(recipe, SizedRecipe):
        return {"kind": "sized", "inner": pack_graph(recipe.recipe), "sizes": [list(each) for each in recipe.sizes],
                "captured": _pack_captured(recipe.captured)}
    aliases = recipe.aliases
    if aliases is not None and aliases.has_wrappers:
        raise NotStorable("a graph over wrapper subclasses")
    shared = None if aliases is None else [list(aliases.itemsizes), list(aliases.mutated), sorted(map(list, aliases.aliases))]
    rule = recipe.rule
    decision = None if rule is None else [rule.id, rule.stage, rule.reason]
    return {"kind": "whole", "key": recipe.key, "rule": decision, "because": recipe.because, "aliases": shared,
            "creation": [list(each) for each in recipe.creation], "captured": (captured := _pack_captured(recipe.captured)),
            "own": [*_own(captured)], "state": state_changed_by(recipe.captured.graph)}


def _pack_parts(recipe: PartsRecipe) -> dict[str, Any]:
    """Values are numbered: the graph's inputs, then what each part gives."""
    places = {node: place for place, node in enumerate(recipe.captured.graph.find_nodes(op="placeholder"))}
    inputs, steps = len(places), []
    for step in recipe.steps:
        given = [places[node] for node in step.inputs]
        places |= {node: len(places) + nth for nth, node in enumerate(step.outputs)}
        steps.append([pack_graph(step.recipe), given, [places[node] for node in step.outputs], step.inference])
    results = _pack_argument(recipe.captured.graph.output_node().args[0], places)
    return {"kind": "parts", "inputs": inputs, "steps": steps, "results": results, "captured": _pack_captured(recipe.captured),
            "state": state_changed_by(recipe.captured.graph)}


def keys_of(packed: dict[str, Any] | None) -> Iterator[str]:
    """The store's graphs in a graph as data."""
    if packed is None:
        return
    if packed["kind"] == "whole" and packed["key"] is not None:
        yield packed["key"]
    for inner in (*(step[0] for step in packed.get("steps", ())), packed.get("inner")):
        yield from keys_of(inner)


def read_graph(packed: dict[str, Any]) -> Callable[..., Any]:
    """The callable. Raises Changed."""
    if packed["kind"] == "parts":
        return _read_parts(packed)
    if packed["kind"] == "recorded":
        return torch.enable_grad()(read_graph(packed["inner"]))  # type: ignore[no-any-return]  # a decorator without types
    if packed["kind"] == "sized":
        return with_sizes(read_graph(packed["inner"]), [(position, dim) for position, dim in packed["sizes"]])
    if packed["kind"] != "whole":
        raise ValueError(f"{packed['kind']} is no kind of graph")
    if packed["key"] is None:
        gm = read_captured(packed)
        if packed["rule"] is not None:
            decisions.report(decisions.Decision(*packed["rule"]), gm, packed["because"])
        return _as_captured(packed, gm)
    own = [(target, _read_target(target)) for target in packed["own"]]
    result = StoredGraph(packed["key"], None, NativePrograms()).find()
    if result is None or result.rule is not None:
        raise Changed("its compiled graph is gone from the disk")
    aliases = None
    if packed["aliases"] is not None:
        itemsizes, mutated, shared = packed["aliases"]
        aliases = AliasedInputs(tuple(itemsizes), tuple(mutated), frozenset(tuple(each) for each in shared))
    creation = tuple((place, how) for place, how in packed["creation"])
    captured = functools.cache(lambda: _as_captured(packed, read_captured(packed, own)))

    def run_captured(*args: Any) -> Any:
        return captured()(*args)

    return compiled_call(result.graphs, None, call_context(run_captured, aliases, result, None, creation))


def _read_parts(packed: dict[str, Any]) -> Callable[..., Any]:
    """The parts, one after the other; nodes stand for the numbered values."""
    graph = torch.fx.Graph()
    values = [graph.placeholder(f"value_{place}") for place in range(packed["inputs"])]
    calls = []
    for inner, given, made, inference in packed["steps"]:
        values += [graph.placeholder(f"value_{place}") for place in made]
        call = read_graph(inner)
        calls.append((in_inference_mode(call) if inference else call, [values[place] for place in given],
                      [values[place] for place in made]))
    run = run_in_order(values[:packed["inputs"]], calls, _read_argument(packed["results"], values))
    return as_a_block(run, packed["state"])


def _as_captured(packed: dict[str, Any], gm: torch.fx.GraphModule) -> Callable[..., Any]:
    """The graph, operator by operator; its nodes no longer say whether they change the state of the process."""
    return as_a_block(gm.forward, packed["state"])


# -- a graph of torch functions -----------------------------------------------------------------------------------


def _pack_captured(gm: torch.fx.GraphModule) -> list[Any]:
    """Its nodes, and those of graphs that it holds. Raises NotStorable for what else it holds, and for the program's own
    functions."""
    places: dict[torch.fx.Node, int] = {}
    packed: list[Any] = []
    for node in gm.graph.nodes:
        held = next(inner_graphs(node), None) if node.op == "get_attr" else None
        if held is None and node.op in ("get_attr", "call_module"):
            raise NotStorable(f"a graph with {node.op} {node.name}")
        places[node] = len(places)
        if held is not None:
            packed.append([node.op, node.name, node.target, _pack_captured(held), None])
            continue
        target: Any = None
        if node.op == "call_method":
            target = node.target
        elif node.op == "call_function":
            target = _function(node.target)
        packed.append([node.op, node.name, target, _pack_argument(node.args, places), _pack_argument(node.kwargs, places)])
    return packed


def _function(target: Any) -> Any:
    if (applied := applied_class(target)) is not None:
        return ["apply", refer(applied), _digest(applied)]
    packed = pack(target)
    if not isinstance(packed, list) or packed[0] != "object":
        raise NotStorable(f"a call of {target}")
    kind, *where = packed[1]
    if kind not in ("operator", "higher-order") and not (kind == "name" and is_pinned(where[0])):
        raise NotStorable(f"a call of {target}, which is the program's own")
    return packed


def _digest(applied: Any) -> str:
    """Of an `autograd.Function`, which the trace went into."""
    try:
        return text_digest(function_text(applied))
    except Unknown as why:
        raise NotStorable(f"a call of {applied.__qualname__}.apply: {why}") from None


def _own(captured: list[Any]) -> Iterator[Any]:
    """The targets of a packed graph that are not torch's: a compiled graph holds for what they were."""
    for op, _, target, args, _ in captured:
        if op == "get_attr":
            yield from _own(args)
        elif op == "call_function" and (target[0] == "apply" or (target[1][0] == "operator" and target[1][2])):
            yield target


def _read_target(packed: list[Any]) -> Any:
    """The function that a node calls. Raises Changed."""
    if packed[0] != "apply":
        return unpack(packed)
    cls = find(packed[1])
    if _digest(cls) != packed[2]:
        raise Changed(f"{cls.__qualname__} is another function")
    return apply_function(cls)


def _pack_argument(value: Any, places: dict[torch.fx.Node, int]) -> Any:
    if isinstance(value, torch.fx.Node):
        return ["node", places[value]]
    if isinstance(value, (list, tuple)) and type(value) is not torch.Size:
        if type(value) not in (list, tuple, torch.fx.immutable_collections.immutable_list):
            raise NotStorable(f"a graph with an argument of type {type(value).__name__}")
        return ["tuple" if isinstance(value, tuple) else "list", *(_pack_argument(each, places) for each in value)]
    if isinstance(value, dict):
        return ["dict", *([pack(name), _pack_argument(each, places)] for name, each in value.items())]
    if type(value) is slice:
        return ["slice", *(_pack_argument(each, places) for each in (value.start, value.stop, value.step))]
    if isinstance(value, _ATOMS) and type(value) not in _ATOMS:
        raise NotStorable(f"a graph with an argument of type {type(value).__name__}")
    return ["value", pack(value)]


def read_captured(packed: dict[str, Any], own: Sequence[tuple[Any, Any]] = ()) -> torch.fx.GraphModule:
    """The captured graph; `own` are the targets of it that were read before. Raises Changed."""
    while packed["kind"] == "recorded":
        packed = packed["inner"]
    with generated.noted() as texts:
        texts.holder = captured = _read_nodes(packed["captured"], own)
    return captured


def _read_nodes(packed: list[Any], own: Sequence[tuple[Any, Any]]) -> torch.fx.GraphModule:
    root, graph = torch.nn.Module(), torch.fx.Graph()
    made: list[torch.fx.Node] = []
    for op, name, target, args, kwargs in packed:
        if op == "get_attr":
            if not hasattr(root, target):
                root.add_module(target, _read_nodes(args, own))
            made.append(graph.create_node(op, target, name=name))
            continue
        read_args, read_kwargs = _read_argument(args, made), _read_argument(kwargs, made)
        if op == "placeholder":
            made.append(graph.placeholder(name))
        elif op == "output":
            made.append(graph.output(*read_args))
        else:
            known = target if op == "call_method" else next((function for packed, function in own if packed == target), None)
            found = _read_target(target) if known is None else known
            made.append(graph.create_node(op, found, read_args, read_kwargs, name=name))
    return torch.fx.GraphModule(root, graph)


def _read_argument(packed: list[Any], made: list[torch.fx.Node]) -> Any:
    kind, *rest = packed
    if kind == "node":
        return made[rest[0]]
    if kind == "value":
        return unpack(rest[0])
    if kind == "dict":
        return {unpack(name): _read_argument(each, made) for name, each in rest}
    values = [_read_argument(each, made) for each in rest]
    if kind == "slice":
        return slice(*values)
    return values if kind == "list" else tuple(values)
