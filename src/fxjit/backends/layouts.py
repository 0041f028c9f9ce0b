"""Where the numbers of a result lie in memory: as eager has them, also where AOTAutograd has made a write functional.

`y.permute(2, 0, 1).tril_()` leaves `y` in the order it was in. As a function, `tril` gives a new tensor in its own order, of
which `y` is then a view.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.fx
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta
from torch.utils import _pytree as pytree

from fxjit.schemas import name_of, overloads_of

from .graph.facts import storages_of, written_storages
from .sizes import hints

aten = torch.ops.aten
#: Which argument says where a view begins.
_OFFSETS = {"as_strided": 3, "as_strided_": 3, "as_strided_copy": 3, "as_strided_scatter": 4}
#: Of operators that are not so tagged.
_ELEMENTWISE = frozenset((
    "fill_", "zero_", "copy_", "masked_fill_", "copysign_", "dropout_", "uniform_", "normal_", "bernoulli_", "exponential_",
))  # fmt: skip
_OWN = (OutputType.non_alias, OutputType.unsafe_view_alias)


def keep_layouts(graph: torch.fx.GraphModule, captured: torch.fx.GraphModule, meta: ViewAndMutationMeta | None) -> None:
    """Gives results of AOTAutograd's forward or inference graph that the captured graph writes to the order that they have in
    that, if it is another, or the gaps, where all sizes are known. Results that are views of others stay what they are."""
    # What goes element by element keeps the order as a function, too; fake tensors do not always tell eager's.
    written, reordered = written_storages(captured), written_storages(captured, _takes_other_elements)
    if meta is None or meta.tokens or not written:
        return
    (wanted,), output = next(iter(captured.graph.find_nodes(op="output"))).args, next(iter(graph.graph.find_nodes(op="output")))
    (given,) = output.args
    first = meta.num_mutated_inp_runtime_indices
    values, changed = list(given), False
    for place, (info, node) in enumerate(zip(meta.output_info, wanted, strict=False), first):
        value = values[place] if info.output_type in _OWN else None
        if isinstance(value, torch.fx.Node) and isinstance(node, torch.fx.Node) and not storages_of([node]).isdisjoint(written):
            like, val = node.meta.get("example_value"), value.meta.get("val")
            order, now = _order(like), _order(val)
            if now is None:
                continue
            if order is not None and len(order) == len(now) and order != now and not storages_of([node]).isdisjoint(reordered):
                values[place], changed = _turned(graph.graph, output, value, order), True
            elif isinstance(like, torch.Tensor) and order is None and _has_gaps(like):
                values[place], changed = _spread(graph.graph, output, value, like), True
    if changed:
        output.args = (values if isinstance(given, list) else tuple(values),)
        graph.recompile()


def _takes_other_elements(node: torch.fx.Node) -> bool:
    """Whether a write may compute an element from elements at other places, or in an order of its own."""
    if node.kwargs.get("out") is not None:
        return True
    name = name_of(node.target)
    if name in ("setitem", "__setitem__"):
        return any(isinstance(each, torch.fx.Node) for each in pytree.tree_leaves(node.args[1]))
    overloads = overloads_of(node.target)
    return bool(overloads) and name not in _ELEMENTWISE and not any(torch.Tag.pointwise in each.tags for each in overloads)


def counts_from_the_start(gm: torch.fx.GraphModule) -> bool:
    """Whether the graph looks for elements by their place in all of a memory, of which it was given a part, or has a part: by
    `as_strided` with an offset, as `fill_diagonal_` does, too. AOTAutograd's graphs have them by numbers that hold for these
    parts alone, and make copies of parts, which begin elsewhere."""
    given = storages_of(gm.graph.find_nodes(op="placeholder"))
    counted = [part for part in map(_counted_in, gm.graph.nodes) if part is not None]
    return any(_begins_later(part) or not storages_of([part]).isdisjoint(given) for part in counted)


def _counted_in(node: torch.fx.Node) -> torch.fx.Node | None:
    """The tensor in whose memory the operator counts."""
    if not node.op.startswith("call") or not node.args or not isinstance(node.args[0], torch.fx.Node):
        return None
    name = name_of(node.target)
    place = _OFFSETS.get(name)
    offset = None if place is None else node.args[place] if len(node.args) > place else node.kwargs.get("storage_offset")
    return node.args[0] if offset is not None or name == "fill_diagonal_" else None


def _begins_later(node: torch.fx.Node) -> bool:
    value = node.meta.get("example_value")
    return not isinstance(value, torch.Tensor) or type(value.storage_offset()) is not int or value.storage_offset() > 0


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


def _has_gaps(x: torch.Tensor) -> bool:
    """Whether there is memory between the elements of a tensor of known sizes, which all lie apart."""
    if x.layout is not torch.strided or not all(type(each) is int for each in x.shape):
        return False
    reach = 0
    for stride, size in sorted(zip(x.stride(), x.shape, strict=True)):
        if size > 1:
            if type(stride) is not int or stride <= reach:
                return False
            reach += stride * (size - 1)
    return reach + 1 > x.numel() > 0


def _turned(graph: torch.fx.Graph, before: torch.fx.Node, value: torch.fx.Node, order: tuple[int, ...]) -> torch.fx.Node:
    """A copy whose memory has the dimensions in this order."""
    dims = [*order, *(dim for dim in range(value.meta["val"].dim()) if dim not in order)]
    turned = _call(graph, before, value, aten.permute.default, value, dims)
    copied = _call(graph, before, value, aten.clone.default, turned, memory_format=torch.contiguous_format)
    return _call(graph, before, value, aten.permute.default, copied, sorted(range(len(dims)), key=dims.__getitem__))


def _spread(graph: torch.fx.Graph, before: torch.fx.Node, value: torch.fx.Node, like: torch.Tensor) -> torch.fx.Node:
    """A copy with the gaps of `like`."""
    memory = _call(graph, before, value, aten.empty_strided.default, [*like.shape], [*like.stride()], dtype=like.dtype,
                   device=like.device)
    return _call(graph, before, value, aten.copy.default, memory, value)


def _call(graph: torch.fx.Graph, before: torch.fx.Node, value: torch.fx.Node,
          target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
    """A node with the notes of `value`."""
    with graph.inserting_before(before):
        node = graph.call_function(target, args, kwargs)
    with value.meta["val"].fake_mode:
        node.meta = value.meta | {"val": target(*torch.fx.node.map_arg(args, lambda each: each.meta["val"]), **kwargs)}
    return node
