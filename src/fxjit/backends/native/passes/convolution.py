"""Convolutions along one dimension as those of images of one row, as ATen does them: all that is done for images is done for
them. And 1x1 convolutions and their derivatives as matrix products: oneDNN turns its operands into a layout of its own
and back at each call, which costs more than BLAS needs for the whole. The latter are two passes of `cleanup.PASSES`.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from fxjit import process_state

from ..generic_sizes import NoGeneralAnswer, as_elements_lie, in_general, is_last, is_of_known_layout, known
from .stacked_frames import value_of

aten = torch.ops.aten
#: Pixels of an image from which adding up the products of the images afterwards is faster; fewer where there are few images.
PIXELS, FEW_IMAGES = 16, 4
#: Pixels up to which turning the images over, so that there is one product for all of them, costs less than a product for each.
FEW_PIXELS = 9

#: Types of channels-last images, and of images of few pixels, whose 1x1 convolutions are products. For one of bfloat16 oneDNN
#: lays out the weights anew in each call (docs/performance_kernels.md); those of float16 were tried on a processor without
#: instructions for it alone, where both take as long.
TYPES = (torch.float32, torch.bfloat16)

#: Pixels below which, and weights above which, the products of the images are added up as they are made.
SHORT_SUM, LARGE_WEIGHT = 256, 16384


def write_out_ways(graph: torch.fx.Graph) -> None:
    """Strides, paddings and dilations as a number for each dimension, where one stands for all (`padding="valid"`): the first
    pass, since all that look at convolutions count on it."""
    for target, images in ((aten.convolution.default, 1), (aten.convolution_backward.default, 2)):
        for node in graph.find_nodes(op="call_function", target=target):
            value = value_of(node.args[images])
            for at in (images + 2, images + 3, images + 4, images + 6):
                way: Any = node.args[at] if at < len(node.args) else None
                if isinstance(value, torch.Tensor) and isinstance(way, (list, tuple)) and len(way) == 1 < value.dim() - 2:
                    node.update_arg(at, [*way] * (value.dim() - 2))


def convolve_rows(graph: torch.fx.Graph) -> None:
    """`convolution` and `convolution_backward` of one dimension as those of images of one row, and what keeps the layout of
    images, but not of three dimensions."""
    found = False
    for target, images in ((aten.convolution.default, 1), (aten.convolution_backward.default, 2)):
        for node in list(graph.find_nodes(op="call_function", target=target)):
            if not node.kwargs and all(is_dense(value_of(each), 3) for each in node.args[: images + 1]):
                found = _convolve_row(graph, node, images) or found
    if not found:
        return
    for target, (make, first) in _BETWEEN.items():
        for node in list(graph.find_nodes(op="call_function", target=target)):
            if not node.kwargs and all(is_dense(value_of(each), 3) for each in node.all_input_nodes[:first]):
                _put_in_place(graph, node, functools.partial(make, node))


def _pad_row(node: torch.fx.Node, call: Calls) -> torch.fx.Node:
    arguments: Any = node.args
    x, pad, *value = arguments
    return call(node.target, call(aten.unsqueeze.default, x, 2), [*pad[:2], 0, 0, *pad[2:]], *value)


def _join_rows(node: torch.fx.Node, call: Calls) -> torch.fx.Node:
    arguments: Any = node.args
    parts, *dims = arguments
    dim = dims[0] % 3 if dims else 0
    return call(node.target, [call(aten.unsqueeze.default, each, 2) for each in parts], dim + dim // 2)


def _norm_rows(node: torch.fx.Node, call: Calls) -> torch.fx.Node:
    x, *others = node.args
    return call(node.target, call(aten.unsqueeze.default, x, 2), *others)


def _norm_rows_backward(node: torch.fx.Node, call: Calls) -> torch.fx.Node:
    grad, x, *others = node.args
    return call(node.target, *(call(aten.unsqueeze.default, each, 2) for each in (grad, x)), *others)


#: What stands between convolutions and keeps the layout of images, and how many of its first arguments are images.
_BETWEEN: dict[Any, tuple[Callable[..., torch.fx.Node], int | None]] = {
    aten.constant_pad_nd.default: (_pad_row, 1),
    aten.cat.default: (_join_rows, None),
    aten.native_group_norm.default: (_norm_rows, 1),
    aten.native_group_norm_backward.default: (_norm_rows_backward, 2),
}


def _convolve_row(graph: torch.fx.Graph, node: torch.fx.Node, images: int) -> bool:
    stride, padding, dilation, transposed, more, groups, *wanted = node.args[images + 2 :]

    def convolved(call: Calls) -> torch.fx.Node:
        rows = [call(aten.unsqueeze.default, each, 2) for each in node.args[: images + 1]]
        ways: Any = [[1, *stride], [0, *padding], [1, *dilation], transposed, [0, *more]]  # type: ignore[misc]  # lists
        return call(node.target, *rows, node.args[images + 1], *ways, groups, *wanted)

    return _put_in_place(graph, node, convolved)


def _put_in_place(graph: torch.fx.Graph, node: torch.fx.Node, make: Callable[[Calls], torch.fx.Node]) -> bool:
    """What images of one row give in the place of the node's result, or of those of its results that are read, unless their
    strides differ."""
    items = isinstance(node.meta["val"], tuple)
    results = list(node.users) if items else [node]
    if any(each.target is not operator.getitem for each in results if items):
        return False
    before = node.prev
    with graph.inserting_before(node):
        call = Calls(graph, node)
        new = make(call)
        taken = [call(operator.getitem, new, each.args[1]) if items else new for each in results]
        by = [now if now.meta["val"].dim() == each.meta["val"].dim() else call(aten.squeeze.dim, now, 2)
              for now, each in zip(taken, results, strict=True)]
    if any(now.meta["val"].stride() != each.meta["val"].stride() for now, each in zip(by, results, strict=True)):
        while node.prev is not before:
            graph.erase_node(node.prev)
        return False
    for now, each in zip(by, results, strict=True):
        replace(graph, each, now)
    if items:
        graph.erase_node(node)
    return True


def multiply_forward(graph: torch.fx.Graph) -> None:
    """`convolution` of one pixel by one, step 1, one group: a product for each image, or one for all where they are channels
    last."""
    nodes = [node for node in graph.find_nodes(op="call_function", target=aten.convolution.default)
             if not node.kwargs and is_pixelwise(node)]
    _in_the_places_of(graph, nodes, _multiply_images)


def _multiply_images(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    x = value_of(node.args[0])
    images = (x, node.meta["val"])
    if all(is_last(each) for each in images) or (_has_few_pixels(x) and all(each.is_contiguous() for each in images)):
        _multiply_rows(graph, node)
    elif x.dtype is torch.float32 and all(each.is_contiguous() for each in images):
        _multiply(graph, node)


def multiply_backward(graph: torch.fx.Graph) -> None:
    """The same of `convolution_backward`."""
    nodes = [node for node in graph.find_nodes(op="call_function", target=aten.convolution_backward.default)
             if not node.kwargs and all(user.target is operator.getitem for user in node.users)
             and has_elements(value_of(node.args[0]), TYPES) and is_pixelwise(node)]  # fmt: skip
    _in_the_places_of(graph, nodes, _multiply_derivatives)


def _multiply_derivatives(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    grad, x, weight = (value_of(arg) for arg in node.args[:3])
    plain = all(each.is_contiguous() for each in (grad, x, weight))
    if _is_channels_last(node) or (_has_few_pixels(x) and plain):
        _split_rows(graph, node)
    elif plain and x.dtype is torch.float32:
        _split(graph, node)


def _in_the_places_of(
    graph: torch.fx.Graph, nodes: Sequence[torch.fx.Node], put: Callable[[torch.fx.Graph, torch.fx.Node], None]
) -> None:
    """Puts something else in the nodes' places. Where sizes vary, images lie as those of sizes in general do."""
    varying = [node for node in nodes if any(not has_known_sizes(each.meta.get("val")) for each in node.all_input_nodes)]
    for node in nodes:
        if node not in varying:
            put(graph, node)
    if varying:
        with in_general(graph) as answered:
            for node in varying if answered else ():
                before = node.prev
                try:
                    put(graph, node)
                except NoGeneralAnswer:
                    while node.prev is not before:
                        graph.erase_node(node.prev)


