"""Convolutions of float32 by our own kernels, where they are about as fast as ATen's: measured, and kept.

A convolution is measured when a program with one like it is first built, on one image of at most `MOST_PIXELS` results and on
`MOST_CHANNELS` channels: a few milliseconds, once for a processor. What counts is one thread's own time (own_products.py).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from enum import IntEnum
from typing import Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fxjit import _C, config

from .measured import nanoseconds

#: Counts up when the kernels change: what was measured of others is no longer true.
KERNELS: Final = 3
#: Channels below which a window's rows are too short to be copied, or turned, as vectors.
LEAST_CHANNELS: Final = 16
MOST_PIXELS: Final = 28 * 28
MOST_CHANNELS: Final = 128
TURNS: Final = 5
#: How much longer than ATen's ours may take. Errors of those in one group are smaller: oneDNN adds up all of a window in a row
#: where images are channels last, and errs by 2 to 5 times as much. Depthwise ones' are the same up to windows of 64.
MARGIN: Final = 1.1
MARGIN_DEPTHWISE: Final = 0.95
#: Pixels in a row up to which depthwise ones are measured, and channels.
DEPTHWISE_SIDE: Final = 64
DEPTHWISE_CHANNELS: Final = 16


class Kind(IntEnum):
    """What a convolution is, as _convolution.h has it."""

    IN_ONE_GROUP = 0
    DEPTHWISE = 1
    TRANSPOSED = 2
    OF_WEIGHT = 3


@dataclass(frozen=True, slots=True)
class Convolution:
    """The numbers of an instruction CONVOLVE, in its order."""

    images: int
    channels: int
    height: int
    width: int
    results: int
    rows: int
    columns: int
    out_height: int
    out_width: int
    stride: tuple[int, int]
    padding: tuple[int, int]
    dilation: tuple[int, int]
    #: Whether the weight's last two dimensions come before its second.
    weight_last: bool
    kind: Kind = Kind.IN_ONE_GROUP
    #: Of a depthwise one: the distance of its windows.
    weight_step: int = 0

    def numbers(self) -> tuple[int, ...]:
        flat = (each if isinstance(each, tuple) else (each,) for each in astuple(self))
        return tuple(int(number) for each in flat for number in each)

    @property
    def work(self) -> int:
        """Multiplications, but for those of pixels between steps and beside images."""
        channels = 1 if self.kind is Kind.DEPTHWISE else self.channels
        return self.images * self.out_height * self.out_width * self.results * self.rows * self.columns * channels

    @classmethod
    def of(cls, numbers: Sequence[int]) -> Convolution:
        """From its numbers."""
        pairs = [(numbers[at], numbers[at + 1]) for at in (9, 11, 13)]
        last, kind, step = numbers[15:]
        return cls(*numbers[:9], *pairs, bool(last), Kind(kind), step)  # type: ignore[call-arg, arg-type]  # as many as there are


#: Nanoseconds by ATen and by our kernels.
_measured: dict[Convolution, tuple[int, int]] = {}


def is_preferred(convolution: Convolution) -> bool:
    """Whether our kernels do it, by what was measured once of one like it."""
    if not config.cpp.own_convolutions:
        return False
    atens, own = _times(like(convolution))
    return own < (MARGIN_DEPTHWISE if convolution.kind is Kind.DEPTHWISE else MARGIN) * atens


def microseconds_gained(convolution: Convolution) -> float:
    """What our kernels save beside ATen's, by the same measurement; negative where they take longer."""
    measured = like(convolution)
    atens, own = _times(measured)
    return (atens - own) / 1e3 * convolution.work / measured.work


def _times(measured: Convolution) -> tuple[int, int]:
    if measured not in _measured:
        atens, own = nanoseconds(
            ("own convolution", KERNELS, measured), lambda: measure(measured), "kernels of convolutions compared",
            lambda found: f"a convolution like {measured}: {found[0] / 1e3:.1f} us by ATen, {found[1] / 1e3:.1f} us by ours")
        _measured[measured] = atens, own
    return _measured[measured]


