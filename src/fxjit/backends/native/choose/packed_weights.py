"""Linear layers by packed weights (`config.freezing`): weights of float32 and bfloat16 that depend on module state alone are
packed once, by a call that passes/constants.py takes out of the graph, where our kernels are faster with them than without.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.fx

from fxjit import _C, config
from fxjit.backends.graph.edit import call_like
from fxjit.backends.graph.facts import view_root
from fxjit.schemas import MODULE_STATE

from ..decompositions import linear_of_packed, pack_weight
from ..hints import Hints
from ..index import prod, sizes_of
from ..lower.blas import FEW_ROWS, blas_is_atens
from ..lower.table import meta_of
from ..passes.constants import constants_of
from ..runtime.own_products import packed_is_faster
from .predictions import TILE_ROWS_LEAST

aten = torch.ops.aten
Node = torch.fx.Node
#: The capability of the processor that each type's kernels want.
KERNELS: Final = {torch.float32: "gemm", torch.bfloat16: "pairs"}


def pack_weights(graph: torch.fx.Graph, hints: Hints) -> None:
    """Replaces products by such weights, but of so few rows that these are read as they are, and of so many of float32 that
    what follows is calculated by blocks of rows."""
    if not (config.cpp.own_products and blas_is_atens()):
        return
    constant = constants_of(graph) | {node for node in graph.find_nodes(op="placeholder") if MODULE_STATE in node.meta}
    for node in list(graph.nodes):
        operands = _operands(node)
        if operands is None or view_root(operands[1]) not in constant or not _suits(*operands[:3]):
            continue
        x, weight, bias, turned = operands
        dtype = meta_of(weight).dtype
        results, terms = reversed(meta_of(weight).shape) if turned else meta_of(weight).shape
        rows = hints(prod(sizes_of(meta_of(x).shape)[:-1]))
        if rows <= FEW_ROWS or (dtype is torch.float32 and rows >= TILE_ROWS_LEAST):
            continue
        if not packed_is_faster(dtype, rows, results, terms):
            continue
        with graph.inserting_before(node):
            lying = call_like(graph, weight, aten.t.default, weight) if turned else weight
            packed = call_like(graph, lying, pack_weight(), lying)
            new = call_like(graph, node, linear_of_packed(), x, packed, bias, results)
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


def _suits(x: Node, weight: Node, bias: Node | None) -> bool:
    """Whether the kernels take them."""
    values = [meta_of(each) for each in (x, weight, bias) if each is not None]
    dtype = values[0].dtype if isinstance(values[0], torch.Tensor) else None
    if dtype not in KERNELS or not _C.program_can(KERNELS[dtype]) or (dtype is torch.float32 and _C.program_can("tiles")):
        return False
    if not all(isinstance(each, torch.Tensor) and each.dtype is dtype and each.layout is torch.strided
               and each.device.type == "cpu" for each in values):
        return False
    rows, columns = values[:2]
    known = columns.dim() == 2 and all(type(size) is int for size in (*columns.shape, *columns.stride()))
    lies_in_lines = known and 1 in columns.stride() and 0 not in columns.shape
    is_vector = bias is None or (values[2].dim() == 1 and values[2].is_contiguous())
    return lies_in_lines and is_vector and rows.dim() >= 2 and rows.is_contiguous()
