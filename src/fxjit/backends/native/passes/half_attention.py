"""Derivatives of attention over short sequences of half types, taken in float32: a pass of `cleanup.PASSES`.

ATen's kernel for a processor multiplies five matrices for each head, by oneDNN where they are of half types: there each product
takes some 60 us before it begins. In float32 they are products of the BLAS, and the results are nearer to the true ones.
"""

from __future__ import annotations

from typing import Any, Final

import torch
import torch.fx

from fxjit.backends.graph.edit import call_like

aten = torch.ops.aten
HALVES = (torch.float16, torch.bfloat16)
#: Queries times keys of a head up to which float32 is faster. Xeon with tiles of bfloat16, one thread, of bfloat16, times as
#: fast: 49 x 49 (64 x 4 heads of 32) 8.0, 64 x 64 (8 x 4 of 32) 6.8, 128 x 128 (4 x 12 of 64) 2.4, 197 x 197 (4 x 6 of 64) 1.6,
#: 256 x 256 (2 x 12 of 64) 1.07, (16 of 128) 0.71, 512 x 512 0.83. Of float16 1.2 or more at all of these.
SHORT: Final = 200 * 200


def widen_attention(graph: torch.fx.Graph) -> None:
    """Casts the operands of such derivatives, and the results back."""
    for node in graph.find_nodes(op="call_function", target=aten._scaled_dot_product_flash_attention_for_cpu_backward.default):
        query, key = node.args[1].meta["val"], node.args[2].meta["val"]
        if query.dtype in HALVES and _is_short(query, key):
            _widen(graph, node, query.dtype)


def _is_short(query: torch.Tensor, key: torch.Tensor) -> bool:
    sizes = query.shape[-2], key.shape[-2]
    return all(type(size) is int for size in sizes) and sizes[0] * sizes[1] <= SHORT


def _widen(graph: torch.fx.Graph, node: torch.fx.Node, half: torch.dtype) -> None:
    def widened(value: Any) -> Any:
        if not isinstance(value, torch.fx.Node) or value.meta["val"].dtype is not half:
            return value
        return call_like(graph, value, aten._to_copy.default, value, dtype=torch.float32)

    with graph.inserting_before(node):
        node.args, node.kwargs = tuple(map(widened, node.args)), {name: widened(value) for name, value in node.kwargs.items()}
    fake: Any = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    args, kwargs = fake
    with args[0].fake_mode:
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]  # an operator
    for item in list(node.users):
        item.meta["val"] = node.meta["val"][item.args[1]]
        with graph.inserting_after(item):
            narrow = call_like(graph, item, aten._to_copy.default, item, dtype=half)
        for user in [each for each in item.users if each is not narrow]:
            user.replace_input_with(item, narrow)
