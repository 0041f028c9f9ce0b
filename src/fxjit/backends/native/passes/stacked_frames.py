"""Convolutions of volumes as those of images whose channels are those of several frames: for each frame that is made, the
frames that its window looks at, one behind the other. A window of 3 x 3 x 3 over 16 channels is one of 3 x 3 over 48.

Frames beside the volume are zeros, and places of the window that look at nothing else are left out, with their weights.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.fx

aten = torch.ops.aten
#: A call of an operator on nodes or on tensors, which gives the like.
Call = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class Place:
    """Of a window's places along the frames one that looks at frames of the volume: for the made frames `first` to `last`, the
    volume's frames from `start` on."""

    at: int
    first: int
    last: int
    start: int


@dataclass(frozen=True, slots=True)
class Stack:
    """How a convolution of volumes looks at frames: of `frames` it makes `made`, a `step` apart."""

    frames: int
    made: int
    step: int
    window: int
    places: tuple[Place, ...]

    def numbers(self, volume: torch.Tensor) -> int:
        """Of all images with their channels."""
        images, channels, _, height, width = volume.shape
        return images * self.made * len(self.places) * channels * height * width

    def pieces(self, count: int) -> list[Stack]:
        """Of about as many made frames each, one after the other; the whole where a piece would look at none by some place."""
        found = []
        for number in range(count):
            begin, end = self.made * number // count, self.made * (number + 1) // count
            places = []
            for place in self.places:
                first, last = max(place.first, begin), min(place.last, end - 1)
                if first > last:
                    return [self]
                start = place.start + (first - place.first) * self.step
                places.append(Place(place.at, first - begin, last - begin, start))
            found.append(replace(self, made=end - begin, places=tuple(places)))
        return found


def stack_of(volume: torch.Tensor, weight: torch.Tensor, ways: Iterable[Any], groups: int) -> Stack | None:
    """That of a convolution in one group, of sizes that are known; `ways`: stride, padding and dilation."""
    sizes = (*volume.shape, *weight.shape)
    if volume.dim() != 5 or weight.dim() != 5 or groups != 1 or not all(type(each) is int and each > 0 for each in sizes):
        return None
    (step, *_), (padding, *_), (apart, *_) = ways
    frames, window = volume.shape[2], weight.shape[2]
    made = (frames + 2 * padding - apart * (window - 1) - 1) // step + 1
    places = []
    for at in range(window):
        shift = padding - at * apart
        first, last = max(0, -(-shift // step)), min(made - 1, (frames - 1 + shift) // step)
        if first <= last:
            places.append(Place(at, first, last, first * step - shift))
    if not places or len(places) != places[-1].at - places[0].at + 1:
        return None
    return Stack(frames, made, step, window, tuple(places))


def images_of(call: Call, volumes: Any, stack: Stack) -> Any:
    """Volumes whose channels are last, as images."""
    rows = call(aten.permute.default, volumes, [0, 2, 3, 4, 1])
    parts = []
    for place in stack.places:
        end = place.start + (place.last - place.first) * stack.step + 1
        part = call(aten.slice.Tensor, rows, 1, place.start, end, stack.step)
        before, behind = place.first, stack.made - 1 - place.last
        if before or behind:
            part = call(aten.constant_pad_nd.default, part, [0, 0, 0, 0, 0, 0, before, behind])
        parts.append(part)
    stacked = call(aten.cat.default, parts, 4) if len(parts) > 1 else _contiguous(call, parts[0])
    images, made, *sizes = value_of(stacked).shape
    return call(aten.permute.default, call(aten.view.default, stacked, [images * made, *sizes]), [0, 3, 1, 2])


def weight_of(call: Call, weight: Any, stack: Stack) -> Any:
    """The window's weights, of the channels of all frames that it looks at."""
    first, last = stack.places[0].at, stack.places[-1].at
    frames_first = call(aten.permute.default, weight, [0, 2, 1, 3, 4])
    if len(stack.places) != stack.window:
        frames_first = call(aten.slice.Tensor, frames_first, 1, first, last + 1)
    results, places, channels, height, width = value_of(frames_first).shape
    return call(aten.view.default, _contiguous(call, frames_first), [results, places * channels, height, width])


def volume_of_gradients(call: Call, images: Any, shape: torch.Size, stack: Stack) -> Any:
    """The derivative of `images_of`: each frame's is the sum of those of the images that it was in."""
    count, channels, frames, height, width = shape
    rows = _contiguous(call, call(aten.permute.default, images, [0, 2, 3, 1]))
    rows = call(aten.view.default, rows, [count, stack.made, height, width, len(stack.places) * channels])
    total = None
    for number, place in enumerate(stack.places):
        part = call(aten.slice.Tensor, rows, 4, number * channels, (number + 1) * channels)
        part = call(aten.slice.Tensor, part, 1, place.first, place.last + 1)
        end = place.start + (place.last - place.first) * stack.step + 1
        whole = [count, frames, height, width, channels]
        part = call(aten.slice_backward.default, part, whole, 1, place.start, end, stack.step)
        total = part if total is None else call(aten.add.Tensor, total, part)
    return call(aten.permute.default, total, [0, 4, 1, 2, 3])


def gradient_of_weight(call: Call, images: Any, shape: torch.Size, stack: Stack) -> Any:
    """The derivative of `weight_of`."""
    results, channels, window, height, width = shape
    parts = call(aten.view.default, _contiguous(call, images), [results, len(stack.places), channels, height, width])
    found = call(aten.permute.default, parts, [0, 2, 1, 3, 4])
    before, behind = stack.places[0].at, window - 1 - stack.places[-1].at
    if before or behind:
        found = call(aten.constant_pad_nd.default, found, [0, 0, 0, 0, before, behind])
    return _contiguous(call, found)


def _contiguous(call: Call, value: Any) -> Any:
    if value_of(value).is_contiguous():
        return value
    return call(aten.clone.default, value, memory_format=torch.contiguous_format)


def value_of(each: Any) -> Any:
    """What a node gives; a tensor itself."""
    return each.meta.get("val") if isinstance(each, torch.fx.Node) else each
