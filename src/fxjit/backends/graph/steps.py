"""Graphs with steps, which set state of the process (fxjit/state_steps.py), and with sparse tensors: a backend is given what
stands between them.

A backend traces its graph, and would run the steps while it does, once and for all; of sparse tensors hardly one knows. So the
graph is cut at each of them; one that cannot be cut runs as it was captured. What stands behind a setting (the default dtype,
the precision of products) is compiled under it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from fxjit import logs
from fxjit.schemas import all_nodes, touches_sparse
from fxjit.state_steps import Saved, leaving_blocks

from ..eager import eager
from . import recipe
from .split import Compile, Modes, compile_segments, joined_by_writes

log = logs.artifact("compile")
Node = torch.fx.Node


def is_step(node: Node) -> bool:
    """Whether the call is one."""
    return node.op == "call_function" and bool(getattr(node.target, "is_step", False))


def split_by_step(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], compile_part: Compile,
                  whole: bool = False) -> Callable[..., Any] | None:
    """The graph with the parts between its steps and its sparse operators compiled by themselves; None where it has neither.
    `whole`: it runs as it was captured."""
    steps = any(map(is_step, all_nodes(gm.graph)))
    if not steps and not any(map(touches_sparse, all_nodes(gm.graph))):
        return None
    with recipe.noted():
        segments = None if whole else _segments(gm)
        run = None if segments is None else compile_segments(gm, example_inputs, segments, compile_part)
        if run is None:
            if not whole:
                log.info("a graph that sets state of the process, or has sparse tensors, runs as it was captured")
            run = eager(gm, example_inputs)
    recipe.note(None)  # the store does not know how blocks are left, and has no sparse inputs
    return leaving_blocks(run, settings_of(gm.graph)) if steps else run


def settings_of(graph: torch.fx.Graph) -> tuple[Saved, ...]:
    """The settings that steps of the graph set."""
    return tuple(dict.fromkeys(node.target.saved for node in all_nodes(graph) if hasattr(node.target, "saved")))


def _segments(gm: torch.fx.GraphModule) -> dict[Node, int] | None:
    """Which segment each node belongs to; None where a cut would lie inside a mode, between a value and a write to it, or
    between a value and its gradient: what autograd recorded does not pass from one part to another."""
    if any(node.target is torch.autograd.grad or getattr(node.target, "sees_gradients", False) for node in gm.graph.nodes):
        return None
    segments: dict[Node, int] = {}
    number, modes, was_sparse = 0, Modes(), False
    for node in gm.graph.nodes:
        if node.op in ("placeholder", "get_attr", "output"):
            continue
        if is_step(node):
            if not modes.plain:
                return None
            segments[node] = number + 1
            number += 2
            continue
        if touches_sparse(node) != was_sparse:
            if not modes.plain:
                return None
            number, was_sparse = number + 1, not was_sparse
        if modes.seen(node):
            return None
        segments[node] = number
    return segments if modes.plain and joined_by_writes(gm, segments) == segments else None
