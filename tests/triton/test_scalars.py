"""Each scalar operation in Triton's words, run by the interpreter, against the torch function that says what it means."""

from __future__ import annotations

import math
from fractions import Fraction

import pytest
import torch

from fxjit.backends.native.codegen.triton import TritonKernel
from fxjit.backends.native.codegen.triton_ops import WORDS, NoWord
from fxjit.backends.native.codegen.triton_product import render
from fxjit.backends.native.hints import Hints
from fxjit.backends.native.ir import Buffer, Compute, Const, Expr, Load, Op, compute_type
from fxjit.backends.native.ops import SCALARS
from fxjit.backends.native.runtime.gpu import Variant, job_of
from fxjit.backends.native.runtime.interpreted import InterpretedKernel
from fxjit.backends.native.runtime.triton_compile import compiler
from fxjit.backends.native.schedule.fuse import Group, Member
from fxjit.backends.native.schedule.gpu import kernel_schedules
from fxjit.backends.native.spec import COMPARISONS

FLOATS = (torch.float32, torch.float64)
INTEGERS = (torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64)
# Signed zero, infinities, NaN, a denormal, halves that round to even, and numbers without anything special.
SPECIAL = [
    0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-42, 0.5, 1.5, 2.5, -0.5, -2.5, 1.0, -1.0, 3.0, -3.25, 88.0, 1e30,
]  # fmt: skip


def kernel_of(expr: Expr, inputs: list[torch.Tensor], dtype: torch.dtype) -> TritonKernel:
    count = inputs[0].numel()
    out = Buffer("out", dtype, (count,), (1,), "temp")
    group = Group((count,), [Member(Compute(out, (count,), (), expr, (1,)), ())])
    (schedule,) = kernel_schedules(group, frozenset(), Hints({}))
    return render(schedule, Hints({}))


def load(k: int, tensor: torch.Tensor) -> Load:
    return Load(f"in{k}", compute_type(tensor.dtype), tensor.dtype, (1,), 0)


def run(expr: Expr, inputs: list[torch.Tensor], dtype: torch.dtype) -> torch.Tensor:
    kernel, out = kernel_of(expr, inputs, dtype), torch.empty(inputs[0].numel(), dtype=dtype)
    given = {f"in{k}": tensor for k, tensor in enumerate(inputs)} | {"out": out}
    InterpretedKernel(kernel)(*(given[name] for name in kernel.buffers))
    return out


def operands(name: str, dtype: torch.dtype) -> list[torch.Tensor]:
    """All pairs of interesting values."""
    arity = SCALARS[name].arity
    if dtype is torch.bool:
        values = torch.tensor([False, True])
    elif dtype.is_floating_point:
        values = torch.tensor(SPECIAL, dtype=dtype)
    else:
        info = torch.iinfo(dtype)
        negative = [-1, -3] if info.min < 0 else []
        values = torch.tensor([0, 1, 2, 3, 5, 7, info.max, info.max - 1, info.min, *negative], dtype=dtype)
    if name == "where":
        pairs = torch.meshgrid(values, values, indexing="ij")
        a, b = (each.reshape(-1).contiguous() for each in pairs)
        return [torch.arange(a.numel()) % 2 == 0, a, b]
    pairs = [each.reshape(-1).contiguous() for each in torch.meshgrid(*[values] * arity, indexing="ij")]
    if name in ("floordiv", "truncdiv", "remainder", "fmod") and not dtype.is_floating_point:
        kept = pairs[1] != 0
        # The least integer by -1 does not fit: a processor traps, a GPU gives anything.
        kept &= ~((pairs[0] == torch.iinfo(dtype).min) & (pairs[1] == -1)) if torch.iinfo(dtype).min < 0 else kept
        pairs = [each[kept] for each in pairs]
    if name in ("fmod", "remainder") and dtype is torch.float32:
        # torch's own vector fmod is inexact for quotients beyond float32's whole numbers; C's and CUDA's are exact.
        kept = ~((pairs[0] / pairs[1]).abs() > 1e7) | pairs[0].isinf() | (pairs[1] == 0)
        pairs = [each[kept] for each in pairs]
    if name in ("shl", "shr"):
        kept = (pairs[1] >= 0) & (pairs[1] < 8 * dtype.itemsize)
        pairs = [each[kept] for each in pairs]
    return pairs


def fused(a: torch.Tensor, b: torch.Tensor, c: torch.Tensor) -> torch.Tensor:
    """a * b + c, rounded once (IEEE 754's fusedMultiplyAdd)."""
    results = a * b + c
    for k, (x, y, z) in enumerate(zip(a.tolist(), b.tolist(), c.tolist(), strict=True)):
        if math.isfinite(x) and math.isfinite(y):
            exact = Fraction(x) * Fraction(y) + Fraction(z) if math.isfinite(z) else None
            if exact is None:
                results[k] = z
            elif exact:
                near = torch.tensor(float(exact), dtype=a.dtype)  # float64's rounding and another may be one too many
                around = [near, *(torch.nextafter(near, torch.tensor(to, dtype=a.dtype)) for to in (-math.inf, math.inf))]
                finite = [each for each in around if each.isfinite()]
                results[k] = min(finite, key=lambda each: abs(Fraction(each.item()) - exact)) if near.isfinite() else near
    return results


def expected_of(name: str, given: list[torch.Tensor], actual: torch.Tensor) -> torch.Tensor:
    """What torch gives. Whether its `addcmul` rounds once or twice depends on how it was compiled, as it does for Triton's
    interpreter: both are right."""
    if name != "fma":
        return SCALARS[name].torch(*given)
    once, twice = fused(*given), given[0] * given[1] + given[2]
    return torch.where((actual == once) | (actual.isnan() & once.isnan()), once, twice)


