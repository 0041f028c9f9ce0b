"""Convolutions of volumes whose window goes along images alone, or along their sequence alone, as those of images: all that is
done for images is done for them, and what they read and make is theirs seen in another shape, where the channels are last."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.fx

from .convolution import Calls

aten = torch.ops.aten
#: The convolutions, and how many of their first arguments are volumes.
_VOLUMES: dict[Any, int] = {aten.convolution.default: 1, aten.convolution_backward.default: 2}


def is_of_frames(node: torch.fx.Node) -> bool:
    """Whether a convolution of volumes, or its derivative, is one of their frames, or one along the sequence of these."""
    return _window(node) is not None


def _window(node: torch.fx.Node) -> str | None:
    """Along what a convolution's window goes."""
    weight, *_ = arguments = node.args[_VOLUMES[node.target] :]
    value = _value(weight)
    if node.kwargs or not isinstance(value, torch.Tensor) or value.dim() != 5 or arguments[5] is not False:
        return None
    if not all(type(each) is int for each in value.shape):
        return None
    if _has_items(node) and any(user.target is not operator.getitem for user in node.users):
        return None
    ways: Any = arguments[2:4]
    for name, dims in (("frames", (0,)), ("sequence", (1, 2))):
        if all(value.shape[2 + dim] == 1 and [each[dim] for each in ways] == [1, 0] for dim in dims):
            return name
    return None


def convolve_frames(graph: torch.fx.Graph) -> None:
    """Those whose volumes are channels last, unless the strides of what they make would be others."""
    for target, volumes in _VOLUMES.items():
        for node in list(graph.find_nodes(op="call_function", target=target)):
            if is_of_frames(node) and all(map(is_last, map(_value, node.args[:volumes]))):
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
    made = _by_images(node, lambda target, *args: target(*args), arguments, wanted)
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


def _by_images(node: torch.fx.Node, call: Callable[..., Any], arguments: Sequence[Any], wanted: Iterable[Any]) -> list[Any]:
    """The results that are wanted, of nodes or tensors."""
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


def _has_items(node: torch.fx.Node) -> bool:
    return node.target is aten.convolution_backward.default


def _value(each: Any) -> Any:
    return each.meta.get("val") if isinstance(each, torch.fx.Node) else each


def _frames(call: Callable[..., Any], volumes: Any) -> Any:
    count, channels, frames, height, width = _value(volumes).shape
    return _seen_as(call, volumes, [count * frames, height, width, channels])


def _lines(call: Callable[..., Any], volumes: Any) -> Any:
    count, channels, frames, height, width = _value(volumes).shape
    return _seen_as(call, volumes, [count, frames, height * width, channels])


def _volumes(call: Callable[..., Any], images: Any, shape: torch.Size) -> Any:
    count, channels, *sizes = shape
    return _seen_as(call, images, [count, *sizes, channels])


def _seen_as(call: Callable[..., Any], images: Any, sizes: list[int]) -> Any:
    """In these sizes, the channels last: beside them nothing is left of what a size of one had as its stride, by which ATen
    tells layouts apart."""
    dims = _value(images).dim()
    view = call(aten.view.default, call(aten.permute.default, images, [0, *range(2, dims), 1]), sizes)
    return call(aten.permute.default, view, [0, len(sizes) - 1, *range(1, len(sizes) - 1)])


#: By what a window goes along: volumes as images, the window's size that is left out, and the numbers that stay of those for
#: each dimension.
_VIEWS: dict[str, tuple[Callable[..., Any], int, slice]] = {
    "frames": (_frames, 2, slice(1, 3)),
    "sequence": (_lines, 3, slice(0, 2)),
}
