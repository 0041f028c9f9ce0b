"""Blocks of `torch.inference_mode` in a captured graph.

AOTAutograd cannot trace into one: a view of a tensor from outside would have to count writes to what has no count. A block
becomes a graph of its own, compiled and called in inference mode as if the caller had entered it, so that what it makes are
inference tensors; what lies before and after it are graphs beside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.fx

from fxjit.schemas import writes

from .components import Compile, Part, can_be_passed, in_turn
from .eager import as_a_block
from .graph.facts import changes_state, needed, tensors_of

_ENTER, _EXIT = torch.autograd.grad_mode._enter_inference_mode, torch.autograd.grad_mode._exit_inference_mode


class CannotSplit(Exception):
    """A block cannot be cut out of its graph."""


def compile_blocks(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compile_part: Compile) -> Callable[..., Any] | None:
    """The graph with its blocks of inference mode compiled by themselves; None where it has none. Raises CannotSplit where they
    cannot be cut out."""
    if not isinstance(gm, torch.fx.GraphModule) or not any(gm.graph.find_nodes(op="call_function", target=_ENTER)):
        return None
    blocks = _blocks(gm)
    if blocks is None:
        raise CannotSplit
    wanted = needed(gm.graph)
    parts = [(block, Part(gm, block.nodes, wanted)) for block in blocks]
    if not all(_stands_alone(part, block) for block, part in parts):
        raise CannotSplit
    places = [node for node in gm.graph.nodes if node.op == "placeholder"]
    inputs = dict(zip(places, example_inputs, strict=True))
    steps = []
    for block, part in parts:
        with torch.inference_mode(block.inference):
            compiled = part.compiled(compile_part, inputs)
        steps.append((_in_inference_mode(compiled) if block.inference else compiled, part))
    run = in_turn(gm, steps)
    return as_a_block(run) if any(map(changes_state, gm.graph.nodes)) else run


@dataclass(slots=True)
class _Block:
    """Nodes that run one after the other, all in inference mode or all outside."""

    inference: bool
    nodes: list[torch.fx.Node] = field(default_factory=list)


def _blocks(gm: torch.fx.GraphModule) -> list[_Block] | None:
    """The graph in blocks; None where one is left in another order than managers are, or turns inference mode off."""
    blocks = [_Block(False)]
    open_blocks: list[torch.fx.Node] = []
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if node.target is _ENTER:
            if node.args != (True,):
                return None
            open_blocks.append(node)
        elif node.target is _EXIT:
            if not open_blocks or node.args != (open_blocks.pop(),):
                return None
        elif open_blocks and node.target is torch._C._set_grad_enabled:
            continue  # changes nothing in there: no operator is recorded
        else:
            if blocks[-1].inference != bool(open_blocks):
                blocks.append(_Block(bool(open_blocks)))
            blocks[-1].nodes.append(node)
    return None if open_blocks else [block for block in blocks if block.nodes]


def _stands_alone(part: Part, block: _Block) -> bool:
    """Whether graphs can be called with what the part wants, and give what others want of it: tensors, of which none shares
    its memory with another where the part writes."""
    made = [node for node in part.wanted if node.op != "placeholder"]
    if not all(map(can_be_passed, (*made, *part.results))):
        return False
    memories = [tensor.untyped_storage()._cdata for node in part.wanted for tensor in tensors_of(node)]
    return not made or len(memories) == len(set(memories)) or not any(writes(node) for node in block.nodes)


def _in_inference_mode(compiled: Callable[..., Any]) -> Callable[..., Any]:
    def run(*args: Any) -> Any:
        with torch._C._InferenceMode(True):
            return compiled(*args)

    return run
