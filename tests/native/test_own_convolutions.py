"""Convolutions by our own kernels: of all layouts and windows, and of numbers that Winograd's algorithm does not serve."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch.nn import functional as F

import fxjit
from fxjit import _C, config, tensor_shim
from fxjit.backends.native.choose import channels_last, upcast
from fxjit.backends.native.executor import convolutions, plan, program
from fxjit.backends.native.lower import depthwise
from fxjit.backends.native.runtime import own_convolutions
from fxjit.backends.native.runtime.own_convolutions import Convolution, Kind
from fxjit.counters import counters

needs_kernels = pytest.mark.skipif(
    not tensor_shim.ensure() or not _C.program_can("convolve"), reason="this processor has no AVX2"
)
EPSILON = torch.finfo(torch.float32).eps
LAST = torch.channels_last

#: Images, channels, height, width, results, window, stride, padding, dilation: around tiles of 2 x 2, blocks of 14 rows, lines
#: and panels of 32, windows of more than 1,152 numbers; by Winograd's algorithm those of 3 x 3.
SHAPES = [
    (1, 16, 2, 2, 1, (3, 3), 1, 1, 1), (2, 17, 5, 7, 33, (3, 3), 1, 1, 1), (1, 32, 3, 9, 32, (3, 3), 1, 0, 1),
    (3, 48, 8, 6, 70, (3, 3), 1, (0, 2), 1), (1, 130, 11, 12, 16, (3, 3), 1, 1, 1), (2, 64, 33, 31, 48, (3, 3), 1, 1, 1),
    (2, 20, 9, 8, 40, (3, 3), 2, 1, 1), (1, 37, 10, 11, 31, (3, 3), 1, 2, 2), (2, 140, 6, 5, 65, (3, 3), (1, 2), 1, 1),
    (2, 64, 7, 7, 96, (1, 1), 2, 0, 1), (1, 16, 12, 9, 8, (5, 2), (2, 1), (2, 1), 1), (1, 24, 17, 16, 20, (7, 7), 3, 3, 1),
    (2, 17, 18, 20, 20, (4, 4), 2, 1, 1),  # as many taps as Winograd's algorithm has products
    (1, 130, 11, 12, 170, (3, 3), 1, 1, 1), (3, 160, 7, 7, 200, (3, 3), 1, 1, 1),  # few tiles: panel by panel
]  # fmt: skip


@pytest.fixture
def ours(monkeypatch: pytest.MonkeyPatch):
    """All convolutions of programs that are built now are our kernels', and listed here."""
    seen: list[Convolution] = []

    def always(convolution):
        seen.append(convolution)
        return True

    monkeypatch.setattr(plan, "is_preferred", always)
    fxjit.reset()
    with config.patch(cache_graphs=False), torch.no_grad():
        yield seen
    fxjit.reset()


def compiled(x: torch.Tensor, *args) -> torch.Tensor:
    fxjit.reset()
    return fxjit.compile(lambda x, *args: F.conv2d(x, *args) * 1, fullgraph=True, dynamic=False)(x, *args)


def errors(x, weight, bias, *how):
    """Of ours and of eager's of plain images: relative to what rounding errors are relative to."""
    wide = [None if each is None else each.double() for each in (x, weight, bias)]
    true, scale = F.conv2d(*wide, *how), F.conv2d(*(None if each is None else each.abs() for each in wide), *how)
    found, plain = compiled(x, weight, bias, *how), F.conv2d(x.contiguous(), weight.contiguous(), bias, *how)
    assert found.is_contiguous(memory_format=LAST) and found.shape == true.shape
    return tuple((each - true) / scale.clamp(min=1e-30) for each in (found, plain))


@pytest.mark.usefixtures("vectors")
@needs_kernels
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_errors_are_those_of_plain_images(ours, shape):
    torch.manual_seed(0)
    images, channels, height, width, results, window, *how = shape
    for last in (False, True):
        x, weight = torch.randn(images, channels, height, width).relu(), torch.randn(results, channels, *window)
        bias = torch.randn(results) if last else None
        weight = weight.to(memory_format=LAST) if last else weight
        error, atens = errors(x.to(memory_format=LAST), weight, bias, *how)
        assert error.abs().max() <= max(2 * atens.abs().max(), 3 * EPSILON)
        if error.numel() > 1000:
            assert error.square().mean() <= 1.3**2 * atens.square().mean()
    assert [each.weight_last for each in ours] == [False, window != (1, 1)]


