"""No kernel is less accurate than ATen's: errors in units in the last place, of samples; `benchmarks.accuracy` has all."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from benchmarks.accuracy import compiled_all, errors, samples
from benchmarks.exact_functions import Function, L, rows

from fxjit import config

#: What ours may be beyond eager's largest error over the same samples.
RATIO, HAIR = 1.02, 0.01
#: Of these the true value costs a second and more.
SLOW = ("erf", "erfc", "lgamma", "gelu", "gelu_backward")
FUNCTIONS = [function for function in rows() if function.name not in SLOW]


def largest(results: torch.Tensor, exact: np.ndarray) -> float:
    return float(np.nanmax(errors(results, exact)))


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs 80-bit floating point")
@pytest.mark.parametrize("arity", [1, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_no_function_is_less_accurate_than_eager(dtype: torch.dtype, arity: int) -> None:
    functions = [function for function in FUNCTIONS if function.arity == arity]
    inputs = [samples(dtype, 6000, seed)[:5000] for seed in range(arity)]
    wide = [each.double().numpy().astype(L) for each in inputs]
    ours = compiled_all([function.call for function in functions], *inputs)(*inputs)
    worse = {}
    for function, result in zip(functions, ours, strict=True):
        with np.errstate(all="ignore"):
            exact = function.exact(*wide)
        allowed = largest(function.call(*inputs), exact) * RATIO + HAIR
        if largest(result, exact) > allowed:
            worse[function.name] = (largest(result, exact), allowed)
    assert not worse


def test_float32_is_rounded_once() -> None:
    """What no other order of additions excuses: of one function each, half a unit and a little."""
    names = ("exp", "log", "sin", "cos", "tanh", "log1p", "expm1", "exp2", "log2", "log10", "atan", "asinh", "hypot")
    chosen = [function for function in FUNCTIONS if function.name in names]
    for function in chosen:
        assert error_of(function, torch.float32) < 0.53, function.name


def error_of(function: Function, dtype: torch.dtype) -> float:
    inputs = [samples(dtype, 6000, seed)[:5000] for seed in range(function.arity)]
    with np.errstate(all="ignore"):
        exact = function.exact(*[each.double().numpy().astype(L) for each in inputs])
    return largest(compiled_all([function.call], *inputs)(*inputs)[0], exact)


def test_fast_math_is_libmvec() -> None:
    (tanh,) = [function for function in FUNCTIONS if function.name == "tanh"]
    with config.patch({"cpp.fast_math": True}):
        assert error_of(tanh, torch.float32) < 4


EDGES = (float("inf"), float("-inf"), float("nan"), 0.0, -0.0, 1.0, -1.0, 3.0, -3.0, 100.0, -100.0, -88.0, 20.0, 1e-45)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16], ids=str)
def test_infinity_and_nan_are_where_eager_has_them(dtype: torch.dtype) -> None:
    one = torch.tensor(EDGES).to(dtype).repeat(3)
    functions = [function for function in rows() if function.arity == 1]
    ours = compiled_all([function.call for function in functions], one)(one)
    different = [
        function.name
        for function, result in zip(functions, ours, strict=True)
        for eager in [function.call(one)]
        if not (result.isnan().equal(eager.isnan()) and result.isinf().equal(eager.isinf()))
    ]
    assert not different


@pytest.mark.parametrize("seed", range(3))
def test_a_chain_of_bfloat16_is_nearer_to_the_truth_than_eager(seed: int) -> None:
    """Kernels keep float32 between operators, eager rounds each result to bfloat16."""

    def chain(x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x * 1.7 + 0.3).exp().log1p() * x - x.sigmoid() / 3

    x = torch.randn(4000, generator=torch.Generator().manual_seed(seed)).bfloat16()
    exact = chain(x.double())
    away = [float((each.double() - exact).abs().mean()) for each in (chain(x), compiled_all([chain], x)(x)[0])]
    assert away[1] < 0.5 * away[0]


def test_the_table_has_every_function_of_libm() -> None:
    from fxjit.backends.native.ops import MATH

    assert MATH.keys() - {function.name for function in rows()} == set()
