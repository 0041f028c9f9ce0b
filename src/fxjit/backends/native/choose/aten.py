"""A kernel or ATen: groups that are one operator of the graph, all of it, and that ATen computes faster."""

from __future__ import annotations

import operator
from collections.abc import Collection

import torch
import torch.fx
from torch.utils import _pytree as pytree

from fxjit.counters import counters

from ..hints import Hints
from ..index import size_of
from ..ir import Extern
from ..lower.table import Lowering, is_view, meta_of, op_name
from ..schedule.fuse import Group, Step, group_work, readers_of
from ..target import by_triton
from .model import small_work
from .predictions import ALONE, GELU_ALONE, LONG_ROWS, LONG_ROWS_OF_VECTORS, SHORT_ROWS, VECTOR_TAIL

#: Elements of the widest vector.
VECTOR = 16
#: The operators whose kernels are as fast as ATen's, and those whose are not over numbers of one type.
FASTER = frozenset[str]().union(*(row.operators for row in ALONE if row.dtype is None and row.least >= 1))
SLOWER = {(name, row.dtype) for row in ALONE if row.dtype is not None and row.least < 1 for name in row.operators}


def leave_to_aten(
    steps: list[Step], low: Lowering, escaping: frozenset[str], hints: Hints, kept: Collection[Group] = ()
) -> list[Step]:
    """The steps, with a call of ATen for each group that is one operator which ATen computes faster, but for those `kept`."""
    readers = readers_of(steps)
    owners: dict[torch.fx.Node, set[int]] = {}
    for position, step in enumerate(steps):
        if isinstance(step, Group):
            for node in step.origins():
                owners.setdefault(node, set()).add(position)
    out: list[Step] = []
    for position, step in enumerate(steps):
        if isinstance(step, Group) and step not in kept and len(step.origins()) == 1:
            (node,) = step.origins()
            others = escaping.union(name for name in step.writes() if readers.get(name, set()) - {position})
            ours = group_work(step, hints) <= small_work(op_name(node)) or kernel_wins(node, hints)
            if not ours and owners[node] == {position} and is_replaceable(step, node, low, others):
                out.append(as_extern(node, low))
                continue
        out.append(step)
    return out


def kernel_wins(node: torch.fx.Node, hints: Hints) -> bool:
    """Whether the node's kernel is at least as fast as ATen's."""
    name = op_name(node)
    results = (each for each in pytree.tree_leaves(meta_of(node)) if isinstance(each, torch.Tensor))
    if any((name, each.dtype) in SLOWER for each in results):
        return False
    if name == "logsumexp.default":
        x, dims = meta_of(node.all_input_nodes[0]), pytree.tree_leaves(node.args[1])
        if len(dims) == 1 and dims[0] % max(x.ndim, 1) == x.ndim - 1:
            return rows_are_long(name, x, hints)
    if name in ("_softmax.default", "_log_softmax.default"):
        x, dim = meta_of(node.args[0]), int(node.args[1])  # type: ignore[arg-type]  # a softmax's second argument is a dimension
        if dim % max(x.ndim, 1) == x.ndim - 1:
            first, end = SHORT_ROWS.get(x.dtype, (0, 0))
            return first <= hints(size_of(x.shape[-1])) < end or rows_are_long(name, x, hints)
    if name == "gelu.default":
        return GELU_ALONE[str(node.kwargs.get("approximate", "none"))].least >= 1
    return name in FASTER


def rows_are_long(name: str, x: torch.Tensor, hints: Hints) -> bool:
    """Whether the rows of a softmax, or of what is like one, are long enough for a kernel."""
    length = size_of(x.shape[-1])
    whole = isinstance(length, int) and length % VECTOR <= VECTOR_TAIL
    rows = LONG_ROWS | LONG_ROWS_OF_VECTORS if whole else LONG_ROWS
    return (name, x.dtype) in rows and hints(length) >= rows[name, x.dtype]


def is_replaceable(group: Group, node: torch.fx.Node, low: Lowering, others: frozenset[str]) -> bool:
    """Whether a call of the operator does all that the group does: its arguments are in memory, and of what the kernel writes
    nothing but the operator's results is read by others (`others`)."""
    if by_triton(group.device) or node.op != "call_function" or is_view(node):
        return False
    if any(name in low.buffers and low.buffers[name].kind == "input" for name in group.writes()):
        return False
    made = {low.storage[each] for each in results_of(node) if each in low.storage}
    if any(low.storage.get(arg) in made for arg in node.all_input_nodes):
        return False  # a write in place
    if not made & group.writes() or (group.writes() & others) - made:
        return False
    return all(is_in_memory(low, arg) for arg in node.all_input_nodes if isinstance(meta_of(arg), torch.Tensor))


def results_of(node: torch.fx.Node) -> list[torch.fx.Node]:
    return [node, *(user for user in node.users if user.target is operator.getitem)]


def is_in_memory(low: Lowering, node: torch.fx.Node) -> bool:
    while node not in low.storage and is_view(node):
        node = node.args[0]  # type: ignore[assignment]  # a view's first argument is a node
    return node in low.storage


def as_extern(node: torch.fx.Node, low: Lowering) -> Extern:
    for arg in node.all_input_nodes:
        if isinstance(meta_of(arg), torch.Tensor):
            low.materialize(arg)
    reads = frozenset(low.storage[arg] for arg in node.all_input_nodes if arg in low.storage)
    results = frozenset(low.storage[each] for each in results_of(node) if each in low.storage)
    for name in results:
        low.buffers[name] = low.buffers[name].as_kind("extern")
    counters["native"]["left to ATen"] += 1
    return Extern(node, reads, frozenset(), results)
