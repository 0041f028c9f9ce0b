"""Comparisons of floats that vary are Python's, which knows NaN, infinities and rounding; algebra has `n == n` and `n + 1 > n`
for every number."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter

NUMBERS = [1.5, 2.5, 3.7, math.nan, math.inf, -math.inf, 0.0, -0.0, 1e308, 5e-324]

COMPARED: dict[str, Callable[[Any, Any], Any]] = {
    "n == n": lambda x, n: x if n == n else x * 2,
    "n != n": lambda x, n: x if n != n else x * 2,
    "n <= n": lambda x, n: x if n <= n else x * 2,
    "n >= n": lambda x, n: x if n >= n else x * 2,
    "n < n": lambda x, n: x if n < n else x * 2,
    "not n == n": lambda x, n: x if not (n == n) else x * 2,
    "2 n == n + n": lambda x, n: x if 2 * n == n + n else x * 2,
    "n + 1 > n": lambda x, n: x if n + 1 > n else x * 2,
    "n - 1 < n < n + 1": lambda x, n: x if n - 1 < n < n + 1 else x * 2,
    "n + 1e16 > 1e16": lambda x, n: x if n + 1e16 > 1e16 else x * 2,
    "n / 3 * 3 == n": lambda x, n: x if n / 3 * 3 == n else x * 2,
    "0 == n": lambda x, n: x if n == 0 else x * 2,
    "values": lambda x, n: (x, n == n, n != n, n > 2, 2 > n, n - n, n * 0),
    "isnan": lambda x, n: x if math.isnan(n) else x * 2,
    "extremes": lambda x, n: (x, max(n, 2.0), max(2.0, n), min(n, 2.0), max(n, n)),
    "membership": lambda x, n: (x, n in [n], [n].index(n), n in (1.5, 2.5)),
    "with a size": lambda x, n: x if n * x.shape[0] > n else x * 2,
    "of a size": lambda x, n: x if x.shape[0] * 0.5 >= 0.5 else x * n,
}


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize("program", COMPARED)
def test_as_in_python(program: str, dynamic: bool | None) -> None:
    fn = COMPARED[program]
    compiled = fxjit.compile(fn, backend="eager", dynamic=dynamic)
    for number in NUMBERS:
        assert repr(compiled(torch.ones(2), number)) == repr(fn(torch.ones(2), number)), number


def of_two(x: torch.Tensor, a: float, b: float) -> Any:
    return x * 2 if a < b else x, a == b, a - b > 0


@pytest.mark.parametrize("dynamic", [None, True])
def test_of_two_numbers(dynamic: bool | None) -> None:
    compiled = fxjit.compile(of_two, backend="eager", dynamic=dynamic)
    for a in NUMBERS:
        for b in NUMBERS:
            assert repr(compiled(torch.ones(2), a, b)) == repr(of_two(torch.ones(2), a, b)), (a, b)


@pytest.mark.compiles
def test_a_graph_for_each_way() -> None:
    counter = CompileCounter()
    compiled = fxjit.compile(lambda x, n: x + 1 if n + 1 > n else x * 2, backend=counter)
    for number in (0.5, 1.5, 2.5, 3.5, -4.5, 1e300, 2e300, math.inf, math.nan):
        compiled(torch.ones(2), number)
    assert counter.frame_count == 3  # of 0.5, of each number that 1 is added to, and of those that stay


def test_of_a_number_in_a_tensor() -> None:
    def run(x: torch.Tensor) -> Any:
        number = x.sum().item()
        return x * 2 if number != number else x

    compiled = fxjit.compile(run, backend="eager")
    with fxjit.config.patch(capture_scalar_outputs=True):
        for number in (1.0, math.nan, math.inf):
            x = torch.full((2,), number)
            assert repr(compiled(x)) == repr(run(x))


def exact_sum(numbers: list[float]) -> tuple[int, int]:
    """The sum as a whole number by a power of 2, as CPython's tests of `math.fsum` have it: shifts by numbers that vary, whose
    range has no end on either side."""
    total, power = 0, 0
    for number in numbers:
        part, exponent = math.frexp(number)
        part, exponent = int(math.ldexp(part, 53)), exponent - 53
        if power > exponent:
            total <<= power - exponent
            power = exponent
        else:
            part <<= exponent - power
        total += part
    tail = max(len(bin(abs(total))) - 2 - 53, -1074 - power)
    if tail > 0:
        half = 1 << (tail - 1)
        total = total // (2 * half) + bool(total & half and total & 3 * half - 1)
        power += tail
    return total, power


def test_numbers_that_torch_has_no_range_for() -> None:
    with fxjit.config.patch(compile_tensorless_frames=True, allow_empty_graphs=True):
        compiled = fxjit.compile(exact_sum, backend="eager")
        for numbers in ([0.0], [1e100, 1.0, -1e100, 1e-100, 1e50, -1.0], [2.0**53, -0.5, -(2.0**-54)], [1e16, 1.0, 1e-16]):
            assert compiled(numbers) == exact_sum(numbers)
