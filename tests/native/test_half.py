"""Half types in kernels: numbers are widened and rounded in integers (codegen/prelude.py), or in rows around loops by the
processor (codegen/fp16.py), bit for bit as ATen does it.

Also the extremes of floats, and which softmax is no kernel.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit.counters import counters

Kernels = Callable[..., Callable[..., list[torch.Tensor]]]


def every_half() -> torch.Tensor:
    return torch.arange(-(2**15), 2**15, dtype=torch.int16).view(torch.float16)


def assert_same_bits(actual: torch.Tensor, expected: torch.Tensor, bits: torch.dtype) -> None:
    number = ~expected.isnan()
    assert torch.equal(actual.isnan(), expected.isnan())
    assert torch.equal(actual.view(bits)[number], expected.view(bits)[number])


def test_every_half_is_widened(kernels: Kernels) -> None:
    x = every_half()
    assert_same_bits(kernels(lambda x: [x.float()], x)(x)[0], x.float(), torch.int32)


def test_floats_about_every_half_are_rounded(kernels: Kernels) -> None:
    """Each half, the middle between it and the next, and what lies beside both; infinities and what rounds to them."""
    x = every_half().float()
    x = x[x.isfinite()]
    step = torch.where(x.abs() < 2.0**-14, 2.0**-24, torch.exp2(torch.floor(torch.log2(x.abs().clamp(min=2.0**-14))) - 10))
    places = torch.cat([x, x + step / 2])
    infinite = torch.tensor([float("inf"), float("-inf"), float("nan"), 65504.0, 65519.99, 65520.0, 1e30, 2.0**-25, 1e-40])
    x = torch.cat([places, torch.nextafter(places, places * 0 - 1e9), torch.nextafter(places, places * 0 + 1e9), infinite])
    assert_same_bits(kernels(lambda x: [x.half()], x)(x)[0], x.half(), torch.int16)


# Each type with a length of whole vectors or less, and with one of which something is left over.
@pytest.mark.parametrize(("dtype", "length"), [
    (torch.float16, 64), (torch.float16, 200), (torch.bfloat16, 1), (torch.bfloat16, 17), (torch.float32, 64),
    (torch.float32, 17), (torch.float64, 1), (torch.float64, 200)])  # fmt: skip
def test_extremes_keep_nan(dtype: torch.dtype, length: int, assert_kernels_same: Callable[..., None]) -> None:
    """Wherever in a row it stands; zeros of both signs and infinities are numbers like others."""
    x = torch.randn(length + 4, length).to(dtype)
    x[torch.arange(length), torch.arange(length)] = float("nan")
    x[length] = float("-inf")
    x[length + 1] = float("inf")
    x[length + 2] = -0.0
    assert_kernels_same(lambda x: [x.amax(-1), x.amin(-1), torch.maximum(x, x.flip(0)), torch.softmax(x, -1)], x)


@pytest.mark.parametrize(
    ("dtype", "length", "left"),
    [
        (torch.float32, 4, (0, 0, 0)),
        (torch.float32, 15, (0, 0, 1)),
        (torch.float32, 47, (1, 1, 0)),
        (torch.float32, 64, (0, 1, 0)),
        (torch.float32, 100, (0, 1, 0)),
        (torch.float32, 256, (0, 0, 0)),
        (torch.bfloat16, 7, (1, 1, 0)),
        (torch.bfloat16, 10, (0, 0, 1)),
        (torch.float16, 31, (0, 0, 0)),
        (torch.bfloat16, 100, (0, 1, 0)),
        (torch.bfloat16, 255, (0, 1, 0)),
        (torch.bfloat16, 1024, (0, 0, 0)),
        (torch.float16, 255, (0, 1, 0)),
        (torch.float16, 1024, (0, 0, 0)),
    ],
)
def test_softmax_by_itself_is_left_to_aten_where_that_is_faster(
    dtype: torch.dtype, length: int, left: tuple[int, int, int]
) -> None:
    """Nobody else's work goes into its kernel, and ATen's is the better one for short rows of logarithms, and for a softmax
    of float32 over rows that are not whole vectors and little more, unless they are shorter than a vector of ATen's."""
    x = torch.randn(51200 // length, length).to(dtype)
    for function, calls in zip((torch.softmax, torch.log_softmax, torch.logsumexp), left, strict=True):
        fxjit.reset()
        before = counters["native"]["left to ATen"]
        with fxjit.config.patch(cache_graphs=False):
            actual = fxjit.compile(lambda x, function=function: function(x, -1), fullgraph=True)(x)
        assert counters["native"]["left to ATen"] - before == calls
        # ATen's logarithms of short rows of halves are up to 0.04 of themselves off the truth, where they are near zero.
        rtol = 1.3e-6 if dtype is torch.float32 or calls else torch.finfo(dtype).eps
        truth = function(x, -1) if calls else function(x.double(), -1).to(dtype)
        torch.testing.assert_close(actual, truth, rtol=rtol, atol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_extremes_are_found_among_the_numbers_they_are_of(dtype: torch.dtype) -> None:
    """One side of a comparison may be in a register and the other in memory; the derivative divides by how many are equal."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x + y
        return z, z.max(), z == z.max(), (z - 0.3) >= z.amin(1, keepdim=True) - 0.3

    x, y = torch.randn(40, 33).to(dtype).requires_grad_(), torch.randn(40, 33).to(dtype)
    expected, actual = function(x, y), fxjit.compile(function, fullgraph=True)(x, y)
    for one, other in zip(actual, expected, strict=True):
        assert torch.equal(one, other)
    gradients = [torch.autograd.grad(each[0].sum() + each[1], x)[0] for each in (actual, expected)]
    assert torch.equal(*gradients)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_operators_that_jump_see_what_is_rounded(dtype: torch.dtype, assert_kernels_same: Callable[..., None]) -> None:
    """What leaves the type is infinite or zero there, and a number between two others is one of them."""

    def of_extremes(x: torch.Tensor) -> list[torch.Tensor]:
        large, small = x * (torch.finfo(dtype).max / 2), x * torch.finfo(dtype).smallest_normal * 2.0**-12
        finite = torch.where(large.isinf(), 0, large)
        tests = [large.isinf(), large.isposinf(), large.isneginf(), large.isfinite()]
        tests += [small.bool(), small.logical_not(), torch.logical_and(small, x > 0)]
        return [large, finite, *tests, small.any(0), small.all(1), small.count_nonzero(0)]

    def of_jumps(x: torch.Tensor) -> list[torch.Tensor]:
        hundreds = x * 100
        jumps = [hundreds.int(), hundreds.floor(), hundreds.ceil(), hundreds.round(), hundreds.trunc(), hundreds > 100.3]
        return [hundreds, *jumps, hundreds % 1]

    def of_places(x: torch.Tensor) -> list[torch.Tensor]:
        sevenths = x / 7
        return [sevenths.argmax(0), sevenths.argmin(1), *sevenths.max(0), *sevenths.min(1), *sevenths.cummax(0)]

    def of_signs(x: torch.Tensor) -> list[torch.Tensor]:
        small = x * torch.finfo(dtype).smallest_normal * 2.0**-12
        return [torch.sign(small), torch.sgn(small), torch.heaviside(small, x), F.threshold(small, 0.0, 3.0)]

    def of_derivatives(x: torch.Tensor) -> list[torch.Tensor]:
        aten = torch.ops.aten
        near, three = 1 + x * torch.finfo(dtype).eps, 3 + x * torch.finfo(dtype).eps
        derivatives = [aten.hardtanh_backward(x, near, -1.0, 1.0), aten.threshold_backward(x, near, 1.0),
                       aten.hardsigmoid_backward(x, three)]
        nothing = x * torch.finfo(dtype).smallest_normal * 2.0**-12
        return [*derivatives, aten.hardswish_backward(x, three), aten.leaky_relu_backward(x, nothing, 0.5, False)]

    def of_quotients(x: torch.Tensor) -> list[torch.Tensor]:
        sevenths = x / 7
        whole = torch.div(sevenths, 0.25, rounding_mode="floor"), torch.div(sevenths, 0.25, rounding_mode="trunc")
        return [*whole, torch.pow(-x.abs(), 2 + sevenths * torch.finfo(dtype).eps)]

    x = torch.randn(64, 65).to(dtype)
    for function in (of_extremes, of_jumps, of_places, of_signs, of_derivatives, of_quotients):
        assert_kernels_same(function, x)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize(
    "normal", [lambda x: F.softmax(x, -1), lambda x: F.layer_norm(x, (40,))], ids=["softmax", "layer_norm"]
)
def test_numbers_computed_again_hold_their_extreme(normal: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype) -> None:
    """Forward and backward see the same numbers, although what they are computed from was rounded in between."""

    def function(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        y = normal(x)
        z = y * 1.3
        return z.amax(0), z.view(-1).amin(0), (z - z.amax(1, keepdim=True)).exp().sum(1), y

    x = torch.randn(40, 40).to(dtype).requires_grad_()
    for extreme in fxjit.compile(function, fullgraph=True)(x)[:3]:
        (gradient,) = torch.autograd.grad(extreme.sum(), x, retain_graph=True)
        assert gradient.isfinite().all() and gradient.any()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_what_is_only_moved_keeps_its_bits(dtype: torch.dtype) -> None:
    """All of them: a NaN that is widened and rounded becomes another."""
    x = torch.arange(-(2**15), 2**15, dtype=torch.int32).to(torch.int16).view(dtype).reshape(256, 256)
    rows = torch.tensor([3, 255, 126, 3])

    def function(x: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return torch.cat([x, x.flip(0)], 1), x[rows], x.t().contiguous(), x.roll(3, 0), x[:, ::2] + 0

    actual, expected = fxjit.compile(function, fullgraph=True)(x, rows), function(x, rows)
    for one, other in zip(actual[:4], expected, strict=False):
        assert torch.equal(one.view(torch.int16), other.view(torch.int16))
    assert torch.equal(actual[4].nan_to_num(), expected[4].nan_to_num())


def in_rows(dtype: torch.dtype, rows: int, length: int) -> list[torch.Tensor]:
    """Numbers of all sizes, with infinities, NaN, zeros of both signs and subnormals; weights."""
    x = torch.randn(rows, length) * torch.logspace(-9, 4, length)
    specials = torch.tensor([float("inf"), float("-inf"), float("nan"), -0.0, 6e-8, -3e-5, 65504.0])
    x.view(-1)[: len(specials)] = specials[: x.numel()]
    return [x.to(dtype), torch.randn(rows, length).to(dtype), torch.randn(length).to(dtype)]


@pytest.mark.sweep(2)
# Every length, and for each type: less than a vector, whole ones, what is left over, a whole tile or a little more, several.
@pytest.mark.parametrize(("dtype", "length"), [
    *((torch.float16, length) for length in (3, 16, 17, 257, 1025)),
    *((torch.bfloat16, length) for length in (15, 64, 200, 1024, 2500))])  # fmt: skip
def test_rows_are_converted_around_loops(dtype: torch.dtype, length: int, assert_kernels_same: Callable[..., None]) -> None:
    """What a loop reads and stores may be converted in arrays beside it: whole rows, tiles of long ones, what is left over."""

    def elementwise(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [x * y + w, torch.cat([x, (x + y)[:, 1:], y], 1), x[:, 1:] - y[:, :-1], x.flip(1) + y, x.float()]

    def over_rows(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        z = y + x.nan_to_num(0, 1, 1).clamp(-3, 3)
        return [z.softmax(-1), F.layer_norm(z, (length,), w), z.amax(-1) - w[0], (z * y).mean(-1), z.cumsum(1) + w]

    def over_columns(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> list[torch.Tensor]:
        return [(y * w).sum(0), (y + 1).amax(0) * w, (y * w).softmax(0), (y * y).sum()]

    x, y, w = in_rows(dtype, 9, length)
    for function in (elementwise, over_rows, over_columns):
        assert_kernels_same(function, x, y, w, scale=2)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_over_which_threads_share_and_looked_up_ones(dtype: torch.dtype) -> None:
    """Chunks of one long row have arrays of their own; a row that is looked up is read where the index says; an input is read
    before it is written to."""

    def function(x: torch.Tensor, table: torch.Tensor, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        total = (x * 0.5).sum(), (x + 1).amax()
        looked_up = F.embedding(rows, table) * 2 + 1
        x.mul_(2).add_(1)
        return (*total, looked_up, x[1:] * x[:-1])

    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        x, table, rows = torch.randn(70_001).to(dtype), torch.randn(50, 100).to(dtype), torch.randint(50, (3, 7))
        one, other = x.clone(), x.clone()
        expected, actual = function(one, table, rows), fxjit.compile(function, fullgraph=True)(other, table, rows)
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one, other)
    tolerance = 8 * torch.finfo(dtype).eps
    for mine, theirs in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, theirs, rtol=tolerance, atol=tolerance)


def test_every_float16_survives_a_loop(kernels: Kernels) -> None:
    """Widened and rounded by whichever way the loop has, and by the integers' that loops of numbers apart have."""
    x = every_half()
    ones = torch.ones(2**16, dtype=torch.float16)
    assert_same_bits(kernels(lambda x, y: [x * y], x, ones)(x, ones)[0], x, torch.int16)
    apart = torch.stack([x, x], 1)
    assert_same_bits(kernels(lambda x, y: [x[:, 0] * y], apart, ones)(apart, ones)[0], x, torch.int16)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_rows_of_any_length_are_converted(dtype: torch.dtype) -> None:
    """One kernel for rows of one element and for rows of several tiles."""

    def function(x: torch.Tensor, y: torch.Tensor) -> tuple[torch.Tensor, ...]:
        z = x * 0.5 + y
        return z, z.softmax(-1), (x * y).sum(0), x.float(), (y + 1).amax()

    compiled = fxjit.compile(function, dynamic=True, fullgraph=True)
    eps = torch.finfo(dtype).eps
    for rows, length in ((9, 70), (3, 1), (5, 16), (2, 3000), (1, 1024)):
        x, y = torch.randn(rows, length).to(dtype), torch.randn(rows, length).to(dtype)
        for mine, theirs in zip(compiled(x, y), function(x, y), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=16 * eps, atol=24 * eps)
