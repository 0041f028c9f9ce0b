"""Every operator with a lowering, as a kernel, against eager: types, shapes, layouts, special values.

Each test compiles one graph in which many operators stand side by side, so that one run of the C++ compiler serves all.
"""

from __future__ import annotations

import platform

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit.backends.native.decompositions import table as decompositions
from fxjit.backends.native.ops import MATH

FLOATS = [torch.float32, torch.float64, torch.bfloat16, torch.float16]
INTS = [torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8]

UNARY = {
    "neg": torch.neg, "abs": torch.abs, "relu": torch.relu, "sigmoid": torch.sigmoid, "silu": F.silu, "square": torch.square,
    "reciprocal": torch.reciprocal, "sqrt": torch.sqrt, "rsqrt": torch.rsqrt, "sign": torch.sign, "relu6": F.relu6,
    "hardswish": F.hardswish, "hardsigmoid": F.hardsigmoid, "exp": torch.exp, "log": torch.log, "sin": torch.sin,
    "cos": torch.cos,
    "tan": torch.tan, "asin": torch.asin, "acos": torch.acos, "atan": torch.atan, "sinh": torch.sinh, "cosh": torch.cosh,
    "tanh": torch.tanh, "asinh": torch.asinh, "acosh": torch.acosh, "atanh": torch.atanh, "exp2": torch.exp2,
    "expm1": torch.expm1,
    "log2": torch.log2, "log10": torch.log10, "log1p": torch.log1p, "erf": torch.erf, "erfc": torch.erfc,
    "lgamma": torch.lgamma,
    "floor": torch.floor, "ceil": torch.ceil, "trunc": torch.trunc, "round": torch.round, "gelu": F.gelu,
    "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "leaky_relu": F.leaky_relu, "elu": F.elu, "hardtanh": F.hardtanh,
    "softplus": F.softplus, "threshold": lambda x: F.threshold(x, 0.5, 2.0), "clamp": lambda x: x.clamp(-0.5, 0.7),
    "clamp_min": lambda x: x.clamp(min=0.1), "clamp_max": lambda x: x.clamp(max=0.1), "isnan": torch.isnan,
    "isinf": torch.isinf,
    "isposinf": torch.isposinf,
    "isneginf": torch.isneginf,
    "isfinite": torch.isfinite, "logical_not": torch.logical_not, "pow2": lambda x: x**2, "pow3": lambda x: x**3,
    "pow.5": lambda x: x**0.5, "pow-1": lambda x: x**-1, "pow-2": lambda x: x**-2, "pow1.7": lambda x: x**1.7,
    "2**x": lambda x: 2.0**x, "add": lambda x: x + 1.5, "rsub": lambda x: 2 - x, "mul": lambda x: x * 0.1,
    "div": lambda x: x / 3,
    "floordiv": lambda x: torch.floor_divide(x, 0.3), "truncdiv": lambda x: torch.div(x, 0.3, rounding_mode="trunc"),
    "remainder": lambda x: x % 0.7, "fmod": lambda x: torch.fmod(x, 0.7), "deg2rad": torch.deg2rad,
}  # fmt: skip
# Defined by a jump that half precision meets elsewhere than float32 does.
ROUGH_IN_HALF = {"floordiv", "truncdiv", "remainder", "fmod"}


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_unary_of_floats(kernels, assert_same, dtype):
    torch.manual_seed(0)
    special = torch.tensor([0.0, -0.0, 1.0, -1.0, float("inf"), -float("inf"), float("nan"), 0.5, -0.5, 1e-3, 3.0, -3.0, 20.5])
    x = torch.cat([special, torch.randn(87) * 3]).to(dtype)
    names = [name for name in UNARY if dtype.itemsize > 2 or name not in ROUGH_IN_HALF]
    compiled = kernels(lambda x: [UNARY[name](x) for name in names], x)
    # oneDNN's gelu makes NaN of infinity; ours is the formula's.
    finite = x.isfinite()
    for name, actual in zip(names, compiled(x)):
        expected = UNARY[name](x)
        assert_same(actual[finite] if name == "gelu" else actual, expected[finite] if name == "gelu" else expected, name)


