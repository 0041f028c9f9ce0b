"""Gradients of the weights of convolutions in groups, of few pixels, as one product for each group.

`vmap` of a gradient has such: each sample is a group, and its weight's gradient is asked for by itself (torch.func's gradients
per sample, differential privacy). The last layers of a network see few pixels and have large weights, whose gradients oneDNN
makes in a layout of its own and copies. Windows are laid out in rows (im2col), which few pixels make cheap.
"""

from __future__ import annotations

import operator
from typing import Any, Final

import torch
import torch.fx

from fxjit import process_state

from .convolution import Calls, is_dense, replace
from .stacked_frames import value_of

aten = torch.ops.aten
#: Pixels of all images up to which products are faster. A Zen 3, one thread, 16 groups, 3 x 3: 512 by 512 channels of one pixel
#: 192 -> 125 ms, 256 by 256 of four 53 -> 27, 128 by 128 of 16 5.0 -> 2.8, 32 by 32 of 16 equal; of 25 pixels 64 by 64 0.89
#: times as fast, of 64 0.65. Depthwise ones of 16 pixels 0.86.
MOST_PIXELS: Final = 16


def multiply_groups(graph: torch.fx.Graph) -> None:
    """`convolution_backward` of a weight in groups."""
    for node in list(graph.find_nodes(op="call_function", target=aten.convolution_backward.default)):
        if not node.kwargs and _is_of_few_pixels(node):
            _multiply(graph, node)


def _is_of_few_pixels(node: torch.fx.Node) -> bool:
    operands: Any = node.args
    grad, x, weight, _, *_, transposed, _, groups, wanted = operands
    values = [value_of(each) for each in (grad, x, weight)]
    if groups == 1 or transposed or list(wanted) != [False, True, False] or not all(map(is_dense, values)):
        return False
    images, results, height, width = values[0].shape
    plain = all(each.is_contiguous() for each in values[:2])
    return (plain and images * height * width <= MOST_PIXELS and results > groups
            and all(user.target is operator.getitem and value_of(user).is_contiguous() for user in node.users)
            and "mkldnn" not in process_state.query("float32_precision"))


def _multiply(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    operands: Any = node.args
    grad, x, weight, _, stride, padding, dilation, _, _, groups, _ = operands
    made, (images, results, *pixels) = weight.meta["val"].shape, grad.meta["val"].shape
    each, count = results // groups, pixels[0] * pixels[1]
    call = Calls(graph, node)

    def by_groups(value: torch.fx.Node, rows: int) -> torch.fx.Node:
        """(groups, rows, images * pixels)."""
        apart = call(aten.view.default, value, [images, groups, rows, count])
        if images == 1:
            return call(aten.view.default, apart, [groups, rows, count])
        together = call(aten.clone.default, call(aten.permute.default, apart, [1, 2, 0, 3]),
                        memory_format=torch.contiguous_format)
        return call(aten.view.default, together, [groups, rows, images * count])

    with graph.inserting_before(node):
        windows = call(aten.im2col.default, x, [*made[2:]], dilation, padding, stride)
        columns = call(aten.transpose.int, by_groups(windows, made[1] * made[2] * made[3]), 1, 2)
        product = call(aten.bmm.default, by_groups(grad, each), columns)
        gradient = call(aten.view.default, product, [*made])
    for user in list(node.users):
        replace(graph, user, gradient)
    graph.erase_node(node)
