"""Kernels that differ only in sizes are one kernel, whose sizes are arguments (`codegen/shared_sizes.py`)."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from fxjit.backends.native.codegen.kernel import Kernel
from fxjit.backends.native.codegen.launch import Launch
from fxjit.backends.native.codegen.shared_sizes import share_sizes


def shared(*bodies: str) -> list[Kernel]:
    """The kernels of these texts, with a symbol each, after they shared what they can."""
    launches: list[Any] = [Launch(None, Kernel(body, ["x"], ["n"]), "", {}) for body in bodies]  # type: ignore[arg-type,list-item]
    share_sizes(launches)
    return [launch.kernel for launch in launches]


def loop(columns: int | str, text: str) -> str:
    return f"  for (int64_t o0 = 0; o0 < {columns}; ++o0) {{\n    {text}\n  }}\n  return 0;"


# The text


def test_numbers_that_differ_become_arguments_behind_the_symbols() -> None:
    first, second = shared(loop(100, "p1[o0 * 50] = p0[o0 * 400];"), loop(300, "p1[o0 * 50] = p0[o0 * 700];"))
    assert first.body == second.body
    assert first.body.startswith("  const int64_t size0 = S[1];\n  const int64_t size1 = S[2];\n")
    assert "o0 < size0" in first.body and "p0[o0 * size1]" in first.body and "p1[o0 * 50]" in first.body
    assert (first.sizes, second.sizes) == (["n", 100, 400], ["n", 300, 700])


def test_numbers_equal_to_each_other_in_all_kernels_are_one_argument() -> None:
    first, second = shared(loop(100, "p1[o0 * 100] = p0[o0];"), loop(300, "p1[o0 * 300] = p0[o0];"))
    assert first.sizes == ["n", 100] and second.sizes == ["n", 300]
    both = shared(loop(100, "p1[o0 * 100] = p0[o0];"), loop(300, "p1[o0 * 900] = p0[o0];"))
    assert [kernel.sizes for kernel in both] == [["n", 100, 100], ["n", 300, 900]]


@pytest.mark.parametrize("type_of, suffix", [("float", "f"), ("double", "")])
def test_what_a_mean_divides_by_is_an_argument_in_all_its_bits(type_of: str, suffix: str) -> None:
    divisors = (49.0, 1.1)
    kernels = shared(*(loop(100, f"p1[o0] = p0[o0] / {each.hex()}{suffix};") for each in divisors))
    assert kernels[0].body == kernels[1].body
    assert f"{type_of} size0;" in kernels[0].body and "p0[o0] / size0;" in kernels[0].body
    for kernel, divisor in zip(kernels, divisors, strict=True):
        word = struct.pack("<q", kernel.sizes[1])
        assert struct.unpack("<f4x" if suffix else "<d", word)[0] == pytest.approx(divisor, rel=1e-7)


def test_an_array_is_as_long_as_the_longest() -> None:
    kernels = shared(*(loop(n, f"alignas(64) float r_0[{n}];") for n in (100, 300, 200)))
    assert len({kernel.body for kernel in kernels}) == 1 and "float r_0[300];" in kernels[0].body
    assert [kernel.sizes for kernel in kernels] == [["n", 100], ["n", 300], ["n", 200]]


@pytest.mark.parametrize("first, second", [
    (loop(100, "p1[o0] = p0[o0 / 50];"), loop(100, "p1[o0] = p0[o0 / 70];")),
    (loop(100, "p1[o0] = p0[fx_imod(o0, 50)];"), loop(100, "p1[o0] = p0[fx_imod(o0, 70)];")),
    (loop(4, "p1[o0] = p0[o0];"), loop(8, "p1[o0] = p0[o0];")),
    (loop(100, "p1[o0] = p0[o0] / 0x1.0000000000000p+5f;"), loop(100, "p1[o0] = p0[o0] / 0x1.8000000000000p+5f;")),
    (loop(100, "p1[o0] = (int64_t)(p0[o0] > 100);"), loop(100, "p1[o0] = (int64_t)(p0[o0] > 200);")),
    (loop(100, "p1[o0] = p0[o0] + 0x1.8000000000000p+5f;"), loop(100, "p1[o0] = p0[o0] + 0x1.8000000000000p+5;")),
], ids=["quotient", "remainder", "small", "power of two", "value", "type"])  # fmt: skip
def test_what_a_constant_makes_faster_or_possible_stays_in_the_text(first: str, second: str) -> None:
    assert [kernel.body for kernel in shared(first, second)] == [first, second]


def test_a_kernel_without_one_like_it_and_equal_ones_stay_as_they_are() -> None:
    body, other = loop(100, "p1[o0] = p0[o0];"), loop(100, "p2[o0] = p0[o0];")
    assert [(kernel.body, kernel.sizes) for kernel in shared(body, other, body)] == [
        (body, ["n"]), (other, ["n"]), (body, ["n"])]  # fmt: skip


# The results

SIZES = ((3, 40), (6, 72), (5, 100), (7, 130))
#: Reductions of shorter rows have arrays for them (codegen/tree_reduction.py).
LONG_ROWS = ((2, 700), (3, 900), (1, 1100))


def norm_of_columns(x: Tensor) -> tuple[Tensor, ...]:
    mean, variance = x.mean(0), x.var(0)
    return (x - mean) * (variance + 1e-5).rsqrt(), (x * 2).sum(0)


def norm_of_rows(x: Tensor) -> tuple[Tensor, ...]:
    return F.layer_norm(x * 2, x.shape[-1:]), x.softmax(-1) * 3, (x + 1).argmax(-1)


def places(x: Tensor) -> tuple[Tensor, ...]:
    """Sizes that are values."""
    n = x.shape[-1]
    return x + torch.arange(n), torch.arange(x.numel()).view(x.shape) * 3 // n, x.flip(-1) * x.shape[0], x / n


def turned(x: Tensor) -> tuple[Tensor, ...]:
    return x.t().contiguous() * 2, torch.cat([x, x * 2], 1) + 1, F.pad(x, (35, 36)) * 2, x.t().reshape(-1, 2).sum(-1)


def looked_up(x: Tensor) -> tuple[Tensor, ...]:
    index = torch.arange(x.shape[0]).flip(0)
    added = torch.zeros_like(x).index_add(0, index, x * 3)
    return x[index] * 2, added, x.float().cumsum(-1) * 2, F.one_hot(index, 300).float() + 1


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("function", [norm_of_columns, norm_of_rows, places, turned, looked_up])
def test_results_at_several_sizes(
    function: Callable[[Tensor], tuple[Tensor, ...]], dtype: torch.dtype, sources: list[str],
    assert_kernels_same: Callable[..., None],
) -> None:  # fmt: skip
    torch.manual_seed(0)
    sizes = LONG_ROWS if function is norm_of_rows else SIZES
    inputs = [torch.randn(rows * 33, columns).to(dtype) for rows, columns in sizes]
    assert_kernels_same(lambda *tensors: [each for x in tensors for each in function(x)], *inputs)
    assert "= S[0];" in sources[0] or ", S + 0" in sources[0]


def test_an_index_out_of_bounds_raises_in_the_layer_that_has_it(kernels: Callable[..., Any]) -> None:
    def function(*arguments: Tensor) -> list[Tensor]:
        half = len(arguments) // 2
        return [table[index] * 2 for table, index in zip(arguments[:half], arguments[half:], strict=True)]

    tables = [torch.randn(rows, columns) for rows, columns in ((50, 40), (60, 72), (70, 100))]
    inside = [torch.tensor([0, 49]), torch.tensor([59, 1]), torch.tensor([69, -70])]
    compiled = kernels(function, *tables, *inside)
    for actual, expected in zip(compiled(*tables, *inside), function(*tables, *inside), strict=True):
        assert torch.equal(actual, expected)
    with pytest.raises(IndexError):
        compiled(*tables, inside[0], torch.tensor([60, 1]), inside[2])