def images_of(kind: str) -> torch.Tensor:
    torch.manual_seed(0)
    x = torch.rand(2, 24, 13, 14)
    if kind == "half of it black":
        x[:, :, :6] = 0
    elif kind == "one bright pixel":
        x[1, :, 7, 7] = 1e6
    elif kind == "all black":
        x.zero_()
    elif kind == "almost too large":
        x *= 1e36  # no order of adding up overflows; squares do
    elif kind == "tiny":
        x *= 1e-30
    elif kind == "not finite":
        x[0, 3, 2, 2], x[1, 5, 9, 9], x[1, 0, 0, 0] = float("inf"), float("nan"), float("-inf")
    return x.to(memory_format=LAST)


KINDS = ["half of it black", "one bright pixel", "all black", "almost too large", "tiny", "not finite"]


#: How often the channels are there, how many results, and the step: tiles in blocks, panel by panel, and windows.
ORDERS = pytest.mark.parametrize("times, results, step", [(1, 40, 1), (6, 200, 1), (6, 200, 2)],
                                 ids=["blocks of tiles", "panels", "windows"])  # fmt: skip


@needs_kernels
@ORDERS
@pytest.mark.parametrize("kind", KINDS)
def test_images_that_differ_much_from_pixel_to_pixel(ours, kind: str, times: int, results: int, step: int):
    x, weight = images_of(kind).repeat(1, times, 1, 1).to(memory_format=LAST), torch.randn(results, 24 * times, 3, 3) / times
    error, atens = errors(x, weight, None, step, 1)
    assert torch.equal(error.isfinite(), atens.isfinite())
    found, plain = compiled(x, weight, None, step, 1), F.conv2d(x.contiguous(), weight, None, step, 1)
    assert torch.equal(found.isnan(), plain.isnan()) and torch.equal(found.isinf(), plain.isinf())
    assert error[error.isfinite()].abs().max() <= max(2 * atens[atens.isfinite()].abs().max(), 4 * EPSILON)
    assert torch.equal(found == 0, plain == 0)
    assert ours


@pytest.mark.usefixtures("vectors")
@needs_kernels
@ORDERS
@pytest.mark.parametrize("kind", ["dirac", "one tap", "not finite", "large", "zero"])
def test_weights_that_differ_much_from_tap_to_tap(ours, kind: str, times: int, results: int, step: int):
    channels = 32 * times
    x, weight = torch.randn(1, channels, 12, 12).to(memory_format=LAST), torch.randn(results - 8, channels, 3, 3)
    if kind == "dirac":
        torch.nn.init.dirac_(weight)
    elif kind == "one tap":
        weight[:, :, 0, 2] *= 1e5
    elif kind == "not finite":
        weight[3, 4, 1, 1], weight[7, 0, 0, 0] = float("inf"), float("nan")
    elif kind == "large":
        weight *= 1e25
    elif kind == "zero":
        weight.zero_()
    error, atens = errors(x, weight, None, step, 1)
    found, plain = compiled(x, weight, None, step, 1), F.conv2d(x.contiguous(), weight, None, step, 1)
    true = F.conv2d(x.double(), weight.double(), None, step, 1)  # some of oneDNN's kernels make NaN of infinity
    assert torch.equal(found.isnan(), true.isnan()) and torch.equal(found.isinf(), true.isinf())
    assert error[error.isfinite()].abs().max() <= max(2 * atens[atens.isfinite()].abs().max(), 2 * EPSILON)
    if kind in ("dirac", "zero"):
        assert torch.equal(found, plain)
    assert ours


@pytest.mark.usefixtures("vectors")
@needs_kernels
@pytest.mark.parametrize("threads", [2, 5])
def test_the_number_of_threads_changes_no_result(ours, threads: int):
    before = torch.get_num_threads()
    x, weight, other = torch.rand(3, 64, 25, 26).to(memory_format=LAST), torch.randn(70, 64, 3, 3), torch.randn(40, 64, 5, 5)
    plain, blur = torch.rand(5, 3, 90, 91), torch.rand(3, 1, 11, 11)
    few, many = torch.rand(1, 130, 9, 9).to(memory_format=LAST), torch.randn(200, 130, 3, 3)
    line, along = torch.rand(1, 64, 1, 392).to(memory_format=LAST), torch.randn(40, 64, 1, 7)  # 386 results
    x[:, :, 10:15] = few[:, :, 3:5] = 0

    @fxjit.compile(dynamic=False)
    def call(x):
        large = F.conv2d(x, weight, None, 1, 1), F.conv2d(x, other, None, 2)
        return *large, F.conv2d(plain, blur, None, 1, 5, 1, 3), F.conv2d(few, many, None, 1, 1), F.conv2d(line, along)

    try:
        torch.set_num_threads(1)
        alone = call(x)
        torch.set_num_threads(threads)
        for _ in range(3):
            assert all(map(torch.equal, call(x), alone))
    finally:
        torch.set_num_threads(before)
    assert len(ours) == 5


