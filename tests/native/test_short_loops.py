"""Short loops along memory, written out in a loop of vectors along another dimension (schedule/short_loops.py)."""

from __future__ import annotations

import re

import pytest
import torch
from torch.nn import functional as F

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.uint8, torch.bool]


def turned(x: torch.Tensor, count: int) -> list[torch.Tensor]:
    """Of what the last dimension is made of, `count` times and each `count`, the other order."""
    few, many = x.unflatten(-1, (count, -1)), x.unflatten(-1, (-1, count))
    worked = [F.gelu, torch.sigmoid] if x.is_floating_point() else [torch.bitwise_not]
    return [f(each).transpose(-1, -2).contiguous() for each in (few, many) for f in worked]


def loops_written_out(source: str) -> int:
    """How often the body of the first loop of vectors stores."""
    body = re.search(r"#pragma omp simd[^\n]*\n\s*for[^\n]*\{\n(.*?)\n\s*\}\n", source, re.DOTALL)
    return 0 if body is None else len(re.findall(r"^\s*p\d+\[.*\] =", body[1], re.MULTILINE))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("count", [2, 3, 4, 8])
def test_transposes(count: int, dtype: torch.dtype, assert_kernels_same) -> None:
    x = (torch.randn(3, 5, 24 * count) * 4).to(dtype)
    assert_kernels_same(lambda x: turned(x, count), x)
    assert_kernels_same(lambda x: turned(x, count), x.repeat(1, 1, 9)[..., : 8 * count + count * 100])


@pytest.mark.parametrize(("count", "times"), [(2, 2), (3, 3), (4, 4), (5, 1), (6, 1), (8, 8), (16, 1)])
def test_as_many_as_a_compiler_takes_apart(count: int, times: int, sources, assert_kernels_same) -> None:
    def f(x):
        return (F.silu(x.unflatten(-1, (count, -1))).transpose(-1, -2).contiguous(),)

    assert_kernels_same(f, torch.randn(6, 64 * count))
    assert loops_written_out(sources[0]) == times


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["plain", "channels last"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_pixel_shuffles(layout: torch.memory_format, dtype: torch.dtype, assert_kernels_same) -> None:
    def f(x):
        both = F.pixel_shuffle(x, 2) * 2, F.pixel_unshuffle(x, 2) + 1, F.silu(F.pixel_shuffle(x.sin(), 4))
        return (*both, F.pixel_shuffle(x, 2).sigmoid() * x.mean())

    assert_kernels_same(f, torch.randn(2, 32, 12, 20).to(dtype).contiguous(memory_format=layout))


def test_pairs_that_several_statements_read_and_write(assert_kernels_same) -> None:
    """Rotary embeddings of neighbours, with factors by place, by pair, and of none of both."""
    def f(x, cos, sin, weight):
        a, b = x.unflatten(-1, (-1, 2)).unbind(-1)
        pairs = torch.stack([a * cos - b * sin, a * sin + b * cos], -1)
        x.mul_(2)
        return pairs.flatten(-2), (pairs * weight).transpose(-1, -2).contiguous(), x.unflatten(-1, (-1, 2)).transpose(1, 2) + 1

    assert_kernels_same(f, torch.randn(4, 40, 64), torch.randn(40, 32), torch.randn(40, 32), torch.randn(2))


def test_sizes_that_vary(assert_kernels_same) -> None:
    assert_kernels_same(lambda x: turned(x, 2) + turned(x[..., :16], 4), torch.randn(3, 21, 64), mode="symbolic")


@pytest.mark.parametrize("count", [16, 17, 24, 31, 32])
def test_rows_of_one_vector_of_bfloat16(count: int, assert_kernels_same) -> None:
    """Those are widened and rounded in arrays (codegen/fp16.py)."""
    x = torch.randn(5, 6, 7 * count).bfloat16()
    x[0, 0, :9] = torch.tensor([torch.nan, torch.inf, -torch.inf, 3e38, -3e38, 1e-40, -0.0, 0.0, 1 + 2**-7])

    def f(x):
        heads = x.unflatten(-1, (7, count)).transpose(1, 2)
        found = F.gelu(heads), heads.sin() * heads[..., :1], torch.where(heads > 0, heads.exp(), heads)
        return tuple(each.contiguous() for each in found)

    assert_kernels_same(f, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize("count", [2, 5, 7, 10, 15, 16])
def test_rows_of_less_than_a_vector(count: int, dtype: torch.dtype, sources, assert_kernels_same) -> None:
    """What takes long goes along the many rows."""
    def f(x, y, z):
        angles = x * y
        return angles.exp(), torch.sigmoid(x + z) * angles, (x * y[0]).sqrt()

    x, y, z = (torch.rand(size).to(dtype) for size in ((3, 70, 1), (count,), (70, 1)))
    assert_kernels_same(f, x, y, z)


def test_frequencies_are_computed_once(sources, assert_kernels_same) -> None:
    """Those of an embedding of positions, which are made of places alone."""
    def f(x):
        return ((x[..., None] * 2.0 ** torch.arange(10)).sin(),)

    assert_kernels_same(f, torch.rand(300, 3))
    power = sources[0].index("fx_pow(")
    assert "for (int64_t o1" not in sources[0][:power]


def test_numbers_are_rounded_once(sources, assert_kernels_same) -> None:
    def f(x):
        return ((x.float() * 3.3).bfloat16(),)

    def more(x):
        rounded = (x.float() * 3.3).bfloat16()
        return rounded, rounded.float() - x.float(), (rounded.float() * 3.3).sum(1), rounded.half()

    x = torch.randn(40, 100, dtype=torch.bfloat16)
    assert_kernels_same(f, x)
    assert sources[0].count("fx_bfloat(") == 1
    assert_kernels_same(more, x)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("count", [2, 3, 8])
def test_functions_of_rows_of_few_numbers(count: int, dtype: torch.dtype, sources, assert_kernels_same) -> None:
    """They are calculated over many rows at once, in a loop of vectors of their own."""
    def f(x):
        angle = x.norm(dim=-1, keepdim=True)
        return torch.cat([angle.cos(), x * angle.sin()], -1), torch.logsumexp(x * 2, -1)

    assert_kernels_same(f, torch.randn(700, count).to(dtype))
    assert not re.search(r"const float r_\d+ = [^;]*fx_(sin|cos|log)", sources[0])
