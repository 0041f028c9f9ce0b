"""Whether a small training graph is better run as it was captured.

A compiled training graph is an autograd node in Python, and calls ATen from Python. Beside a few operators of eager's, whose
autograd is C++, that costs more than it saves where little is fused. What is compared is estimated from both graphs, in
microseconds of one CPU; the work itself is the same either way, but for passes over memory that fusion saves.
"""

from __future__ import annotations

import operator
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
import torch.fx

from fxjit import config
from fxjit.backends.aot.runtime.call_plan import CallPlan

from .codegen.products import product_of
from .compiled import CompiledGraph
from .ir import Extern
from .lower.table import Lowering
from .schedule.fuse import Group, Hints, Step, group_elements

#: Measured: an autograd node of ours, forward and backward; the same with AOTAutograd's wrappers around it.
NODE, WRAPPED_NODE = 14.0, 120.0
#: A call of ATen from Python and each of its arguments; a kernel or a matrix product.
CALL, ARGUMENT, LAUNCH = 2.5, 0.5, 0.7
#: An operator of eager's that autograd records, forward and backward; a function of torch.nn.functional; a matrix product,
#: whose derivative is two more; an operator of complex numbers, whose derivative conjugates; one not recorded.
RECORDED, FUNCTIONAL, PRODUCT, COMPLEX, UNRECORDED = 5.0, 7.0, 8.0, 10.0, 1.5
#: One pass over an element that fusion saves, where all of it is in the cache or is not.
NEAR_PASS, FAR_PASS, NEAR = 0.00003, 0.0003, 65536
_PRODUCTS = frozenset({torch._C._nn.linear, torch.matmul, torch.mm, torch.bmm, torch.addmm, operator.matmul})


def overhead(steps: Sequence[Step], low: Lowering, hints: Hints) -> float:
    """What it costs to run the steps beside their work; less than nothing where fusion saves more."""
    total = 0.0
    for step in steps:
        if isinstance(step, Extern):
            product = product_of(step.node, low) is not None
            total += LAUNCH if product else CALL + ARGUMENT * len(step.node.args)
        elif isinstance(step, Group):
            total += LAUNCH - _saved_passes(step) * _pass_over(group_elements(step, hints))
    return total


def _saved_passes(group: Group) -> int:
    """The operators whose results are not stored: what only the group itself reads."""
    origins = frozenset[torch.fx.Node]().union(*(member.compute.origins for member in group.members))
    return max(len(origins) - len(group.writes() - group.reads()), 0)


def _pass_over(elements: int) -> float:
    return elements * (NEAR_PASS if elements <= NEAR else FAR_PASS)


def better_as_captured(gm: torch.fx.GraphModule, plan: CallPlan | None, graphs: Mapping[str, Callable[..., Any]]) -> bool:
    """Whether the captured graph, run operator by operator, costs less than its compiled parts."""
    parts = [graph for graph in graphs.values() if isinstance(graph, CompiledGraph)]
    if not config.small_graphs_as_captured or set(graphs) != {"forward", "backward"} or len(parts) != len(graphs):
        return False
    compiled = (NODE if plan is not None else WRAPPED_NODE) + sum(part.overhead for part in parts)
    return sum(map(_cost_in_eager, gm.graph.nodes)) < compiled


def _cost_in_eager(node: torch.fx.Node) -> float:
    value = node.meta.get("example_value")
    if node.op not in ("call_function", "call_method") or node.target in (operator.getitem, getattr):
        return 0.0
    results = value if isinstance(value, (list, tuple)) else (value,)
    if not any(isinstance(each, torch.Tensor) and each.requires_grad for each in results):
        return UNRECORDED
    if any(isinstance(each, torch.Tensor) and each.is_complex() for each in results):
        return COMPLEX
    if node.target in _PRODUCTS or node.target in ("matmul", "mm", "bmm", "addmm"):
        return PRODUCT
    return FUNCTIONAL if isinstance(node.target, types.FunctionType) else RECORDED
