"""Facts about a whole FX graph: the memory that its nodes share and write to, what leads to its results, which calls change the
state of the process. What a single call does is told in `fxjit.schemas`.

Captured graphs carry fake tensors as `example_value`; two nodes whose fake tensors have one storage share memory.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
import torch.fx
from torch.utils import _pytree as pytree

from fxjit.schemas import inner_graphs, signatures, view_base, writes, written

Node = torch.fx.Node
#: Modules of functions that enter and leave modes, for graphs of torch._dynamo as for ours.
_MODE_MODULES = frozenset({"torch.autograd.grad_mode", "torch.amp.autocast_mode", "torch._functorch.predispatch"})


def tensors_of(node: Node) -> Iterator[torch.Tensor]:
    """The fake tensors that the node of a captured graph gave."""
    for leaf in pytree.tree_leaves(node.meta.get("example_value")):
        if isinstance(leaf, torch.Tensor):
            yield leaf


def storages_of(nodes: Iterable[Node]) -> set[int]:
    """The storages of what the nodes gave; sparse tensors have none."""
    tensors = (tensor for node in nodes for tensor in tensors_of(node))
    return {tensor.untyped_storage()._cdata for tensor in tensors if torch._C._has_storage(tensor)}


def all_nodes(gm: torch.fx.GraphModule) -> Iterator[Node]:
    """The nodes of a captured graph and of those that its higher-order operators take."""
    for node in gm.graph.nodes:
        yield node
        if node.op == "get_attr":
            for graph in inner_graphs(node):
                yield from all_nodes(graph)


def written_storages(gm: torch.fx.GraphModule, by: Callable[[Node], bool] = lambda node: True) -> set[int]:
    """The storages that the captured graph writes to, or only those nodes of it."""
    return {place for node in all_nodes(gm) if by(node) for place in storages_of(written(node))}


def placeholders_written(gm: torch.fx.GraphModule) -> frozenset[int]:
    """The positions of the inputs that an ATen graph writes to."""
    roots = {view_root(each) for node in gm.graph.nodes for each in written(node)}
    return frozenset(place for place, node in enumerate(gm.graph.find_nodes(op="placeholder")) if node in roots)


def view_root(node: Node) -> Node:
    """The node of an ATen graph that made the memory of this one's result."""
    while (base := view_base(_call_of(node))) is not None:
        node = base
    return node


def _call_of(node: Node) -> Node | None:
    """The node itself, or for an element of several views, as of `split`, the call that made them."""
    if node.target is operator.getitem and isinstance(node.args[0], Node):
        return node.args[0]
    return node


def needed(graph: torch.fx.Graph) -> set[Node]:
    """What leads to the graph's results, or to a write."""
    found: set[Node] = set()
    for node in reversed(graph.nodes):
        if node.op == "output" or writes(node) or any(user in found for user in node.users):
            found.add(node)
    return found


def changes_state(node: Node) -> bool:
    """Whether the call sets a mode of the process, such as recording by autograd or autocast, for the nodes behind it."""
    if node.op != "call_function":
        return False
    target: Any = node.target
    if getattr(target, "changes_state", False) or getattr(target, "__module__", None) in _MODE_MODULES:
        return True
    # A function of torch's C++ that is no operator and gives no tensor is called for such an effect.
    is_builtin = isinstance(target, types.BuiltinFunctionType) and (target.__module__ or "").startswith("torch")
    return is_builtin and not signatures(target) and next(tensors_of(node), None) is None
