"""Sizes that are quotients of others that vary: calculated at the head of a kernel, and none of its loops divides."""

from __future__ import annotations

import logging

import pytest
import sympy
import torch
import torch.nn.functional as F
from tests.differential import assert_same_as_eager
from torch.utils._sympy.functions import FloorDiv

import fxjit
from fxjit.backends.native.codegen.cpp import Printer


def test_a_quotient_has_one_name_in_a_kernel() -> None:
    side = sympy.Symbol("s0", positive=True, integer=True)
    printer = Printer({}, {"s0": "n0"})
    half = FloorDiv(side - 1, 2) + 1
    assert printer.size(half) == printer.size(half) == "z0"
    assert printer.size(side * 3) == "(3*n0)" and printer.size(7) == "7"
    assert printer.size(half * side) == "z1"
    first, second = printer.divided_sizes()
    assert first.startswith("const int64_t z0 = ") and "fx_idiv" in first and second.startswith("const int64_t z1 = ")


def enlarged(x: torch.Tensor) -> torch.Tensor:
    """Half of the sides, and twice these: x's for even ones."""
    smaller = F.max_pool2d(x, 2, ceil_mode=True)
    return F.group_norm(F.interpolate(smaller, scale_factor=2.0).permute(0, 2, 3, 1) * 2, 2).relu()


def test_loops_do_not_divide(caplog: pytest.LogCaptureFixture) -> None:
    fxjit.reset()
    compiled = fxjit.compile(enlarged, dynamic=True)
    with caplog.at_level(logging.DEBUG, logger="fxjit.output_code"):
        compiled(torch.rand(2, 4, 20, 18))
    source = "\n".join(record.getMessage() for record in caplog.records)
    divided = [line for line in source.split("\n") if "fx_idiv" in line]
    assert divided and all(line.strip().startswith("const int64_t z") for line in divided)


@pytest.mark.parametrize("sides", [(20, 18), (19, 21), (2, 3), (64, 33)])
def test_values(sides: tuple[int, int]) -> None:
    with fxjit.config.patch(assume_static_by_default=False):
        assert_same_as_eager(enlarged, torch.rand(2, 4, *sides), backend="native", rtol=1e-5)
