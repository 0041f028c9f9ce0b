"""Which convolutions our own kernels can do: of float32 images, channels last in one group (_convolution.c), or depthwise
and not channels last (_depthwise.c)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sympy
import torch
import torch.fx
from torch.utils._sympy.functions import Max

from fxjit import _C, process_state

from ..hints import Hints
from ..index import Size, Sizes, contiguous_strides, mul, same_sizes, size_of, sizes_of
from ..lower.table import meta_of, op_name
from ..runtime.own_convolutions import LEAST_CHANNELS, Convolution, Kind

#: Numbers of packed weights up to which they are ours: 64 MB, beside which there are the images.
MOST_WEIGHTS = 1 << 24


def convolution_of(node: torch.fx.Node, hints: Hints) -> tuple[Convolution, Sizes] | None:
    """The convolution that a call is, of the sizes that were seen, and its numbers, if our kernels can do it."""
    if node.kwargs or not is_offered():
        return None
    if op_name(node) == "convolution_backward.default":
        found = _of_weight(node)
    else:
        found = _of_images(node) if op_name(node) == "convolution.default" else None
    return None if found is None else (Convolution.of([hints(each) for each in found]), found)


def _of_images(node: torch.fx.Node) -> Sizes | None:
    """The numbers of one that makes images."""
    values: Any = [meta_of(arg) if isinstance(arg, torch.fx.Node) else arg for arg in node.args]
    x, weight, bias, stride, padding, dilation, transposed, more, groups = values
    out, ways = meta_of(node), (*stride, *padding, *dilation)
    known = suits(weight) and has_known_sizes(weight) and (bias is None or (suits(bias, dims=1) and has_known_sizes(bias)))
    if not known or not suits(x) or not suits(out) or len(ways) != 6 or 0 in weight.shape:
        return None
    if not all(type(each) is int for each in (*ways, *more)) or (bias is not None and not bias.is_contiguous()):
        return None
    results, channels, rows, columns = weight.shape
    depthwise = groups == results and channels == 1
    if transposed:
        results, channels = channels, results
        padding = [dilation[i] * (size - 1) - padding[i] for i, size in enumerate((rows, columns))]
        layout = layout_in_one_group(x, weight, out, groups, Kind.TRANSPOSED)
    elif depthwise:
        layout, channels = layout_of_depthwise(x, weight, out, stride), groups
    else:
        layout = layout_in_one_group(x, weight, out, groups, Kind.IN_ONE_GROUP)
    if layout is None:
        return None
    (images, _, height, width), (_, _, out_height, out_width) = sizes_of(x.shape), sizes_of(out.shape)
    numbers = images, channels, height, width, results, rows, columns, out_height, out_width, *stride, *padding, *dilation
    return (*numbers, *layout)


def _of_weight(node: torch.fx.Node) -> Sizes | None:
    """The numbers of a derivative that is the weight's alone."""
    operands: Any = node.args
    grad, x, weight, _, stride, padding, dilation, transposed, _, groups, wanted = operands
    grad, x, weight, (_, out, _) = meta_of(grad), meta_of(x), meta_of(weight), meta_of(node)
    ways = (*stride, *padding, *dilation)
    if list(wanted) != [False, True, False] or transposed or len(ways) != 6:
        return None
    if not all(map(suits, (grad, x, weight, out))) or not has_known_sizes(out) or 0 in out.shape:
        return None
    layout = layout_in_one_group(x, out, grad, groups, Kind.OF_WEIGHT)
    if out.shape[2:] == (1, 1):  # ATen is as fast, and knows the strides that it gives sizes of one
        return None
    if layout is None or not all(type(each) is int for each in ways):
        return None
    (images, channels, height, width), (_, results, out_height, out_width) = sizes_of(x.shape), sizes_of(grad.shape)
    return images, channels, height, width, results, *out.shape[2:], out_height, out_width, *ways, *layout


def layout_in_one_group(x: Any, weight: torch.Tensor, out: Any, groups: int, kind: Kind) -> tuple[int, int, int] | None:
    """The last numbers (whether the weight's second dimension is last, its kind, and the step of a depthwise one); None where
    this is not the kernels'."""
    results, channels, *window = weight.shape
    plain = weight.is_contiguous()
    fewest = results if kind is Kind.TRANSPOSED else channels
    if groups != 1 or fewest < LEAST_CHANNELS or not is_last(x) or not is_last(out) or not (plain or is_last(weight)):
        return None
    packed = results * channels * (16 if window == [3, 3] else window[0] * window[1])
    return (int(not plain), kind, 0) if packed <= MOST_WEIGHTS else None


def layout_of_depthwise(x: Any, weight: torch.Tensor, out: Any, stride: Sequence[int]) -> tuple[int, int, int] | None:
    """The same of a depthwise one."""
    rows, columns = weight.shape[2:]
    whole = (columns == 1 or weight.stride(3) == 1) and (rows == 1 or weight.stride(2) == columns)
    if tuple(stride) != (1, 1) or not whole or not is_plain(x) or not is_plain(out):
        return None
    return 0, Kind.DEPTHWISE, weight.stride(0)


def is_offered() -> bool:
    """Whether this processor has the kernels, and no setting has ATen calculate with less precision."""
    here = _C.program_can("convolve") and not torch.is_autocast_enabled("cpu")
    return here and "mkldnn.conv" not in process_state.query("float32_precision")


def suits(meta: Any, dims: int = 4) -> bool:
    return (isinstance(meta, torch.Tensor) and meta.dtype is torch.float32 and meta.device.type == "cpu" and meta.dim() == dims
            and meta.layout is torch.strided)


def has_known_sizes(meta: torch.Tensor) -> bool:
    return all(type(size) is int for size in (*meta.shape, *meta.stride()))


def is_last(images: torch.Tensor) -> bool:
    if has_known_sizes(images):
        return images.is_contiguous(memory_format=torch.channels_last)
    _, channels, height, width = sizes_of(images.shape)
    row = mul(width, channels)
    return same_sizes(strides_of_elements(images), (mul(height, row), 1, row, channels))


def is_plain(images: torch.Tensor) -> bool:
    if has_known_sizes(images):
        return images.is_contiguous()
    return same_sizes(strides_of_elements(images), contiguous_strides(sizes_of(images.shape)))


def strides_of_elements(images: torch.Tensor) -> Sizes:
    """The strides if it has elements: torch says them as if each size that varies were at least one."""
    return tuple(map(_without_least, sizes_of(images.stride())))


def _without_least(stride: Size) -> Size:
    if isinstance(stride, int):
        return stride
    parts = [part for part in stride.atoms(Max) if 1 in part.args and len(part.args) == 2]
    least = {part: next(arg for arg in part.args if arg != 1) for part in parts}
    return size_of(sympy.expand(stride.xreplace(least)))