NOT_OF_BOOLS = {"add", "sub", "mul", "neg", "abs", "maximum", "minimum", "lt", "le", "gt", "ge", "isnan"}


def has_word(name: str, dtype: torch.dtype) -> bool:
    word = WORDS[name]
    if dtype is torch.bool:
        return bool(word.bools) and name not in NOT_OF_BOOLS
    return bool(word.floats if dtype.is_floating_point else word.integers) and (dtype.is_floating_point or name != "isnan")


CASES = [
    (name, dtype)
    for name in SCALARS
    for dtype in (*FLOATS, *INTEGERS, torch.bool)
    if name in WORDS and has_word(name, dtype) and not (dtype is torch.float64 and name.startswith("round_to"))
]


def test_every_scalar_operation_has_words():
    assert set(WORDS) == set(SCALARS)
    for name, row in SCALARS.items():
        if name != "cast":
            assert WORDS[name].floats or not row.integers or WORDS[name].integers, name


def expression(name: str, given: list[torch.Tensor]) -> tuple[Op, torch.dtype]:
    dtype = torch.bool if name in COMPARISONS else given[-1].dtype
    return Op(name, tuple(load(k, each) for k, each in enumerate(given)), dtype), dtype


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name, dtype", CASES, ids=lambda each: str(each).removeprefix("torch."))
def test_operations(name, dtype):
    given = operands(name, dtype)
    expr, result = expression(name, given)
    actual = run(expr, given, result)
    expected = expected_of(name, given, actual)
    exact = SCALARS[name].cost < 16 and name not in ("rsqrt", "hypot", "sqrt")
    tolerance = dict(rtol=0, atol=0) if exact else dict(rtol=2e-6, atol=1e-7)
    torch.testing.assert_close(actual, expected.to(result), equal_nan=True, **tolerance)
    if dtype.is_floating_point and result is dtype and name not in ("maximum", "minimum"):
        zeros = (expected == 0) & (actual == 0)
        assert torch.equal(torch.signbit(actual[zeros]), torch.signbit(expected[zeros])), "the sign of zero"


CONVERSIONS = [(a, b) for a in (*FLOATS, torch.bool, torch.uint8, torch.int8, torch.int32, torch.int64)
               for b in (*FLOATS, *INTEGERS, torch.bool) if a is not b]  # fmt: skip


@pytest.mark.parametrize("source, target", CONVERSIONS, ids=lambda each: str(each).removeprefix("torch."))
def test_conversions(source, target):
    # What a conversion gives outside the target's range is not defined.
    values = [0, 1, 2, 3, 100] if source is torch.uint8 or target is torch.uint8 else [0, 1, -1, 3, -3, 100, -100]
    x = torch.tensor(values).to(source)
    if source.is_floating_point:
        x = x + torch.tensor(0.75 if target is torch.uint8 else 0.25, dtype=source)
    actual = run(Op("cast", (load(0, x),), target), [x], target)
    torch.testing.assert_close(actual, x.to(target), rtol=0, atol=0)


@pytest.mark.parametrize("storage", [torch.float16, torch.bfloat16], ids=str)
def test_halves_are_computed_in_float32_and_round_once(storage):
    """(a + b) * c: eager rounds the sum, a kernel only the result."""
    torch.manual_seed(0)
    a, b, c = (torch.randn(200).to(storage) for _ in range(3))
    expr = Op("mul", (Op("add", (load(0, a), load(1, b)), torch.float32), load(2, c)), torch.float32)
    actual = run(expr, [a, b, c], storage)
    assert torch.equal(actual, ((a.float() + b.float()) * c.float()).to(storage))


@pytest.mark.parametrize("value", [0.1, -0.0, float("inf"), float("nan"), 1e-300, 2.0**-149])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_constants_are_exact(value, dtype):
    x = torch.zeros(3, dtype=dtype)
    actual = run(Op("copysign", (Const(value, dtype), Const(value, dtype)), dtype), [x], dtype)
    expected = torch.full((3,), value, dtype=dtype)
    torch.testing.assert_close(actual, expected, rtol=0, atol=0, equal_nan=True)
    assert value != value or torch.equal(torch.signbit(actual), torch.signbit(expected))


def test_an_operation_without_a_word_for_a_type_says_so():
    x = torch.zeros(3, dtype=torch.int32)
    with pytest.raises(NoWord, match="sqrt of torch.int32"):
        kernel_of(Op("sqrt", (load(0, x),), torch.int32), [x], torch.int32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.int64, torch.uint8, torch.bool], ids=str)
def test_every_operation_compiles(dtype):
    """All of a type's operations in one kernel, as binaries for two generations of GPU."""
    names = [name for name, kind in CASES if kind is dtype]
    count = 64
    group_members, buffers = [], []
    for name in names:
        types = [torch.bool if name == "where" and k == 0 else dtype for k in range(SCALARS[name].arity)]
        given = [torch.zeros(count, dtype=kind) for kind in types]
        expr, result = expression(name, given)
        if name == "where":
            expr = Op("where", (Op("eq", (load(1, given[1]), load(2, given[2])), torch.bool), *expr.args[1:]), result)
        out = Buffer(f"out{len(buffers)}", result, (count,), (1,), "temp")
        buffers.append(out)
        group_members.append(Member(Compute(out, (count,), (), expr, (1,)), ()))
    group = Group((count,), group_members)
    (schedule,) = kernel_schedules(group, frozenset(), Hints({}))
    kernel = render(schedule, Hints({}))
    jobs = [compiler.submit(job_of(kernel, Variant(True, 0, False), kernel.configs[0], arch)) for arch in (80, 90)]
    assert all(len(job.result().code) > 1000 for job in jobs)