def like(convolution: Convolution) -> Convolution:
    """The convolution that is measured for it: of one image, sizes up to these and rounded to powers of two (channels) and of
    four (pixels)."""
    if convolution.kind is Kind.DEPTHWISE:
        return like_depthwise(convolution)
    channels, results = (min(_power(size, 2), MOST_CHANNELS) for size in (convolution.channels, convolution.results))
    results = min(results, convolution.results) if results == 16 else results  # of few, most of a panel is wasted
    pixels = convolution.images * convolution.out_height * convolution.out_width
    side = min(math.isqrt(_power(pixels, 4)), math.isqrt(MOST_PIXELS))
    reach = [dilation * (window - 1) for window, dilation in zip((convolution.rows, convolution.columns), convolution.dilation,
                                                                 strict=True)]
    ways = [*zip(convolution.stride, reach, convolution.padding, strict=True)]
    out = [side, side]
    if convolution.kind is Kind.TRANSPOSED:  # its padding is that of windows turned over
        sides = [(side - 1 + reached - 2 * padding) // stride + 1 for stride, reached, padding in ways]
        out = [(side - 1) * stride + 2 * padding - reached + 1
               for side, (stride, reached, padding) in zip(sides, ways, strict=True)]
    else:
        sides = [(side - 1) * stride + reached + 1 - 2 * padding for stride, reached, padding in ways]
    if min(*sides, *out) < 1:  # all of it is padding
        return convolution
    return replace(convolution, images=1, channels=channels, results=results, height=sides[0], width=sides[1],
                   out_height=out[0], out_width=out[1])


def like_depthwise(convolution: Convolution) -> Convolution:
    """The same of one image, with fewer channels and smaller planes."""
    channels = min(convolution.channels, DEPTHWISE_CHANNELS)
    sides = [min(side, DEPTHWISE_SIDE) for side in (convolution.height, convolution.width)]
    windows = zip((convolution.rows, convolution.columns), convolution.dilation, convolution.padding, sides, strict=True)
    out = [side + 2 * padding - dilation * (window - 1) for window, dilation, padding, side in windows]
    if min(out) < 1:
        return convolution
    return replace(convolution, images=1, channels=channels, results=channels, height=sides[0], width=sides[1],
                   out_height=out[0], out_width=out[1], weight_step=convolution.rows * convolution.columns)


def _power(size: int, base: int) -> int:
    """The smallest power of the base, from 16 on, that is no smaller."""
    found = 16
    while found < size:
        found *= base
    return found


def measure(convolution: Convolution) -> tuple[int, int]:
    """Nanoseconds by ATen and by our kernels."""
    each, depthwise = convolution, convolution.kind is Kind.DEPTHWISE
    layout = torch.contiguous_format if depthwise else torch.channels_last
    with _disable_current_modes(), torch.no_grad():
        def ones(*size: int) -> torch.Tensor:
            return torch.ones(size, dtype=torch.float32, device="cpu")

        x = ones(each.images, each.channels, each.height, each.width).contiguous(memory_format=layout)
        weight = ones(*weight_sizes(each))
        out = ones(each.images, each.results, each.out_height, each.out_width).contiguous(memory_format=layout)
        if each.weight_last:
            weight = weight.contiguous(memory_format=layout)
        if each.kind is Kind.OF_WEIGHT:
            weight, out = out, weight
        return _C.time_convolution(x, weight, out, each.numbers(), TURNS)


def weight_sizes(convolution: Convolution) -> tuple[int, int, int, int]:
    """The weight's sizes, in the order of its dimensions."""
    channels = 1 if convolution.kind is Kind.DEPTHWISE else convolution.channels
    first = (channels, convolution.results) if convolution.kind is Kind.TRANSPOSED else (convolution.results, channels)
    return *first, convolution.rows, convolution.columns
