"""Whether ATen's products, convolutions and attention of float16 and bfloat16 are slower than float32's: measured, and kept.

A processor without instructions for a half type multiplies its numbers one at a time, or by code written for another one. On a
Zen 3 (AVX2) 512 x 768 x 768 take 67 ms in bfloat16 and 10 in float32, a convolution of 64 channels 55 and 1.7. A call is
measured when a program with one like it is first built, at sizes up to those below: some milliseconds, once for a processor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from .measured import may_decide, nanoseconds, shortest

aten = torch.ops.aten

LOW_PRECISION: Final = (torch.float16, torch.bfloat16)
#: How much longer ATen's call has to take than that of float32, the casts with it.
MARGIN: Final = 1.5
#: Sizes up to which calls are measured: of matrices and sequences, and of a convolution's channels and pixels in a row.
MOST, MOST_CHANNELS, MOST_SIDE = 256, 64, 14
#: And channels of a depthwise convolution whose derivatives are measured: the more there are, the longer half types take.
MOST_DEPTHWISE = 256
#: Counts up when what is measured changes.
VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Trial:
    """A call that is measured: an operator, its tensors, by their sizes and their dimensions in the order in which they lie in
    memory, and its other arguments."""

    operator: Any
    half: torch.dtype
    sizes: tuple[tuple[int, ...], ...]
    orders: tuple[tuple[int, ...], ...]
    others: tuple[Any, ...] = ()

    def name(self) -> str:
        """The same in every process."""
        operator = getattr(self.operator, "__name__", None) or str(self.operator)
        return repr((operator, str(self.half), self.sizes, self.orders, self.others))

    def tensors(self) -> list[torch.Tensor]:
        """Of ones."""
        found = []
        for sizes, order in zip(self.sizes, self.orders, strict=True):
            lying = torch.ones([sizes[dim] for dim in order], dtype=self.half, device="cpu")
            found.append(lying.permute([order.index(dim) for dim in range(len(order))]))
        return found


def of_product(operator: Any, values: Sequence[torch.Tensor]) -> Trial:
    """Of matrices, or of batches of them, of which one matrix is measured."""
    sizes = tuple((1,) * (value.dim() - 2) + tuple(_rounded(size, MOST) for size in value.shape[-2:]) for value in values)
    orders = tuple((*range(value.dim() - 2), *(value.dim() - 2 + at for at in _order(value)[1])) for value in values)
    return Trial(operator, values[0].dtype, sizes, orders)


def of_convolution(x: torch.Tensor, weight: torch.Tensor, ways: Sequence[Any], transposed: bool, groups: int) -> Trial:
    """Of a convolution, and of its derivatives: of one image; `ways`: stride, padding, dilation and more of it."""
    depthwise = groups > 1 and groups in (x.shape[1], *weight.shape[:1])
    some = min(groups, MOST_CHANNELS if depthwise else 4)
    channels, results = (weight.shape[1], weight.shape[0] // groups)
    if transposed:
        channels, results = weight.shape[0] // groups, weight.shape[1]
    channels, results = _rounded(channels, MOST_CHANNELS), _rounded(results, MOST_CHANNELS)
    window = tuple(weight.shape[2:])
    sides = _sides(x, window, ways[2])
    first = (some * channels, results) if transposed else (some * results, channels)
    return Trial(aten.convolution.default, x.dtype, ((1, some * channels, *sides), (*first, *window)),
                 (_order(x)[0], _order(weight)[0]), (None, *map(tuple, ways[:3]), transposed, tuple(ways[3]), some))


def of_depthwise_derivatives(x: torch.Tensor, weight: torch.Tensor, ways: Sequence[Any]) -> tuple[Trial, ...]:
    """Of the derivatives of a depthwise convolution that is not transposed, as its images lie and channels last, which they
    may be turned to: those of steps, or of large windows, take up to 16 times as long in bfloat16, the convolution as long."""
    some, window = _rounded(weight.shape[0], MOST_DEPTHWISE), tuple(weight.shape[2:])
    sides = _sides(x, window, ways[2])
    made = [(side + 2 * padding - dilation * (size - 1) - 1) // stride + 1
            for side, size, stride, padding, dilation in zip(sides, window, *ways[:3], strict=True)]
    dims = tuple(range(x.dim()))
    layouts = dict.fromkeys((_order(x)[0], (0, *dims[2:], 1)))
    return tuple(Trial(_depthwise_back, x.dtype, ((1, some, *made), (1, some, *sides), (some, 1, *window)),
                       (order, order, dims), tuple(map(tuple, ways[:3]))) for order in layouts)


def _depthwise_back(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, *ways: Any) -> tuple[torch.Tensor, ...]:
    nothing, groups = [0] * (x.dim() - 2), weight.shape[0]
    back = aten.convolution_backward.default
    return tuple(back(grad, x, weight, None, *ways, False, nothing, groups, [True, True, False])[:2])


def _sides(x: torch.Tensor, window: Sequence[int], dilations: Sequence[int]) -> list[int]:
    """Those of the images that are measured: no smaller than what a window looks at."""
    reached = [dilation * (size - 1) + 1 for dilation, size in zip(dilations, window, strict=True)]
    return [max(min(size, MOST_SIDE) if type(size) is int else MOST_SIDE, reach)
            for size, reach in zip(x.shape[2:], reached, strict=True)]


def of_attention(query: torch.Tensor, key: torch.Tensor, derivative: bool) -> Trial:
    """Of attention of one head, or of its derivative."""
    queries, keys = (_rounded(value.shape[-2], MOST) for value in (query, key))
    wide = _rounded(query.shape[-1], MOST)
    return Trial(_attention_back if derivative else _attention, query.dtype,
                 tuple((1, 1, size, wide) for size in (queries, keys, keys)), ((0, 1, 2, 3),) * 3)


def _attention(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    found: torch.Tensor = aten._scaled_dot_product_flash_attention_for_cpu.default(query, key, value)[0]
    return found


def _attention_back(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Forward, too, which takes a third of it."""
    out, sums = aten._scaled_dot_product_flash_attention_for_cpu.default(query, key, value)
    back = aten._scaled_dot_product_flash_attention_for_cpu_backward.default
    found: tuple[torch.Tensor, ...] = back(out, query, key, value, out, sums, 0.0, False)
    return found


