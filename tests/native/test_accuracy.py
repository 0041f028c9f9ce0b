"""No kernel is less accurate than ATen's: errors in units in the last place, of samples; `benchmarks.accuracy` has all."""

from __future__ import annotations

import subprocess

import numpy as np
import pytest
import torch
from benchmarks.accuracy import compiled_all, errors, samples
from benchmarks.exact_functions import Function, L, rows

import fxjit
from fxjit import config
from fxjit.backends.native.codegen.prelude import prelude
from fxjit.backends.native.runtime import cc

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
    inputs = [samples(dtype, 30000, seed)[:25000] for seed in range(arity)]
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


#: The largest errors of float32's functions, which no other order of additions excuses: most are calculated in double and
#: rounded once, some in float. Eager's own, of all numbers, on a processor without AVX-512: exp 0.56, exp2 0.85, expm1 1.0,
#: log 0.97, log1p 1.0, pow 0.78.
BOUNDS = {
    "exp": 0.57, "exp2": 0.57, "expm1": 0.75, "log": 0.77, "log1p": 0.95, "pow, 2.5": 0.54, "softplus": 1.25,
    "sin": 0.57, "cos": 0.57, "asin": 0.67, "acos": 0.67, "atanh": 0.51, "tanh": 0.51,
    "log2": 0.51, "log10": 0.51, "atan": 0.51, "asinh": 0.51, "hypot": 0.51,
}  # fmt: skip


def test_errors_of_float32_are_bounded() -> None:
    for function in rows():
        if bound := BOUNDS.get(function.name):
            assert error_of(function, torch.float32) < bound, function.name


INF = float("inf")
SPECIAL = (INF, -INF, float("nan"), 0.0, -0.0, 1.0, -1.0, 2.0, 3.0, -3.0, 0.5, -2.5, 1e-42, -1e-42, 3e38, -3e38)


def test_powers_of_special_numbers_are_eagers() -> None:
    base = torch.tensor(SPECIAL).repeat_interleave(len(SPECIAL))
    exponent = torch.tensor(SPECIAL).repeat(len(SPECIAL))
    ours, eager = compiled_all([torch.pow], base, exponent)(base, exponent)[0], torch.pow(base, exponent)
    torch.testing.assert_close(ours, eager, equal_nan=True, rtol=1e-6, atol=0)
    assert torch.signbit(ours)[~eager.isnan()].equal(torch.signbit(eager)[~eager.isnan()])


def test_results_below_the_normal_numbers_are_rounded_once() -> None:
    """Where a scaling in two steps would round twice."""
    x = torch.linspace(-104.5, -87, 30001)
    for function in (torch.exp, lambda x: torch.exp2(x * 1.4427)):
        exact = function(x.double()) if function is torch.exp else torch.exp2((x * 1.4427).double())
        ours = compiled_all([function], x)(x)[0]
        assert float((ours.double() - exact).abs().max()) < 0.56 * 2.0**-149


def test_the_tail_of_gelu_has_its_sign() -> None:
    """Where gelu is below the numbers there are, it is -0, as eager's on processors with AVX-512."""
    gelu = torch.nn.functional.gelu
    x = torch.tensor([-3e38, -1e10, -20.0, -15.0, -1.0, -0.0, 0.0, 1.0, 20.0, 1e10]).repeat(5)
    for each in (x, x.double(), x.bfloat16()):
        found = compiled_all([gelu], each)(each)[0]
        assert torch.equal(torch.signbit(found), torch.signbit(each)) and torch.equal(found == 0, gelu(each) == 0)


def test_gelu_and_its_derivative_are_nearer_than_eager() -> None:
    """Interval by interval: the largest error of all numbers is that of a tail which eager has as 0."""
    gelu = torch.nn.functional.gelu
    slope = torch.ops.aten.gelu_backward
    for low, high in ((-5, -3), (-3, -1), (-1, -0.7), (-0.7, -0.1), (-0.1, 0), (0, 0.1), (0.1, 1), (1, 3), (3, 10)):
        x = torch.linspace(low, high, 20001)
        wide, ones = x.double(), torch.ones_like(x)
        cdf = torch.special.erfc(wide * -(0.5**0.5)) / 2
        exact = (wide * cdf, cdf + wide * torch.exp(-wide * wide / 2) / (2 * torch.pi) ** 0.5)
        found = (compiled_all([gelu], x)(x)[0], compiled_all([slope], ones, x)(ones, x)[0])
        for mine, eagers, true in zip(found, (gelu(x), slope(ones, x)), exact, strict=True):
            far = [float(np.max(errors(each, true.numpy().astype(L)))) for each in (mine, eagers)]
            assert far[0] <= far[1], (low, high, far)


def by_tanh(x: torch.Tensor) -> torch.Tensor:
    """GELU's approximation, written out as transformers' GPT-2 has it."""
    return 0.5 * x * (1.0 + torch.tanh((2 / torch.pi) ** 0.5 * (x + 0.044715 * torch.pow(x, 3.0))))


