"""Passes over the ATen graphs that AOTAutograd made, before they are compiled: forward and inference graphs get eager's output
strides, backward graphs masks for undefined tangents."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.fx
from torch._functorch._aot_autograd.schemas import OutputType, ViewAndMutationMeta
from torch.utils import _pytree as pytree

from fxjit.schemas import MODULE_STATE, name_of, overloads_of, storages_of, written_storages

from ..graph.edit import call_like, outputs_of, set_outputs, where_or_zero
from ..graph.facts import crosses_wrappers, tangents_of
from ..graph.layout import dimension_order, has_gaps
from .runtime.call_plan import TangentMask

aten = torch.ops.aten
#: Pointwise operators that have no such tag.
_POINTWISE = frozenset((
    "fill_", "zero_", "copy_", "masked_fill_", "copysign_", "dropout_", "uniform_", "normal_", "bernoulli_", "exponential_",
))  # fmt: skip
_UNALIASED = (OutputType.non_alias, OutputType.unsafe_view_alias)


# Inputs


def mark_module_state(graph: torch.fx.Graph, captured: torch.fx.Graph) -> None:
    """Notes which inputs are parameters or buffers of modules, where AOTAutograd left the captured graph's inputs as they were:
    it may join those that share memory, and take tensor subclasses apart."""
    places, given = graph.find_nodes(op="placeholder"), captured.find_nodes(op="placeholder")
    alike = [_looks(node.meta.get("val")) == _looks(before.meta.get("example_value"))
             for node, before in zip(places, given, strict=False)]
    if len(places) != len(given) or not all(alike):
        return
    for node, before in zip(places, given, strict=True):
        if MODULE_STATE in before.meta or isinstance(before.meta.get("example_value"), torch.nn.Parameter):
            node.meta[MODULE_STATE] = True


def _looks(value: Any) -> Any:
    return (value.dtype, value.dim(), str(value.device)) if isinstance(value, torch.Tensor) else type(value)


# Output strides


def restride_outputs(graph: torch.fx.GraphModule, captured: torch.fx.GraphModule, meta: ViewAndMutationMeta | None) -> None:
    """Gives outputs that the captured graph mutates the strides that they have there: the order of dimensions, or the gaps,
    where all sizes are known. `y.permute(2, 0, 1).tril_()` leaves `y` in its order; as a function, `tril` gives a tensor in an
    order of its own, of which `y` is then a view. Outputs that are views of others stay what they are."""
    # What goes element by element keeps the order as a function, too; fake tensors do not always tell eager's.
    written, reordered = written_storages(captured.graph), written_storages(captured.graph, _may_reorder)
    if meta is None or meta.tokens or not written or crosses_wrappers(captured):
        return
    values, changed = outputs_of(graph.graph), False
    first = meta.num_mutated_inp_runtime_indices
    with graph.graph.inserting_before(graph.graph.output_node()):
        for place, (info, node) in enumerate(zip(meta.output_info, outputs_of(captured.graph), strict=False), first):
            value = values[place] if info.output_type in _UNALIASED else None
            if not isinstance(value, torch.fx.Node) or not isinstance(node, torch.fx.Node):
                continue
            storages = storages_of([node])
            if storages.isdisjoint(written) or (now := dimension_order(value.meta.get("val"))) is None:
                continue
            like = node.meta.get("example_value")
            order = dimension_order(like)
            if order is not None and len(order) == len(now) and order != now and not storages.isdisjoint(reordered):
                values[place], changed = _permuted_copy(graph.graph, value, order), True
            elif isinstance(like, torch.Tensor) and order is None and has_gaps(like):
                values[place], changed = _copy_with_gaps(graph.graph, value, like), True
    if changed:
        set_outputs(graph.graph, values)
        graph.recompile()


def _may_reorder(node: torch.fx.Node) -> bool:
    """Whether a write may compute an element from elements at other places, or in an order of its own."""
    if node.kwargs.get("out") is not None:
        return True
    name = name_of(node.target)
    if name in ("setitem", "__setitem__"):
        return any(isinstance(each, torch.fx.Node) for each in pytree.tree_leaves(node.args[1]))
    overloads = overloads_of(node.target)
    return bool(overloads) and name not in _POINTWISE and not any(torch.Tag.pointwise in each.tags for each in overloads)


def _permuted_copy(graph: torch.fx.Graph, value: torch.fx.Node, order: tuple[int, ...]) -> torch.fx.Node:
    """A copy whose memory has the dimensions in this order."""
    dims = [*order, *(dim for dim in range(value.meta["val"].dim()) if dim not in order)]
    permuted = call_like(graph, value, aten.permute.default, value, dims)
    copied = call_like(graph, value, aten.clone.default, permuted, memory_format=torch.contiguous_format)
    return call_like(graph, value, aten.permute.default, copied, sorted(range(len(dims)), key=dims.__getitem__))


def _copy_with_gaps(graph: torch.fx.Graph, value: torch.fx.Node, like: torch.Tensor) -> torch.fx.Node:
    """A copy with the gaps of `like`."""
    memory = call_like(graph, value, aten.empty_strided.default, [*like.shape], [*like.stride()], dtype=like.dtype,
                       device=like.device)
    return call_like(graph, value, aten.copy.default, memory, value)


# Gradients


def drop_gradients_of_mutated_leaves(backward: torch.fx.GraphModule, meta: ViewAndMutationMeta | None,
                                     required: Sequence[bool]) -> None:
    """Gives a leaf of the autograd graph that is only mutated (through `detach()`, `.data` or without recording) no
    gradient, as eager does. AOTAutograd gives it zeros, the gradient of its unused new value; or adds them to a gradient, of
    which a sparse one becomes a dense one. `required`: which inputs require a gradient when the graph is called; those that
    do so behind its writes only are no such leaves."""
    if meta is None or len(required) != len(meta.input_info):
        return
    written = [index for index in meta.mutated_inp_runtime_indices
               if meta.input_info[index].mutates_data and meta.input_info[index].requires_grad]
    leaves = [(index, tangent) for index, tangent in zip(written, tangents_of(backward.graph), strict=False)
              if meta.input_info[index].is_leaf and required[index]]
    for _, tangent in leaves:
        _drop_summand(backward.graph, tangent)
    grads = outputs_of(backward.graph)
    dropped = [index for index, tangent in leaves if grads[index] is tangent]
    if dropped:
        set_outputs(backward.graph, [None if index in dropped else grad for index, grad in enumerate(grads)])
        backward.recompile()


def _drop_summand(graph: torch.fx.Graph, zeros: torch.fx.Node) -> None:
    for node in list(zeros.users):
        if node.target is not aten.add.Tensor or node.kwargs or len(node.all_input_nodes) != 2:
            continue
        other = next(each for each in node.all_input_nodes if each is not zeros)
        if other.meta["val"].dtype is node.meta["val"].dtype and other.meta["val"].shape == node.meta["val"].shape:
            node.replace_all_uses_with(other)
            graph.erase_node(node)


#: Zeros come out of these as zeros, whatever finite numbers the forward graph had.
_KEEPS_ZEROS = frozenset((
    "add", "addmm", "alias", "as_strided", "avg_pool2d_backward", "baddbmm", "bmm", "cat", "clone", "col2im",
    "constant_pad_nd", "convolution", "convolution_backward", "copy", "detach", "diagonal_backward",
    "embedding_dense_backward", "expand", "flip", "gather", "gelu_backward", "hardsigmoid_backward", "hardswish_backward",
    "hardtanh_backward", "im2col", "index", "index_add", "index_put", "index_select", "leaky_relu_backward",
    "_log_softmax_backward_data", "masked_fill", "max_pool2d_with_indices_backward", "mean", "mm",
    "native_dropout_backward", "native_group_norm_backward", "native_layer_norm_backward", "neg", "nll_loss_backward",
    "permute", "reshape", "roll", "scatter", "scatter_add", "select", "select_backward", "select_scatter",
    "sigmoid_backward", "silu_backward", "slice", "slice_backward", "slice_scatter", "_softmax_backward_data", "split",
    "split_with_sizes", "squeeze", "stack", "sub", "sum", "t", "tanh_backward", "threshold_backward", "_to_copy",
    "transpose", "unbind", "unsqueeze", "_unsafe_view", "upsample_bilinear2d_backward", "upsample_nearest2d_backward",
    "view", "where", "zeros_like",
))  # fmt: skip


def mask_undefined_tangents(backward: torch.fx.GraphModule) -> tuple[TangentMask, ...]:
    """Adds masks of undefined tangents to the inputs of a backward graph, behind all others, and applies them. To autograd a
    compiled graph is one node, and AOTAutograd passes zeros for outputs that no backward pass reaches: zeros that go through
    the derivative of `log` at 0 are NaN, and would make NaN of the gradients of the outputs that are used. So where what was
    made of some tangents alone, by an operator that may do this, meets what was made of others, it is masked."""
    graph = backward.graph
    bits = {node: 1 << place for place, node in enumerate(tangents_of(graph))}
    if len(bits) < 2:
        return ()
    last = graph.find_nodes(op="placeholder")[-1]
    doubtful: set[torch.fx.Node] = set()
    masks: dict[TangentMask, torch.fx.Node] = {}
    masked: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        given = [each for each in node.all_input_nodes if each in bits]
        if not given:
            continue
        bits[node] = 0
        for each in given:
            bits[node] |= bits[each]
        # No mask can be applied to a sparse gradient: it is, to what that is made of.
        becomes_sparse = _is_sparse(node) and not any(map(_is_sparse, given))
        for each in given:
            meets = bits[each] != bits[node] or becomes_sparse
            if each in doubtful and meets and isinstance(each.meta.get("val"), torch.Tensor):
                if each not in masked:
                    mask = (bits[each], str(each.meta["val"].device))
                    if mask not in masks:
                        with graph.inserting_after(last):
                            last = masks[mask] = _mask_input(graph, mask, each)
                    masked[each] = where_or_zero(graph, each, masks[mask], each, each)
                node.replace_input_with(each, masked[each])
        if becomes_sparse:
            continue
        if not _keeps_zeros(node, bits) or any(each in doubtful and bits[each] == bits[node] for each in given):
            doubtful.add(node)
    if masks:
        backward.recompile()
    return tuple(masks)


def _is_sparse(node: torch.fx.Node) -> bool:
    value = node.meta.get("val")
    return isinstance(value, torch.Tensor) and value.layout is not torch.strided


def _keeps_zeros(node: torch.fx.Node, bits: dict[torch.fx.Node, int]) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True  # an element of a tuple
    name = target.overloadpacket.__name__
    others = [each for each in node.all_input_nodes if each not in bits and isinstance(each.meta.get("val"), torch.Tensor)]
    if name == "mul":  # by a number, a size, a mask, or an input of the forward graph
        return all(each.name.startswith("primals") or each.meta["val"].dtype is torch.bool for each in others)
    return name in _KEEPS_ZEROS or (name == "div" and not others)


def _mask_input(graph: torch.fx.Graph, mask: TangentMask, like: torch.fx.Node) -> torch.fx.Node:
    node = graph.placeholder(f"used_{mask[0]:x}_{torch.device(mask[1]).type}")
    with like.meta["val"].fake_mode:
        node.meta = {"val": torch.empty((), dtype=torch.bool, device=mask[1])}
    return node
