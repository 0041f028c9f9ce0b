"""Convolutions of volumes as those of images: all that is done for images is done for them. Where the window goes along images
alone, or along their sequence alone, what they read and make is theirs seen in another shape, where the channels are last;
other windows look at copies of several frames (stacked_frames.py), if that was found to be faster (choose/volumes.py)."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.fx

from . import stacked_frames
from .convolution import Calls
from .stacked_frames import Call, Stack, stack_of, value_of

aten = torch.ops.aten
#: Numbers of images of several frames that are there at once, about: 64 MB.
PIECE = 1 << 24
#: The convolutions, and how many of their first arguments are volumes.
_VOLUMES: dict[Any, int] = {aten.convolution.default: 1, aten.convolution_backward.default: 2}


def is_of_frames(node: torch.fx.Node) -> bool:
    """Whether a convolution of volumes, or its derivative, is one of their frames, or one along the sequence of these."""
    return _window(node) is not None


def stack_for(node: torch.fx.Node) -> Stack | None:
    """How a convolution of volumes, or its derivative, would be one of images of several frames."""
    weight = _weight(node)
    if weight is None or _window(node) is not None:
        return None
    volumes = _VOLUMES[node.target]
    ways: Any = node.args[volumes + 2 : volumes + 5]
    groups: Any = node.args[volumes + 7]
    return stack_of(value_of(node.args[volumes - 1]), weight, ways, groups)


def _weight(node: torch.fx.Node) -> torch.Tensor | None:
    """The weight of a convolution of volumes, or of its derivative, that is none of a transposed one."""
    weight, *_ = arguments = node.args[_VOLUMES[node.target] :]
    value = value_of(weight)
    if node.kwargs or not isinstance(value, torch.Tensor) or value.dim() != 5 or arguments[5] is not False:
        return None
    if not all(type(each) is int for each in value.shape):
        return None
    if _has_items(node) and any(user.target is not operator.getitem for user in node.users):
        return None
    return value


def _window(node: torch.fx.Node) -> str | None:
    """Along what a convolution's window goes."""
    value = _weight(node)
    if value is None:
        return None
    ways: Any = node.args[_VOLUMES[node.target] + 2 :][:2]
    for name, dims in (("frames", (0,)), ("sequence", (1, 2))):
        if all(value.shape[2 + dim] == 1 and [each[dim] for each in ways] == [1, 0] for dim in dims):
            return name
    return None


def convolve_frames(graph: torch.fx.Graph, is_chosen: Callable[[torch.fx.Node], bool] = is_of_frames) -> None:
    """The chosen ones whose volumes are channels last, unless the strides of what they make would be others."""
    for target, volumes in _VOLUMES.items():
        for node in list(graph.find_nodes(op="call_function", target=target)):
            if is_chosen(node) and all(map(is_last, map(value_of, node.args[:volumes]))):
                _replace(graph, node)


def is_last(volume: torch.Tensor) -> bool:
    """Whether these are volumes of float32 whose channels are last."""
    strided = volume.device.type == "cpu" and volume.layout is torch.strided
    ours = strided and volume.dim() == 5 and volume.dtype is torch.float32
    known = ours and all(type(each) is int for each in (*volume.shape, *volume.stride()))
    return known and volume.is_contiguous(memory_format=torch.channels_last_3d)


def calculated(node: torch.fx.Node, arguments: Sequence[Any]) -> Any:
    """What a convolution of frames makes of these tensors, by one of images: ATen lays out others."""
    wanted = range(len(node.meta["val"])) if _has_items(node) else [0]
    made = _by_images(node, lambda target, *args, **kwargs: target(*args, **kwargs), arguments, wanted)
    return tuple(made) if _has_items(node) else made[0]


def _replace(graph: torch.fx.Graph, node: torch.fx.Node) -> None:
    results = list(node.users) if _has_items(node) else [node]
    before = node.prev
    with graph.inserting_before(node):
        made = _by_images(node, Calls(graph, node), node.args, [each.args[1] if each is not node else 0 for each in results])
    if any(now.meta["val"].stride() != each.meta["val"].stride() for now, each in zip(made, results, strict=True)):
        while node.prev is not before:
            graph.erase_node(node.prev)
        return
    for now, each in zip(made, results, strict=True):
        each.replace_all_uses_with(now)
        graph.erase_node(each)
    if _has_items(node):
        graph.erase_node(node)