def by_erf(x: torch.Tensor) -> torch.Tensor:
    """GELU, written out."""
    return x * 0.5 * (1.0 + torch.erf(x / 2**0.5))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_gelu_by_sigmoids_and_written_out_is_as_near_as_eager(dtype: torch.dtype) -> None:
    """A sigmoid in the place of 1 + tanh, the normal distribution in that of 1 + erf; the first one's derivative, too."""
    gelu = torch.nn.functional.gelu
    calls = [lambda x, g: gelu(x, approximate="tanh"), lambda x, g: by_tanh(x), lambda x, g: by_erf(x),
             lambda x, g: torch.ops.aten.gelu_backward(g, x, approximate="tanh")]  # fmt: skip
    for low, high in ((-8, -5), (-5, -3), (-3, -1), (-1, -0.1), (-0.1, 0.1), (0.1, 1), (1, 3), (3, 8)):
        x = torch.linspace(low, high, 10001).to(dtype)
        ones = torch.ones_like(x)
        for call, mine in zip(calls, compiled_all(calls, x, ones)(x, ones), strict=True):
            # The derivative in double loses digits far out, as eager's do.
            true = call(x.double(), ones.double())
            far = [float((each.double() - true).abs().max()) for each in (mine, call(x, ones))]
            assert far[0] <= far[1] * RATIO + 6e-8, (low, high, far)  # half a unit of 1


