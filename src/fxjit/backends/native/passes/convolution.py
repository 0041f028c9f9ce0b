"""Derivatives of 1x1 convolutions as matrix products: oneDNN turns its operands into a layout of its own and back at each
call, which costs more than BLAS needs for the whole. A pass of `cleanup.PASSES`.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

aten = torch.ops.aten
#: Pixels of an image from which the products of the images are worth adding up afterwards; fewer where there are few images.
PIXELS, FEW_IMAGES = 16, 4


def multiply_backward(graph: torch.fx.Graph) -> None:
    """`convolution_backward` of one pixel by one, step 1, one group, over contiguous images."""
    for node in list(graph.find_nodes(op="call_function", target=aten.convolution_backward.default)):
        if is_pixelwise(node) and all(user.target is operator.getitem for user in node.users):
            _split(graph, node)


def is_pixelwise(node: torch.fx.Node) -> bool:
    _, x, weight = values = [_value(arg) for arg in node.args[:3]]
    _, stride, padding, dilation, transposed, _, groups, _ = node.args[3:]
    if node.kwargs or not all(_is_images(value) for value in values):
        return False
    plain = (_all(stride, 1), _all(padding, 0), _all(dilation, 1), not transposed, groups == 1, weight.shape[2:] == (1, 1))
    images, pixels = x.shape[0], x.shape[2] * x.shape[3]
    return all(plain) and torch.get_float32_matmul_precision() == "highest" and (pixels >= PIXELS or images <= FEW_IMAGES)


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else None


def _is_images(value: Any) -> bool:
    """Contiguous, of sizes that are known."""
    return (isinstance(value, torch.Tensor) and value.dim() == 4 and value.dtype is torch.float32
            and value.device.type == "cpu" and all(isinstance(size, int) and size > 0 for size in value.shape)
            and value.is_contiguous())


def _all(values: Any, wanted: int) -> bool:
    return isinstance(values, (list, tuple)) and all(value == wanted for value in values)


def _split(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    grad, x, weight = node.args[:3]
    images, channels, height, width = x.meta["val"].shape  # type: ignore[union-attr]
    results, pixels = grad.meta["val"].shape[1], height * width  # type: ignore[union-attr]
    users = {user.args[1]: user for user in node.users}

    def call(target: Any, *args: Any) -> torch.fx.Node:
        new = graph.call_function(target, args)
        given = torch.fx.node.map_arg(args, lambda each: each.meta["val"])
        with torch.no_grad(), _mode_of(node):
            new.meta["val"] = target(*given)
        return new

    with graph.inserting_before(node):
        grads = call(aten.view.default, grad, [images, results, pixels])
        if 0 in users:
            turned = call(aten.t.default, call(aten.view.default, weight, [results, channels]))
            each = call(aten.expand.default, call(aten.unsqueeze.default, turned, 0), [images, channels, results])
            product = call(aten.bmm.default, each, grads)
            _replace(graph, users[0], call(aten.view.default, product, [images, channels, height, width]))
        if 1 in users:
            rows = call(aten.transpose.int, call(aten.view.default, x, [images, channels, pixels]), 1, 2)
            if images == 1:
                product = call(aten.mm.default, call(aten.select.int, grads, 0, 0), call(aten.select.int, rows, 0, 0))
            else:
                product = call(aten.sum.dim_IntList, call(aten.bmm.default, grads, rows), [0])
            _replace(graph, users[1], call(aten.view.default, product, [results, channels, 1, 1]))
        if 2 in users:
            _replace(graph, users[2], call(aten.sum.dim_IntList, grad, [0, 2, 3]))
    graph.erase_node(node)


def _mode_of(node: torch.fx.Node) -> Any:
    (first, *_) = (each for each in node.meta["val"] if each is not None)
    return first.fake_mode


def _replace(graph: torch.fx.Graph, user: torch.fx.Node, by: torch.fx.Node) -> None:
    user.replace_all_uses_with(by)
    graph.erase_node(user)