@needs_kernels
def test_operands_that_are_parts_of_tensors_and_results_between_kernels(ours):
    whole, weights, biases = torch.randn(4, 32, 9, 10).to(memory_format=LAST), torch.randn(50, 32, 3, 3), torch.randn(50)

    def f(whole, weights, biases):
        y = F.conv2d(whole[1:3] * 2, weights[7:39], biases[10:42], 1, 1).relu()
        return F.conv2d(torch.cat([y, whole[:2]], 1), torch.cat([weights, weights], 1)[2:18], None, 2) + 1

    torch.testing.assert_close(fxjit.compile(f)(whole, weights, biases), f(whole, weights, biases), rtol=1e-4, atol=1e-3)
    assert len(ours) == 2


#: Images, channels, height, width, window, padding, dilation: around four rows of 32 results, bands of rows, sums of 64.
DEPTHWISE = [
    (1, 1, 3, 2, (2, 2), 0, 1), (2, 3, 40, 33, (11, 11), 0, 1), (1, 2, 5, 70, (3, 3), 1, 1), (1, 5, 23, 17, (1, 9), (0, 4), 1),
    (2, 1, 19, 20, (70, 1), (35, 0), 1), (1, 3, 30, 31, (3, 5), (2, 4), (2, 3)), (1, 2, 300, 600, (3, 3), 1, 1),
    (2, 20, 7, 7, (7, 7), 3, 1),
]  # fmt: skip


@pytest.mark.usefixtures("vectors")
@needs_kernels
@pytest.mark.parametrize("shape", DEPTHWISE, ids=str)
def test_depthwise_convolutions_of_images_that_are_not_channels_last(ours, monkeypatch, shape):
    monkeypatch.setattr(depthwise, "FORWARD_WORK", 0)
    torch.manual_seed(0)
    images, channels, height, width, window, *how = shape
    x, weight, bias = torch.randn(images, channels, height, width), torch.randn(channels, 1, *window), torch.randn(channels)
    x[0, 0, 0, 0] = float("inf")
    for one in (weight, weight[:1].expand(channels, 1, *window)):
        found, eager = (call(x, one, bias, 1, *how, channels) for call in (compiled, F.conv2d))
        true = F.conv2d(x.double(), one.double(), bias.double(), 1, *how, channels)
        assert found.stride() == eager.stride() and torch.equal(found.isfinite(), eager.isfinite())
        errors = [(each - true)[true.isfinite()].abs() for each in (found, eager)]
        assert not len(errors[0]) or errors[0].max() <= 2 * errors[1].max() + 1e-6
    assert [each.kind is Kind.DEPTHWISE for each in ours] == [True, True]


@needs_kernels
def test_a_blur_of_three_channels_keeps_its_layout(ours, monkeypatch):
    monkeypatch.setattr(channels_last, "channels_last_work", lambda: 0)
    monkeypatch.setattr(channels_last, "work_of_copy", lambda: 0)
    x, weight, other = torch.randn(2, 3, 80, 80), torch.rand(3, 1, 9, 9), torch.randn(16, 3, 3, 3)

    def f(x):
        return F.conv2d(F.conv2d(x, weight, None, 1, 4, 1, 3), other).relu()

    torch.testing.assert_close(fxjit.compile(f)(x), f(x), rtol=1e-4, atol=1e-4)
    assert [each.kind is Kind.DEPTHWISE for each in ours] == [True]


@needs_kernels
def test_sizes_that_vary(ours):
    blur, weight, bias = torch.rand(3, 1, 9, 7), torch.randn(20, 16, 3, 3), torch.randn(20)
    cases = [
        (3, torch.contiguous_format, lambda x: F.conv2d(x * 2, blur, None, 1, (2, 3), 1, 3) + 1),
        (16, LAST, lambda x: F.conv2d(x * 2, weight, bias, 1, 1).relu()),
        (16, LAST, lambda x: F.conv2d(x * 2, weight, bias, 2).relu()),
    ]
    for channels, layout, f in cases:
        fxjit.reset()
        call = fxjit.compile(f)
        for images, height, width in ((2, 90, 95), (3, 70, 80), (4, 71, 31), (0, 20, 20)):
            x = torch.randn(images, height, width, channels).permute(0, 3, 1, 2).contiguous(memory_format=layout)
            found, expected = call(x), f(x)
            torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)
            assert found.stride() == expected.stride()
    assert [each.kind is Kind.DEPTHWISE for each in ours].count(True) >= 2 and len(ours) >= 6


