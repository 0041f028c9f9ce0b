"""Which convolutions of volumes are done as those of images: all whose windows go along frames, or along the sequence of these,
and those that were measured to be faster by images of several frames (passes/stacked_frames.py).

ATen has oneDNN convolve what is large, or several volumes. For one volume of fewer numbers it copies each window, and
multiplies matrices: on a Zen 5, one thread, 3 x 3 x 3, 16 channels of 16 frames of 64 x 64 have 10 GFLOP/s so and 48 frames of
48 x 48 by oneDNN 189, 128 channels of 4 frames of 32 x 32 50 and of 48 x 48 282; by images of several frames all have 160 to
246, and more where our own kernels convolve these. Images that no cache holds cost more than that gains beside oneDNN.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
import torch.fx
from torch.utils._python_dispatch import _disable_current_modes

from fxjit import _C, torch_private

from ..passes.frames import convolve_frames, is_of_frames, stack_for
from ..passes.stacked_frames import images_of, stack_of, weight_of
from ..runtime import own_convolutions
from ..runtime.measured import may_decide, nanoseconds, shortest
from ..runtime.own_convolutions import LEAST_CHANNELS, Convolution

aten = torch.ops.aten
#: The library that ATen takes for a convolution.
_backend_of: Final = torch_private.get_or("torch._C._select_conv_backend", None)

#: Counts up when what is measured changes.
VERSION: Final = 1
#: Frames, and pixels of a frame in a row, up to which a convolution is measured.
MOST_FRAMES, MOST_SIDE = 4, 64
#: How much faster that of images has to be, since what is made ready for it is memory more.
MARGIN: Final = 1.1
#: Numbers of the images up to which they are made in the place of oneDNN's convolution: 16 MB.
MOST_BESIDE_ONEDNN: Final = 1 << 22
#: Numbers of the images of several frames up to which a derivative is made by them: 128 MB. Others are made in pieces.
MOST_NUMBERS: Final = 1 << 25


def convolve_volumes(graph: torch.fx.Graph) -> None:
    """Those whose volumes are channels last."""
    convolve_frames(graph, is_by_images)


def is_by_images(node: torch.fx.Node) -> bool:
    """Whether a convolution of volumes, or its derivative, is to be one of images."""
    return speedup_by_images(node) > 0


def speedup_by_images(node: torch.fx.Node) -> float:
    """How many times as fast it is so; 0 where it stays one of volumes."""
    if is_of_frames(node):
        return 1.0
    stack = stack_for(node)
    if stack is None:
        return 0.0
    at = 1 if node.target is torch.ops.aten.convolution_backward.default else 0
    operands: Any = node.args
    volume, weight = (each.meta["val"] for each in operands[at : at + 2])
    if any(each.dtype is not torch.float32 or each.device.type != "cpu" for each in (volume, weight)):
        return 0.0
    is_small = at == 0 or stack.numbers(volume) <= MOST_NUMBERS
    return speedup(volume, weight, operands[at + 3 : at + 6]) if is_small else 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """A convolution of one volume, by oneDNN or by copies of windows."""

    volume: tuple[int, ...]
    weight: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    onednn: bool

    @property
    def ways(self) -> tuple[tuple[int, ...], ...]:
        return self.stride, self.padding, self.dilation


#: Nanoseconds as it is, and by images.
_measured: dict[Trial, tuple[int, int]] = {}


def trial_of(volume: torch.Tensor, weight: torch.Tensor, ways: Sequence[Any]) -> Trial:
    """The one that is measured for it."""
    reach = [apart * (window - 1) + 1 for apart, window in zip(ways[2], weight.shape[2:], strict=True)]
    most = (MOST_FRAMES, MOST_SIDE, MOST_SIDE)
    sizes = [min(size, max(limit, needed)) for size, limit, needed in zip(volume.shape[2:], most, reach, strict=True)]
    stride, padding, dilation = map(tuple, ways)
    return Trial((1, volume.shape[1], *sizes), tuple(weight.shape), stride, padding, dilation,
                 is_onednns(volume.shape, weight.shape, ways))


def speedup(volume: torch.Tensor, weight: torch.Tensor, ways: Sequence[Any]) -> float:
    """How many times as fast images of several frames are convolved, by what was measured once of such volumes; 0 where that is
    not worth it. Where measurements may not decide, all but oneDNN's are."""
    trial = trial_of(volume, weight, ways)
    stack = stack_of(volume, weight, ways, 1)
    if stack is None or (trial.onednn and stack.numbers(volume) > MOST_BESIDE_ONEDNN):
        return 0.0
    if not may_decide():
        return 0.0 if trial.onednn else MARGIN
    if trial not in _measured:
        whole, stacked = nanoseconds(
            ("volumes", VERSION, trial), lambda: measure(trial), "convolutions of volumes compared",
            lambda found: f"a convolution like {trial}: {found[0] / 1e3:.1f} us, of images {found[1] / 1e3:.1f} us")
        _measured[trial] = whole, stacked
    whole, stacked = _measured[trial]
    return whole / stacked if whole > MARGIN * stacked else 0.0


def is_onednns(volume: Sequence[int], weight: Sequence[int], ways: Sequence[Any]) -> bool:
    """Whether ATen has oneDNN convolve volumes of these sizes, as far as this torch tells."""
    if _backend_of is None:
        return True
    with _disable_current_modes():
        given = (torch.empty(sizes, dtype=torch.float32, device="cpu") for sizes in (volume, weight))
        found: str = _backend_of(*given, None, *map(list, ways), False, [0, 0, 0], 1).name
    return found.startswith("Mkldnn")


def measure(trial: Trial) -> tuple[int, int]:
    """Nanoseconds of this thread: of a plain volume, and of images of several frames, which are made each time."""
    with _disable_current_modes(), torch.no_grad():
        volume, weight = (torch.ones(sizes, dtype=torch.float32, device="cpu") for sizes in (trial.volume, trial.weight))
        last = volume.contiguous(memory_format=torch.channels_last_3d)
        stack = stack_of(volume, weight, trial.ways, 1)
        if stack is None:  # of fewer frames nothing is left of the window
            return 1, 1

        def call(operator: Any, *args: Any, **kwargs: Any) -> Any:
            return operator(*args, **kwargs)

        def as_it_is() -> Any:
            stride, padding, dilation = trial.ways
            if trial.onednn:
                return aten.mkldnn_convolution.default(volume, weight, None, padding, stride, dilation, 1)
            return aten.convolution.default(volume, weight, None, *trial.ways, False, [0, 0, 0], 1)

        def stacked() -> Any:
            images, turned = images_of(call, last, stack), weight_of(call, weight, stack)
            return aten.convolution.default(images, turned, None, *(way[1:] for way in trial.ways), False, [0, 0], 1)

        whole, by_images, made = shortest(as_it_is), shortest(stacked), stacked()
    return whole, max(1, by_images - max(0, _gained(trial, len(stack.places), made)))


def _gained(trial: Trial, places: int, made: torch.Tensor) -> int:
    """Nanoseconds that our own kernels save at the convolution of images, where they are taken."""
    stride, padding, dilation = ((way[1], way[2]) for way in trial.ways)
    _, channels, _, height, width = trial.volume
    images, results, out_height, out_width = made.shape
    rows, columns = trial.weight[3:]
    each = Convolution(images, places * channels, height, width, results, rows, columns, out_height, out_width, stride, padding,
                       dilation, weight_last=False)
    taken = _C.program_can("convolve") and each.channels >= LEAST_CHANNELS and own_convolutions.is_preferred(each)
    return round(own_convolutions.microseconds_gained(each) * 1e3) if taken else 0
