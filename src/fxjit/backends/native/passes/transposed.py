"""Transposed convolutions as matrix products: of images of one pixel, whose windows are the results, and of few results, whose
windows ATen's `col2im` adds up.

oneDNN has vectors of results: of three most of a vector is left empty. One thread of a Zen 5, us, oneDNN and so: 16 images of
64 channels of 32 x 32 to 3 of 64 x 64, windows of 4 x 4, 2940 and 1520; 16 of 100 channels of one pixel to 512 of 4 x 4, 780
and 340.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from fxjit import process_state
from fxjit.backends.graph.edit import copy_in_layout

from .convolution import Calls, is_dense, replace
from .stacked_frames import value_of

aten = torch.ops.aten
#: Results up to which windows are added up by themselves, and channels from which products are large enough for that.
FEW_RESULTS, CHANNELS = 4, 16
#: Multiplications from which a product takes longer than the calls around it.
WORK = 1 << 20
#: Numbers of the windows up to which they are made: 16 MB.
MOST = 1 << 22
_LAYOUTS = (torch.contiguous_format, torch.channels_last)


def multiply_transposed(graph: torch.fx.Graph) -> None:
    """`convolution` that is transposed, in one group, of images of one pixel or of few results."""
    for node in list(graph.find_nodes(op="call_function", target=aten.convolution.default)):
        if not node.kwargs and _is_plain(node):
            x, weight = (value_of(each) for each in node.args[:2])
            padding, more = node.args[4], node.args[7]
            if x.shape[2:] == (1, 1) and not any((*padding, *more)):  # type: ignore[misc]  # lists
                _put(graph, node, _of_one_pixel)
            elif weight.shape[1] <= FEW_RESULTS and weight.shape[0] >= CHANNELS and _windows(x, weight) <= MOST:
                _put(graph, node, _of_few_results)


def _windows(x: torch.Tensor, weight: torch.Tensor) -> int:
    """Numbers of the windows of all pixels."""
    return x.shape[0] * x.shape[2] * x.shape[3] * weight[0].numel()


def _is_plain(node: torch.fx.Node) -> bool:
    x, weight, dilation, transposed, groups = (node.args[at] for at in (0, 1, 5, 6, 8))
    images, window = value_of(x), value_of(weight)
    if not is_dense(images) or not is_dense(window):
        return False
    if not window.is_contiguous() or not any(images.is_contiguous(memory_format=each) for each in _LAYOUTS):
        return False
    work = images.shape[0] * images.shape[2] * images.shape[3] * window.numel()
    plain = transposed is True and groups == 1 and all(size == 1 for size in dilation)  # type: ignore[union-attr]  # a list
    return bool(plain) and work >= WORK and "mkldnn" not in process_state.query("float32_precision")


def _put(graph: torch.fx.Graph, node: torch.fx.Node, make: Any) -> None:
    call, bias = Calls(graph, node), node.args[2]
    with graph.inserting_before(node):
        y = make(call, node)
        if bias is not None:
            y = call(aten.add.Tensor, y, call(aten.view.default, bias, [-1, 1, 1]))
        if y.meta["val"].stride() != node.meta["val"].stride():
            y = copy_in_layout(graph, y, node.meta["val"])
    replace(graph, node, y)


def _of_one_pixel(call: Calls, node: torch.fx.Node) -> torch.fx.Node:
    x, weight = node.args[:2]
    (images, channels), (_, results, rows, columns) = value_of(x).shape[:2], value_of(weight).shape
    pixels = call(aten.view.default, x, [images, channels])
    product = call(aten.mm.default, pixels, call(aten.view.default, weight, [channels, results * rows * columns]))
    return call(aten.view.default, product, [images, results, rows, columns])


def _of_few_results(call: Calls, node: torch.fx.Node) -> torch.fx.Node:
    x, weight, _, stride, padding, dilation = node.args[:6]
    (images, channels, height, width), (_, results, rows, columns) = value_of(x).shape, value_of(weight).shape
    turned = call(aten.t.default, call(aten.view.default, weight, [channels, results * rows * columns]))
    each = call(aten.expand.default, call(aten.unsqueeze.default, turned, 0), [images, results * rows * columns, channels])
    pixels = call(aten.view.default, x, [images, channels, height * width])
    windows = call(aten.bmm.default, each, pixels)
    size = list(value_of(node).shape[2:])
    return call(aten.col2im.default, windows, size, [rows, columns], dilation, padding, stride)