def test_signed_zeros_and_nan_are_eagers(kernels):
    x = torch.tensor([0.0, -0.0, float("nan"), 1.0, -1.0])
    y = torch.tensor([-0.0, 0.0, 1.0, float("nan"), -0.0])
    functions = [torch.relu, torch.neg, torch.abs, lambda x: x.clamp(min=0.0), lambda x: x * 0.0, torch.floor, torch.sign]
    binaries = [torch.maximum, torch.minimum, torch.add, torch.mul, torch.copysign]
    compiled = kernels(lambda x, y: [f(x) for f in functions] + [f(x, y) for f in binaries], x, y)
    for actual, expected in zip(compiled(x, y), [f(x) for f in functions] + [f(x, y) for f in binaries]):
        assert torch.equal(actual.isnan(), expected.isnan())
        finite = ~expected.isnan()
        assert torch.equal(actual[finite], expected[finite])
        assert torch.equal(actual[finite].signbit(), expected[finite].signbit())


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_derivatives_at_nan_and_infinity(kernels, assert_same, dtype):
    """ATen's vector code and what it does with the last few elements may differ at NaN: so there are many of each number."""
    aten = torch.ops.aten
    numbers = torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, -0.0, 0.25, -0.25, 6.0, -6.0])
    x, y = numbers.repeat_interleave(64 * 9).to(dtype), numbers.repeat(64).repeat(9).to(dtype)

    def function(grad, x, y):
        return [
            aten.hardtanh_backward(grad, x, -0.5, 0.5), aten.hardswish_backward(grad, x),
            aten.hardsigmoid_backward(grad, x), aten.hardsigmoid_backward(y, x * 12),
            aten.elu_backward(grad, 0.5, 1.25, 2.0, False, x), aten.elu_backward(grad, 0.5, 1.25, 2.0, True, x),
            aten.smooth_l1_loss_backward(grad, x, y, 0, 0.25), aten.smooth_l1_loss_backward(grad, x, y, 1, 1.0),
        ]  # fmt: skip

    given = (torch.full_like(x, 0.75), x, y)
    compiled = kernels(function, *given, decompositions=decompositions())
    for k, (actual, expected) in enumerate(zip(compiled(*given), function(*given))):
        assert_same(actual, expected, str(k))


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_numbers_are_what_a_half_type_holds_of_them(kernels, dtype):
    """A comparison, a bound or a filling sees the number rounded; so does what is computed from it in float32."""
    x = torch.tensor([0.1, 0.0, -0.1, 1e-12, 0.3, float("inf")]).to(dtype)

    def function(x):
        return [
            x == 0.1, x >= 0.3, x > 0.1, x / x.clamp_min(1e-12), torch.where(x > 0, x, 0.7).float(),
            x.masked_fill(x > 0, 0.7).float(), torch.full((3,), 0.1, dtype=dtype).float() * 3,
            F.threshold(x, 0.1, 0.7).float(), x.clamp(max=0.7).float(),
        ]  # fmt: skip

    for actual, expected in zip(kernels(function, x)(x), function(x)):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_what_a_half_type_adds_is_rounded_what_it_multiplies_is_not(kernels, dtype):
    """ATen's kernels differ in whether they see all of a number; what a tensor of another type holds is always converted."""
    x = torch.tensor([-0.5, 1.0078125, -0.2177734375, 0.30078125, 3.0, 88.0]).to(dtype)
    number, whole = torch.tensor(0.3), torch.tensor([257, 1025, 2049, 3, 259, 4097])

    def function(x, number, whole):
        return [
            x + 0.3, x - 0.3, torch.rsub(x, 0.3), torch.add(x, x, alpha=0.3), x % 0.3, torch.fmod(x, -0.7), x * 0.3, x / 0.3,
            x.abs() ** 0.3, 0.3**x, x + number, x * number, x == number, x % number, x.abs() ** number, x * whole, whole - x,
            torch.logit(x, 0.3), torch.logit(x, 1e-4), F.softshrink(x, 0.3),
        ]  # fmt: skip

    compiled = kernels(function, x, number, whole, decompositions=decompositions())
    for k, (actual, expected) in enumerate(zip(compiled(x, number, whole), function(x, number, whole))):
        torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True, msg=lambda text: f"{k}: {text}")


def test_no_contraction_of_products_and_sums(kernels):
    """With fused multiply-add a*a - b*b of equal operands is a rounding error, whose root is NaN."""
    x = torch.rand(1000)
    compiled = kernels(lambda x, y: torch.sqrt(x * x - y * y), x, x.clone())
    assert torch.equal(compiled(x, x.clone()), torch.zeros(1000))


