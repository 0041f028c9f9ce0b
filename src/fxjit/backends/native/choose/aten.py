"""A kernel or ATen: groups that are one operator of the graph, all of it, and that ATen computes faster."""

from __future__ import annotations

import operator
from collections.abc import Collection
from typing import Final

import torch
import torch.fx
from torch.utils import _pytree as pytree

from fxjit.counters import counters

from ..hints import Hints
from ..index import size_of
from ..ir import COMPUTE_TYPE, Extern
from ..lower.table import Lowering, is_view, meta_of, op_name
from ..schedule.fuse import Group, Step, group_work, readers_of
from ..target import by_triton, has_intel_processor
from .model import small_work
from .predictions import (
    ACROSS,
    ALONE,
    AS_FAST,
    GELU_ALONE,
    LONG_ROWS,
    LONG_ROWS_OF_VECTORS,
    ROUNDED,
    SHORT_MAXIMA,
    SHORT_ROWS,
    SHORT_SUMS,
    VECTOR_TAIL,
    WIDE_COLUMNS,
)

#: Elements of the widest vector.
VECTOR = 16
#: The rows of operators by name and type; those of all other types by None.
ROWS: Final = {(name, dtype): row for row in ALONE for name in row.operators for dtype in row.dtypes or (None,)}


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
    results = [each for each in pytree.tree_leaves(meta_of(node)) if isinstance(each, torch.Tensor)]
    taken = (meta_of(each) for each in node.all_input_nodes)
    x = next((each for each in taken if isinstance(each, torch.Tensor)), results[0])
    along_rows = reduced(node, x) == (x.ndim - 1,)
    length = hints(size_of(x.shape[-1])) if x.ndim else 1
    if name in ACROSS and reduced(node, x) and (x.ndim - 1) not in reduced(node, x):
        return name != "logsumexp.default" or x.dtype in COMPUTE_TYPE or x.dtype is torch.float32
    if name == "logsumexp.default":
        return along_rows and rows_are_long(name, x, hints)
    if name.startswith(("sum.", "mean.")) and along_rows and length <= SHORT_SUMS and x.dtype is not torch.float16:
        return True
    if x.dtype in (torch.float32, torch.float64) and reduced(node, x) and (x.ndim - 1) not in reduced(node, x):
        if length >= WIDE_COLUMNS.get(name.partition(".")[0], length + 1):
            return True
    if name.startswith(("amax.", "amin.", "prod.")) and along_rows and length < SHORT_MAXIMA and x.dtype in COMPUTE_TYPE:
        return False
    if name == "_to_copy.default" and results[0].dtype in ROUNDED and x.dtype in (torch.float32, torch.float64):
        return False
    if name in ("_softmax.default", "_log_softmax.default"):
        if along_rows:
            first, end = SHORT_ROWS.get(x.dtype, (0, 0))
            return first <= length < end or rows_are_long(name, x, hints)
    if name == "gelu.default":
        return GELU_ALONE[str(node.kwargs.get("approximate", "none"))].least >= 1
    row = ROWS.get((name, x.dtype), ROWS.get((name, None)))
    return row is not None and row.least >= AS_FAST and not (row.by_mkl and has_intel_processor())


def reduced(node: torch.fx.Node, x: torch.Tensor) -> tuple[int, ...]:
    """The dimensions that the operator's second argument names, in order; none where it names none."""
    dims = pytree.tree_leaves(node.args[1]) if len(node.args) > 1 else []
    return tuple(sorted(dim % max(x.ndim, 1) for dim in dims)) if all(isinstance(dim, int) for dim in dims) else ()


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
