"""Where the numbers of a result lie in memory: as eager has them, also where AOTAutograd has made a write functional.

`y.permute(2, 0, 1).tril_()` leaves `y` in the order it was in. As a function, `tril` gives a new tensor in its own order, of
which `y` is then a view.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta

from .sizes import hints

aten = torch.ops.aten
_OWN = (OutputType.non_alias, OutputType.unsafe_view_alias)


def keep_layouts(graph: torch.fx.GraphModule, captured: torch.fx.GraphModule, meta: ViewAndMutationMeta | None) -> None:
    """Gives results of AOTAutograd's forward or inference graph the order that the captured graph's have, if it is another.
    Results that are views of others stay what they are."""
    if meta is None or meta.tokens:
        return
    (wanted,), output = next(iter(captured.graph.find_nodes(op="output"))).args, next(iter(graph.graph.find_nodes(op="output")))
    (given,) = output.args
    first = meta.num_mutated_inp_runtime_indices
    values, changed = list(given), False
    for place, (info, node) in enumerate(zip(meta.output_info, wanted, strict=False), first):
        value = values[place] if info.output_type in _OWN else None
        if isinstance(value, torch.fx.Node) and isinstance(node, torch.fx.Node):
            order, now = _order(node.meta.get("example_value")), _order(value.meta.get("val"))
            if order is not None and now is not None and len(order) == len(now) and order != now:
                values[place], changed = _laid_out(graph.graph, output, value, order), True
    if changed:
        output.args = (values if isinstance(given, list) else tuple(values),)
        graph.recompile()


def _order(x: Any) -> tuple[int, ...] | None:
    """The dimensions from the outermost in memory to the innermost, without those of one element; None for what has gaps, is
    empty, or has a size that only data tells."""
    if not isinstance(x, torch.Tensor) or x.layout is not torch.strided:
        return None
    rows: list[Any] = [hints(x.shape), hints(x.stride())]
    size, stride = rows
    if None in size or None in stride or not math.prod(size):
        return None
    order = sorted((dim for dim in range(x.dim()) if size[dim] != 1), key=lambda dim: -stride[dim])
    step = 1
    for dim in reversed(order):
        if stride[dim] != step:
            return None
        step *= size[dim]
    return tuple(order)


def _laid_out(graph: torch.fx.Graph, before: torch.fx.Node, value: torch.fx.Node, order: tuple[int, ...]) -> torch.fx.Node:
    """A copy whose memory has the dimensions in this order."""
    dims = [*order, *(dim for dim in range(value.meta["val"].dim()) if dim not in order)]
    back = sorted(range(len(dims)), key=dims.__getitem__)
    node = value
    steps: list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = [
        (aten.permute.default, (dims,), {}), (aten.clone.default, (), {"memory_format": torch.contiguous_format}),
        (aten.permute.default, (back,), {})]
    for target, arguments, keywords in steps:
        with graph.inserting_before(before):
            following = graph.call_function(target, (node, *arguments), keywords)
        with node.meta["val"].fake_mode:
            following.meta = value.meta | {"val": target(node.meta["val"], *arguments, **keywords)}
        node = following
    return node
