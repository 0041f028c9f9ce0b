"""Linear layers of bfloat16 by packed weights (`config.freezing`): weights that depend on module state alone are packed once,
by a call that passes/constants.py takes out of the graph, where our kernel is faster with them than oneDNN is without.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from fxjit import _C, config
from fxjit.backends.graph.edit import call_like
from fxjit.schemas import MODULE_STATE

from ..decompositions import linear_of_pairs, pack_pairs
from ..hints import Hints
from ..index import prod, sizes_of
from ..lower.blas import FEW_ROWS, blas_is_atens
from ..lower.table import meta_of
from ..passes.constants import constants_of, memory_of
from ..runtime.own_products import pairs_are_faster

aten = torch.ops.aten
Node = torch.fx.Node


def pack_weights(graph: torch.fx.Graph, hints: Hints) -> None:
    """Replaces products by such weights, but of so few rows that these are read as they are."""
    if not (config.cpp.own_products and _C.program_can("pairs") and blas_is_atens()):
        return
    constant = constants_of(graph) | {node for node in graph.find_nodes(op="placeholder") if MODULE_STATE in node.meta}
    for node in list(graph.nodes):
        operands = _operands(node)
        if operands is None or memory_of(operands[1]) not in constant or not _suits(*operands):
            continue
        x, weight, bias, turned = operands
        results, terms = reversed(meta_of(weight).shape) if turned else meta_of(weight).shape
        rows = hints(prod(sizes_of(meta_of(x).shape)[:-1]))
        if rows <= FEW_ROWS or not pairs_are_faster(rows, results, terms, packed=True):
            continue
        with graph.inserting_before(node):
            lying = call_like(graph, weight, aten.t.default, weight) if turned else weight
            packed = call_like(graph, lying, pack_pairs(), lying)
            new = call_like(graph, node, linear_of_pairs(), x, packed, bias, results)
        node.replace_all_uses_with(new)
        graph.erase_node(node)


def _operands(node: Node) -> tuple[Node, Node, Node | None, bool] | None:
    """Rows, weights and bias of a linear layer; last whether the weights have a column for each result."""
    if node.op != "call_function" or node.kwargs:
        return None
    given: Any = node.args
    if node.target is aten.linear.default:
        return given[0], given[1], given[2] if len(given) > 2 else None, False
    if node.target is aten.mm.default:
        return given[0], given[1], None, True
    return (given[1], given[2], given[0], True) if node.target is aten.addmm.default else None


def _suits(x: Node, weight: Node, bias: Node | None, turned: bool) -> bool:
    values = [meta_of(each) for each in (x, weight, bias) if each is not None]
    if not all(isinstance(each, torch.Tensor) and each.dtype is torch.bfloat16 and each.layout is torch.strided
               and each.device.type == "cpu" for each in values):
        return False
    rows, columns = values[:2]
    known = columns.dim() == 2 and all(type(size) is int for size in (*columns.shape, *columns.stride()))
    lies_in_lines = known and 1 in columns.stride() and 0 not in columns.shape
    is_vector = bias is None or (values[2].dim() == 1 and values[2].is_contiguous())
    return lies_in_lines and is_vector and rows.dim() >= 2 and rows.is_contiguous()
