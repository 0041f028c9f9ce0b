"""Liveness: which buffers outlive the graph, and which statements something depends on, or may raise."""

from __future__ import annotations

import torch.fx
from torch.utils import _pytree as pytree

from ..ir import Extern, Statement
from .table import Lowering


def live_statements(low: Lowering, gm: torch.fx.GraphModule) -> list[Statement]:
    """The statements that something the graph returns or changes depends on, and those that look something up, which raise
    where it is out of bounds."""
    wanted = set(escaping(low, gm))
    kept: list[Statement] = []
    for statement in reversed(low.statements):
        if isinstance(statement, Extern) or statement.out.name in wanted or statement.gathers() or (
                low.buffers[statement.out.name].kind != "temp"):
            wanted |= statement.reads
            kept.append(statement)
    return kept[::-1]


def escaping(low: Lowering, gm: torch.fx.GraphModule) -> frozenset[str]:
    """The buffers of the outputs."""
    (output,) = gm.graph.find_nodes(op="output")
    leaves = (leaf for leaf in pytree.tree_leaves(output.args) if isinstance(leaf, torch.fx.Node))
    return frozenset(low.storage[leaf] for leaf in leaves if leaf in low.storage)