def is_pixelwise(node: torch.fx.Node) -> bool:
    """Whether a convolution, or its derivative, is one of one pixel by one, with step 1, in one group."""
    at = 0 if node.target is aten.convolution.default else 1
    x, weight, _, stride, padding, dilation, transposed, _, groups = node.args[at : at + 9]
    x, weight = value_of(x), value_of(weight)
    if not has_elements(x, TYPES) or not is_dense(weight, types=TYPES) or x.dtype is not weight.dtype:
        return False
    plain = (_all(stride, 1), _all(padding, 0), _all(dilation, 1), not transposed, groups == 1, weight.shape[2:] == (1, 1))
    images, pixels = known(x.shape[0]), known(x.shape[2]) * known(x.shape[3])
    enough = pixels >= PIXELS or images <= FEW_IMAGES or _has_few_pixels(x)
    return all(plain) and enough and "mkldnn" not in process_state.query("float32_precision")


def _has_few_pixels(images: torch.Tensor) -> bool:
    return known(images.shape[2]) * known(images.shape[3]) <= FEW_PIXELS  # type: ignore[no-any-return]  # of numbers


def _is_channels_last(node: torch.fx.Node) -> bool:
    """The input and its gradient are; the gradient of the results is made so, where it is not."""
    images = (value_of(node.args[1]), node.meta["val"][0])
    return all(each is None or is_last(each) for each in images)


