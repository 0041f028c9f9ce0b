"""Upcasts of products, convolutions and attention of float16 and bfloat16 to float32, where the processor is slow at those: the
first pass over a graph of inference, and over a joint graph.

The numbers are the same, sums of them no less exact, and results are rounded once. Operands are cast by the kernels that make
them, where there are such.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any, Final

import torch
import torch.fx
from torch._subclasses.fake_tensor import FakeTensor

from fxjit import _C, config
from fxjit.backends.graph.edit import call_like, copy_in_layout

from ..lower.blas import has_kernel_for_few_rows
from ..runtime import low_precision
from ..runtime.low_precision import LOW_PRECISION, is_slow, of_attention, of_convolution, of_product

aten = torch.ops.aten
#: Queries times keys of a head up to which derivatives of attention are faster in float32 even where products of such types are
#: fast: ATen multiplies five matrices for each head, by oneDNN, each some 60 us before it begins. Xeon with tiles of
#: bfloat16, one thread, of bfloat16, times as fast: 49 x 49 (64 x 4 heads of 32) 8.0, 64 x 64 (8 x 4 of 32) 6.8, 128 x 128
#: (4 x 12 of 64) 2.4, 197 x 197 (4 x 6 of 64) 1.6, 256 x 256 (2 x 12 of 64) 1.07, (16 of 128) 0.71, 512 x 512 0.83. Of float16
#: 1.2 or more at all of these.
SHORT: Final = 200 * 200
#: Rows up to which a product's time is that of reading the other operand, which casts would double.
FEW_ROWS: Final = 2


def upcast_slow_calls(graph: torch.fx.Graph) -> None:
    """Casts the operands of such calls, and the results back."""
    for node in list(graph.nodes):
        wants = _TARGETS.get(node.target) if node.op == "call_function" else None
        value = _operand(node, 0)
        is_low = value is not None and value.dtype in LOW_PRECISION and value.device.type == "cpu"
        if wants is not None and value is not None and is_low and wants(node):
            _upcast(graph, node, value.dtype)


def _operand(node: torch.fx.Node, at: int) -> torch.Tensor | None:
    given = node.args[at] if at < len(node.args) else None
    value = given.meta.get("val") if isinstance(given, torch.fx.Node) else None
    return value if isinstance(value, torch.Tensor) and value.layout is torch.strided else None


def _wants_product(node: torch.fx.Node) -> bool:
    values = [each for each in (_operand(node, at) for at in range(len(node.args))) if each is not None]
    a, b = values[-2:]
    has_rows = type(a.shape[-2]) is not int or a.shape[-2] > FEW_ROWS
    same = all(each.dtype is a.dtype for each in (*values, node.meta["val"]))
    product = aten.mm.default if a.dim() == 2 else aten.bmm.default
    if has_kernel_for_few_rows(a, b):
        return False
    return has_rows and same and _is_full(*values) and is_slow(of_product(product, (a, b)))


def _wants_convolution(node: torch.fx.Node) -> bool:
    first = 1 if node.target is aten.convolution_backward.default else 0
    x, weight = _operand(node, first), _operand(node, first + 1)
    if x is None or weight is None or x.dtype is not weight.dtype or not _is_full(x, weight):
        return False
    stride, padding, dilation, transposed, more, groups = node.args[3 + first : 9 + first]
    ways: Any = (stride, padding, dilation, more)
    whole = all(type(each) is int for way in ways for each in way) and all(type(each) is int for each in weight.shape)
    if not whole or type(x.shape[1]) is not int:
        return False
    if first and not transposed and 1 < weight.shape[0] == x.shape[1] == groups:
        return any(map(is_slow, low_precision.of_depthwise_derivatives(x, weight, ways)))
    return is_slow(of_convolution(x, weight, ways, bool(transposed), int(groups)))  # type: ignore[arg-type]


def _wants_attention(node: torch.fx.Node) -> bool:
    derivative = node.target is aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    query, key = (_operand(node, at + derivative) for at in (0, 1))
    if query is None or key is None or not _is_full(query, key):
        return False
    if config.cpp.own_attention and _C.program_can("attention"):  # which calculates in float32 by itself
        return False
    sizes = query.shape[-2], key.shape[-2]
    if not derivative and sizes[0] == 1:  # which has a kernel of our own
        return False
    if derivative and all(type(size) is int for size in sizes) and sizes[0] * sizes[1] <= SHORT:
        return True
    return is_slow(of_attention(query, key, derivative))


def _is_full(*values: torch.Tensor) -> bool:
    """Whether no size is known to be zero."""
    return not any(type(size) is int and size == 0 for value in values for size in value.shape)


_TARGETS: Final[dict[Any, Callable[[torch.fx.Node], bool]]] = {
    aten.mm.default: _wants_product, aten.addmm.default: _wants_product, aten.bmm.default: _wants_product,
    aten.baddbmm.default: _wants_product, aten.convolution.default: _wants_convolution,
    aten.convolution_backward.default: _wants_convolution,
    aten._scaled_dot_product_flash_attention_for_cpu.default: _wants_attention,
    aten._scaled_dot_product_flash_attention_for_cpu_backward.default: _wants_attention,
}  # fmt: skip


def _upcast(graph: torch.fx.Graph, node: torch.fx.Node, low: torch.dtype) -> None:
    def upcast_value(value: Any) -> Any:
        if not isinstance(value, torch.fx.Node) or getattr(value.meta["val"], "dtype", None) is not low:
            return value
        return call_like(graph, value, aten._to_copy.default, value, dtype=torch.float32)

    before = node.meta["val"]
    with graph.inserting_before(node):
        node.args = tuple(map(upcast_value, node.args))
        node.kwargs = {name: upcast_value(value) for name, value in node.kwargs.items()}
    fake: Any = torch.fx.node.map_arg((node.args, node.kwargs), lambda each: each.meta["val"])
    args, kwargs = fake
    with next(each for each in args if isinstance(each, FakeTensor)).fake_mode:
        node.meta["val"] = node.target(*args, **kwargs)  # type: ignore[operator]  # an operator
    if not isinstance(before, tuple):
        _downcast(graph, node, before)
        return
    for item in [user for user in node.users if user.target is operator.getitem and isinstance(user.meta["val"], torch.Tensor)]:
        item.meta["val"] = node.meta["val"][item.args[1]]
        _downcast(graph, item, before[item.args[1]])  # type: ignore[index]  # a number


def _downcast(graph: torch.fx.Graph, node: torch.fx.Node, before: torch.Tensor) -> None:
    """Casts a result to what it was, and lays it out as it was."""
    users = list(node.users)
    made = node
    with graph.inserting_after(node):
        if node.meta["val"].dtype is not before.dtype:
            made = call_like(graph, node, aten._to_copy.default, node, dtype=before.dtype)
    if [str(each) for each in made.meta["val"].stride()] != [str(each) for each in before.stride()]:  # which may be symbols
        with graph.inserting_before(made.next):
            made = copy_in_layout(graph, made, before)
    if made is not node:
        for user in users:
            user.replace_input_with(node, made)
