"""Results of a compiled graph that nobody walks back from: their gradients are zeros, which eager does not have at all.

To autograd a compiled graph is one node. Zeros that go backward through `log` at 0 are NaN, and would make NaN of the gradients
of the results that are used. So where what was made of some results' gradients alone, by an operator that may do this, meets
that of others, the backward graph asks by an input of its own whether any of those was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from .derivatives import or_zero

#: One more input of a backward graph: for which results' gradients it stands, as bits, and on which device it is.
Flag = tuple[int, str]

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
_FLAGS: dict[Flag, torch.Tensor] = {}


def guard_against_unused(backward: torch.fx.GraphModule) -> tuple[Flag, ...]:
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
    flags: dict[Flag, torch.fx.Node] = {}
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


def with_flags(compiled: Callable[[list[Any]], Any], flags: Sequence[Flag]) -> Callable[[list[Any]], Any]:
    """The compiled graph for a caller that does not know which gradients were given."""
    def run(args: list[Any]) -> Any:
        args += flag_tensors(flags, -1)
        return compiled(args)

    run._boxed_call = True  # type: ignore[attr-defined]  # what AOTAutograd looks for
    return run


def flag_tensors(flags: Sequence[Flag], used: int) -> list[torch.Tensor]:
    """What those inputs are where the gradients of `used` were given."""
    return [_flag(device, bool(bits & used)) for bits, device in flags]


def _flag(device: str, value: bool) -> torch.Tensor:
    key = (int(value), device)
    if key not in _FLAGS:
        _FLAGS[key] = torch.tensor(value, device=device)
    return _FLAGS[key]


def _is_harmless(node: torch.fx.Node, bits: dict[torch.fx.Node, int]) -> bool:
    target: Any = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return True  # an element of a tuple
    name = target.overloadpacket.__name__
    others = [each for each in node.all_input_nodes if each not in bits and isinstance(each.meta.get("val"), torch.Tensor)]
    if name == "mul":  # by a number, a size, a mask, or an input of the forward graph
        return all(each.name.startswith("primals") or each.meta["val"].dtype is torch.bool for each in others)
    return name in _HARMLESS or (name == "div" and not others)


def _flag_input(graph: torch.fx.Graph, flag: Flag, like: torch.fx.Node) -> torch.fx.Node:
    node = graph.placeholder(f"used_{flag[0]:x}_{torch.device(flag[1]).type}")
    with like.meta["val"].fake_mode:
        node.meta = {"val": torch.empty((), dtype=torch.bool, device=flag[1])}
    return node