def _by_images(node: torch.fx.Node, call: Call, arguments: Sequence[Any], wanted: Iterable[Any]) -> list[Any]:
    """The results that are wanted, of nodes or tensors."""
    stack = stack_for(node)
    if stack is not None:
        return _by_stacked(node, call, arguments, wanted, stack)
    volumes, (view, left_out, kept) = _VOLUMES[node.target], _VIEWS[_window(node)]  # type: ignore[index]  # it has one
    images = [view(call, each) for each in arguments[:volumes]]
    weight = call(aten.squeeze.dim, arguments[volumes], left_out)
    bias, stride, padding, dilation, transposed, more, *others = arguments[volumes + 1 :]
    ways = [each[kept] for each in (stride, padding, dilation)]
    new = call(node.target, *images, weight, bias, *ways, transposed, more[kept], *others)
    if not _has_items(node):
        return [_volumes(call, new, node.meta["val"].shape)]
    made = []
    for place in wanted:
        part = call(operator.getitem, new, place)
        if place == 0 and part is not None:
            part = _volumes(call, part, node.meta["val"][0].shape)
        elif place == 1 and part is not None:
            part = call(aten.unsqueeze.default, part, left_out)
        made.append(part)
    return made


def _by_stacked(node: torch.fx.Node, call: Call, arguments: Sequence[Any], wanted: Iterable[Any], stack: Stack) -> list[Any]:
    """The same by images of several frames; what is made of many is made in pieces."""
    volumes = _VOLUMES[node.target]
    *gradients, volume = arguments[:volumes]
    weight, bias, stride, padding, dilation, transposed, more, *others = arguments[volumes:]
    weight_of_images = stacked_frames.weight_of(call, weight, stack)
    how = bias, *(each[1:] for each in (stride, padding, dilation)), transposed, more[1:], *others
    if not _has_items(node):
        pieces = stack.pieces(-(-stack.numbers(value_of(volume)) // PIECE))
        shape, parts = node.meta["val"].shape, []
        for piece in pieces:
            images = call(node.target, stacked_frames.images_of(call, volume, piece), weight_of_images, *how)
            parts.append(_volumes(call, images, (*shape[:2], piece.made, *shape[3:])))
        return [call(aten.cat.default, parts, 2) if len(parts) > 1 else parts[0]]
    images = stacked_frames.images_of(call, volume, stack)
    new = call(node.target, *(_frames(call, each) for each in gradients), images, weight_of_images, *how)
    made = []
    for place in wanted:
        part = call(operator.getitem, new, place)
        if place == 0 and part is not None:
            part = stacked_frames.volume_of_gradients(call, part, value_of(volume).shape, stack)
        elif place == 1 and part is not None:
            part = stacked_frames.gradient_of_weight(call, part, value_of(weight).shape, stack)
        made.append(part)
    return made


def _has_items(node: torch.fx.Node) -> bool:
    return node.target is aten.convolution_backward.default


def _frames(call: Call, volumes: Any) -> Any:
    count, channels, frames, height, width = value_of(volumes).shape
    return _seen_as(call, volumes, [count * frames, height, width, channels])


def _lines(call: Call, volumes: Any) -> Any:
    count, channels, frames, height, width = value_of(volumes).shape
    return _seen_as(call, volumes, [count, frames, height * width, channels])


def _volumes(call: Call, images: Any, shape: Sequence[int]) -> Any:
    count, channels, *sizes = shape
    return _seen_as(call, images, [count, *sizes, channels])


def _seen_as(call: Call, images: Any, sizes: list[int]) -> Any:
    """In these sizes, the channels last: beside them nothing is left of what a size of one had as its stride, by which ATen
    tells layouts apart."""
    dims = value_of(images).dim()
    view = call(aten.view.default, call(aten.permute.default, images, [0, *range(2, dims), 1]), sizes)
    return call(aten.permute.default, view, [0, len(sizes) - 1, *range(1, len(sizes) - 1)])


#: By what a window goes along: volumes as images, the window's size that is left out, and the numbers that stay of those for
#: each dimension.
_VIEWS: dict[str, tuple[Call, int, slice]] = {
    "frames": (_frames, 2, slice(1, 3)),
    "sequence": (_lines, 3, slice(0, 2)),
}