@needs_kernels
def test_gradients_through_them(ours):
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Conv2d(16, 32, 3, padding=1), torch.nn.SiLU(), torch.nn.Conv2d(32, 16, 3, 2))
    layers = layers.to(memory_format=LAST)
    found = []
    for call in (layers, fxjit.compile(layers)):
        x = torch.linspace(-1, 1, 2 * 16 * 12 * 12).view(2, 16, 12, 12).to(memory_format=LAST).requires_grad_()
        layers.zero_grad()
        with torch.enable_grad():
            y = call(x)
            y.square().sum().backward()
        found.append([y.detach(), x.grad, *(each.grad.clone() for each in layers.parameters())])
    for eager, mine in zip(*found, strict=True):
        torch.testing.assert_close(mine, eager, rtol=1e-3, atol=1e-4)
    assert ours


@needs_kernels
def test_what_is_atens(ours, monkeypatch):
    monkeypatch.setattr(upcast, "is_slow", lambda _: False)  # else one of bfloat16 may be ours, in float32
    x = torch.randn(1, 32, 9, 9).to(memory_format=LAST)
    compiled(x, torch.randn(32, 1, 3, 3), None, 1, 1, 1, 32)
    compiled(x.double(), torch.randn(8, 32, 3, 3).double())
    compiled(x[:, :8].to(memory_format=LAST), torch.randn(8, 8, 3, 3))
    compiled(x.contiguous(), torch.randn(8, 32, 3, 3))  # plain images
    with torch.autocast("cpu"):
        compiled(x, torch.randn(8, 32, 3, 3))
    assert not ours


CONVOLUTION = Convolution(2, 32, 9, 9, 16, 3, 3, 9, 9, (1, 1), (1, 1), (1, 1), False)


@needs_kernels
def test_kernels_are_compared_once_and_what_was_found_is_kept(tmp_path):
    with config.patch(cache_dir=str(tmp_path)):
        counters["native"]["kernels of convolutions compared"] = 0
        own_convolutions._measured.clear()
        first = own_convolutions.is_preferred(CONVOLUTION)
        assert own_convolutions.is_preferred(dataclasses.replace(CONVOLUTION, images=3)) == first
        own_convolutions._measured.clear()  # another process
        assert own_convolutions.is_preferred(CONVOLUTION) == first
        assert counters["native"]["kernels of convolutions compared"] == 1
        with config.patch({"cpp.own_convolutions": False}):
            assert not own_convolutions.is_preferred(CONVOLUTION)


@pytest.mark.parametrize("each", [
    CONVOLUTION, dataclasses.replace(CONVOLUTION, stride=(2, 1), padding=(3, 0), dilation=(1, 2), out_height=60, out_width=60),
    dataclasses.replace(CONVOLUTION, padding=(40, 40), out_height=87, out_width=87),
    Convolution(9, 3, 300, 20, 3, 5, 7, 292, 32, (1, 1), (0, 9), (2, 1), False, Kind.DEPTHWISE, 35),
])  # fmt: skip
def test_what_is_measured_is_a_convolution(each):
    like = own_convolutions.like(each)
    out = F.conv2d(torch.zeros(like.images, 1, like.height, like.width), torch.zeros(1, 1, like.rows, like.columns), None,
                   like.stride, like.padding, like.dilation)
    assert like == each or out.shape[2:] == (like.out_height, like.out_width)


@pytest.mark.parametrize("stride", [(1, 1), (2, 3)])
def test_what_is_measured_is_a_transposed_convolution(stride):
    each = dataclasses.replace(CONVOLUTION, stride=stride, padding=(1, 2), dilation=(1, 2), out_height=40, out_width=70,
                               kind=Kind.TRANSPOSED)
    like = own_convolutions.like(each)
    padding = [reach - padding for reach, padding in zip((2, 4), like.padding, strict=True)]  # that of windows not turned over
    out = F.conv_transpose2d(torch.zeros(1, 1, like.height, like.width), torch.zeros(1, 1, 3, 3), None, stride, padding, 0, 1,
                             like.dilation)
    assert out.shape[2:] == (like.out_height, like.out_width)


def test_programs_with_convolutions_are_made_again_on_other_processors(monkeypatch):
    made = program.EncodedProgram(0, 0, b"", b"", b"", b"", 0, (), (), {}, convolves=True)
    monkeypatch.setattr(program._C, "program_can", lambda name: False)
    with pytest.raises(RuntimeError, match="AVX-512"):
        made.build(None)


def test_nothing_is_asked_of_other_processors(monkeypatch):
    monkeypatch.setattr(convolutions._C, "program_can", lambda name: name != "convolve")
    assert not convolutions.is_offered()
