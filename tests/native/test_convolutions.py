"""Convolutions that are not oneDNN's: depthwise ones as kernels, the derivatives of 1x1 ones as matrix products."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

import fxjit
from fxjit.backends.native import pipeline
from fxjit.backends.native.choose import channels_last
from fxjit.backends.native.ir import Extern

LAYOUTS = [torch.contiguous_format, torch.channels_last]


@pytest.fixture
def left(monkeypatch):
    """The operators that ATen is called for, as graphs are compiled."""
    found: list[str] = []

    def note(stage, low, what):
        if stage == "lower":
            found.extend(str(step.node.target) for step in low.statements if isinstance(step, Extern))

    monkeypatch.setattr(pipeline, "verifier", note)
    return found


def assert_layer_same_as_eager(layer: torch.nn.Module, x: torch.Tensor, around=lambda y: y) -> None:
    """Results, gradients and their strides are eager's."""
    fxjit.reset()
    found = []
    for each in (layer, fxjit.compile(lambda x: around(layer(x)))):
        given = x.clone(memory_format=torch.preserve_format).requires_grad_()
        layer.zero_grad()
        y = each(given) if each is not layer else around(layer(given))
        y.backward(torch.linspace(-1, 1, y.numel()).view(y.shape))
        found.append([y.detach(), given.grad, *(parameter.grad for parameter in layer.parameters())])
    for eager, ours in zip(*found, strict=True):
        torch.testing.assert_close(ours, eager, rtol=1e-4, atol=1e-4)
        for size, stride, wanted in zip(eager.shape, ours.stride(), eager.stride()):
            assert size == 1 or stride == wanted


PIXELWISE = [
    (2, 6, 5, 4, 4), (1, 3, 8, 3, 3), (6, 4, 4, 2, 2), (6, 4, 4, 3, 4), (6, 4, 4, 5, 5), (3, 8, 2, 1, 1), (3, 130, 140, 4, 4),
]  # fmt: skip


# Each shape in both layouts, with a bias in one of them by turns.
@pytest.mark.parametrize("shape,layout,bias", [(shape, layout, (k + at) % 2 == 0) for k, shape in enumerate(PIXELWISE)
                                               for at, layout in enumerate(LAYOUTS)], ids=str)
def test_pixelwise_convolutions(shape, bias, layout, left):
    images, channels, results, height, width = shape
    layer = torch.nn.Conv2d(channels, results, 1, bias=bias)
    assert_layer_same_as_eager(
        layer, torch.randn(images, channels, height, width).to(memory_format=layout), lambda y: y.relu() + 1
    )
    many_small = images > 4 and 9 < height * width < 16
    assert many_small == any("convolution" in each for each in left)


@pytest.mark.parametrize("shape", [shape for shape in PIXELWISE if shape[0] <= 4], ids=str)
def test_pixelwise_convolutions_of_bfloat16_are_products_where_channels_are_last(shape, left):
    """Whose numbers are rounded once, as those of oneDNN's convolutions. Of plain images only those of few pixels are."""
    images, channels, results, height, width = shape
    layer = torch.nn.Conv2d(channels, results, 1).bfloat16()
    for layout in LAYOUTS:
        x = torch.randn(images, channels, height, width).bfloat16().to(memory_format=layout)
        left.clear()
        fxjit.reset()
        found = []
        for each in (layer, fxjit.compile(lambda x: layer(x).relu())):
            given = x.detach().clone(memory_format=torch.preserve_format).requires_grad_()
            layer.zero_grad()
            y = each(given).relu()
            y.backward(torch.linspace(-1, 1, y.numel(), dtype=y.dtype).view(y.shape))
            found.append([y.detach(), given.grad, *(parameter.grad for parameter in layer.parameters())])
        for eager, ours in zip(*found, strict=True):  # a sum whose terms cancel is as exact as its terms
            torch.testing.assert_close(ours, eager, rtol=1e-2, atol=1e-2 * max(1.0, float(eager.abs().max())))
        is_product = layout is torch.channels_last or height * width <= 9
        assert is_product != any("convolution" in each for each in left), (layout, left)


TOLERANCES = {torch.float32: 1e-5, torch.bfloat16: 2e-2}


@pytest.mark.parametrize("dtype", TOLERANCES)
def test_one_number_may_stand_for_all_dimensions(dtype, monkeypatch):
    """As ATen has it, which is given one padding for `padding="valid"`."""
    monkeypatch.setattr(channels_last, "channels_last_work", lambda: 0)
    fxjit.reset()
    convolve = torch.ops.aten.convolution

    def function(x, weight):
        between = convolve(x, weight, None, [2], [1], [1], False, [0], 1).relu()
        apart = F.conv2d(between, weight, stride=2, padding="valid").relu()
        grown = convolve(apart, weight[:1].expand(16, 16, 3, 3), None, [1], [2], [2], True, [0], 1)
        return convolve(grown, weight[:, :1], None, [1], [0], [1], False, [0], 16).relu()

    leaves = [torch.randn(*sizes, dtype=dtype, requires_grad=True) for sizes in ((2, 16, 25, 21), (16, 16, 3, 3))]
    found = []
    for each in (function, fxjit.compile(function)):
        y = each(*leaves)
        found.append([y.detach(), *torch.autograd.grad(y.float().mean(), leaves)])
        with torch.no_grad():
            found[-1].append(each(*leaves))
    for eager, ours in zip(*found, strict=True):
        assert ours.stride() == eager.stride()
        torch.testing.assert_close(ours, eager, rtol=0, atol=float(eager.abs().max()) * TOLERANCES[dtype])


