"""Constant folding of module state (`config.freezing`): what a graph calculates of parameters and buffers alone becomes a graph
of its own, whose results are further inputs of the first one (../folded.py).

Views stay where they are, since they cost nothing, and so does what the graph returns, which the caller may write to. What
takes more memory than the state that it is made of stays, too: weights of eight bits are kept so to be read as eight bits.
"""

from __future__ import annotations

import operator
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.fx
from torch.utils import _pytree as pytree

from fxjit.backends.graph.edit import copied
from fxjit.backends.graph.facts import is_check, view_root
from fxjit.schemas import MODULE_STATE, may_raise_on, target_uses_rng, written

Node = torch.fx.Node
#: Operators that do nothing but calculate.
NAMESPACES: Final = frozenset({"aten", "prims", "fxjit"})
#: Bytes up to which a result is kept, however few it is made of: tables of positions, say.
SMALL: Final = 1 << 20
#: Of larger ones, how many times the bytes of what it is made of: packed weights are rounded up.
MOST: Final = 1.25


@dataclass(frozen=True, slots=True)
class Parts:
    """A graph in two parts."""

    #: What is calculated of module state alone, and for each of its inputs which of the whole graph's that is.
    constants: torch.fx.GraphModule
    inputs: tuple[int, ...]
    #: All else. Its inputs are those of the whole graph, and the other part's results.
    rest: torch.fx.GraphModule


def take_out_constants(whole: torch.fx.GraphModule) -> Parts | None:
    """The graph in parts; None where nothing depends on module state alone."""
    gm = copied(whole)
    results = _results(gm.graph, constants_of(gm.graph))
    if not results:
        return None
    needed = _with_ancestors(results)
    places = gm.graph.find_nodes(op="placeholder")
    made, copies = torch.fx.Graph(), dict[Node, Node]()
    for node in gm.graph.nodes:
        if node in needed:
            copies[node] = made.node_copy(node, copies.__getitem__)
    made.output(tuple(copies[node] for node in results))
    parts = Parts(torch.fx.GraphModule(gm, made), tuple(at for at, node in enumerate(places) if node in needed), gm)
    for number, node in enumerate(results):
        _replace_by_input(gm.graph, node, f"constant_{number}")
    for node in reversed(list(gm.graph.nodes)):
        if node in needed and node.op != "placeholder" and not node.users:
            gm.graph.erase_node(node)
    gm.recompile()
    return parts


def constants_of(graph: torch.fx.Graph) -> set[Node]:
    """The calls whose results depend on module state alone, and that need not be done at each call."""
    returned = {view_root(each) for each in graph.output_node().all_input_nodes}
    state = {node for node in graph.find_nodes(op="placeholder") if MODULE_STATE in node.meta}
    state -= {view_root(each) for node in graph.nodes for each in written(node)}
    made_of_nothing: set[Node] = set()
    constant: set[Node] = set()
    for node in graph.nodes:
        if node.op == "get_attr":
            made_of_nothing.add(node)
        elif node.op == "call_function" and node not in returned and _only_calculates(node):
            given = node.all_input_nodes
            if all(each in made_of_nothing for each in given):
                made_of_nothing.add(node)
            elif all(each in state or each in constant or each in made_of_nothing for each in given):
                constant.add(node)
    return constant


def _only_calculates(node: Node) -> bool:
    """Whether the call has no effect, gives the same each time, and does not raise for some numbers."""
    values = [each for each in pytree.tree_leaves(meta_of(node)) if isinstance(each, torch.Tensor)]
    plain = all(each.layout is torch.strided and not each.is_quantized and not each.is_conj() and not each.is_neg()
                and all(type(size) is int for size in (*each.shape, *each.stride())) for each in values)
    if not values or not plain:
        return False
    if node.target is operator.getitem:
        return True
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload) or target.namespace not in NAMESPACES or is_check(node):
        return False
    if target._schema.is_mutable or target_uses_rng(target):
        return False
    given = [[meta_of(each) for each in _nodes(arg)] for arg in (*node.args, *node.kwargs.values())]
    return target.namespace == "fxjit" or not may_raise_on(target, [each for each in given if each])


def _nodes(arg: Any) -> Iterator[Node]:
    return (leaf for leaf in pytree.tree_leaves(arg) if isinstance(leaf, Node) and isinstance(meta_of(leaf), torch.Tensor))


def _results(graph: torch.fx.Graph, constant: set[Node]) -> list[Node]:
    """What of the constants is to be kept: that other calls read, in the order in which it is made."""
    while True:
        read = {view_root(node) for node in constant if any(user not in constant for user in node.users)} & constant
        kept = {node for node in read if isinstance(meta_of(node), torch.Tensor) and _takes_little_more_memory(node)}
        if kept == read:
            return [node for node in graph.nodes if node in kept]
        constant = constant - (read - kept)


def _takes_little_more_memory(node: Node) -> bool:
    state = [each for each in _with_ancestors([node]) if each.op == "placeholder"]
    return _bytes(node) <= max(SMALL, MOST * sum(map(_bytes, state)))


def meta_of(node: Node) -> Any:
    return node.meta.get("val")


def _bytes(node: Node) -> int:
    value = meta_of(node)
    return int(value.numel() * value.element_size())


def _with_ancestors(nodes: Iterable[Node]) -> set[Node]:
    found, left = set[Node](), list(nodes)
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left.extend(node.all_input_nodes)
    return found


def _replace_by_input(graph: torch.fx.Graph, node: Node, name: str) -> None:
    last = graph.find_nodes(op="placeholder")[-1]
    with graph.inserting_after(last):
        place = graph.placeholder(name)
    place.meta = {"val": node.meta["val"]}
    node.replace_all_uses_with(place)
