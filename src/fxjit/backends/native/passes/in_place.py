"""Which writes to a part of an input go straight to its memory: a cache that a program fills position by position.

AOTAutograd makes `cache.index_copy_(...)` a copy of the cache with the new values, and a copy of that to the input at the
end. Where nobody reads what was there before, both copies are for nothing. A pass of `cleanup.PASSES`; the lowering asks for
what it marks (`Lowering.memory_to_change`). Where ATen has the operator, the call itself is one that writes in place.
"""

from __future__ import annotations

import torch
import torch.fx

from fxjit.backends.graph.facts import may_raise
from fxjit.schemas import returns_alias

aten = torch.ops.aten
MARK = "fxjit_in_place"
#: In the same place: whether a second run, of a program that failed behind the write, writes the same again.
REPEATS = "fxjit_repeats"
#: Operators whose result is their first argument but for some places.
CHANGES_PLACES = frozenset(
    {
        aten.scatter.src, aten.scatter.value, aten.scatter.reduce, aten.scatter.value_reduce, aten.scatter_add.default,
        aten.scatter_reduce.two, aten.index_add.default, aten.index_copy.default, aten.index_fill.int_Scalar,
        aten.index_fill.int_Tensor, aten.index_put.default, aten._unsafe_index_put.default, aten.slice_scatter.default,
        aten.select_scatter.default,
    }
)  # fmt: skip


def mark_in_place(graph: torch.fx.Graph) -> None:
    """Where a later operator may raise, the program runs again (resume/deoptimization.py) and writes again: this must not
    matter. It doesn't where places are set, not changed, and nothing reads what they held."""
    order = {node: position for position, node in enumerate(graph.nodes)}
    writes = graph.find_nodes(op="call_function", target=aten.copy_.default)
    last = max((order[node] for node in graph.nodes if may_raise(node)), default=-1) if writes else -1
    for write in writes:
        repeats = True
        # From the input on, as far as nobody wants what was there before.
        for base, node in reversed(changes(write)):
            before = readers(base, write)
            late = any(user is not node and order[user] > order[node] for user in before)
            if late or any(user.op == "output" for user in readers(node, write)):
                break
            repeats = repeats and sets_places(node) and before == [node]
            if not repeats and last > order[node]:
                break
            node.meta[MARK], node.meta[REPEATS] = True, repeats


def sets_places(node: torch.fx.Node) -> bool:
    """Whether what the places held has no part in what they hold then."""
    if node.target in (aten.index_put.default, aten._unsafe_index_put.default):
        return not (node.args[3] if len(node.args) > 3 else node.kwargs.get("accumulate", False))
    return node.target in SETS_PLACES


#: Those of them that also have no part in it where they are: `index_put` sets or adds, as it is told.
SETS_PLACES = frozenset({
    aten.scatter.src, aten.scatter.value, aten.index_copy.default, aten.index_fill.int_Scalar, aten.index_fill.int_Tensor,
    aten.slice_scatter.default, aten.select_scatter.default,
})  # fmt: skip


#: Operators that ATen is called for, with what writes to their first argument: most of it stays as it is.
WRITING = {aten.embedding_renorm.default: aten.embedding_renorm_.default}


def write_by_aten(graph: torch.fx.Graph) -> None:
    order = {node: position for position, node in enumerate(graph.nodes)}
    for write in graph.find_nodes(op="call_function", target=aten.copy_.default):
        target, node = write.args[:2]
        if not isinstance(node, torch.fx.Node) or node.target not in WRITING or node.args[0] is not target or write.users:
            continue
        assert isinstance(target, torch.fx.Node)
        late = any(user is not node and order[user] > order[node] for user in readers(target, write))
        if late or target.op != "placeholder" or any(user.op == "output" for user in readers(node, write)):
            continue
        with graph.inserting_before(node):
            done = graph.call_function(WRITING[node.target], node.args, node.kwargs)
        done.meta.update(node.meta)
        graph.erase_node(write)
        node.replace_all_uses_with(target)
        graph.erase_node(node)


def changes(write: torch.fx.Node) -> list[tuple[torch.fx.Node, torch.fx.Node]]:
    """(what was, what is then) for each change between an input and what is written to it in the end, the last one first."""
    target, node = write.args[:2]
    assert isinstance(target, torch.fx.Node)
    found = []
    while isinstance(node, torch.fx.Node) and node.target in CHANGES_PLACES and alike(node, target):
        base = node.args[0]
        assert isinstance(base, torch.fx.Node)
        found.append((base, node))
        node = base
    return found if node is target and target.op == "placeholder" else []


def alike(node: torch.fx.Node, target: torch.fx.Node) -> bool:
    a, b = node.meta.get("val"), target.meta.get("val")
    return (
        isinstance(a, torch.Tensor)
        and isinstance(b, torch.Tensor)
        and a.dtype is b.dtype
        and a.device == b.device
        and a.shape == b.shape
        and a.stride() == b.stride()
    )


def readers(node: torch.fx.Node, write: torch.fx.Node) -> list[torch.fx.Node]:
    """The nodes that read the node's values, through views of it; the write at the end is none."""
    found = []
    for user in node.users:
        if user is write:
            continue
        found.append(user)
        if returns_alias(user.target):
            found += readers(user, write)
    return found