def is_dense(value: Any, dims: int = 4, types: tuple[torch.dtype, ...] = (torch.float32,)) -> bool:
    """Images of sizes that are known."""
    return (isinstance(value, torch.Tensor) and value.dim() == dims and value.dtype in types
            and value.device.type == "cpu" and all(isinstance(size, int) and size > 0 for size in value.shape))


def has_elements(value: Any, types: tuple[torch.dtype, ...]) -> bool:
    """Images of sizes that are known, or of which at least one varies and was seen: sizes that vary are at least one."""
    return (isinstance(value, torch.Tensor) and value.dim() == 4 and value.dtype in types and value.device.type == "cpu"
            and all(isinstance(size := known(each), int) and size > 0 for each in value.shape))


def has_known_sizes(value: Any) -> bool:
    return not isinstance(value, torch.Tensor) or is_of_known_layout(value)


def _all(values: Any, wanted: int) -> bool:
    return isinstance(values, (list, tuple)) and all(value == wanted for value in values)


class Calls:
    """Adds calls in front of a node, with what they give in their metadata."""

    def __init__(self, graph: torch.fx.Graph, node: torch.fx.Node) -> None:
        self.graph, self.mode = graph, _mode_of(node)

    def __call__(self, target: Any, *args: Any, **kwargs: Any) -> torch.fx.Node:
        new = self.graph.call_function(target)
        new.args, new.kwargs = args, kwargs  # sizes that vary stand there as they are, of which torch warns above
        given = torch.fx.node.map_arg(args, lambda each: each.meta["val"])
        with torch.no_grad(), self.mode:
            made = target(*given, **kwargs)
            sizes = given[1] if target is aten.view.default else getattr(made, "shape", None)
            new.meta["val"] = made if sizes is None or has_known_sizes(made) else as_elements_lie(made, sizes)
        return new

    def linear(self, rows: torch.fx.Node, weight: torch.fx.Node, *bias: Any) -> torch.fx.Node:
        """A linear layer over rows without gaps, which gives such rows: torch's fakes come to that by way of views and
        products, which takes them a tenth of a second where sizes vary."""
        new = self.graph.call_function(aten.linear.default, (rows, weight, *bias))
        with torch.no_grad(), self.mode:
            new.meta["val"] = value_of(rows).new_empty([*value_of(rows).shape[:-1], value_of(weight).shape[0]])
        return new


