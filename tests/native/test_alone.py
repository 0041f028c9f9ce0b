"""Operators that share a kernel with no other: a kernel, or ATen (choose/predictions.py: ALONE)."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fxjit
from fxjit.backends.native.choose import aten
from fxjit.counters import counters

Function = Callable[[torch.Tensor], object]

#: (operator, types whose kernels are taken, types that are ATen's)
CASES: dict[str, tuple[Function, str, str]] = {
    "isnan": (torch.isnan, "float32 float64 bfloat16 float16", ""),
    "a comparison": (lambda x: x >= 2, "float32 float64 bfloat16 float16 int64 int32 int8", ""),
    "masked_fill": (lambda x: x.masked_fill(MASK, 1), "float32 bfloat16 int64 bool", ""),
    "any": (lambda x: x.any(1), "float32 bfloat16 int64 bool", ""),
    "all of all": (lambda x: x.all(), "float32 float16 int32 bool", ""),
    "the maximum of all": (lambda x: x.max(), "float32 float64 bfloat16 int64", "float16"),
    "maxima": (lambda x: x.amax(1), "bfloat16 float16 int64 int32", "float32 float64"),
    "maxima of columns": (lambda x: x.amin(0), "float32 float64 bfloat16 float16 int64", ""),
    "products": (lambda x: x.view(-1, 16).prod(1), "bfloat16 float16 int64", "float32 float64"),
    "sums": (lambda x: x.sum(1), "float64 int64 int32 bool", "float32 bfloat16 float16"),
    "sums of columns": (lambda x: x.sum(0), "float32 float64 int64 int32", "bfloat16 float16"),
    "sums of few columns": (lambda x: x.view(-1, 400).sum(0), "float64 int64 int32", "float32 bfloat16 float16"),
    "maxima of few columns": (lambda x: x.view(-1, 64).amax(0), "bfloat16 int64", "float32 float64"),
    "sums of short rows": (lambda x: x.view(-1, 16).sum(1), "float32 float64 bfloat16", "float16"),
    "means": (lambda x: x.mean(1), "float64 bfloat16 float16", "float32"),
    "maxima of short rows": (lambda x: x.view(-1, 8).amax(1), "int64", "float32 bfloat16 float16"),
    "running sums": (lambda x: x.cumsum(1), "", "float32 bfloat16 float16 int64"),
    "running sums of columns": (lambda x: x.cumsum(0), "float32 bfloat16 float16 int64", ""),
    "logsumexp of columns": (lambda x: x.logsumexp(0), "float32 bfloat16 float16", ""),
    "conversions to half": (lambda x: x.half(), "bfloat16 int64", "float32 float64"),
    "conversions to float": (lambda x: x.to(torch.float32), "float64 bfloat16 float16 int64 bool", ""),
    "absolute values": (torch.abs, "float32 int64", "bfloat16 float16"),
    "square roots": (torch.sqrt, "bfloat16 float16", ""),
    "remainders": (lambda x: x % 3, "float32 bfloat16 float16", "float64"),
    "quotients": (lambda x: x / 3, "float32 bfloat16 float16", ""),
    "exp2": (torch.exp2, "", "float32 bfloat16"),
}
MASK = torch.arange(800) % 3 == 0
PAIRS = [(name, dtype, taken) for name, (_, ours, theirs) in CASES.items()
         for taken, dtypes in ((True, ours), (False, theirs)) for dtype in dtypes.split()]


def calls_of_aten(function: Function, x: torch.Tensor) -> int:
    fxjit.reset()
    before = counters["native"]["left to ATen"]
    with fxjit.config.patch(cache_graphs=False, measure_machine=False):
        actual = fxjit.compile(lambda x: function(x), fullgraph=True)(x)
    # Eager's products of halves are rounded at each number.
    torch.testing.assert_close(actual, function(x), **({"rtol": 0.15, "atol": 1e-3} if x.dtype.itemsize == 2 else {}))
    return counters["native"]["left to ATen"] - before


@pytest.mark.sweep(2)
@pytest.mark.parametrize(("name", "dtype", "taken"), PAIRS)
def test_the_faster_of_both_is_taken(name: str, dtype: str, taken: bool) -> None:
    torch.manual_seed(0)
    x = (torch.rand(1024, 800) * 2 + 0.3).to(getattr(torch, dtype))
    assert calls_of_aten(CASES[name][0], x) == (not taken)


@pytest.mark.parametrize("function", [torch.exp, torch.tanh, torch.sin, torch.log], ids=lambda f: f.__name__)
def test_what_mkl_computes_is_its_own_on_processors_of_its_maker(function: Function, monkeypatch: pytest.MonkeyPatch) -> None:
    x = torch.rand(512, 400) + 0.3
    for intel in (True, False):
        monkeypatch.setattr(aten, "has_intel_processor", lambda intel=intel: intel)
        assert calls_of_aten(function, x) == intel
