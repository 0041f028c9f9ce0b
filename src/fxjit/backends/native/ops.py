"""The scalar operations that kernels are made of, with what each means.

Every interpreter of the IR implements each row: `cpp` here is the C++ text, `torch` the reference interpreter's
function; a test requires both, and that they agree. Arguments have the type of the result except where noted in
`ir.Op.dtype` users: comparisons take two operands of one type and give bool, `where` takes (bool, a, b).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

from .ir import Const, Expr, Load, Op, walk


@dataclass(frozen=True, slots=True)
class Scalar:
    """One scalar operation. `cpp` has {0}, {1}, .. for operands, {f} for the f of float functions, {t} for the type."""

    name: str
    arity: int
    cpp: str
    torch: Callable[..., Any]
    cost: int = 1
    vector: bool = True
    integers: bool = True


SCALARS: dict[str, Scalar] = {}
# Functions of libm that kernels declare themselves; True where libmvec of glibc 2.22 has a vector form, False from 2.35 on.
MATH = {
    "exp": True, "log": True, "sin": True, "cos": True, "pow": True,
    "tan": False, "asin": False, "acos": False, "atan": False, "sinh": False, "cosh": False, "tanh": False,
    "asinh": False, "acosh": False, "atanh": False, "exp2": False, "expm1": False, "log2": False, "log10": False,
    "log1p": False, "erf": False, "erfc": False, "atan2": False, "hypot": False,
}  # fmt: skip
MATH_OF_TWO = ("pow", "atan2", "hypot")
NOT_VECTOR_MATH = ("fmod", "lgamma")


def scalar(
    name: str, arity: int, cpp: str, function: Callable[..., Any], cost: int = 1, vector: bool = True, integers: bool = True
) -> None:
    if name in SCALARS:
        raise ValueError(f"scalar operation {name} is defined twice")
    SCALARS[name] = Scalar(name, arity, cpp, function, cost, vector, integers)


scalar("cast", 1, "", lambda x: x)
scalar("round_to_half", 1, "fx_round_half({0})", lambda x: x.to(torch.float16).to(torch.float32), integers=False)
scalar("round_to_bfloat16", 1, "fx_widen(fx_bfloat({0}))", lambda x: x.to(torch.bfloat16).to(torch.float32), integers=False)
scalar("add", 2, "({t})({0} + {1})", torch.add)
scalar("sub", 2, "({t})({0} - {1})", torch.sub)
scalar("mul", 2, "({t})({0} * {1})", torch.mul)
scalar("div", 2, "({0} / {1})", torch.div, cost=4, integers=False)
scalar("fma", 3, "fx_fma({0}, {1}, {2})", lambda a, b, c: torch.addcmul(c, a, b), cost=2, integers=False)
scalar("neg", 1, "({t})(-{0})", torch.neg)
scalar("abs", 1, "fx_abs({0})", torch.abs)
scalar("maximum", 2, "fx_max({0}, {1})", torch.maximum)
scalar("minimum", 2, "fx_min({0}, {1})", torch.minimum)
scalar("floordiv", 2, "fx_floordiv({0}, {1})", lambda a, b: torch.div(a, b, rounding_mode="floor"), cost=6)
scalar("truncdiv", 2, "fx_truncdiv({0}, {1})", lambda a, b: torch.div(a, b, rounding_mode="trunc"), cost=6)
scalar("remainder", 2, "fx_mod({0}, {1})", torch.remainder, cost=8)
scalar("fmod", 2, "fx_fmod({0}, {1})", torch.fmod, cost=8)
scalar("copysign", 2, "__builtin_copysign{f}({0}, {1})", torch.copysign, integers=False)

scalar("eq", 2, "({0} == {1})", torch.eq)
scalar("ne", 2, "({0} != {1})", torch.ne)
scalar("lt", 2, "({0} < {1})", torch.lt)
scalar("le", 2, "({0} <= {1})", torch.le)
scalar("gt", 2, "({0} > {1})", torch.gt)
scalar("ge", 2, "({0} >= {1})", torch.ge)
scalar("where", 3, "({0} ? {1} : {2})", torch.where)
scalar("and", 2, "({t})({0} & {1})", torch.bitwise_and)
scalar("or", 2, "({t})({0} | {1})", torch.bitwise_or)
scalar("xor", 2, "({t})({0} ^ {1})", torch.bitwise_xor)
scalar("not", 1, "({t})(~{0})", torch.bitwise_not)
scalar("logical_not", 1, "(!{0})", torch.logical_not)
scalar("shl", 2, "fx_shl({0}, {1})", torch.bitwise_left_shift)
scalar("shr", 2, "fx_shr({0}, {1})", torch.bitwise_right_shift)
scalar("isnan", 1, "({0} != {0})", torch.isnan)
scalar("isinf", 1, "fx_isinf({0})", torch.isinf)

scalar("sqrt", 1, "__builtin_sqrt{f}({0})", torch.sqrt, cost=4, integers=False)
scalar("rsqrt", 1, "(1 / __builtin_sqrt{f}({0}))", torch.rsqrt, cost=6, integers=False)
scalar("floor", 1, "__builtin_floor{f}({0})", torch.floor, integers=False)
scalar("ceil", 1, "__builtin_ceil{f}({0})", torch.ceil, integers=False)
scalar("trunc", 1, "__builtin_trunc{f}({0})", torch.trunc, integers=False)
scalar("round", 1, "__builtin_nearbyint{f}({0})", torch.round, integers=False)


def normal_cdf(x: torch.Tensor) -> torch.Tensor:
    """The normal distribution's function, with the digits of its tail."""
    tail: torch.Tensor = torch.special.erfc(x * -math.sqrt(0.5))
    return tail / 2