def test_gelus_approximation_of_special_numbers() -> None:
    gelu = torch.nn.functional.gelu
    x = torch.tensor([INF, -INF, float("nan"), 0.0, -0.0, 1e30, -1e30, 1e-30, -1e-38, -20.0, 20.0]).repeat(5)
    calls = [lambda x: gelu(x, approximate="tanh"), by_tanh, lambda x: 1 + torch.tanh(x), lambda x: torch.tanh(x) + 1,
             by_erf, lambda x: torch.erf(x) + 1]  # fmt: skip
    for call, mine in zip(calls, compiled_all(calls, x)(x), strict=True):
        torch.testing.assert_close(mine, call(x), equal_nan=True, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_derivatives_with_the_forwards_values(dtype: torch.dtype) -> None:
    """logsigmoid's has the forward's exp(-|x|), on a CPU; mish's and softplus's calculate theirs."""
    aten = torch.ops.aten
    x = torch.linspace(-30, 30, 4001).to(dtype)
    grad = torch.linspace(-2, 3, 4001).to(dtype)
    exps = torch.exp(-x.abs())
    calls = [
        lambda g, x, z: aten.log_sigmoid_backward(g, x, z), lambda g, x, z: aten.mish_backward(g, x),
        lambda g, x, z: aten.softplus_backward(g, x, 2, 20),
    ]  # fmt: skip
    ours = compiled_all(calls, grad, x, exps)(grad, x, exps)
    for call, result in zip(calls, ours, strict=True):
        exact = call(grad.double(), x.double(), exps.double())
        far = [float((each.double() - exact).abs().max()) for each in (result, call(grad, x, exps))]
        assert far[0] <= far[1] * RATIO, far
        assert result.dtype is dtype


def test_the_polynomials_are_the_tools() -> None:
    """One of them fitted again; `python tools/minimax.py --write` makes all."""
    from tools import minimax

    from fxjit.backends.native.codegen import polynomials

    fit = minimax.FITS["EXP2"]
    found, error = minimax.coefficients(fit)
    assert tuple(minimax.literal(each, fit.double) for each in found) == polynomials.EXP2
    assert error < -23
    assert minimax.FITS.keys() == {name for name in vars(polynomials) if name.isupper()}


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
    """oneDNN's gelu, which on processors with AVX-512 eager's is, makes NaN of infinity: compared is ATen's own."""
    one = torch.tensor(EDGES).to(dtype).repeat(3)
    functions = [function for function in rows() if function.arity == 1]
    ours = compiled_all([function.call for function in functions], one)(one)
    with torch.backends.mkldnn.flags(enabled=False):
        eagers = [function.call(one) for function in functions]
    different = [
        function.name
        for function, result, eager in zip(functions, ours, eagers, strict=True)
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


def test_functions_of_one_number_in_float64_are_kernels(sources, assert_kernels_same):
    """Of a tensor without dimensions: libm's own, which is as accurate as ATen's. Those of vectors are calls of ATen."""
    one, many = torch.tensor(7.0, dtype=torch.float64), torch.linspace(1, 9, 20, dtype=torch.float64)

    def functions(x):
        return [0.9**x, torch.log(x), torch.sin(x), torch.atan2(x, x + 1), torch.expm1(-x), torch.fmod(x, 2.5)]

    assert_kernels_same(lambda x, y: [*functions(x), (0.9**x).sqrt() * y.float()], one, many)
    assert "fx_pow" in sources[0] and "fx_log" in sources[0]
    sources.clear()
    assert_kernels_same(functions, many)
    assert not any("fx_pow" in source or "fx_log" in source for source in sources)


def test_what_c_has_for_one_number_at_a_time_is_atens_of_vectors(sources, assert_kernels_same) -> None:
    assert_kernels_same(lambda x: [torch.lgamma(x) * 2], torch.linspace(0.1, 9, 200))
    assert not any("fx_lgamma" in source for source in sources)
    assert_kernels_same(lambda x: [torch.lgamma(x) * 2], torch.tensor(2.5))
    assert "fx_lgamma" in sources[-1]


def test_the_sine_and_the_cosine_of_a_number_are_no_one_call(sources, assert_kernels_same) -> None:
    """GCC would make one call of both, which has no vector form: a fifth of eager's speed."""
    x = torch.linspace(-9, 9, 1000)
    assert_kernels_same(lambda x: (x.sin() + x.cos(), torch.cat([x.sin(), x.cos()])), x)
    flags = [each for each in cc.flags() if each != "-shared"]
    command, text = [*cc.require_compiler(), *flags, "-x", "c++", "-S", "-", "-o", "-"], prelude(sources[0], True) + sources[0]
    made = subprocess.run(command, input=text, text=True, capture_output=True, check=True).stdout
    assert "cos" in made and "sincos" not in made and "cexpi" not in made


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("simd", [True, False])
def test_sines_are_right_however_many_turns_the_number_is(dtype: torch.dtype, simd: bool) -> None:
    """Beyond 2^17 a number is double's, alone among others that are not; near a root all digits of the number count."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (30_000,), dtype=torch.int32, generator=generator).view(torch.float32)
    near = torch.randn(30_000, generator=generator) * torch.logspace(-3, 6, 30_000)
    roots = (torch.arange(-60_000, 60_000, 7).double() * (torch.pi / 2)).float()
    border = 2.0**17 + torch.arange(-64, 64) / 64
    special = torch.tensor([0.0, -0.0, 1e-45, -1e-45, float("inf"), -float("inf"), float("nan"), 3.4e38])
    x = torch.cat([bits, near, roots, border, special]).to(dtype)
    with config.patch({"cpp.simd": simd}):
        ours = fxjit.compile(lambda x: (x.sin() * 1, x.cos() * 1), backend="native", dynamic=False)(x)
    for function, found in zip((torch.sin, torch.cos), ours, strict=True):
        exact = function(x.double())
        assert found.isnan().equal(exact.isnan())
        known = exact.isfinite()
        unit = torch.finfo(torch.float32).eps / 2 * 2.0 ** torch.frexp(exact[known]).exponent.clamp(min=-125)
        bound = 0.57 * unit if dtype is torch.float32 else unit * 2**15
        assert ((found[known].double() - exact[known]).abs() <= bound).all()
        assert torch.signbit(found[known & (exact == 0)]).equal(torch.signbit(exact[known & (exact == 0)]))


@pytest.mark.parametrize("count", [1, 3, 4, 7, 8, 15, 16, 33])
def test_sines_of_equal_numbers_are_equal_wherever_they_stand(count: int, assert_kernels_same) -> None:
    x = torch.full((count,), 2.3)
    with torch.no_grad():
        sine = fxjit.compile(lambda x: x.sin() * x.cos(), backend="native", dynamic=False)(x)
    assert sine.unique().numel() == 1


def test_remainders_are_exact_however_far_apart_the_numbers_are() -> None:
    """Those of C's library; eager's vectors give NaN beyond some quotient."""
    generator = torch.Generator().manual_seed(0)
    bits = torch.randint(-(2**31), 2**31 - 1, (2, 100_000), dtype=torch.int32, generator=generator)
    inf, nan = float("inf"), float("nan")
    special = torch.tensor([0.0, -0.0, 1, -1, inf, -inf, nan, 3.4e38, -3.4e38, 1e-45, -1e-45, 2.0**24, 0.1])
    near = torch.randn(2, 20_000, generator=generator)
    a = torch.cat([bits[0].view(torch.float32), special.repeat_interleave(len(special)), near[0] * 9])
    b = torch.cat([bits[1].view(torch.float32), special.repeat(len(special)), near[1]])

    def ours(a, b):
        return torch.fmod(a, b) * 1, torch.remainder(a, b) * 1, torch.floor_divide(a, b) * 1

    fmod, remainder, floor = fxjit.compile(ours, fullgraph=True, dynamic=False)(a, b)
    with np.errstate(invalid="ignore"):
        exact = torch.from_numpy(np.fmod(a.numpy(), b.numpy()))
    turned = torch.where((exact != 0) & ((exact < 0) != (b < 0)), exact + b, exact)
    for found, true in ((fmod, exact), (remainder, turned), (floor, torch.floor_divide(a, b))):
        torch.testing.assert_close(found, true, rtol=0, atol=0, equal_nan=True)
        assert torch.equal(found.signbit()[~true.isnan()], true.signbit()[~true.isnan()])
