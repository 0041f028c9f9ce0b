"""What reads along one dimension of memory and writes along another goes over blocks (schedule/transposes.py)."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fxjit.backends.native.schedule.transposes import lines_kept

TYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int32, torch.bool]


def turned(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    worked = x.sigmoid() if x.is_floating_point() else x == 1
    return ((x + x).transpose(-1, -2).contiguous(), worked.transpose(-1, -2).contiguous())


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("shape", [(256, 512), (257, 130), (2, 300, 96), (2, 96, 1024), (3, 129, 256), (70, 4096)], ids=str)
def test_transposes(shape: tuple[int, ...], dtype: torch.dtype, assert_kernels_same) -> None:
    assert_kernels_same(turned, (torch.randn(shape) * 2).to(dtype))


@pytest.mark.parametrize(
    ("shape", "blocks"), [((256, 512), True), ((300, 1000), False), ((2, 300, 256), True), ((50, 1024), False)]
)
def test_blocks_where_lines_meet(shape: tuple[int, ...], blocks: bool, sources, assert_kernels_same) -> None:
    assert_kernels_same(lambda x: (F.gelu(x).transpose(-1, -2).contiguous(),), torch.randn(shape))
    assert ("lo += 64" in sources[0]) == blocks
    assert (lines_kept(shape[-1] * 4) < shape[-2]) == blocks or shape == (50, 1024)


def test_parts_of_rows_and_what_others_read(assert_kernels_same) -> None:
    def f(x, y, row, column):
        both = (x[3:, 5:260] * column[3:] + row[5:260]).t() - y
        x.mul_(2)
        return both.contiguous(), both.exp(), (both * 2).sum(0), x.t().contiguous() + 1

    assert_kernels_same(f, torch.randn(259, 512), torch.randn(255, 256), torch.randn(512), torch.randn(259, 1))


def test_sizes_that_vary(assert_kernels_same) -> None:
    assert_kernels_same(turned, torch.randn(2, 300, 256), mode="symbolic")
