"""Which ATen operators are broken up while AOTAutograd traces.

Few are: a decomposition costs tracing time for each use, so operators that models use a lot have lowerings of their own
(lower/). These here are rare, pointwise or nearly so, and would otherwise be extern calls that nothing fuses with.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch._C import DispatchKey

from fxjit import _C, config
from fxjit.backends.aot.torch_patches import replaced_kernels
from fxjit.fake_strides import has_noncanonical_stride

NAMES = (
    "binary_cross_entropy_backward", "binary_cross_entropy_with_logits", "celu",
    "glu", "glu_backward", "hardshrink", "heaviside", "huber_loss",
    "huber_loss_backward",
    "log_sigmoid_forward", "logaddexp", "logit", "logit_backward", "mse_loss",
    "mse_loss_backward", "nan_to_num", "selu", "smooth_l1_loss", "soft_margin_loss",
    "special_xlog1py", "std_mean", "xlogy", "trace", "stack", "unsafe_split",
)  # fmt: skip

# Those made of functions that ATen computes more accurately in float64 (lower/functions.py), where they are left whole.
OF_FUNCTIONS = (
    "binary_cross_entropy_backward", "binary_cross_entropy_with_logits", "celu", "log_sigmoid_forward",
    "logaddexp", "logit", "selu", "soft_margin_loss", "special_xlog1py", "xlogy",
)  # fmt: skip

NORMALIZATIONS = ("_native_batch_norm_legit_functional.default", "_native_batch_norm_legit.no_stats",
                  "_native_batch_norm_legit_no_training.default", "native_layer_norm.default", "native_group_norm.default")


# What torch breaks up by itself while a graph is traced, into reads and accumulating writes at computed places: its own
# kernels take a third of the time of those.
WHOLE = tuple(f"upsample_{name}" for name in ("linear1d", "bilinear2d", "trilinear3d", "bicubic2d", "nearest1d", "nearest2d",
                                             "nearest3d")) + tuple(f"_upsample_nearest_exact{n}d" for n in (1, 2, 3))


# Of symbolic sizes those that weigh what lies around a point: beside NaN and infinity, and of bytes and halves, their kernels
# give other numbers than the parts. The rest only reads.
WEIGHING = ("upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d", "upsample_bicubic2d")
# And of any sizes those whose derivatives torch's parts give otherwise than their kernels do, at NaN or where a bend is.
BENT = ("multi_margin_loss", "multilabel_margin_loss_forward", "hardshrink", "softshrink")
#: Which argument their results look like, where torch's own answer refuses symbols.
LOOKS = {"multi_margin_loss_backward": 1, "multilabel_margin_loss_backward": 1, "hardshrink_backward": 1,
         "softshrink_backward": 1, "softshrink": 0}
#: Of the reductions that ATen's losses know.
MEAN = 1
_KEYS = (DispatchKey.Autograd, DispatchKey.CompositeImplicitAutograd)


def kept_whole(symbols: bool) -> AbstractContextManager[None]:
    """Within it, the operators of `WHOLE` and `BENT` are traced as what they are in eager; of symbolic sizes those of
    `WEIGHING` and `BENT`."""
    return replaced_kernels(_kernels(symbols))


def _kernels(symbols: bool) -> Iterator[tuple[Any, Any, Callable[..., Any] | None]]:
    for name in (*BENT, *(WEIGHING if symbols else WHOLE)):
        by_symbols = symbols and name in WEIGHING
        packet: Any = getattr(torch.ops.aten, name, None)
        for operator in (getattr(packet, each) for each in packet.overloads()) if packet is not None else ():
            for key in [key for key in _KEYS if key in operator.py_kernels]:
                yield operator, key, by_sizes(packet.default) if by_symbols and operator is packet.vec else None
        if by_symbols:
            backward = getattr(torch.ops.aten, f"{name}_backward").default
            yield backward, DispatchKey.Meta, derivative_of_upsampling(backward, 2 + int(name[-2]))
    for name, place in LOOKS.items() if symbols else ():
        yield getattr(torch.ops.aten, name).default, DispatchKey.Meta, looks_like_argument(place)


def looks_like_argument(place: int) -> Callable[..., torch.Tensor]:
    return lambda *args: torch.empty_like(args[place])


def by_sizes(operator: Any) -> Callable[..., Any]:
    """An upsampling by sizes or factors as ATen has it, whose own refuses symbols: by the operator that takes sizes alone."""
    from torch._decomp.decompositions import upsample_compute_output_size

    def upsample(x: torch.Tensor, output_size: Any, align_corners: bool, scale_factors: Any) -> Any:
        sizes = upsample_compute_output_size(x.size(), output_size, scale_factors)
        return operator(x, sizes, align_corners, *(scale_factors or ()))

    return upsample


@functools.cache
def derivative_of_upsampling(operator: Any, ndim: int) -> Callable[..., torch.Tensor]:
    """A decomposition that only tells the derivative's metadata: torch's own function refuses symbols. Whether
    channels-last stays so differs by operator and version."""
    from torch._prims_common import suggest_memory_format

    layout = {4: torch.channels_last, 5: torch.channels_last_3d}.get(ndim, torch.contiguous_format)
    example = torch.empty([2] * ndim, device="meta", memory_format=layout)
    stays = operator(example, [2] * (ndim - 2), [2] * ndim, False).is_contiguous(memory_format=layout)

    def looks_like(grad: torch.Tensor, output_size: Any, input_size: Any, *how: Any) -> torch.Tensor:
        like = grad.new_empty(input_size)
        return like.to(memory_format=suggest_memory_format(grad)) if stays else like

    return looks_like


@functools.cache
def mask_like() -> Callable[[torch.Tensor, float], torch.Tensor]:
    """`fxjit::mask_like(x, p)`: random bools in the layout of `x`. ATen's functional `bernoulli` has a layout of its own,
    which on some processors means other numbers than those of eager's dropout."""

    def sample(x: torch.Tensor, p: float) -> torch.Tensor:
        return torch.empty_like(x, dtype=torch.bool).bernoulli_(p)

    def fake(x: torch.Tensor, p: float) -> torch.Tensor:
        return torch.empty_like(x, dtype=torch.bool)

    return own_operator("mask_like(Tensor x, float p) -> Tensor", sample, fake, (torch.Tag.nondeterministic_seeded,))