def _multiply(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    x, weight, bias = node.args[:3]
    images, channels, height, width = x.meta["val"].shape  # type: ignore[union-attr]  # passes of tensors have nodes there
    results, pixels = node.meta["val"].shape[1], height * width
    call = Calls(graph, node)
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
    replace(graph, node, y)


def _multiply_rows(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """A pixel of all channels is a row."""
    x, weight, *rest = node.args[:3]
    results, channels = value_of(weight).shape[:2]
    call = Calls(graph, node)
    with graph.inserting_before(node):
        rows = call(aten.permute.default, _channels_last(call, x), [0, 2, 3, 1])
        bias = [] if rest[0] is None else rest
        product = call.linear(rows, call(aten.view.default, weight, [results, channels]), *bias)
        y = _images(call, product, node.meta["val"])
    replace(graph, node, y)


def _channels_last(call: Calls, images: Any) -> Any:
    return images if is_last(value_of(images)) else call(aten.clone.default, images, memory_format=torch.channels_last)


def _images(call: Calls, rows: torch.fx.Node, like: torch.Tensor) -> torch.fx.Node:
    """Rows of pixels as images, laid out as those they stand for."""
    images = call(aten.permute.default, rows, [0, 3, 1, 2])
    return images if is_last(like) else call(aten.clone.default, images, memory_format=torch.contiguous_format)


def _split(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    grad, x, weight = node.args[:3]
    images, channels, height, width = x.meta["val"].shape  # type: ignore[union-attr]  # passes of tensors have nodes there
    results, pixels = grad.meta["val"].shape[1], height * width  # type: ignore[union-attr]  # passes of tensors have nodes there
    users = {user.args[1]: user for user in node.users}
    call = Calls(graph, node)
    made = {}
    with graph.inserting_before(node):
        grads = call(aten.view.default, grad, [images, results, pixels])
        if 0 in users:
            turned = call(aten.t.default, call(aten.view.default, weight, [results, channels]))
            each = call(aten.expand.default, call(aten.unsqueeze.default, turned, 0), [images, channels, results])
            product = call(aten.bmm.default, each, grads)
            made[0] = call(aten.view.default, product, [images, channels, height, width])
        if 1 in users:
            rows = call(aten.transpose.int, call(aten.view.default, x, [images, channels, pixels]), 1, 2)
            if images == 1 or (isinstance(images, int) and known(pixels) < SHORT_SUM and results * channels > LARGE_WEIGHT):
                product = _added_up(call, grads, rows, images)
            else:
                product = call(aten.sum.dim_IntList, call(aten.bmm.default, grads, rows), [0])
            made[1] = call(aten.view.default, product, [results, channels, 1, 1])
        if 2 in users:
            made[2] = call(aten.sum.dim_IntList, grad, [0, 2, 3])
    _replace_derivatives(graph, node, users, made)


def _replace_derivatives(
    graph: torch.fx.Graph, node: torch.fx.Node, users: dict[Any, torch.fx.Node], made: dict[int, torch.fx.Node]
) -> None:
    """Puts what was made in the places of the derivatives of the images, the weight and the bias."""
    for which, by in made.items():
        (_replace_copied if which == 1 else replace)(graph, users[which], by)
    graph.erase_node(node)


def _added_up(call: Calls, grads: torch.fx.Node, rows: torch.fx.Node, images: int) -> torch.fx.Node:
    """The sum of the images' products, each added to the one before as it is made: where few pixels meet many weights, another
    pass over all products takes longer than they do."""
    pairs = [(call(aten.select.int, grads, 0, image), call(aten.select.int, rows, 0, image)) for image in range(images)]
    total = call(aten.mm.default, *pairs[0])
    for pair in pairs[1:]:
        call(aten.addmm_.default, total, *pair)
    return total


def _split_rows(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    """A pixel of all channels is a row: there is one product for all images."""
    grad, x, weight = node.args[:3]
    images, channels, height, width = x.meta["val"].shape  # type: ignore[union-attr]  # passes of tensors have nodes there
    results = grad.meta["val"].shape[1]  # type: ignore[union-attr]  # passes of tensors have nodes there
    users = {user.args[1]: user for user in node.users}
    call = Calls(graph, node)

    def rows(value: Any, columns: int) -> torch.fx.Node:
        return call(aten.view.default, call(aten.permute.default, value, [0, 2, 3, 1]), [images * height * width, columns])

    made = {}
    with graph.inserting_before(node):
        grad_rows = rows(_channels_last(call, grad), results)
        if 0 in users:
            product = call(aten.mm.default, grad_rows, call(aten.view.default, weight, [results, channels]))
            pixels = call(aten.view.default, product, [images, height, width, channels])
            made[0] = _images(call, pixels, users[0].meta["val"])
        if 1 in users:
            product = call(aten.mm.default, call(aten.t.default, grad_rows), rows(_channels_last(call, x), channels))
            made[1] = call(aten.view.default, product, [results, channels, 1, 1])
        if 2 in users:
            made[2] = call(aten.sum.dim_IntList, grad, [0, 2, 3])
    _replace_derivatives(graph, node, users, made)


def _mode_of(node: torch.fx.Node) -> Any:
    value = node.meta["val"]
    (first, *_) = (each for each in (value if isinstance(value, (tuple, list)) else [value]) if each is not None)
    return first.fake_mode


def _replace_copied(graph: torch.fx.Graph, user: torch.fx.Node, by: torch.fx.Node) -> None:
    """Copies that only lay it out as the other lies already are left out."""
    strides = value_of(by).stride()
    copies = [each for each in user.users if each.target is aten.clone.default and value_of(each).stride() == strides]
    if len(copies) == len(user.users) == 1:  # nobody else holds the memory
        replace(graph, copies[0], by)
    replace(graph, user, by)


def replace(graph: torch.fx.Graph, user: torch.fx.Node, by: torch.fx.Node) -> None:
    user.replace_all_uses_with(by)
    graph.erase_node(user)
