"""Products of matrices of 8-bit integers (`_int_mm`: torchao's dynamic quantisation) as products of float32, where those are
faster. They give the same integers: float32 holds all whole numbers up to 2^24, which 1024 products of 8-bit numbers reach.

ATen multiplies such matrices fast where the processor has instructions for it (VNNI), and number by number where not.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.fx

from ..generic_sizes import known
from ..passes.convolution import Calls, replace
from ..runtime.own_products import integers_are_faster_as_floats

aten = torch.ops.aten
#: Products of two numbers of -128 to 127 whose sum float32 holds, whatever the order they are added in.
TERMS: Final = (1 << 24) // (128 * 128)


def multiply_integers(graph: torch.fx.Graph) -> None:
    """Products of float32 in the places of `_int_mm`: a pass over an ATen graph."""
    for node in list(graph.find_nodes(op="call_function", target=aten._int_mm.default)):
        if not node.kwargs and _is_faster_as_floats(node):
            _multiply(graph, node)


def _is_faster_as_floats(node: torch.fx.Node) -> bool:
    operands: Any = node.args
    a, b = (each.meta["val"] for each in operands)
    if a.device.type != "cpu":
        return False
    m, k, n = (known(size) for size in (*a.shape, b.shape[1]))
    if not isinstance(a.shape[1], int) or not isinstance(m, int) or not isinstance(n, int):  # they vary, or depend on data
        return False
    return integers_are_faster_as_floats(m, n, k)


def _multiply(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    operands: Any = node.args
    a, b = operands
    terms, call, total = a.meta["val"].shape[1], Calls(graph, node), None
    with graph.inserting_before(node):
        for start in range(0, terms, TERMS):
            part = [a, b]
            if terms > TERMS:
                part = [call(aten.slice.Tensor, each, dim, start, min(start + TERMS, terms)) for each, dim in ((a, 1), (b, 0))]
            floats = [call(aten._to_copy.default, each, dtype=torch.float32) for each in part]
            sums = call(aten._to_copy.default, call(aten.mm.default, *floats), dtype=torch.int32)
            total = sums if total is None else call(aten.add.Tensor, total, sums)
    assert total is not None
    replace(graph, node, total)