def _order(value: torch.Tensor) -> tuple[tuple[int, ...], tuple[int, int]]:
    """A tensor's dimensions by their strides, the largest first, where these are numbers; and its last two alone."""
    strides, dims = value.stride(), range(value.dim())
    if all(type(each) is int for each in strides):
        dims = sorted(dims, key=lambda dim: (-strides[dim], dim))  # type: ignore[assignment]
    last = [dim - value.dim() + 2 for dim in dims if dim >= value.dim() - 2]
    return tuple(dims), (last[0], last[-1])


def _rounded(size: Any, most: int) -> int:
    """A power of four, or the limit; of a size that varies, the limit."""
    found = 1
    while type(size) is int and found < size:
        found *= 4
    return min(found, most) if type(size) is int else most


#: Nanoseconds of the half type's and of float32's.
_measured: dict[Trial, tuple[int, int]] = {}


def is_slow(trial: Trial) -> bool:
    """Whether the call takes `MARGIN` times as long as in float32, by what was measured once of it; where measurements may not
    decide, none does."""
    if not may_decide():
        return False
    if trial not in _measured:
        half, wide = nanoseconds(
            ("half types", VERSION, trial.name()), lambda: measure(trial), "calls of half types compared",
            lambda found: f"a call like {trial.name()}: {found[0] / 1e3:.1f} us, in float32 {found[1] / 1e3:.1f} us")
        _measured[trial] = half, wide
    half, wide = _measured[trial]
    return half > MARGIN * wide


def measure(trial: Trial) -> tuple[int, int]:
    """Nanoseconds of this thread in the half type and in float32, the casts with it."""
    def wide() -> None:
        found = trial.operator(*(each.float() for each in tensors), *trial.others)
        for each in found if isinstance(found, tuple) else (found,):
            each.to(trial.half)

    with _disable_current_modes(), torch.no_grad():
        tensors = trial.tensors()
        return shortest(lambda: trial.operator(*tensors, *trial.others)), shortest(wide)
