"""Which convolutions our own kernels can do: of float32 images of sizes that are known, channels last in one group
(_convolution.c), or depthwise and not channels last (_depthwise.c)."""

from __future__ import annotations

from typing import Any

import torch
import torch.fx

from fxjit import _C, process_state

from ..lower.table import meta_of, op_name
from ..runtime.own_convolutions import Convolution

#: Channels below which a window's rows are too short to be copied, or turned, as vectors.
LEAST_CHANNELS = 16
#: Numbers of packed weights up to which they are ours: 64 MB, beside which there are the images.
MOST_WEIGHTS = 1 << 24


def convolution_of(node: torch.fx.Node) -> Convolution | None:
    """The convolution that a call is, if our kernels can do it."""
    if op_name(node) != "convolution.default" or node.kwargs or not is_offered():
        return None
    values: Any = [meta_of(arg) if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
    x, weight, bias, stride, padding, dilation, transposed, _, groups = values
    out = meta_of(node)
    if transposed or not all(map(suits, (x, weight, out))) or not (bias is None or suits(bias, dims=1)):
        return None
    lists = stride, padding, dilation
    if any(len(each) != 2 or not all(type(number) is int for number in each) for each in lists):
        return None
    if bias is not None and not bias.is_contiguous():
        return None
    if groups == x.shape[1] == weight.shape[0]:
        return depthwise_of(x, weight, out, *(tuple(each) for each in lists))
    plain = weight.is_contiguous()
    if groups != 1 or not all(map(is_last, (x, out))) or not (plain or is_last(weight)):
        return None
    (images, channels, height, width), (results, _, rows, columns) = x.shape, weight.shape
    steps, rim, distances = (tuple(each) for each in lists)
    found = Convolution(images, channels, height, width, results, rows, columns, out.shape[2], out.shape[3], steps, rim,
                        distances, weight_last=not plain)
    packed = found.results * found.channels * (16 if found.is_turned() else found.rows * found.columns)
    return found if found.channels >= LEAST_CHANNELS and out.numel() > 0 and packed <= MOST_WEIGHTS else None


def depthwise_of(x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor, stride: tuple[int, int], padding: tuple[int, int],
                 dilation: tuple[int, int]) -> Convolution | None:
    rows, columns = weight.shape[2:]
    whole = (columns == 1 or weight.stride(3) == 1) and (rows == 1 or weight.stride(2) == columns)
    if stride != (1, 1) or not x.is_contiguous() or not out.is_contiguous() or not whole or out.numel() == 0:
        return None
    (images, channels, height, width), sizes = x.shape, out.shape
    return Convolution(images, channels, height, width, channels, rows, columns, sizes[2], sizes[3], stride, padding, dilation,
                       weight_last=False, depthwise=True, weight_step=weight.stride(0))


def is_offered() -> bool:
    """Whether this processor has the kernels, and no setting has ATen calculate with less precision."""
    here = _C.program_can("convolve") and not torch.is_autocast_enabled("cpu")
    return here and "mkldnn.conv" not in process_state.query("float32_precision")


def suits(meta: Any, dims: int = 4) -> bool:
    return (isinstance(meta, torch.Tensor) and meta.dtype is torch.float32 and meta.device.type == "cpu" and meta.dim() == dims
            and meta.layout is torch.strided and all(type(size) is int for size in (*meta.shape, *meta.stride())))


def is_last(images: torch.Tensor) -> bool:
    return images.is_contiguous(memory_format=torch.channels_last)
