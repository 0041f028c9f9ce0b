"""Numbers at the edges of their types: what a type does not hold, and what becomes of it."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import fxjit
from fxjit import config
from fxjit.torch_compat import release

Kernels = Callable[..., Callable[..., list[torch.Tensor]]]
SameAsEager = Callable[..., None]

#: With a number that the type does not hold.
REFUSED: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "masked_fill": lambda x, v: x.masked_fill(x > 1, v),
    "clamp": lambda x, v: x.clamp(max=v),
    "clamp_min": lambda x, v: x.clamp_min(v),
    "alpha": lambda x, v: torch.add(x, x, alpha=v),
    "full_like": torch.full_like,
    "fill": torch.fill,
    "pad": lambda x, v: F.pad(x, (1, 2), value=v),
    "threshold": lambda x, v: F.threshold(x, 0, v),
    "power": lambda x, v: x**v,
    "scatter": lambda x, v: x.scatter(0, torch.tensor([0]), v),
    "index_fill": lambda x, v: x.index_fill(0, torch.tensor([0]), v),
}


REFUSAL = "overflow|outside the representable range"


@pytest.mark.parametrize(("dtype", "number"), [(torch.float16, -1e9), (torch.int8, 300), (torch.int32, 2**33)], ids=str)
@pytest.mark.parametrize("name", REFUSED)
def test_a_number_that_the_type_does_not_hold_is_refused(kernels: Kernels, name: str, dtype: torch.dtype, number: Any) -> None:
    """Where eager refuses it: elsewhere it wraps around, or is infinite. torch 2.15 drops a bound of no effect."""
    x = torch.tensor([1, 2, 3, 4]).to(dtype)
    is_no_bound = name.startswith("clamp") and release(torch.__version__) >= (2, 15) and dtype is not torch.float16
    if is_no_bound and name != "clamp_min":
        assert kernels(lambda x: [REFUSED[name](x, number)], x)(x)[0].equal(REFUSED[name](x, number))
        return
    with pytest.raises(RuntimeError, match=REFUSAL):
        REFUSED[name](x, number)
    with pytest.raises(RuntimeError, match=REFUSAL):
        kernels(lambda x: [REFUSED[name](x, number)], x)(x)


@pytest.mark.parametrize("bounds", [{"min": -1}, {"max": -1}, {"min": -1, "max": 200}], ids=str)
def test_a_bound_below_an_unsigned_type(kernels: Kernels, bounds: dict[str, int]) -> None:
    """It wraps around in torch 2.13; torch 2.15 drops or refuses it."""
    x = torch.tensor([1, 2, 3, 250], dtype=torch.uint8)
    try:
        wanted = (x + 1).clamp(**bounds)
    except RuntimeError:
        with pytest.raises(RuntimeError, match=REFUSAL):
            kernels(lambda x: [(x + 1).clamp(**bounds)], x)(x)
        return
    assert kernels(lambda x: [(x + 1).clamp(**bounds)], x)(x)[0].equal(wanted)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.float32], ids=str)
def test_numbers_that_wrap_around_or_are_infinite_are_held(assert_kernels_same: SameAsEager, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        large, small = (float("inf"), float("-inf")) if dtype.is_floating_point else (200, -1)
        given = [x.masked_fill(x > 1, large), x.clamp(max=large), torch.full_like(x, small), F.pad(x, (1, 2), value=large)]
        return [*given, x + 70000, x * 300, x == 300, x - 129]

    assert_kernels_same(function, torch.tensor([1, 2, 3, 100]).to(dtype))


DIVISIONS: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "floor": torch.floor_divide, "trunc": lambda x, v: torch.div(x, v, rounding_mode="trunc"), "remainder": torch.remainder,
    "fmod": torch.fmod,
}  # fmt: skip


@pytest.mark.parametrize(("dtype", "number"), [(torch.uint8, 256), (torch.int32, 2**33), (torch.int64, 0)], ids=str)
@pytest.mark.parametrize("name", DIVISIONS)
def test_a_divisor_that_is_zero_to_the_type_raises(kernels: Kernels, name: str, dtype: torch.dtype, number: int) -> None:
    x = torch.tensor([1, 2, 3, 4]).to(dtype)
    for call in (lambda: DIVISIONS[name](x, number), lambda: kernels(lambda x: [DIVISIONS[name](x, number)], x)(x)):
        with pytest.raises(RuntimeError, match="ZeroDivisionError"):
            call()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16], ids=str)
def test_constants_become_the_integers_that_eager_makes_of_them(assert_kernels_same: SameAsEager, dtype: torch.dtype) -> None:
    """NaN, infinity and what is too large, known while compiling or not."""

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        chosen = [torch.where(x > 0, x, number) for number in (float("nan"), float("inf"), float("-inf"), 3e4, -300.0)]
        values = [*chosen, x.clamp(max=float("inf")), torch.full_like(x, float("inf")), x * 1.5, (x * 0).sum(0)]
        integers = (torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64)
        return [value.to(integer) for value in values for integer in integers]

    special = torch.tensor([float("nan"), float("inf"), float("-inf"), 1e4, -200.0, 0.0, 1.0, -1.0])
    assert_kernels_same(function, torch.cat([special, torch.arange(-35.0, 36.0)]).to(dtype))


OF_NO_BOOLS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "abs": torch.abs, "round": torch.round, "floor": torch.floor, "relu": torch.relu,
    "addcmul": lambda x: torch.addcmul(x, x, x), "var": torch.var,
}  # fmt: skip
OF_NO_INTEGERS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "var": torch.var,
    "negative power": lambda x: x**-1,
}


@pytest.mark.parametrize(
    ("function", "dtype"),
    [*((each, torch.bool) for each in OF_NO_BOOLS.values()), *((each, torch.int64) for each in OF_NO_INTEGERS.values())],
    ids=[*OF_NO_BOOLS, *OF_NO_INTEGERS],
)
def test_types_that_eager_refuses_are_refused(
    kernels: Kernels, function: Callable[[torch.Tensor], torch.Tensor], dtype: torch.dtype
) -> None:
    x = torch.tensor([1, 0, 1, 1, 0]).to(dtype)
    for call in (lambda: function(x), lambda: kernels(lambda x: [function(x)], x)(x)):
        with pytest.raises(RuntimeError):
            call()


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int64], ids=str)
def test_shifts_beyond_the_width(assert_kernels_same: SameAsEager, dtype: torch.dtype) -> None:
    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [shifted for width in (0, 1, 7, 8, 63, 100) for shifted in (x << width, x >> width, (x + 1) >> width)]

    assert_kernels_same(function, torch.tensor([1, 3, 100, 127, -1, -100, 200]).to(dtype))


LABELS = torch.tensor([[1, 0, -1, 2], [3, -1, 0, 0], [-1, 1, 1, 1]])
BENT = {
    "multi_margin_loss": lambda x: F.multi_margin_loss(x, LABELS.abs()[:, 0], reduction="none"),
    "multilabel_margin_loss": lambda x: F.multilabel_margin_loss(x, LABELS),
    "hardshrink": F.hardshrink,
    "softshrink": F.softshrink,
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("name", list(BENT))
def test_derivatives_where_a_function_bends(name, dynamic):
    """As ATen's kernel has them, where torch's parts of it give another: at a margin that is met exactly, and at NaN."""
    numbers = torch.tensor([[1.0, 0.0, -0.5, 0.5], [2.0, math.nan, 1.0, 0.25], [-0.5, 0.5, 0.5, 1.5]])

    def run(function):
        x = numbers.clone().requires_grad_()
        y = function(x * 1)
        return y.detach(), torch.autograd.grad(y.sum(), x)[0]

    with config.patch(small_graphs_as_captured=False):
        assert_close(run(fxjit.compile(BENT[name], dynamic=dynamic)), run(BENT[name]), equal_nan=True)