@pytest.mark.parametrize("flags", ["", *(["-mno-avx512f", "-mno-avx"] if platform.machine() == "x86_64" else [])])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
def test_a_function_of_equal_numbers_is_equal_wherever_they_stand(kernels, assert_same, dtype, flags):
    """At each place of a vector, and in what is left over at a loop's end. libmvec's forms differ in the last bit, from each
    other and from libm's; programs look results up by `==`, and `unique` counts them."""
    functions = [getattr(torch, name) for name in MATH if name not in ("pow", "atan2", "hypot", "acosh")]
    functions += [lambda x: torch.acosh(x + 1), lambda x: torch.pow(1.3, x), lambda x: torch.atan2(x, x + 1),
                  lambda x: torch.hypot(x, x + 1)]
    if dtype is torch.float64:  # the others are ATen's (lower/functions.py)
        functions = [torch.exp, torch.sigmoid]

    def f(x):
        return [function(x) for function in functions]

    one, many = torch.full((1,), 0.7307, dtype=dtype), torch.full((61,), 0.7307, dtype=dtype)
    with fxjit.config.patch({"cpp.extra_flags": flags}):
        alone, together = kernels(f, one)(one), kernels(f, many)(many)
    for function, first, actual, expected in zip(functions, alone, together, f(many)):
        name = getattr(function, "__name__", "")
        assert_same(actual, expected, name)
        assert torch.equal(actual, first.expand(61)), name


BINARY = {
    "add": torch.add, "sub": torch.sub, "mul": torch.mul, "alpha": lambda a, b: torch.add(a, b, alpha=2),
    "maximum": torch.maximum,
    "minimum": torch.minimum, "eq": torch.eq, "ne": torch.ne, "lt": torch.lt, "le": torch.le, "gt": torch.gt, "ge": torch.ge,
    "where": lambda a, b: torch.where(a > b, a, b), "div": torch.div, "logical_and": torch.logical_and,
    "logical_or": torch.logical_or,
    "logical_xor": torch.logical_xor, "masked_fill": lambda a, b: a.masked_fill(b > 0, 2), "rsub": torch.rsub,
}  # fmt: skip
FLOAT_BINARY = {
    "atan2": torch.atan2, "hypot": torch.hypot, "pow": torch.pow, "remainder": torch.remainder, "fmod": torch.fmod,
    "floordiv": torch.floor_divide, "copysign": torch.copysign, "lerp": lambda a, b: torch.lerp(a, b, 0.3),
    "addcmul": lambda a, b: torch.addcmul(a, a, b, value=0.5), "addcdiv": lambda a, b: torch.addcdiv(a, a, b, value=0.5),
}  # fmt: skip
BITWISE = {"and": torch.bitwise_and, "or": torch.bitwise_or, "xor": torch.bitwise_xor}


