"""Splits captured graphs into parts that are compiled by themselves: by connected component of the autograd graph, and by
inference mode.

To autograd a compiled graph is a single node: a backward pass from one of its outputs goes through all of it, and frees all
that it saved. In eager a step of adversarial training may go backward from the discriminator's loss, and later from the
generator's, although both were computed before. So outputs that share no differentiable value become nodes of their own: the
graph is cut, in the order it runs in, where it goes from one such component to another.

AOTAutograd cannot trace into a block of `torch.inference_mode`: a view of a tensor from outside would have to count writes to
what has no version counter. A block becomes a graph of its own, compiled and called in inference mode as if the caller had
entered it, so that what it makes are inference tensors; what lies before and after it are graphs beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch._guards
import torch.fx
from torch.utils import _pytree as pytree

from fxjit import torch_private
from fxjit._C import tell_unwritten
from fxjit.schemas import name_of, storages_of, tensors_of, touches_sparse, writes, written
from fxjit.state_steps import apply
from fxjit.tensor_wrappers import is_wrapper

from ..eager import as_a_block
from . import recipe
from .facts import changes_state, needed, state_changed_by

Node = torch.fx.Node
Compile = Callable[[torch.fx.GraphModule, Sequence[Any]], Callable[..., Any]]
_ENTER = torch_private.optional("torch.autograd.grad_mode._enter_inference_mode")
_EXIT = torch_private.optional("torch.autograd.grad_mode._exit_inference_mode")


class CannotSplit(Exception):
    """A block of inference mode cannot be cut out of its graph."""


def split_by_autograd_component(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compile_part: Compile
) -> Callable[..., Any] | None:
    """The graph with each connected component compiled by itself; None where the whole of it is one."""
    segments = autograd_segments(gm, example_inputs)
    if segments is None:
        return None
    return compile_segments(gm, example_inputs, segments, compile_part)


def compile_segments(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], segments: dict[torch.fx.Node, int],
                     compile_part: Compile) -> Callable[..., Any] | None:
    """The graph with each numbered segment of its nodes compiled by itself; None where one would have to pass on what graphs
    cannot take from one another."""
    inputs = dict(zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True))
    required = needed(gm.graph)
    numbers = sorted({*segments.values()})
    parts = [Part(gm, [node for node in segments if segments[node] == number], required) for number in numbers]
    if not all(can_be_passed(node) for part in parts for node in part.outputs):
        return None
    return _run_parts(gm, [(part.compiled(compile_part, inputs), part) for part in parts])


def split_by_inference_mode(
    gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compile_part: Compile
) -> Callable[..., Any] | None:
    """The graph with its blocks of inference mode compiled by themselves; None where it has none. Raises CannotSplit where they
    cannot be cut out."""
    if not isinstance(gm, torch.fx.GraphModule) or not any(gm.graph.find_nodes(op="call_function", target=_ENTER)):
        return None
    blocks = _inference_blocks(gm)
    required = needed(gm.graph)
    parts = [(block, Part(gm, block.nodes, required)) for block in blocks]
    if not all(_stands_alone(part, block) for block, part in parts):
        raise CannotSplit
    inputs = dict(zip(gm.graph.find_nodes(op="placeholder"), example_inputs, strict=True))
    steps = []
    for block, part in parts:
        with torch.inference_mode(block.inference):
            compiled = part.compiled(compile_part, inputs)
        part.inference = block.inference
        steps.append((in_inference_mode(compiled) if block.inference else compiled, part))
    run = _run_parts(gm, steps)
    return as_a_block(run, state_changed_by(gm.graph))


def can_be_passed(node: torch.fx.Node) -> bool:
    """Whether graphs may take its value from one another: a tensor, or a number; no tuple, nothing whose memory is its
    negative."""
    value = node.meta.get("example_value")
    if isinstance(value, torch.Tensor):
        return not is_wrapper(value) and not value.is_neg() and not value.is_conj()
    return is_number(value)


def is_number(value: object) -> bool:
    """Whether it is one that varies: a size, or what follows from sizes and numbers of the program's."""
    return isinstance(value, (torch.SymInt, torch.SymFloat))


def _run_parts(gm: torch.fx.GraphModule, steps: Sequence[tuple[Callable[..., Any], Part]]) -> Callable[..., Any]:
    """Runs the compiled parts of the graph, one after the other."""
    recipes = [part.step() for _, part in steps]
    whole = None if None in recipes else recipe.PartsRecipe(gm, tuple(each for each in recipes if each is not None))
    recipe.note(whole)
    calls = [(step, part.inputs, part.outputs) for step, part in steps]
    return run_in_order(gm.graph.find_nodes(op="placeholder"), calls, gm.graph.output_node().args[0])


def run_in_order(placeholders: Sequence[Node], calls: Sequence[tuple[Callable[..., Any], Sequence[Node], Sequence[Node]]],
                 results: Any) -> Callable[..., Any]:
    """Runs functions one after the other, each with the nodes whose values it takes and gives; what comes of it is `results`,
    made of nodes."""

    def run(*args: Any) -> Any:
        values = dict(zip(placeholders, args, strict=True))
        for position, (step, inputs, outputs) in enumerate(calls):
            try:
                values.update(zip(outputs, step(*[values[node] for node in inputs]), strict=True))
            except Exception as error:
                if position:  # it knows of itself alone whether it wrote
                    tell_unwritten(error, False)
                raise
        return torch.fx.node.map_arg(results, values.__getitem__)

    return run