def gelu_slope(x: torch.Tensor) -> torch.Tensor:
    """The derivative of x * normal_cdf(x)."""
    return normal_cdf(x) + x * torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)


for _name in MATH:
    if _name not in MATH_OF_TWO:
        scalar(_name, 1, f"fx_{_name}({{0}})", getattr(torch, _name), cost=16, integers=False)
# Of what is not positive, as softmax has it: half of the time that libmvec takes.
scalar("exp_below", 1, "fx_exp_below({0})", torch.exp, cost=8, integers=False)
# Of one exponential of what is not positive.
scalar("sigmoid", 1, "fx_sigmoid({0})", torch.sigmoid, cost=12, integers=False)
scalar("silu", 1, "fx_silu({0})", torch.nn.functional.silu, cost=12, integers=False)
scalar("softplus", 1, "fx_softplus({0})", lambda x: torch.nn.functional.softplus(x, threshold=100), cost=24, integers=False)
scalar("gelu", 1, "fx_gelu({0})", lambda x: x * normal_cdf(x), cost=16, integers=False)
scalar("normal_cdf", 1, "fx_normal_cdf({0})", normal_cdf, cost=16, integers=False)
scalar("gelu_slope", 1, "fx_gelu_slope({0})", gelu_slope, cost=16, integers=False)
scalar("pow", 2, "fx_pow({0}, {1})", torch.pow, cost=40, integers=False)
scalar("atan2", 2, "fx_atan2({0}, {1})", torch.atan2, cost=30, integers=False)
scalar("hypot", 2, "fx_hypot({0}, {1})", torch.hypot, cost=10, integers=False)
scalar("lgamma", 1, "fx_lgamma({0})", torch.lgamma, cost=60, vector=False, integers=False)


def philox(seed: torch.Tensor, number: torch.Tensor, index: torch.Tensor) -> torch.Tensor:
    """64 random bits: the first two words of Philox 4x32 with 7 rounds, of the key `seed` and the counter (index, number)."""
    low = 0xFFFFFFFF
    given = [each.to(torch.int64) for each in (index, number, seed)]
    (c0, c1), (c2, c3), (k0, k1) = ((each & low, each >> 32 & low) for each in given)
    for _ in range(PHILOX_ROUNDS):
        # Products wrap around; their bits are those of the whole product.
        p, q = c0 * 0xD2511F53, c2 * 0xCD9E8D57
        c0, c1, c2, c3 = (q >> 32 & low) ^ c1 ^ k0, q & low, (p >> 32 & low) ^ c3 ^ k1, p & low
        k0, k1 = k0 + 0x9E3779B9 & low, k1 + 0xBB67AE85 & low
    return (c1 << 32 | c0).to(seed.dtype)


PHILOX_ROUNDS = 7
scalar("philox", 3, "({t})fx_philox({0}, {1}, {2})", philox, cost=50, vector=False)


