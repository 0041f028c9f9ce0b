"""1x1 convolutions and their derivatives as matrix products: oneDNN turns its operands into a layout of its own and back at
each call, which costs more than BLAS needs for the whole. Two passes of `cleanup.PASSES`.
"""

from __future__ import annotations

import operator
from typing import Any

import torch
import torch.fx

from fxjit import process_state

aten = torch.ops.aten
#: Pixels of an image from which the products of the images are worth adding up afterwards; fewer where there are few images.
PIXELS, FEW_IMAGES = 16, 4


def multiply_forward(graph: torch.fx.Graph) -> None:
    """`convolution` of one pixel by one, step 1, one group: a product for each image, or one for all where they are channels
    last."""
    for node in list(graph.find_nodes(op="call_function", target=aten.convolution.default)):
        x, weight = (_value(arg) for arg in node.args[:2])
        stride, padding, dilation, transposed, _, groups = node.args[3:]
        if node.kwargs or not _is_pixelwise(x, weight, (stride, padding, dilation, transposed, groups)):
            continue
        images = (x, node.meta["val"])
        if all(_last(each) for each in images):
            _multiply_rows(graph, node)
        elif all(each.is_contiguous() for each in images):
            _multiply(graph, node)


def multiply_backward(graph: torch.fx.Graph) -> None:
    """The same of `convolution_backward`."""
    for node in list(graph.find_nodes(op="call_function", target=aten.convolution_backward.default)):
        _, stride, padding, dilation, transposed, _, groups, _ = node.args[3:]
        grad, x, weight = (_value(arg) for arg in node.args[:3])
        plain = not node.kwargs and _is_dense(grad) and all(user.target is operator.getitem for user in node.users)
        if not plain or not _is_pixelwise(x, weight, (stride, padding, dilation, transposed, groups)):
            continue
        if all(each.is_contiguous() for each in (grad, x, weight)):
            _split(graph, node)
        elif _is_channels_last(node):
            _split_channels_last(graph, node)


def _is_pixelwise(x: Any, weight: Any, how: tuple[Any, ...]) -> bool:
    stride, padding, dilation, transposed, groups = how
    if not _is_dense(x) or not _is_dense(weight):
        return False
    plain = (_all(stride, 1), _all(padding, 0), _all(dilation, 1), not transposed, groups == 1, weight.shape[2:] == (1, 1))
    images, pixels = x.shape[0], x.shape[2] * x.shape[3]
    return all(plain) and (pixels >= PIXELS or images <= FEW_IMAGES) and "mkldnn" not in process_state.ask("float32_precision")


def _last(images: torch.Tensor) -> bool:
    return images.is_contiguous(memory_format=torch.channels_last)


def _is_channels_last(node: torch.fx.Node) -> bool:
    """The input and its gradient are; the gradient of the results is made so, where it is not."""
    images = (_value(node.args[1]), node.meta["val"][0])
    return all(each is None or _last(each) for each in images)


def _value(node: Any) -> Any:
    return node.meta.get("val") if isinstance(node, torch.fx.Node) else None


def _is_dense(value: Any) -> bool:
    """Images of sizes that are known."""
    return (isinstance(value, torch.Tensor) and value.dim() == 4 and value.dtype is torch.float32
            and value.device.type == "cpu" and all(isinstance(size, int) and size > 0 for size in value.shape))


def _all(values: Any, wanted: int) -> bool:
    return isinstance(values, (list, tuple)) and all(value == wanted for value in values)


class _Calls:
    """Adds calls in front of a node, with what they give in their metadata."""

    def __init__(self, graph: torch.fx.Graph, node: torch.fx.Node) -> None:
        self.graph, self.mode = graph, _mode_of(node)

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        new = self.graph.call_function(target, args, kwargs)
        given = torch.fx.node.map_arg(args, lambda each: each.meta["val"])
        with torch.no_grad(), self.mode:
            new.meta["val"] = target(*given, **kwargs)
        return new


def _multiply(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    x, weight, bias = node.args[:3]
    images, channels, height, width = x.meta["val"].shape  # type: ignore[union-attr]
    results, pixels = node.meta["val"].shape[1], height * width
    call = _Calls(graph, node)
    with graph.inserting_before(node):
        matrix = call(aten.view.default, weight, [results, channels])
        if images == 1:
            product = call(aten.mm.default, matrix, call(aten.view.default, x, [channels, pixels]))
        else:
            each = call(aten.expand.default, call(aten.unsqueeze.default, matrix, 0), [images, results, channels])
            product = call(aten.bmm.default, each, call(aten.view.default, x, [images, channels, pixels]))
        y = call(aten.view.default, product, [images, results, height, width])
        if bias is not None:
            y = call(aten.add.Tensor, y, call(aten.view.default, bias, [results, 1, 1]))
    _replace(graph, node, y)


def _multiply_rows(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """A pixel of all channels is a row."""
    x, weight, *rest = node.args[:3]
    results, channels = _value(weight).shape[:2]
    call = _Calls(graph, node)
    with graph.inserting_before(node):
        rows = call(aten.permute.default, x, [0, 2, 3, 1])
        bias = [] if rest[0] is None else rest
        product = call(aten.linear.default, rows, call(aten.view.default, weight, [results, channels]), *bias)
        y = call(aten.permute.default, product, [0, 3, 1, 2])
    _replace(graph, node, y)


def _split(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    grad, x, weight = node.args[:3]
    images, channels, height, width = x.meta["val"].shape  # type: ignore[union-attr]
    results, pixels = grad.meta["val"].shape[1], height * width  # type: ignore[union-attr]
    users = {user.args[1]: user for user in node.users}
    call = _Calls(graph, node)
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


def _split_channels_last(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """A pixel of all channels is a row: there is one product for all images."""
    grad, x, weight = node.args[:3]
    images, channels, height, width = x.meta["val"].shape  # type: ignore[union-attr]
    results = grad.meta["val"].shape[1]  # type: ignore[union-attr]
    users = {user.args[1]: user for user in node.users}
    call = _Calls(graph, node)

    def rows(value: Any, columns: int) -> torch.fx.Node:
        return call(aten.view.default, call(aten.permute.default, value, [0, 2, 3, 1]), [images * height * width, columns])

    with graph.inserting_before(node):
        if not _last(grad.meta["val"]):  # type: ignore[union-attr]
            grad = call(aten.clone.default, grad, memory_format=torch.channels_last)
        if 0 in users:
            product = call(aten.mm.default, rows(grad, results), call(aten.view.default, weight, [results, channels]))
            images_again = call(aten.view.default, product, [images, height, width, channels])
            _replace(graph, users[0], call(aten.permute.default, images_again, [0, 3, 1, 2]))
        if 1 in users:
            product = call(aten.mm.default, call(aten.t.default, rows(grad, results)), rows(x, channels))
            _replace(graph, users[1], call(aten.view.default, product, [results, channels, 1, 1]))
        if 2 in users:
            _replace(graph, users[2], call(aten.sum.dim_IntList, grad, [0, 2, 3]))
    graph.erase_node(node)


def _mode_of(node: torch.fx.Node) -> Any:
    value = node.meta["val"]
    (first, *_) = (each for each in (value if isinstance(value, (tuple, list)) else [value]) if each is not None)
    return first.fake_mode


def _replace(graph: torch.fx.Graph, user: torch.fx.Node, by: torch.fx.Node) -> None:
    user.replace_all_uses_with(by)
    graph.erase_node(user)
