"""Convolutions of float32 by our own kernels, where they are about as fast as ATen's: measured, and kept.

A convolution is measured when a program with one like it is first built, on one image of at most `MOST_PIXELS` results and on
`MOST_CHANNELS` channels: a few milliseconds, once for a processor. What counts is one thread's own time (own_products.py).
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import astuple, dataclass, replace
from typing import Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fxjit import _C, config, logs
from fxjit.backends.store.artifacts import get_facts, put_facts
from fxjit.counters import counters

from .cc import processor

log = logs.artifact("autotuning")

MOST_PIXELS: Final = 28 * 28
MOST_CHANNELS: Final = 128
TURNS: Final = 5
#: How much longer than ATen's ours may take. Their errors are smaller: oneDNN adds up all of a window in a row where images are
#: channels last, and errs by 2 to 5 times as much.
MARGIN: Final = 1.1


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
    #: Whether the weight's channels are last.
    weight_last: bool

    def numbers(self) -> tuple[int, ...]:
        flat = (each if isinstance(each, tuple) else (each,) for each in astuple(self))
        return tuple(int(number) for each in flat for number in each)

    def is_turned(self) -> bool:
        """Whether Winograd's algorithm does it."""
        return (self.rows, self.columns, self.stride, self.dilation) == (3, 3, (1, 1), (1, 1))


_measured: dict[Convolution, bool] = {}


def is_preferred(convolution: Convolution) -> bool:
    """Whether our kernels do it, by what was measured once of one like it."""
    if not config.cpp.own_convolutions:
        return False
    measured = like(convolution)
    if measured not in _measured:
        facts = ("own convolution", measured, processor(), torch.__version__)
        _measured[measured] = _compared(hashlib.sha256(repr(facts).encode()).hexdigest()[:40], measured)
    return _measured[measured]


def like(convolution: Convolution) -> Convolution:
    """The convolution that is measured for it: of one image, sizes up to these and rounded to powers of two (channels) and of
    four (pixels)."""
    channels, results = (min(_power(size, 2), MOST_CHANNELS) for size in (convolution.channels, convolution.results))
    pixels = convolution.images * convolution.out_height * convolution.out_width
    side = min(math.isqrt(_power(pixels, 4)), math.isqrt(MOST_PIXELS))
    sides = [(side - 1) * stride + dilation * (window - 1) + 1 - 2 * padding for stride, dilation, window, padding in zip(
        convolution.stride, convolution.dilation, (convolution.rows, convolution.columns), convolution.padding, strict=True)]
    if min(sides) < 1:  # all of it is padding
        return convolution
    return replace(convolution, images=1, channels=channels, results=results, height=sides[0], width=sides[1],
                   out_height=side, out_width=side)


def _power(size: int, base: int) -> int:
    """The smallest power of the base, from 16 on, that is no smaller."""
    found = 16
    while found < size:
        found *= base
    return found


def _compared(key: str, convolution: Convolution) -> bool:
    try:
        atens, own = map(int, get_facts(key)["nanoseconds"])
    except (KeyError, TypeError, ValueError):  # not measured yet, or damaged
        atens, own = measure(convolution)
        counters["native"]["kernels of convolutions compared"] += 1
        log.info("a convolution like %s: %.1f us by ATen, %.1f us by our kernels", convolution, atens / 1e3, own / 1e3)
        put_facts(key, {"nanoseconds": [atens, own]})
    return own < MARGIN * atens


def measure(convolution: Convolution) -> tuple[int, int]:
    """Nanoseconds by ATen and by our kernels."""
    each, last = convolution, torch.channels_last
    with _disable_current_modes(), torch.no_grad():
        def ones(*size: int) -> torch.Tensor:
            return torch.ones(size, dtype=torch.float32, device="cpu")

        x = ones(each.images, each.channels, each.height, each.width).to(memory_format=last)
        weight = ones(each.results, each.channels, each.rows, each.columns)
        out = ones(each.images, each.results, each.out_height, each.out_width).to(memory_format=last)
        if each.weight_last:
            weight = weight.to(memory_format=last)
        return _C.time_convolution(x, weight, out, each.numbers(), TURNS)