@dataclass(frozen=True, slots=True)
class ReductionKind:
    """How a reduction starts and combines; `torch` reduces over the last dimensions given."""

    name: str
    combine: str
    torch: Callable[..., Any]


def _prod(x: torch.Tensor, dims: tuple[int, ...]) -> torch.Tensor:
    for dim in sorted(dims, reverse=True):
        x = x.prod(dim, dtype=x.dtype)
    return x


REDUCTIONS: dict[str, ReductionKind] = {
    "sum": ReductionKind("sum", "({t})({0} + {1})", lambda x, dims: x.sum(dims)),
    "prod": ReductionKind("prod", "({t})({0} * {1})", _prod),
    "max": ReductionKind("max", "fx_max({0}, {1})", torch.amax),
    "min": ReductionKind("min", "fx_min({0}, {1})", torch.amin),
    "any": ReductionKind("any", "({0} || {1})", lambda x, dims: x.any(dims)),
    "all": ReductionKind("all", "({0} && {1})", lambda x, dims: x.all(dims)),
}


def _extreme_so_far(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda x, dim: function(x, dim).values


#: The same for scans: of equal values the later one counts, as in eager. `torch` scans along one dimension.
SCANS: dict[str, ReductionKind] = {
    "sum": ReductionKind("sum", "({t})({0} + {1})", lambda x, dim: x.cumsum(dim, dtype=x.dtype)),
    "prod": ReductionKind("prod", "({t})({0} * {1})", lambda x, dim: x.cumprod(dim, dtype=x.dtype)),
    "max": ReductionKind("max", "fx_max({1}, {0})", _extreme_so_far(torch.cummax)),
    "min": ReductionKind("min", "fx_min({1}, {0})", _extreme_so_far(torch.cummin)),
    "logaddexp": ReductionKind("logaddexp", "fx_logaddexp({0}, {1})", torch.logcumsumexp),
}
#: Work an element that a loop which goes one by one does while it waits for its scan's last sum.
BESIDE_A_SCAN = 12
#: What a store at a computed place does with what is there: it replaces it, or combines by one of these operations.
UPDATES = ("set", "add", "mul", "maximum", "minimum")


# Builders. Constants fold where the result is exact whatever the rounding mode: Python's float is the double of C.


def const(value: Any, dtype: torch.dtype) -> Const:
    if dtype is torch.bool:
        return Const(bool(value), dtype)
    if dtype.is_floating_point:
        return Const(float(value), dtype)
    return Const(int(value), dtype)


def op(name: str, *args: Expr, dtype: torch.dtype | None = None) -> Expr:
    row = SCALARS[name]
    if len(args) != row.arity:
        raise ValueError(f"{name} takes {row.arity} operands, not {len(args)}")
    return Op(name, args, args[-1].dtype if dtype is None else dtype)


def compare(name: str, a: Expr, b: Expr) -> Expr:
    return op(name, a, b, dtype=torch.bool)


def cast(x: Expr, dtype: torch.dtype) -> Expr:
    """Conversion to a type computed with (never a half type)."""
    if x.dtype is dtype:
        return x
    widens = x.dtype is torch.float32 and dtype is torch.float64
    if (
        isinstance(x, Const)
        and math.isfinite(x.value)
        and not widens
        and (dtype.is_floating_point or not x.dtype.is_floating_point)
    ):
        return const(x.value, dtype)
    return Op("cast", (x,), dtype)


def where(condition: Expr, a: Expr, b: Expr) -> Expr:
    return op("where", condition, a, b, dtype=a.dtype)


def work(expr: Expr) -> int:
    """The cost of one element, in additions: for the grain of threads and for recomputation."""
    return sum(map(own_work, walk(expr)))


def own_work(node: Expr) -> int:
    """What of that is the node's, without its operands."""
    if isinstance(node, Op):
        return SCALARS[node.name].cost
    return 1 + 2 * len(node.gathers) if isinstance(node, Load) else 0


def wants_vectors(expr: Expr) -> bool:
    """Whether a loop that goes one by one, for a scan, would be held up by computing this."""
    slow = any(SCALARS[node.name].cost > 1 for node in walk(expr) if isinstance(node, Op))
    return slow or work(expr) > BESIDE_A_SCAN
