"""Compiled or as captured: the profitability heuristic for small training graphs.

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

from fxjit import _C, config
from fxjit.backends.aot.recurrent import BACKWARD, OPERATORS, Layers
from fxjit.backends.aot.runtime.call_plan import CallPlan

from ..compiled import CompiledGraph
from ..executor.convolutions import convolution_of
from ..hints import Hints
from ..index import prod, sizes_of
from ..ir import Extern
from ..lower.blas import product_of
from ..lower.table import Lowering, op_name
from ..runtime.own_convolutions import is_preferred, microseconds_gained
from ..schedule.fuse import Group, Step, group_elements
from .machine import used
from .model import microseconds, pass_over
from .predictions import (
    ARGUMENT,
    ATTENTION_PRODUCT,
    CALL,
    COMPLEX,
    FUNCTIONAL,
    LAUNCH,
    NODE,
    PRODUCT,
    RECORDED,
    RECURRENT_STEP,
    UNRECORDED,
    WRAPPED_NODE,
)
from .probe import present

aten = torch.ops.aten
_PRODUCTS = frozenset({torch._C._nn.linear, torch.matmul, torch.mm, torch.bmm, torch.addmm, operator.matmul})


def overhead(steps: Sequence[Step], low: Lowering, hints: Hints) -> float:
    """The cost of running the steps besides their work; negative where fusion saves more."""
    total = 0.0
    for step in steps:
        if isinstance(step, Extern):
            less = _less_by_convolution(step.node, hints)
            if less is not None or product_of(step.node, low) is not None:
                total += microseconds(LAUNCH) - (less or 0.0)
            else:
                total += microseconds(CALL + ARGUMENT * len(step.node.args))
                total -= _less_by_recurrent(step.node, hints) + _less_by_attention(step.node, hints)
        elif isinstance(step, Group):
            total += microseconds(LAUNCH) - _passes_over_memory_less(step) * pass_over(group_elements(step, hints))
    return total


def _less_by_convolution(node: torch.fx.Node, hints: Hints) -> float | None:
    """What a convolution, or a derivative of one, saves that our kernels do; None where they do not."""
    found = convolution_of(node, hints) if "convolution" in op_name(node) else None
    if found is None or not is_preferred(found[0]):
        return None
    return microseconds_gained(found[0])


def _less_by_recurrent(node: torch.fx.Node, hints: Hints) -> float:
    """What a recurrent layer, or its derivative, saves where it is ours."""
    behind_gradients = 4 if node.target is BACKWARD else 0
    if not behind_gradients and node.target not in OPERATORS:
        return 0.0
    call = Layers(*node.args[behind_gradients:])  # type: ignore[arg-type]  # of nodes, by which only their metadata is asked
    values: list[Any] = [getattr(each, "meta", {}).get("val") for each in (call.x, call.batch_sizes)]
    x, batch_sizes = values
    if not config.cpp.own_recurrent or not _C.program_can("recurrent"):
        return 0.0
    if x.dtype is not torch.float32 or x.device.type != "cpu":
        return 0.0
    size = x.shape[1 if call.batch_first else 0] if batch_sizes is None else batch_sizes.shape[0]
    steps = size if isinstance(size, int) else hints(size.node.expr)
    return RECURRENT_STEP[call.kind] * steps * call.layers * (2 if call.both_ways else 1)


def _less_by_attention(node: torch.fx.Node, hints: Hints) -> float:
    """What attention, or its derivative, saves where it is ours."""
    back = node.target is aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    if not back and node.target is not aten._scaled_dot_product_flash_attention_for_cpu.default:
        return 0.0
    query, key = (each.meta["val"] for each in node.args[back:back + 2] if isinstance(each, torch.fx.Node))
    if not config.cpp.own_attention or not _C.program_can("attention") or query.dtype is torch.float64:
        return 0.0
    products = hints(prod((*sizes_of(query.shape), *sizes_of(key.shape[2:3]))))
    return products * (2.5 if back else 1.0) * ATTENTION_PRODUCT


def _passes_over_memory_less(group: Group) -> int:
    """The operators whose results are not stored: what only the group itself reads."""
    return max(len(group.origins()) - len(group.writes() - group.reads()), 0)


def is_unprofitable(gm: torch.fx.GraphModule, plan: CallPlan | None, graphs: Mapping[str, Callable[..., Any]]) -> bool:
    """Whether the captured graph, run operator by operator, costs less than its compiled parts."""
    parts = [graph for graph in graphs.values() if isinstance(graph, CompiledGraph)]
    if not config.small_graphs_as_captured or set(graphs) != {"forward", "backward"} or len(parts) != len(graphs):
        return False
    with used(present()):
        compiled = microseconds(NODE if plan is not None else WRAPPED_NODE) + sum(part.overhead for part in parts)
        return microseconds(sum(map(_cost_in_eager, gm.graph.nodes))) < compiled


def _cost_in_eager(node: torch.fx.Node) -> float:
    """In calls of an operator of ATen."""
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