def values(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    if dtype is torch.bool:
        return torch.rand(shape) > 0.5
    if dtype.is_floating_point:
        return (torch.randn(shape) * 2).to(dtype)
    low = 0 if dtype is torch.uint8 else -20
    return torch.randint(low, 20, shape, dtype=dtype)


@pytest.mark.parametrize("dtype", FLOATS + INTS, ids=str)
def test_binary(kernels, assert_same, dtype):
    torch.manual_seed(1)
    a, b = values(dtype, 4, 25), values(dtype, 4, 25)
    table = dict(BINARY)
    if dtype.is_floating_point:
        table.update({name: f for name, f in FLOAT_BINARY.items() if dtype.itemsize > 2 or name not in ROUGH_IN_HALF})
    else:
        table.update(BITWISE)
        table.pop("div")
        table["floordiv"] = lambda a, b: torch.floor_divide(a, 3)
        table["truncdiv"] = lambda a, b: torch.div(a, 3, rounding_mode="trunc")
        table["remainder"] = lambda a, b: torch.remainder(a, 3)
        table["fmod"] = lambda a, b: torch.fmod(a, 3)
        table["true division"] = lambda a, b: a / (b * b + 1)
    compiled = kernels(lambda a, b: [f(a, b) for f in table.values()], a, b)
    for name, actual in zip(table, compiled(a, b)):
        assert_same(actual, table[name](a, b), name)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_truncated_quotients_of_half_types_are_rounded_first_between_tensors(kernels, assert_same, dtype):
    a, b = (torch.arange(120.0) * 41).reshape(3, 40).to(dtype), torch.full((40,), 2.75).to(dtype)
    divisors = [lambda b: b, lambda b: b[:1], lambda b: b[0], lambda b: 2.75]

    def cut(a, b):
        return [torch.div(a, divisor(b), rounding_mode="trunc") for divisor in divisors]

    for actual, expected in zip(kernels(cut, a, b)(a, b), cut(a, b), strict=True):
        assert_same(actual, expected)


def test_half_powers_of_float16_are_positive(kernels, assert_same):
    x = torch.tensor([-0.0, 0.0, -torch.inf, torch.inf, torch.nan, 2.0, -2.0], dtype=torch.float16)

    def powers(x):
        return [x**0.5, x**-0.5, torch.pow(x, torch.tensor(0.5))]

    for actual, expected in zip(kernels(powers, x)(x), powers(x), strict=True):
        assert_same(actual, expected)
        assert torch.equal(actual.signbit() & ~actual.isnan(), expected.signbit() & ~expected.isnan())


def test_bools(kernels, assert_same):
    a, b = values(torch.bool, 50), values(torch.bool, 50)
    table = [
        torch.add,
        torch.mul,
        torch.bitwise_and,
        torch.bitwise_or,
        torch.bitwise_xor,
        torch.logical_xor,
        torch.eq,
        torch.maximum,
    ]
    compiled = kernels(
        lambda a, b: [f(a, b) for f in table] + [~a, a.float() - 1, a.any(), a.all(), a.sum(), a + 1, a * 0.5], a, b
    )
    for actual, expected in zip(
        compiled(a, b), [f(a, b) for f in table] + [~a, a.float() - 1, a.any(), a.all(), a.sum(), a + 1, a * 0.5]
    ):
        assert_same(actual, expected)


@pytest.mark.parametrize("source", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.bool, *INTS], ids=str)
def test_conversions(kernels, assert_same, source):
    torch.manual_seed(2)
    x = values(source, 40)
    targets = [
        torch.float32,
        torch.float64,
        torch.bfloat16,
        torch.float16,
        torch.bool,
        torch.int64,
        torch.int32,
        torch.int16,
        torch.int8,
    ]
    if source is not torch.bool and not source.is_floating_point or source is torch.bool:
        targets.append(torch.uint8)
    compiled = kernels(lambda x: [x.to(target).clone() if target is source else x.to(target) for target in targets], x)
    for target, actual in zip(targets, compiled(x)):
        assert_same(actual, x.to(target), str(target))


def test_mixed_types_promote_as_in_eager(kernels, assert_same):
    f, d, i, b, h = torch.randn(6), torch.randn(6).double(), torch.arange(6), torch.rand(6) > 0.5, torch.randn(6).bfloat16()
    s = torch.tensor(2.5, dtype=torch.float64)

    def mixed(f, d, i, b, h, s):
        return [
            f + d,
            f * i,
            f - b.float(),
            h + f,
            h * 2.3,
            i / 2,
            i * s,
            f * s,
            f > i,
            i == b,
            h < d,
            torch.where(b, f, i),
            torch.where(b, h, 1.0),
            b + i,
            i + 2.5,
        ]

    compiled = kernels(mixed, f, d, i, b, h, s)
    for actual, expected in zip(compiled(f, d, i, b, h, s), mixed(f, d, i, b, h, s)):
        assert_same(actual, expected)


