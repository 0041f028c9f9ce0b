"""Outputs with an undefined tangent. AOTAutograd passes zeros for them, and 0 * inf is NaN.

To autograd a compiled graph is one node. Zeros that go backward through `log` at 0 are NaN, and would make NaN of the
gradients of the outputs that are used. So where what was made of some tangents alone, by an operator that may do this, meets
what was made of others, the backward graph has an input that says whether any of those is defined.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
import torch.fx

from .derivatives import or_zero

if TYPE_CHECKING:
    from .aot.runtime.call_plan import TangentMask

#: Zeros come out of these as zeros, whatever finite numbers the forward graph had.
_HARMLESS = frozenset((
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


def guard_against_unused(backward: torch.fx.GraphModule) -> tuple[TangentMask, ...]:
    """Adds the inputs, after all others, and asks them; which they are."""
    graph = backward.graph
    bits: dict[torch.fx.Node, int] = {}
    for node in graph.find_nodes(op="placeholder"):
        last = node
        if "tangents" in node.name:
            bits[node] = 1 << len(bits)
    if len(bits) < 2:
        return ()
    doubtful: set[torch.fx.Node] = set()
    flags: dict[TangentMask, torch.fx.Node] = {}
    guarded: dict[torch.fx.Node, torch.fx.Node] = {}
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        given = [each for each in node.all_input_nodes if each in bits]
        if not given:
            continue
        bits[node] = 0
        for each in given:
            bits[node] |= bits[each]
        for each in given:
            if each in doubtful and bits[each] != bits[node] and isinstance(each.meta.get("val"), torch.Tensor):
                if each not in guarded:
                    flag = (bits[each], str(each.meta["val"].device))
                    if flag not in flags:
                        with graph.inserting_after(last):
                            last = flags[flag] = _flag_input(graph, flag, each)
                    guarded[each] = or_zero(graph, each, flags[flag], each, each)
                node.replace_input_with(each, guarded[each])
        if not _is_harmless(node, bits) or any(each in doubtful and bits[each] == bits[node] for each in given):
            doubtful.add(node)
    if flags:
        backward.recompile()
    return tuple(flags)


def _is_harmless(node: torch.fx.Node, bits: dict[torch.fx.Node, int]) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True  # an element of a tuple
    name = target.overloadpacket.__name__
    others = [each for each in node.all_input_nodes if each not in bits and isinstance(each.meta.get("val"), torch.Tensor)]
    if name == "mul":  # by a number, a size, a mask, or an input of the forward graph
        return all(each.name.startswith("primals") or each.meta["val"].dtype is torch.bool for each in others)
    return name in _HARMLESS or (name == "div" and not others)


def _flag_input(graph: torch.fx.Graph, flag: TangentMask, like: torch.fx.Node) -> torch.fx.Node:
    node = graph.placeholder(f"used_{flag[0]:x}_{torch.device(flag[1]).type}")
    with like.meta["val"].fake_mode:
        node.meta = {"val": torch.empty((), dtype=torch.bool, device=flag[1])}
    return node