@functools.cache
def log_softmax_parts() -> Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]:
    """`fxjit::log_softmax_parts(x, dim)`: what makes the logarithms of a softmax of x, `x - top - total`: the largest numbers
    along `dim`, and the logarithms of the sums of exp(x - top); both with size 1 there."""

    def parts(x: torch.Tensor, dim: int) -> tuple[torch.Tensor, torch.Tensor]:
        top = x.amax(dim, keepdim=True)
        return top, (x - top).exp().sum(dim, keepdim=True).log()

    return own_operator("log_softmax_parts(Tensor x, int dim) -> (Tensor, Tensor)", parts, parts)


@functools.cache
def log_softmax_backward() -> Callable[..., torch.Tensor]:
    """`fxjit::log_softmax_backward(grad, x, top, total, dim)`: the derivative, from those parts."""

    def derivative(grad: torch.Tensor, x: torch.Tensor, top: torch.Tensor, total: torch.Tensor, dim: int) -> torch.Tensor:
        return grad - (x - top - total).exp() * grad.sum(dim, keepdim=True)

    def fake(grad: torch.Tensor, x: torch.Tensor, top: torch.Tensor, total: torch.Tensor, dim: int) -> torch.Tensor:
        return torch.empty_like(grad)

    schema = "log_softmax_backward(Tensor grad, Tensor x, Tensor top, Tensor total, int dim) -> Tensor"
    return own_operator(schema, derivative, fake)


@functools.cache
def group_norm_of_last() -> Callable[..., Any]:
    """`fxjit::group_norm_of_last`: ATen's `native_group_norm` of channels-last images, which its kernel for a GPU refuses."""

    def normalize(x: torch.Tensor, *args: Any) -> Any:
        y, *statistics = torch.ops.aten.native_group_norm.default(x.contiguous(), *args)
        return (y.contiguous(memory_format=torch.channels_last), *statistics)

    def fake(x: torch.Tensor, *args: Any) -> Any:
        _, *statistics = torch.ops.aten.native_group_norm.default(x, *args)
        return (torch.empty_like(x, memory_format=torch.channels_last), *statistics)

    schema = ("group_norm_of_last(Tensor x, Tensor? weight, Tensor? bias, SymInt n, SymInt c, SymInt pixels, int groups, "
              "float eps) -> (Tensor, Tensor, Tensor)")  # fmt: skip
    return own_operator(schema, normalize, fake)


