"""Masks of attention that a captured graph makes of nothing but numbers, computed while it is compiled.

Libraries make a mask whenever they are traced, and leave it out in eager where it masks nothing or is the causal one, for which
attention has faster kernels: they find out by looking at its numbers, as it is done here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

from fxjit.schemas import acts_outside, name_of, storages_of, uses_rng, writes, written

from ..graph.edit import copied

_ATTENTION = torch.nn.functional.scaled_dot_product_attention
#: The largest mask that is looked at, in elements: 4,096 x 4,096.
LARGEST = 1 << 24
#: What a mask is: it lets everything through, or what is not after.
_NOTHING, _CAUSAL = "nothing", "causal"


def with_known_masks(gm: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """The graph with attention over all or causal attention where a mask says just that; as it is if results would be laid out
    otherwise."""
    if not isinstance(gm, torch.fx.GraphModule):
        return gm
    attentions = gm.graph.find_nodes(op="call_function", target=_ATTENTION)
    known = _Known(gm.graph) if attentions else None
    found = {node: what for node in attentions if known is not None and (what := known.kind_of_mask(node)) is not None}
    values = _recalculated(gm.graph, found) if found else None
    if known is None or values is None:
        return gm
    changed = copied(gm)
    kinds = {node.name: what for node, what in found.items()}
    for node in list(changed.graph.nodes):
        if node.name in kinds:
            node.args, node.kwargs = _without_mask(node, kinds[node.name])
        if node.name in values:
            node.meta = node.meta | {"example_value": values[node.name]}
    looked_at = {node.name for node in known.values}
    for node in reversed(list(changed.graph.nodes)):
        if not node.users and node.name in looked_at:
            changed.graph.erase_node(node)
    changed.recompile()
    return changed


def _without_mask(attention: torch.fx.Node, what: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    kwargs = {key: value for key, value in attention.kwargs.items() if key != "attn_mask"}
    return attention.args[:3], {**kwargs, "is_causal": what == _CAUSAL}


class _Known:
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

    def kind_of_mask(self, attention: torch.fx.Node) -> str | None:
        """What the mask of the call says, if it is known."""
        mask = attention.kwargs.get("attn_mask", attention.args[3] if len(attention.args) > 3 else None)
        if not isinstance(mask, torch.fx.Node) or mask.name not in self.pure or len(attention.args) > 4:
            return None
        if attention.kwargs.get("is_causal") or mask.meta["example_value"].numel() > LARGEST:
            return None
        if mask not in self.kinds:
            self.kinds[mask] = self.kind(mask)
        return self.kinds[mask]

    def kind(self, mask: torch.fx.Node) -> str | None:
        try:
            with _disable_current_modes(), torch.no_grad():
                value = self.value(mask)
                return _kind_of(value)
        except Exception:  # whatever torch says of it, it says when the graph runs
            return None

    def value(self, node: torch.fx.Node) -> Any:
        if node not in self.values:
            args, kwargs = torch.fx.node.map_arg((node.args, node.kwargs), self.value)  # type: ignore[misc]  # a tuple of two
            value = _call(node, args, kwargs)
            if _kind_of_value(value) != _kind_of_value(node.meta["example_value"]):
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
        return _NOTHING
    rows, columns = mask.shape[-2:]
    causal = torch.ones(rows, columns, dtype=torch.bool, device=mask.device).tril()
    return _CAUSAL if rows == columns and bool((mask == causal).all()) else None


def _recalculated(graph: torch.fx.Graph, found: dict[torch.fx.Node, str]) -> dict[str, Any] | None:
    """The fake values that change: on some devices kernels without a mask lay out their results otherwise, and then so is what
    follows. None where the graph's results would, or where that can't be said."""
    values: dict[torch.fx.Node, Any] = {}

    def value(node: torch.fx.Node) -> Any:
        return values[node] if node in values else node.meta["example_value"]

    for node in graph.nodes:
        if node.op == "output":
            return None if any(each in values for each in node.all_input_nodes) else {n.name: v for n, v in values.items()}
        if node not in found and not any(each in values for each in node.all_input_nodes):
            continue
        try:
            before = node.meta["example_value"]
            args, kwargs = _without_mask(node, found[node]) if node in found else (node.args, node.kwargs)
            with _modes_of(before):
                after = _called(node, args, kwargs, value)
            leaves = [pytree.tree_leaves(each) for each in (before, after)]
            if [*map(_with_modes, leaves[0])] != [*map(_with_modes, leaves[1])]:
                return None
            is_view = not _memory(after).isdisjoint(_memory(list(values.values())))
            if is_view or [_layout(each) for each in leaves[0]] != [_layout(each) for each in leaves[1]]:
                values[node] = after
        except Exception:  # a view that the layout does not allow, or what fakes cannot say
            return None
    return None


@contextlib.contextmanager
def _modes_of(made: Any) -> Iterator[None]:
    """The modes of autograd that these tensors were made in, as far as they show it."""
    tensors = [each for each in pytree.tree_leaves(made) if isinstance(each, torch.Tensor)]
    inference = any(each.is_inference() for each in tensors)
    with torch.inference_mode() if inference else torch.set_grad_enabled(any(each.requires_grad for each in tensors)):
        yield


def _called(node: torch.fx.Node, args: Any, kwargs: Any, value: Callable[[torch.fx.Node], Any]) -> Any:
    args, kwargs = torch.fx.node.map_arg((args, kwargs), value)  # type: ignore[misc]  # a tuple of two
    fake = next(each for each in pytree.tree_leaves((args, kwargs)) if isinstance(each, FakeTensor))
    with fake.fake_mode:
        return _call(node, args, kwargs)


def _call(node: torch.fx.Node, args: Any, kwargs: Any) -> Any:
    target: Any = node.target
    return target(*args, **kwargs) if node.op == "call_function" else getattr(args[0], target)(*args[1:], **kwargs)


def _kind_of_value(value: Any) -> Any:
    return (tuple(value.shape), value.dtype, value.device) if isinstance(value, torch.Tensor) else value


def _with_modes(value: Any) -> Any:
    return (_kind_of_value(value), value.requires_grad, value.is_inference()) if isinstance(value, torch.Tensor) else value


def _memory(values: Any) -> set[int]:
    return {each.untyped_storage()._cdata for each in pytree.tree_leaves(values) if isinstance(each, torch.Tensor)}


def _layout(value: Any) -> Any:
    return (tuple(value.stride()), value.storage_offset()) if isinstance(value, torch.Tensor) else None
