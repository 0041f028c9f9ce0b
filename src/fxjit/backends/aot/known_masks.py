"""Masks of attention that a captured graph makes of nothing but numbers, computed while it is compiled.

Libraries make a mask whenever they are traced, and leave it out in eager where it masks nothing or is the causal one, for which
attention has faster kernels: they find out by looking at its numbers, as it is done here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fxjit.schemas import acts_outside, name_of, storages_of, uses_rng, writes, written

from ..graph.edit import copied
from .restriding import call_of, kind_of_value, laid_out_anew

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
#: The largest mask that is looked at, in elements: 4,096 x 4,096.
LARGEST = 1 << 24
#: What a mask is: it lets everything through, or what is not after.
NOTHING, CAUSAL = "nothing", "causal"


def with_known_masks(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with attention over all or causal attention where a mask says just that; as it is if results would be laid out
    otherwise."""
    if not isinstance(gm, torch.fx.GraphModule):
        return gm
    attentions = gm.graph.find_nodes(op="call_function", target=_ATTENTION)
    known = KnownValues(gm.graph) if attentions else None
    found = {node.name: what for node in attentions if known is not None and (what := _kind_of_call(known, node)) is not None}
    if known is None or not found:
        return gm
    changed = copied(gm)
    attentions = [node for node in changed.graph.nodes if node.name in found]
    for node in attentions:
        node.args, node.kwargs = _without_mask(node, found[node.name])
    if not laid_out_anew(changed.graph, attentions):
        return gm
    known.erase_dead(changed.graph)
    changed.recompile()
    return changed


def _kind_of_call(known: KnownValues, attention: torch.fx.Node) -> str | None:
    """What the mask of the call says, if it is known."""
    mask = attention.kwargs.get("attn_mask", attention.args[3] if len(attention.args) > 3 else None)
    if not isinstance(mask, torch.fx.Node) or len(attention.args) > 4 or attention.kwargs.get("is_causal"):
        return None
    return known.kind_of_mask(mask)


def _without_mask(attention: torch.fx.Node, what: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    kwargs = {key: value for key, value in attention.kwargs.items() if key != "attn_mask"}
    return attention.args[:3], {**kwargs, "is_causal": what == CAUSAL}


class KnownValues:
    """The values of a graph that depend on nothing but numbers: on no input, no state, no function of the program's own."""

    def __init__(self, graph: torch.fx.Graph) -> None:
        #: The names of the nodes without an effect, and without an input behind them.
        self.pure: set[str] = set()
        changed = storages_of([each for node in graph.nodes for each in written(node)])
        for node in graph.nodes:
            calls = node.op in ("call_function", "call_method") and _is_tensor(node)
            if calls and all(each.name in self.pure for each in node.all_input_nodes) and _is_of_numbers_alone(node):
                if storages_of([node]).isdisjoint(changed):
                    self.pure.add(node.name)
        self.values: dict[torch.fx.Node, Any] = {}
        self.kinds: dict[torch.fx.Node, str | None] = {}

    def kind_of_mask(self, mask: torch.fx.Node) -> str | None:
        """What the mask says (`NOTHING`, `CAUSAL`), if it is known and one of these."""
        if mask not in self.kinds:
            self.kinds[mask] = self.answer(mask, _kind_of)
        return self.kinds[mask]

    def answer(self, node: torch.fx.Node, ask: Callable[[torch.Tensor], Any]) -> Any:
        """What `ask` says of the node's value; None where that is not known."""
        if node.name not in self.pure or node.meta["example_value"].numel() > LARGEST:
            return None
        try:
            with _disable_current_modes(), torch.no_grad():
                return ask(self.value(node))
        except Exception:  # whatever torch says of it, it says when the graph runs
            return None

    def erase_dead(self, graph: torch.fx.Graph) -> None:
        """Takes out of the graph, or of its copy, what was looked at and nobody reads any more."""
        looked_at = {node.name for node in self.values}
        for node in reversed(list(graph.nodes)):
            if not node.users and node.name in looked_at:
                graph.erase_node(node)

    def value(self, node: torch.fx.Node) -> Any:
        if node not in self.values:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self.value)  # type: ignore[misc]  # a tuple of two
            value = call_of(node, args, kwargs)
            if kind_of_value(value) != kind_of_value(node.meta["example_value"]):
                raise TypeError("another tensor than while tracing: a mode or default of the program's is not in force here")
            self.values[node] = value
        return self.values[node]


def _is_of_numbers_alone(node: torch.fx.Node) -> bool:
    return not (uses_rng(node) or writes(node) or acts_outside(node) or "empty" in name_of(node.target))


def _is_tensor(node: torch.fx.Node) -> bool:
    """Whether it is a plain tensor of known sizes without a gradient, made of such and numbers."""
    value = node.meta.get("example_value")
    if type(value) is not FakeTensor or value.layout is not torch.strided or value.requires_grad:
        return False
    given = pytree.tree_leaves((node.args, node.kwargs))
    return all(type(each) is int for each in value.shape) and not any(isinstance(each, torch.SymInt) for each in given)


def _kind_of(mask: torch.Tensor) -> str | None:
    if mask.dim() < 2:
        return None
    if mask.dtype is not torch.bool:
        through = mask == 0
        # What is added to the other scores leaves nothing of them, beside one that is left as it is. The lowest number of
        # float16 does leave something: scores are as large.
        if not bool((through | (mask <= torch.finfo(torch.bfloat16).min)).all()):
            return None
        mask = through
    if bool(mask.all()):
        return NOTHING
    rows, columns = mask.shape[-2:]
    causal = torch.ones(rows, columns, dtype=torch.bool, device=mask.device).tril()
    return CAUSAL if rows == columns and bool((mask == causal).all()) else None