def test_a_pixelwise_convolution_of_parts_of_tensors():
    """An input, a weight and a bias that are slices of others, a step that is not one, a group."""
    x, weight, bias = torch.randn(2, 8, 5, 6), torch.randn(6, 9, 1, 1), torch.randn(12)

    def function(x, weight, bias):
        given = x[:, 1:5]
        return (
            F.conv2d(given, weight[:, ::2][:, :4], bias[::2]), F.conv2d(given, weight[:, 4:8], stride=2),
            F.conv2d(given.contiguous(), weight[:, 1:5], bias[6:]), F.conv2d(x, weight[:, :4], groups=2),
            F.conv2d(given.contiguous(), weight[:, :4], padding=1), F.conv2d(x[:1, :4], weight[::2, :4], bias[:3]).square(),
        )  # fmt: skip

    for ours, eager in zip(fxjit.compile(function)(x, weight, bias), function(x, weight, bias), strict=True):
        torch.testing.assert_close(ours, eager)
        assert ours.stride() == eager.stride()


def test_a_gradient_that_is_not_channels_last():
    layer = torch.nn.Conv2d(4, 6, 1)
    assert_layer_same_as_eager(
        layer, torch.randn(2, 4, 5, 5).to(memory_format=torch.channels_last), lambda y: y.contiguous() * 2
    )


DEPTHWISE = {
    "3x3": (8, 8, 3, 1, 1, 1), "step 2": (8, 8, 3, 2, 1, 1), "step 3, uneven": (8, 7, 3, 3, 1, 1),
    "no padding": (8, 8, 3, 1, 0, 1), "wide padding": (4, 4, 3, 1, 2, 1), "5x5 step 2": (9, 6, 5, 2, 2, 1),
    "7x7": (7, 7, 7, 1, 3, 1), "dilated": (9, 9, 3, 1, 2, 2), "dilated, step 2": (9, 10, 3, 2, 3, 2), "2x2": (6, 6, 2, 2, 0, 1),
    "one row": (1, 9, (1, 3), 1, (0, 1), 1), "tall": (9, 5, (5, 2), (2, 1), (2, 1), 1), "one pixel": (1, 1, 3, 1, 1, 1),
    "a window larger than the image": (2, 2, 5, 1, 2, 1),
}  # fmt: skip


# All in plain memory, every third in channels-last memory, of which less is a kernel.
@pytest.mark.parametrize("case,layout", [*((case, LAYOUTS[0]) for case in DEPTHWISE),
                                         *((case, LAYOUTS[1]) for case in list(DEPTHWISE)[::3])], ids=str)
def test_depthwise(case, layout, left):
    height, width, window, step, padding, dilation = DEPTHWISE[case]
    layer = torch.nn.Conv2d(6, 6, window, step, padding, dilation, groups=6, bias=case != "2x2")
    assert_layer_same_as_eager(layer, torch.randn(3, 6, height, width).to(memory_format=layout))
    if layout is LAYOUTS[0]:
        assert not left


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("causal", [False, True])
def test_depthwise_of_one_dimension(dtype, causal, left):
    """As a state space model's: padded on both sides, what is too much cut off."""
    layer = torch.nn.Conv1d(8, 8, 4, groups=8, padding=3).to(dtype)
    assert_layer_same_as_eager(
        layer, torch.randn(2, 8, 11, dtype=dtype), (lambda y: F.silu(y[..., :11])) if causal else (lambda y: y)
    )
    assert not left


def test_depthwise_with_norm_and_activation():
    convolution = torch.nn.Conv2d(5, 5, 3, padding=1, groups=5, bias=False)
    assert_layer_same_as_eager(
        torch.nn.Sequential(convolution, torch.nn.BatchNorm2d(5), torch.nn.ReLU6()), torch.randn(4, 5, 6, 6)
    )


def test_depthwise_of_a_transposed_input_and_weight():
    weight = torch.randn(3, 3, 1, 4).permute(3, 2, 0, 1).requires_grad_()
    x = torch.randn(6, 5, 4, 2).permute(3, 2, 0, 1)

    def function(x, weight):
        return F.conv2d(x.transpose(2, 3), weight, padding=1, groups=4)

    expected, actual = function(x, weight), fxjit.compile(function)(x, weight)
    torch.testing.assert_close(actual, expected)
    torch.testing.assert_close(*(torch.autograd.grad(y.square().sum(), weight)[0] for y in (actual, expected)))


def test_depthwise_of_numbers_that_are_not_finite():
    """What lies beside a window does not reach its result."""
    x = torch.zeros(1, 2, 6, 6)
    x[0, 0, 2, 5], x[0, 0, 3, 0], x[0, 1, 5, 5] = float("inf"), float("nan"), -float("inf")
    weight = torch.rand(2, 1, 3, 3) + 1

    def function(x):
        return F.conv2d(x, weight, padding=1, groups=2)

    torch.testing.assert_close(fxjit.compile(function)(x), function(x), equal_nan=True)


def test_sizes_that_vary_are_left_to_aten():
    layer = torch.nn.Conv2d(4, 4, 3, padding=1, groups=4)
    compiled = fxjit.compile(layer, dynamic=True)
    for size in (4, 6):
        x = torch.randn(2, 4, size, size)
        torch.testing.assert_close(compiled(x), layer(x))
