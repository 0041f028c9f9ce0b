"""Expansions to the size that is there already, on their way through AOTAutograd.

`mask.expand(batch, 1, n, n)` with one batch may be written to in eager. AOTAutograd writes through an expansion by adding what
changed to what it was made of: infinities do not survive that, and booleans have no difference. Such an expansion is a view
like others, and becomes one where the graph writes to anything.
"""

from __future__ import annotations

import copy

import torch
import torch.fx

from fxjit.schemas import name_of, writes

from .sizes import expressions

_NAMES = frozenset({"expand", "expand_as", "broadcast_to"})


def with_plain_views(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph, in which expansions that expand nothing are aliases."""
    if not isinstance(gm, torch.fx.GraphModule):
        return gm
    nodes = gm.graph.nodes
    if not any(map(_expands_nothing, nodes)) or not any(writes(node) for node in nodes if node.op.startswith("call")):
        return gm
    changed = torch.fx.GraphModule(gm, copy.deepcopy(gm.graph))
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
    if name_of(node.target) not in _NAMES or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return False
    before, after = node.args[0].meta.get("example_value"), node.meta.get("example_value")
    if not isinstance(before, torch.Tensor) or not isinstance(after, torch.Tensor) or before.dim() != after.dim():
        return False
    return expressions(before.shape) == expressions(after.shape)