SHAPES = [(), (1,), (7,), (0,), (3, 0), (1, 1), (5, 1, 3), (2, 3, 4, 5), (33, 65)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_shapes(kernels, assert_same, shape):
    torch.manual_seed(3)
    x = torch.randn(shape)

    def function(x):
        return [x.exp() + 1, x.sum(), (x * 2).mean(), x.relu().reshape(-1), x.unsqueeze(0) + 1, x.flatten() * 2]

    compiled = kernels(function, x)
    for actual, expected in zip(compiled(x), function(x)):
        assert_same(actual, expected, str(shape))


@pytest.mark.parametrize("mode", ["fake", "symbolic"])
def test_nothing_is_read_where_there_is_nothing(assert_kernels_same, mode):
    """Values that do not depend on a loop are read ahead of it, and an empty tensor has no memory to read from."""
    x, y, z = torch.randn(0, 3), torch.randn(3, 0), torch.randn(4, 5)

    def function(x, y, z):
        tail = z[: z.shape[0] // 5]
        return [
            x.expand(2, 0, 3) + x[:, :1], y + y.sum(1, keepdim=True), (y * z[:3, :1]).sum(1), x.sum(0), x[:, 0] + x[:, 1],
            tail * 2 + tail[:, :1], (tail + z[0]).sum(0), (tail * 2).sum(1), y.amax(0), torch.softmax(x, 1),
        ]  # fmt: skip

    assert_kernels_same(function, x, y, z, mode=mode)


LAYOUTS = {
    "transposed": lambda x: x.transpose(0, 1), "strided": lambda x: x[:, ::2], "offset": lambda x: x[1:, 1:],
    "expanded": lambda x: x[:1].expand(6, 8),
    "reversed dims": lambda x: x.T.contiguous().T, "single column": lambda x: x[:, 3:4], "row": lambda x: x[2],
}  # fmt: skip


@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_layouts(kernels, assert_same, layout):
    torch.manual_seed(4)
    x = LAYOUTS[layout](torch.randn(6, 8))

    def function(x):
        return [
            x + 1,
            x.exp() * x,
            x.sum(-1),
            x.sum(0),
            x.amax(-1, keepdim=True),
            torch.softmax(x, -1),
            x.contiguous() * 2,
            x.clone(),
        ]

    compiled = kernels(function, x)
    for actual, expected in zip(compiled(x), function(x)):
        assert_same(actual, expected, layout)


def test_channels_last(assert_kernels_same):
    x = torch.randn(2, 3, 5, 4).to(memory_format=torch.channels_last)
    bias = torch.randn(3, 1, 1)

    def function(x, bias):
        return [(x + bias).relu(), x.sum((0, 2, 3)), x.mean((2, 3)), (x * 2).contiguous()]

    assert_kernels_same(function, x, bias)


def test_broadcasting(assert_kernels_same):
    a, b, c, d = torch.randn(4, 1, 5), torch.randn(3, 1), torch.randn(5), torch.tensor(2.0)

    def function(a, b, c, d):
        return [a + b, a * c - d, (a + b + c).sum(1), torch.where(c > 0, a, b), a.expand(4, 3, 5) * b, d * d]

    assert_kernels_same(function, a, b, c, d)


REDUCTIONS = {
    "sum": lambda x, d, k: x.sum(d, keepdim=k), "mean": lambda x, d, k: x.mean(d, keepdim=k), "amax": lambda x, d,
    k: x.amax(d, keepdim=k),
    "amin": lambda x, d, k: x.amin(d, keepdim=k), "var": lambda x, d, k: x.var(d, keepdim=k), "std": lambda x, d,
    k: x.std(d, keepdim=k, correction=0),
    "var_mean": lambda x, d, k: torch.var_mean(x, d, keepdim=k)[0], "logsumexp": lambda x, d, k: x.logsumexp(d, keepdim=k),
    "any": lambda x, d, k: (x > 1).any(d[0], keepdim=k), "all": lambda x, d, k: (x > -1).all(d[0], keepdim=k),
    "prod": lambda x, d, k: x.prod(d[0], keepdim=k),
}  # fmt: skip


# Each choice of dimensions in one type or two, each type along memory, across it, over several dimensions and over all.
@pytest.mark.parametrize("dtype,dims", [
    *((torch.float32, dims) for dims in [(0,), (2,), (0, 2), (0, 1, 2)]),
    *((torch.float64, dims) for dims in [(1,), (1, 2), (0, 1, 2)]),
    *((torch.bfloat16, dims) for dims in [(0,), (2,), (0, 1), (0, 1, 2)])], ids=str)  # fmt: skip
def test_reductions(kernels, assert_same, dims, dtype):
    torch.manual_seed(5)
    x = torch.randn(5, 6, 7).to(dtype)
    cases = [(name, keep) for name in REDUCTIONS for keep in (False, True)]
    compiled = kernels(lambda x: [REDUCTIONS[name](x, dims, keep) for name, keep in cases], x)
    for (name, keep), actual in zip(cases, compiled(x)):
        assert_same(actual, REDUCTIONS[name](x, dims, keep), f"{name} keepdim={keep}")


@pytest.mark.parametrize("shape", [(100_000,), (3, 40_000), (40_000, 3), (2000, 100), (70, 3, 700)], ids=str)
def test_long_reductions(assert_kernels_same, shape):
    torch.manual_seed(6)
    x = torch.rand(shape) + 0.5

    def function(x):
        return [
            x.sum(),
            x.sum(0),
            x.sum(-1),
            (x * x).mean(),
            x.amax(),
            x.amin(0),
            (x > 0.7).all(),
            x.var(),
            x.double().sum(),
            (x + 1).amax(-1),
        ]

    assert_kernels_same(function, x)


def test_integer_sums_do_not_overflow(kernels, assert_same):
    x = torch.full((1000,), 120, dtype=torch.int8)
    compiled = kernels(lambda x: [x.sum(), x.sum(dtype=torch.int8), (x > 0).sum(), x.amax(), x.prod()], x)
    for actual, expected in zip(compiled(x), [x.sum(), x.sum(dtype=torch.int8), (x > 0).sum(), x.amax(), x.prod()]):
        assert_same(actual, expected)


def test_nan_wins_in_extremes(kernels, assert_same):
    x = torch.randn(50, 60)
    x[3, 7] = float("nan")
    x[40, 0] = float("nan")
    for actual, expected in zip(
        kernels(lambda x: [x.amax(1), x.amin(0), x.amax(), torch.softmax(x, 1)], x)(x),
        [x.amax(1), x.amin(0), x.amax(), torch.softmax(x, 1)],
    ):
        assert_same(actual, expected)


SOFTMAX = {
    "softmax": torch.softmax, "log_softmax": torch.log_softmax,
    "masked": lambda x, d: torch.softmax(x.masked_fill(x > 0.5, -float("inf")), d),
}  # fmt: skip


# Each type across memory and along it; a dimension counted from the end in one of them.
@pytest.mark.parametrize("dtype,dim", [*((torch.float32, dim) for dim in (0, 1, 2)),
                                       *((torch.bfloat16, dim) for dim in (0, 1, -1))], ids=str)
def test_softmax(kernels, assert_same, dim, dtype):
    x = (torch.randn(9, 10, 130) * 3).to(dtype)
    for (name, f), actual in zip(SOFTMAX.items(), kernels(lambda x: [f(x, dim) for f in SOFTMAX.values()], x)(x)):
        assert_same(actual, f(x, dim), name)


@pytest.mark.parametrize("shape,dims", [((3, 1), 1), ((1, 1), None), ((2, 1, 1), (1, 2)), ((1, 3), 1)])
@pytest.mark.parametrize("size", [1e-40, 1e-25, 1e25, 3.0])
def test_norms_whose_squares_leave_the_type(assert_kernels_same, shape, dims, size):
    """That of one number is its size."""

    def function(x):
        return [torch.linalg.vector_norm(x, 2, dims), torch.linalg.vector_norm(x, 1, dims, keepdim=True)]

    assert_kernels_same(function, torch.full(shape, -size))


def test_normalisations(assert_kernels_same):
    torch.manual_seed(7)
    x, w, b, g = torch.randn(6, 8, 16), torch.randn(16), torch.randn(16), torch.randn(4, 8, 5, 5)
    cw, cb, rm, rv = torch.randn(8), torch.randn(8), torch.randn(8), torch.rand(8) + 0.1

    def function(x, w, b, g, cw, cb, rm, rv):
        return [
            F.layer_norm(x, (16,), w, b), F.layer_norm(x, (16,)), F.layer_norm(x, (8, 16)), F.rms_norm(x, (16,), w),
            F.group_norm(g, 4, cw, cb), F.group_norm(g, 1), F.batch_norm(g, rm, rv, cw, cb), F.batch_norm(g, rm, rv),
            F.instance_norm(g),
            torch.native_layer_norm(x, (16,), w, b, 1e-5)[2],
        ]  # fmt: skip

    inputs = (x, w, b, g, cw, cb, rm, rv)
    assert_kernels_same(function, *inputs, scale=4)


def test_views_are_followed_by_index_arithmetic(assert_kernels_same):
    x = torch.randn(4, 6, 8)

    def function(x):
        y = x.exp()
        return [
            y.view(24, 8) + 1, y.permute(2, 0, 1) * 2, y[1:3] + 1, y[:, -1] * 2, y[..., ::3] + 1, y.reshape(4, 48).sum(1),
            y.transpose(0, 2).reshape(-1) + 1,
            y.unsqueeze(1).expand(4, 5, 6, 8) * 2, y[:, :1].squeeze(1) + 1, y.flip(0, 2) + 1, y.diagonal(0, 0, 1) * 2,
            y.repeat(1, 1, 1) + 1, y.T if False else y.mT + 1,
            *[piece + 1 for piece in y.split(2, 1)], *[piece * 2 for piece in y.unbind(0)],
            *[piece + 3 for piece in y.chunk(3, -1)], y.unfold(2, 3, 2) + 1,
        ]  # fmt: skip

    assert_kernels_same(function, x)


def test_putting_together(assert_kernels_same):
    a, b = torch.randn(3, 4), torch.randn(3, 4)

    def function(a, b):
        return [
            torch.cat([a + 1, b * 2]), torch.cat([a, b.exp(), a], 1), torch.stack([a, b + 1]), F.pad(a, (1, 2)),
            F.pad(a + 1, (1, 0, 2, 3), value=5.0),
            F.pad(a, (-1, 2, 0, -1)), torch.cat([a.half(), b]), torch.slice_scatter(a + 0, b[:, :2], 1, 1, 3),
            torch.select_scatter(a, b[0], 0, 1),
            torch.cat([a, b]).relu().sum(0), torch.hstack([a, b]).exp(),
        ]  # fmt: skip

    assert_kernels_same(function, a, b)


def test_made_of_nothing(assert_kernels_same):
    x = torch.randn(5, 5)

    def function(x):
        return [
            torch.arange(7) * 2, torch.arange(2, 12, 3) + x.new_zeros(4), torch.full((3,), 2.5) + 1,
            torch.zeros(2, 2) + x[0, 0], torch.ones_like(x) * x, x.tril(),
            x.triu(1) + 1, torch.eye(5) * x, x + torch.tensor(3.0), torch.arange(5.0) + x,
            torch.zeros_like(x, dtype=torch.int64),
        ]  # fmt: skip

    assert_kernels_same(function, x)


def test_reads_at_computed_places(assert_kernels_same):
    table, index, x = torch.randn(10, 6), torch.randint(0, 10, (4, 3)), torch.randn(5, 7)
    rows, columns, along = torch.tensor([0, -1, 3]), torch.tensor([1, 2, -3]), torch.randint(0, 7, (5, 2))

    def function(table, index, x, rows, columns, along):
        return [
            F.embedding(index, table) * 2, x[rows] + 1, x[:, columns] + 1, x[rows, columns] * 2,
            x[rows[:, None], columns] + 1, x.gather(1, along) + 1,
            x.index_select(0, rows.abs()) + 1, table[index].sum(-1), x[rows].exp().sum(), (x + 1)[columns.abs()],
        ]  # fmt: skip

    inputs = (table, index, x, rows, columns, along)
    assert_kernels_same(function, *inputs)


def test_an_index_out_of_bounds_raises(kernels):
    table, good, bad = torch.randn(10, 6), torch.tensor([1, 2]), torch.tensor([1, 10])
    compiled = kernels(lambda t, i: F.embedding(i, t) * 2, table, good)
    compiled(table, good)
    with pytest.raises(IndexError, match="index out of range"):
        compiled(table, bad)
    with pytest.raises(IndexError):
        compiled(table, torch.tensor([0, -1]))
    indexed = kernels(lambda x, i: x[i] * 2, table, good)
    assert torch.equal(indexed(table, torch.tensor([-10, 9])), table[[0, 9]] * 2)
    with pytest.raises(IndexError):
        indexed(table, torch.tensor([-11, 0]))


@pytest.mark.parametrize("reduce", [lambda x: x.sum(1), lambda x: x.amax(0), lambda x: x.mean(-1), lambda x: x.cumsum(1)],
                         ids=["columns", "columns of columns", "rows", "a scan"])
def test_an_index_out_of_bounds_of_what_is_reduced_raises(kernels, reduce):
    """Wherever it is; the check is in front of the loop over a row."""
    table, good = torch.randn(10, 70), torch.randint(10, (5, 6))
    compiled = kernels(lambda t, i: reduce(F.embedding(i, t)), table, good)
    torch.testing.assert_close(compiled(table, good), reduce(table[good]))
    for at in (0, 17, 29):
        for wrong in (10, -1, 2**62):
            bad = good.clone()
            bad.view(-1)[at] = wrong
            with pytest.raises(IndexError):
                compiled(table, bad)


BACKWARDS = {
    "relu": torch.relu, "gelu": F.gelu, "gelu_tanh": lambda x: F.gelu(x, approximate="tanh"), "silu": F.silu,
    "sigmoid": torch.sigmoid, "tanh": torch.tanh,
    "softmax": lambda x: torch.softmax(x, -1), "log_softmax": lambda x: torch.log_softmax(x, 0),
    "layer_norm": lambda x: F.layer_norm(x, (12,)),
    "leaky_relu": F.leaky_relu, "hardtanh": F.hardtanh, "elu": F.elu, "softplus": F.softplus, "hardswish": F.hardswish,
    "mish": F.mish,
    "smooth_l1": lambda x: F.smooth_l1_loss(x, x.detach() * 0.5), "huber": lambda x: F.huber_loss(x, x.detach() * 2),
    "mse": lambda x: F.mse_loss(x, x.detach() + 1),
    "bce": lambda x: F.binary_cross_entropy_with_logits(x, (x.detach() > 0).float()), "glu": lambda x: F.glu(x, -1),
    "var": lambda x: x.var(0),
    "logsigmoid": F.logsigmoid, "hardsigmoid": F.hardsigmoid, "norm": lambda x: x.norm(dim=1), "prod": lambda x: x.prod(1),
    "cumsum": lambda x: x.cumsum(1),
}  # fmt: skip


def test_derivatives(kernels, assert_same):
    torch.manual_seed(8)
    x = torch.randn(6, 12)

    def function(x):
        grads = []
        for f in BACKWARDS.values():
            leaf = x.detach().requires_grad_()
            grads += torch.autograd.grad((f(leaf) * 1.5).sum(), leaf)
        return grads

    for name, actual, expected in zip(BACKWARDS, kernels(function, x)(x), function(x)):
        assert_same(actual, expected, name, scale=4)


def test_max_pooling(assert_kernels_same):
    x = torch.randn(2, 3, 9, 8)
    x[0, 0, 3, 3] = float("nan")
    x[0, 1, 2:4, 2:4] = 1.0

    def function(x):
        cases = [
            F.max_pool2d(x, 2, return_indices=True),
            F.max_pool2d(x + 1, 3, 1, return_indices=True),
            F.max_pool2d(x, (1, 2), return_indices=True),
            F.max_pool2d(x, 3, 2, 1, return_indices=True),
            F.max_pool2d(x * 0 - float("inf"), 3, 2, 1, return_indices=True),
        ]
        return [each for case in cases for each in case] + [F.max_pool2d(x, 3, 2, 1, ceil_mode=True), F.max_pool2d(x, 5, 1, 2)]

    assert_kernels_same(function, x)


def test_booleans_are_bytes_in_memory():
    """What holds a mask is read as eager reads it, whatever the bytes are, and in vectors."""
    mask, x = torch.randint(0, 3, (70, 50), dtype=torch.uint8).view(torch.bool), torch.randn(70, 50)

    def function(mask, x):
        return mask.float() * x, mask.int().sum(0), (x * mask).sum(0), mask & True, ~mask, torch.where(mask, x, 0.0), mask.sum()

    for got, wanted in zip(fxjit.compile(function)(mask, x), function(mask, x), strict=True):
        torch.testing.assert_close(got, wanted)


def test_numbers_in_kernels_are_rounded_as_scalars_of_aten_are(kernels):
    """To the nearest float, ties to even; infinite where none is near; subnormal numbers, zeros and their signs stay."""
    numbers = (0.1, 1 / 3, 1 + 2**-24, 1 + 3 * 2**-24, 3.4028235677973366e38, -3.5e38, 1e300, 1e-40, -1e-46, -0.0)

    def function(x):
        return [x * 0 + number for number in numbers]

    x = torch.tensor([-1.0, 0.5, 2.0, -0.0])
    for actual, expected in zip(kernels(function, x)(x), function(x)):
        assert torch.equal(actual.view(torch.int32), expected.view(torch.int32))