class Part:
    """Some nodes as a graph of their own: its inputs from the others, and the outputs that others use. Outputs that only lead
    to what nobody uses are detached: a backward pass would bring zeros for them, which times infinity are NaN."""

    def __init__(self, gm: torch.fx.GraphModule, nodes: Sequence[torch.fx.Node], required: set[torch.fx.Node]) -> None:
        here = set(nodes)
        held = {node for node in gm.graph.nodes if node.op == "get_attr"}
        used = dict.fromkeys(each for node in nodes for each in node.all_input_nodes)
        self.inputs = [node for node in used if node not in here and node not in held]
        self.outputs = [node for node in nodes if any(user not in here for user in node.users)]
        graph = torch.fx.Graph()
        copies: dict[torch.fx.Node, torch.fx.Node] = {}
        for node in self.inputs:
            copies[node] = graph.placeholder(node.name)
            copies[node].meta = dict(node.meta)
        for node in [*(each for each in used if each in held), *nodes]:
            copies[node] = graph.node_copy(node, copies.__getitem__)
        for node in self.outputs:
            if _needs_grad(node) and not any(user in required and user not in here for user in node.users):
                copies[node] = graph.call_method("detach", (copies[node],))
                copies[node].meta = node.meta | {"example_value": node.meta["example_value"].detach()}
        graph.output(tuple(copies[node] for node in self.outputs))
        self.inference = False
        self.recipe: recipe.AnyRecipe | None = None
        self.trivial = all(node.target == "detach" or getattr(node.target, "is_step", False) or touches_sparse(node)
                           or is_number(node.meta.get("example_value")) for node in nodes)
        self.module = torch.fx.GraphModule(gm, graph)

    def compiled(self, compile_part: Compile, given: dict[torch.fx.Node, Any]) -> Callable[..., Any]:
        if self.trivial:
            for node in self.module.graph.nodes:
                apply(node.target)  # a setting, for the parts behind it
            self.recipe = recipe.Recipe(self.module)
            return self.module.forward
        with recipe.noted() as notes:
            compiled = compile_part(self.module, [given[node] if node in given else _example(node) for node in self.inputs])
        self.recipe = recipe.only(notes)
        return compiled

    def step(self) -> recipe.Step | None:
        """As the recipe of the whole graph has it; None where the part has no recipe."""
        if self.recipe is None:
            return None
        return recipe.Step(self.recipe, tuple(self.inputs), tuple(self.outputs), self.inference)


def autograd_segments(gm: torch.fx.GraphModule, example_inputs: Sequence[Any]) -> dict[torch.fx.Node, int] | None:
    """Which segment each node of the graph belongs to, counted in order; None where there is nothing to cut."""
    if not torch.is_grad_enabled() or not isinstance(gm, torch.fx.GraphModule):
        return None
    component = connected(gm)
    results = gm.graph.output_node().args[0]
    ends = {component[node] for node in pytree.tree_leaves(results) if isinstance(node, torch.fx.Node) and node in component}
    if len(ends) < 2 or differentiates_writes_to_inputs(gm, example_inputs, component):
        return None
    segments: dict[torch.fx.Node, int] = {}
    current, segment = None, 0
    modes = Modes()
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
    segments = joined_by_writes(gm, segments)
    return segments if len(set(segments.values())) > 1 else None


def joined_by_writes(gm: torch.fx.GraphModule, segments: dict[torch.fx.Node, int]) -> dict[torch.fx.Node, int]:
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


class Modes:
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


def connected(gm: torch.fx.GraphModule) -> dict[torch.fx.Node, int]:
    """For each value that autograd records and that is no input: the number of the set that it is connected to. What runs
    under `no_grad`, as an optimizer's step, is not recorded, also where it writes to what needs a gradient."""
    parent: dict[torch.fx.Node, torch.fx.Node] = {}
    modes = Modes()

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


def differentiates_writes_to_inputs(gm: torch.fx.GraphModule, example_inputs: Sequence[Any],
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


# Blocks of inference mode


@dataclass(slots=True)
class _Block:
    """Nodes that run one after the other, all in inference mode or all outside."""

    inference: bool
    nodes: list[torch.fx.Node] = field(default_factory=list)


def _inference_blocks(gm: torch.fx.GraphModule) -> list[_Block]:
    """The graph in blocks. Raises CannotSplit where one is left in another order than managers are, or turns the mode off."""
    outside = torch.is_inference_mode_enabled()
    blocks = [_Block(outside)]
    open_blocks: list[torch.fx.Node] = []
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if node.target is _ENTER:
            if node.args != (True,):
                raise CannotSplit
            open_blocks.append(node)
        elif node.target is _EXIT:
            if not open_blocks or node.args != (open_blocks.pop(),):
                raise CannotSplit
        elif open_blocks and node.target is torch._C._set_grad_enabled:
            continue  # changes nothing in there: no operator is recorded
        else:
            inference = outside or bool(open_blocks)
            if blocks[-1].inference != inference:
                blocks.append(_Block(inference))
            blocks[-1].nodes.append(node)
    if open_blocks:
        raise CannotSplit
    return [block for block in blocks if block.nodes]


def _stands_alone(part: Part, block: _Block) -> bool:
    """Whether graphs can be called with the part's inputs, and give its outputs: tensors, of which none shares
    its memory with another where the part writes."""
    made = [node for node in part.inputs if node.op != "placeholder"]
    if not all(map(can_be_passed, (*made, *part.outputs))):
        return False
    memories = [tensor.untyped_storage()._cdata for node in part.inputs for tensor in tensors_of(node)]
    return not made or len(memories) == len(set(memories)) or not any(writes(node) for node in block.nodes)


def in_inference_mode(compiled: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with torch._C._InferenceMode(True):
            return compiled(*args)

    return run
