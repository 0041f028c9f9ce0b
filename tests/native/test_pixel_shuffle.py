"""`pixel_shuffle` and `pixel_unshuffle`, which are compiled as views and a copy, are what they are in eager code."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from tests.differential import assert_same_as_eager
from torch import Tensor

import fxjit
from fxjit.counters import counters

#: Sizes that can be shuffled and unshuffled: (shape, factor).
SIZES = (((2, 8, 4, 6), 2), ((1, 9, 6, 3), 3), ((18, 3, 3), 3), ((2, 1, 16, 4, 8), 4), ((2, 3, 4, 2, 2), 2), ((1, 4, 2, 2), 2),
         ((3, 4, 2, 4), 1))
LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "plain": lambda x: x,
    "channels last": lambda x: x.movedim(-3, -1).clone(memory_format=torch.contiguous_format).movedim(-1, -3),
    "turned": lambda x: x.transpose(-1, -2).clone().transpose(-1, -2),
    "every other": lambda x: torch.stack([x, x * 2], -1)[..., 1],
}


def both(x: Tensor, factor: int) -> tuple[Tensor, ...]:
    return F.pixel_shuffle(x, factor), F.pixel_unshuffle(x, factor), F.relu(F.pixel_shuffle(x * 2, factor)) + 1


@pytest.mark.sweep(3)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64])
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("shape, factor", SIZES)
def test_values_and_strides(shape: tuple[int, ...], factor: int, layout: str, dtype: torch.dtype) -> None:
    x = LAYOUTS[layout](torch.arange(float(torch.Size(shape).numel())).reshape(shape)).to(dtype)
    assert_same_as_eager(both, x, factor, backend="native")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_gradients(layout: str) -> None:
    x = LAYOUTS[layout](torch.randn(2, 8, 4, 6)).requires_grad_()
    assert_same_as_eager(lambda x: F.pixel_unshuffle(F.pixel_shuffle(x.sin(), 2) * 3, 2).cos(), x, backend="native")


def test_the_result_is_no_view_of_the_argument() -> None:
    """Where it has the argument's order, too."""
    def write(x: Tensor) -> tuple[Tensor, Tensor]:
        up, down = F.pixel_shuffle(x, 2), F.pixel_unshuffle(x.view(1, 1, 2, 2), 2)
        up.add_(1)
        down.mul_(5)
        return up, down

    assert_same_as_eager(write, torch.randn(1, 4, 1, 1), backend="native")


@pytest.mark.parametrize("shape, factor", [((2, 6, 3, 4), 4), ((4, 4), 2), ((2, 8, 3, 4), -2)])
@pytest.mark.parametrize("function", [F.pixel_shuffle, F.pixel_unshuffle])
def test_what_cannot_be_shuffled_raises_as_in_eager(
    function: Callable[..., Tensor], shape: tuple[int, ...], factor: int
) -> None:
    x = torch.randn(shape)
    with pytest.raises(RuntimeError) as eagers:
        function(x, factor)
    with pytest.raises(RuntimeError) as ours:
        fxjit.compile(lambda x: function(x, factor))(x)
    assert str(ours.value) == str(eagers.value)


def test_sizes_that_vary_and_nothing_at_all() -> None:
    compiled = fxjit.compile(lambda x: F.pixel_shuffle(x, 2) * 2, dynamic=True)
    for height in (3, 5, 7, 0):
        x = torch.randn(2, 8, height, 4)
        torch.testing.assert_close(compiled(x), F.pixel_shuffle(x, 2) * 2, check_stride=True)


def test_it_is_one_kernel_with_what_stands_around_it() -> None:
    before = counters["native"]["kernels"]
    with fxjit.config.patch(cache_graphs=False):
        fxjit.compile(lambda x: F.relu(F.pixel_shuffle(x * 2, 2)) + 1)(torch.randn(2, 8, 40, 60))
    assert counters["native"]["kernels"] == before + 1