@functools.cache
def group_norm_of_last_backward() -> Callable[..., Any]:
    """And its derivative; of plain images ATen's reads the wrong numbers."""

    def derivative(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> Any:
        call = torch.ops.aten.native_group_norm_backward.default
        of_x, *others = call(grad.contiguous(), x.contiguous(), *args)
        return (of_x.contiguous(memory_format=torch.channels_last) if of_x is not None else None, *others)

    def fake(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> Any:
        of_x, *others = torch.ops.aten.native_group_norm_backward.default(grad, x, *args)
        return (torch.empty_like(x, memory_format=torch.channels_last) if of_x is not None else None, *others)

    schema = ("group_norm_of_last_backward(Tensor grad, Tensor x, Tensor mean, Tensor rstd, Tensor? weight, SymInt n, "
              "SymInt c, SymInt pixels, int groups, bool[3] wanted) -> (Tensor, Tensor, Tensor)")  # fmt: skip
    return own_operator(schema, derivative, fake)


@functools.cache
def pack_weight() -> Callable[[torch.Tensor], torch.Tensor]:
    """`fxjit::pack_weight(weight)`: weights of float32 or bfloat16, a row for each result, as our own kernels read them: a
    vector (executor/_packed_weights.c)."""

    def fake(weight: torch.Tensor) -> torch.Tensor:
        results, terms = weight.shape
        return weight.new_empty(_C.packed_size(results, terms, weight.dtype is torch.bfloat16))

    def packed(weight: torch.Tensor) -> torch.Tensor:
        made = fake(weight)
        _C.pack_weight(weight, made)
        return made

    return own_operator("pack_weight(Tensor weight) -> Tensor", packed, fake)


@functools.cache
def linear_of_packed() -> Callable[..., torch.Tensor]:
    """`fxjit::linear_of_packed(x, packed, bias, results)`: `linear` of so many results by weights that `pack_weight` made."""

    def fake(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, results: int) -> torch.Tensor:
        return x.new_empty((*x.shape[:-1], results))

    def linear(x: torch.Tensor, packed: torch.Tensor, bias: torch.Tensor | None, results: int) -> torch.Tensor:
        made = fake(x, packed, bias, results)
        _C.multiply_packed(x.reshape(-1, x.shape[-1]).contiguous(), packed, bias, made.view(-1, results))
        return made

    return own_operator("linear_of_packed(Tensor x, Tensor packed, Tensor? bias, int results) -> Tensor", linear, fake)


def define_own_operators() -> None:
    for define in (mask_like, log_softmax_parts, log_softmax_backward, group_norm_of_last, group_norm_of_last_backward,
                   pack_weight, linear_of_packed):
        define()


def own_operator(
    schema: str, function: Callable[..., Any], fake: Callable[..., Any], tags: tuple[torch.Tag, ...] = ()
) -> Callable[..., Any]:
    library, name = torch.library.Library("fxjit", "FRAGMENT"), schema.partition("(")[0]
    library.define(schema, tags=tags)
    library.impl(name, function, "CompositeExplicitAutograd")
    torch.library.register_fake(f"fxjit::{name}", fake, lib=library)
    _libraries.append(library)
    return getattr(torch.ops.fxjit, name).default  # type: ignore[no-any-return]  # torch.ops is untyped


_libraries: list[Any] = []


def native_dropout(x: torch.Tensor, p: float, train: bool | None) -> Any:
    """ATen's random numbers, as in eager's dropout; the arithmetic fuses with what is around."""
    if x.device.type == "cuda":
        # ATen's one kernel uses random numbers in an order of its own, which no other operator repeats.
        return NotImplemented
    if (train is not None and not train) or p == 0 or x.numel() == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    if p == 1:
        return x * 0.0, torch.zeros_like(x, dtype=torch.bool)
    mask = mask_like()(x, 1 - p)
    return x * (mask.to(x.dtype) / (1 - p)), mask


def native_dropout_backward(grad: torch.Tensor, mask: torch.Tensor, scale: float) -> torch.Tensor:
    return grad * (mask.to(grad.dtype) * scale)


def whole_for_half_types(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """ATen rounds numbers and tensors without dimensions to a half type; the decomposition computes with all of them."""

    def decompose(*args: Any) -> Any:
        if any(isinstance(each, torch.Tensor) and each.dtype in (torch.float16, torch.bfloat16) for each in args):
            return NotImplemented
        return decomposition(*args)

    return decompose


def whole_in_float64(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    def decompose(*args: Any, **how: Any) -> Any:
        tensors = [each for each in args if isinstance(each, torch.Tensor)]
        if any(each.dtype is torch.float64 and each.device.type == "cpu" for each in tensors) and not config.cpp.fast_math:
            return NotImplemented
        return decomposition(*args, **how)

    return decompose


def unless_of_nothing(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """The derivative of the mean of a loss; torch's divides by the number of elements, as a number of Python's."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    def decompose(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> Any:
        return torch.zeros_like(x) if statically_known_true(x.numel() == 0) else decomposition(grad, x, *args)

    return decompose


def whole_where_strides_tell(operator: Any, decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Where a dimension of size 1 has a stride of its own, only the operator's own kernel says how its result lies; a sum lies
    in no way."""
    names = [each.name for each in operator._schema.arguments]
    reduction = names.index("reduction") if "reduction" in names else None

    def decompose(*args: Any, **how: Any) -> Any:
        reduced = reduction is not None and (args[reduction] if reduction < len(args) else how.get("reduction", MEAN))
        if not reduced and any(isinstance(each, torch.Tensor) and has_noncanonical_stride(each) for each in args):
            return NotImplemented
        return decomposition(*args, **how)

    return decompose


def of_one_type(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """ATen refuses operands of several types, which the decomposition would bring together."""

    def decompose(*args: torch.Tensor) -> Any:
        return decomposition(*args) if len({each.dtype for each in args}) == 1 else NotImplemented

    return decompose


def normalized_in_float32(operator: Callable[..., Any]) -> Callable[..., Any]:
    """Halves with float32 parameters, as under autocast: ATen's kernels give float32 statistics, where torch's fake tensors
    promise halves, with which the derivative would be wrong, or refused."""

    def decompose(x: torch.Tensor, *args: Any) -> Any:
        mixed = any(isinstance(each, torch.Tensor) and each.dtype is torch.float32 for each in args)
        if not mixed or x.dtype not in (torch.float16, torch.bfloat16) or x.device.type != "cpu":
            return NotImplemented
        y, *statistics = operator(x.float(), *args)
        return (y.to(x.dtype), *statistics)

    return decompose


def plain_or_channels_last(operator: Callable[..., Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """ATen's kernel for a CPU gives such a result of any input, where torch's fake tensors promise the layout of the input."""
    from torch._prims_common import suggest_memory_format

    def decompose(x: torch.Tensor, *args: Any) -> Any:
        if x.device.type != "cpu" or x.is_contiguous():
            return otherwise(x, *args)
        layout = suggest_memory_format(x)
        if x.is_contiguous(memory_format=layout):
            return otherwise(x, *args)
        return operator(x.contiguous(memory_format=layout), *args)

    return decompose


def roll(x: torch.Tensor, shifts: list[Any], dims: Sequence[int] = ()) -> Any:
    """On a CPU channels-last stays so, where torch's fake tensors promise a plain layout."""
    from torch._prims_common import suggest_memory_format

    last = x.dim() - 1
    if x.device.type != "cpu" or not dims or x.is_contiguous() or suggest_memory_format(x) is torch.contiguous_format:
        return NotImplemented
    places = [0, last, *range(1, last)]
    return torch.roll(x.movedim(1, last), shifts, [places[dim] for dim in dims]).movedim(last, 1)


def channel_shuffle(x: torch.Tensor, groups: int) -> Any:
    """On a CPU channels-last stays so, where torch's fake tensors promise a plain layout."""
    from torch._prims_common import suggest_memory_format

    if x.device.type != "cpu" or x.is_contiguous() or suggest_memory_format(x) is torch.contiguous_format:
        return NotImplemented
    last = x.movedim(1, -1)
    return last.unflatten(-1, (groups, x.shape[1] // groups)).transpose(-1, -2).reshape(last.shape).movedim(-1, 1)


def pixel_shuffle(x: torch.Tensor, factor: int) -> Any:
    """As views and a copy, which others fuse with; the copy alone takes a half to a ninth of the time of ATen's."""
    split = _split_for_pixels(x, factor, by_channels=True)
    if split is None:
        return NotImplemented
    channels, last = split
    apart = channels.unflatten(-1, (-1, factor, factor))  # [..., height, width, channel, row, column]
    pixels = apart.movedim(-2, -4)
    if last:
        return _copy(pixels.movedim(-1, -2)).flatten(-3, -2).flatten(-4, -3).movedim(-1, -3)
    return _copy(pixels.movedim(-2, -5)).flatten(-2, -1).flatten(-3, -2)


def pixel_unshuffle(x: torch.Tensor, factor: int) -> Any:
    """As views and a copy: see `pixel_shuffle`."""
    split = _split_for_pixels(x, factor, by_channels=False)
    if split is None:
        return NotImplemented
    channels, last = split
    apart = channels.unflatten(-2, (-1, factor)).unflatten(-4, (-1, factor))  # [..., height, row, width, column, channel]
    pixels = apart.movedim((-4, -2), (-2, -1))  # [..., height, width, channel, row, column]
    if last:
        return _copy(pixels).flatten(-3, -1).movedim(-1, -3)
    return _copy(pixels.movedim((-5, -4), (-2, -1))).flatten(-5, -3)


def _copy(x: torch.Tensor) -> torch.Tensor:
    """Also where the result could be a view of the argument."""
    return x.clone(memory_format=torch.contiguous_format)


def _split_for_pixels(x: torch.Tensor, factor: int, by_channels: bool) -> tuple[torch.Tensor, bool] | None:
    """The images with their channels last, and whether the result lies in memory like that; None where ATen decides."""
    from torch._prims_common import suggest_memory_format

    if x.device.type != "cpu" or x.dim() < 3 or factor < 2 or any(type(size) is not int for size in x.shape) or not x.numel():
        return None
    *_, channels, height, width = x.shape
    if channels % factor**2 if by_channels else height % factor or width % factor:
        return None  # an error, which is ATen's to say
    return x.movedim(-3, -1), suggest_memory_format(x) is torch.channels_last


def rrelu_with_noise_functional(x: torch.Tensor, noise: torch.Tensor, *how: Any) -> Any:
    """Plain on a CPU, where torch's fake tensors promise the layout of `x`."""
    if x.device.type != "cpu" or x.is_contiguous():
        return NotImplemented
    return torch.ops.aten.rrelu_with_noise_functional.default(x.contiguous(), noise, *how)


def isin(x: torch.Tensor, tests: torch.Tensor, **how: Any) -> Any:
    """Plain on a CPU, where torch's fake tensors promise the layout of `x`."""
    if x.device.type != "cpu" or x.is_contiguous():
        return NotImplemented
    return torch.isin(x.contiguous(), tests, **how)


@functools.cache
def smooth_l1_loss_backward() -> Callable[..., Any]:
    """With NaN where a difference is: torch's own has zero there."""
    from torch._decomp.decompositions import pw_cast_for_opmath

    def decompose(grad: torch.Tensor, x: torch.Tensor, target: torch.Tensor, reduction: int, beta: float) -> torch.Tensor:
        difference = x - target
        weighed = grad / x.numel() if reduction == MEAN else grad
        outside = torch.where(difference >= beta, weighed, weighed * difference / beta)
        return torch.where(difference <= -beta, -weighed, outside)

    return pw_cast_for_opmath(decompose)  # type: ignore[no-any-return]  # torch has no types for it


def native_group_norm_backward(grad: torch.Tensor, x: torch.Tensor, *args: Any) -> Any:
    """Of nothing, where torch's fake tensors divide by its size. What ATen takes the mean of nothing times is NaN."""
    from torch.fx.experimental.symbolic_shapes import statically_known_true

    if not statically_known_true(x.numel() == 0):
        return NotImplemented
    batch, channels, wanted = args[3], args[4], args[-1]
    of_weight = grad.new_full((channels,), math.nan if batch else 0.0)
    gradients = (torch.zeros_like(x), of_weight, grad.new_zeros(channels))
    return tuple(each if needed else None for each, needed in zip(gradients, wanted, strict=True))


def convolution(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, *how: Any) -> Any:
    """On a GPU ATen adds the bias in a kernel of its own, where here the sum fuses with what follows."""
    if bias is None or x.device.type != "cuda" or not x.dtype.is_floating_point:
        return NotImplemented
    return torch.ops.aten.convolution.default(x, weight, None, *how) + bias.view(-1, *[1] * (x.dim() - 2))


def convolution_backward(grad: torch.Tensor, x: torch.Tensor, weight: torch.Tensor, sizes: Any, *args: Any) -> Any:
    """And the bias's derivative is a sum that fuses with what comes before."""
    *how, wanted = args
    if not wanted[2] or grad.device.type != "cuda" or not grad.dtype.is_floating_point:
        return NotImplemented
    of_bias = grad.sum([0, *range(2, grad.dim())])
    if not (wanted[0] or wanted[1]):
        return None, None, of_bias
    call = torch.ops.aten.convolution_backward.default
    return (*call(grad, x, weight, sizes, *how, [wanted[0], wanted[1], False])[:2], of_bias)


@functools.cache
def table() -> dict[Any, Callable[..., Any]]:
    """The decompositions that torch has for these names."""
    from torch._decomp import get_decompositions

    packets = [getattr(torch.ops.aten, name) for name in NAMES if hasattr(torch.ops.aten, name)]
    found: dict[Any, Callable[..., Any]] = dict(get_decompositions(packets))
    for operator, decomposition in found.items():
        if operator.overloadpacket in (torch.ops.aten.logit, torch.ops.aten.xlogy, torch.ops.aten.special_xlog1py):
            found[operator] = whole_for_half_types(decomposition)
        if operator.overloadpacket._qualified_op_name.removeprefix("aten::") in OF_FUNCTIONS:
            found[operator] = whole_in_float64(found[operator])
        if operator is torch.ops.aten.heaviside.default:
            found[operator] = of_one_type(decomposition)
        if operator in (torch.ops.aten.mse_loss_backward.default, torch.ops.aten.huber_loss_backward.default):
            found[operator] = unless_of_nothing(decomposition)
        if torch.Tag.pointwise in operator.tags or "loss" in operator.name() or "sigmoid" in operator.name():
            found[operator] = whole_where_strides_tell(operator, found[operator])
    for name in NORMALIZATIONS:
        packet, _, overload = name.partition(".")
        operator = getattr(getattr(torch.ops.aten, packet), overload)
        found[operator] = normalized_in_float32(operator)
        if "batch_norm" in name:
            found[operator] = plain_or_channels_last(operator, found[operator])
    found[torch.ops.aten.smooth_l1_loss_backward.default] = smooth_l1_loss_backward()
    found[torch.ops.aten.native_group_norm_backward.default] = native_group_norm_backward
    found[torch.ops.aten.convolution.default] = convolution
    found[torch.ops.aten.convolution_backward.default] = convolution_backward
    found[torch.ops.aten.roll.default] = roll
    found[torch.ops.aten.channel_shuffle.default] = channel_shuffle
    found[torch.ops.aten.pixel_shuffle.default] = pixel_shuffle
    found[torch.ops.aten.pixel_unshuffle.default] = pixel_unshuffle
    found[torch.ops.aten.rrelu_with_noise_functional.default] = rrelu_with_noise_functional
    found[torch.ops.aten.isin.Tensor_Tensor] = isin
    found[torch.ops.aten.native_dropout.default] = native_dropout
    found[torch.ops.aten.native_dropout_backward.default] = native_dropout_backward
    return found
