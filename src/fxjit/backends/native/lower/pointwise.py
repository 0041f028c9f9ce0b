"""Elementwise operators: arithmetic, comparisons, type conversion, activations and their derivatives."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
import torch.fx
from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND as KIND
from torch._prims_common import elementwise_dtypes

from fxjit.torch_compat import rounds_bound_of_softshrink

from ..index import Sizes, contiguous_strides, equal, sizes_of
from ..ir import SUPPORTED, Buffer, Const, Expr, Load, Op, TensorExpr, compute_type, expand, load_all, loads, reindex
from ..ops import MATH, MATH_OF_TWO, cast, compare, const, op, where
from .table import Lowering, NoLowering, Number, fitting, is_view, lowers, meta_of, overflows


def out_size(node: torch.fx.Node) -> Sizes:
    return sizes_of(meta_of(node).shape)


def operand(low: Lowering, x: Any, size: Sizes, dtype: torch.dtype) -> Expr:
    """An argument (tensor or number) broadcast to `size`, in the type computed with for `dtype`. ATen converts what a tensor
    of another type holds, which rounds for a half type, but sees all of a number or of a tensor without dimensions."""
    if not isinstance(x, TensorExpr):
        return lift(low.scalar_like(x, dtype), len(size))
    expr = cast(expand(x.expr, x.size, size), compute_type(dtype))
    return expr if x.ndim == 0 else rounded_from(expr, x.dtype, dtype)


def element(low: Lowering, x: Any, size: Sizes, dtype: torch.dtype) -> Expr:
    """The same for operators that see a number, too, as a tensor of a half type holds it: rounded."""
    if isinstance(x, float):
        x = held(x, dtype)
    expr = operand(low, x, size, dtype)
    if isinstance(x, Number):
        return rounded(expr, dtype)
    return rounded_from(expr, x.dtype, dtype) if isinstance(x, TensorExpr) and x.ndim == 0 else expr


def rounded_from(expr: Expr, source: torch.dtype, dtype: torch.dtype) -> Expr:
    """A value of the type `source` after conversion to `dtype`; the half types hold all numbers of eight bits."""
    return expr if source is dtype or source.itemsize == 1 else rounded(expr, dtype)


def as_held(low: Lowering, x: Any) -> Any:
    """A value as eager's tensor holds it, for operators that jump. What a kernel of ours computes and goes on with in a
    register has not been rounded to its half type: an extreme would not be among the numbers that it is the extreme of, and
    what leaves the type would not be infinite."""
    if not isinstance(x, TensorExpr):
        return x
    from_memory = isinstance(x.expr, Load) and low.buffers[x.expr.buffer].kind in ("input", "extern")
    return x if from_memory else TensorExpr(x.size, x.dtype, rounded(x.expr, x.dtype))


def held(x: float, dtype: torch.dtype) -> float:
    return float(torch.tensor(x, dtype=dtype)) if dtype in (torch.float16, torch.bfloat16) else x


def lift(expr: Expr, ndim: int) -> Expr:
    return reindex(expr, lambda strides, offset: (strides or (0,) * ndim, offset))


def result(node: torch.fx.Node, expr: Expr) -> TensorExpr:
    meta = meta_of(node)
    return TensorExpr(out_size(node), meta.dtype, cast(expr, compute_type(meta.dtype)))


def promoted(*args: Any) -> torch.dtype:
    """The type two operands of a comparison meet in."""
    return elementwise_dtypes(*args, type_promotion_kind=KIND.DEFAULT)[1]


def operand_dtype(node: torch.fx.Node, *args: torch.fx.node.Argument) -> torch.dtype:
    metas = [meta_of(arg) if isinstance(arg, torch.fx.Node) else arg for arg in args]
    return promoted(*metas)


# One table for what maps operands of the result's type to the result.

Build = Callable[..., Expr]


def sign(x: Expr) -> Expr:
    if x.dtype is torch.bool:
        return x
    zero = const(0, x.dtype)
    # NaN is neither above nor below zero: 0, as in eager.
    return op("sub", cast(compare("gt", x, zero), x.dtype), cast(compare("lt", x, zero), x.dtype))


def gelu(x: Expr, approximate: str) -> Expr:
    if approximate == "tanh":
        return op("mul", x, gelu_shares(x)[0])
    return op("gelu", x)


def gelu_shares(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(1 + tanh(z)) / 2 of GELU's approximation, the smaller one of this and of what is left to 1, and the other."""
    cubic = op("add", const(1, x.dtype), op("mul", const(0.044715, x.dtype), op("mul", x, x)))
    return sigmoid_shares(op("mul", op("mul", const(2 * math.sqrt(2 / math.pi), x.dtype), x), cubic))


def sigmoid_shares(x: Expr) -> tuple[Expr, Expr, Expr]:
    """sigmoid(x), which is (1 + tanh(x / 2)) / 2 in half of a tanh's time; the smaller one of this and of what is left to 1,
    with the digits that it would lose beside 1; and the other."""
    tail = op("sigmoid", op("neg", op("abs", x)))
    rest = op("sub", const(1, x.dtype), tail)
    return where(compare("lt", x, const(0, x.dtype)), tail, rest), tail, rest


def gelu_derivative(x: Expr, approximate: str) -> Expr:
    t = x.dtype
    if approximate == "tanh":
        share, tail, rest = gelu_shares(x)
        slope = op("add", const(1, t), op("mul", const(3 * 0.044715, t), op("mul", x, x)))
        slope = op("mul", op("mul", const(2 * math.sqrt(2 / math.pi), t), x), slope)
        return op("add", share, op("mul", op("mul", tail, rest), slope))
    return op("gelu_slope", x)


def one_and_function(x: Expr, y: Expr) -> Expr | None:
    """1 + tanh(z) as 2 * sigmoid(2 * z), 1 + erf(z) as twice the normal distribution at sqrt(2) * z: half of the time. None for
    other sums."""
    for one, function in ((x, y), (y, x)):
        if isinstance(one, Const) and one.value == 1 and isinstance(function, Op) and function.name in ("tanh", "erf"):
            two = const(2, function.dtype)
            if function.name == "tanh":
                return op("mul", two, sigmoid_shares(op("mul", two, function.args[0]))[0])
            return op("mul", two, op("normal_cdf", op("mul", const(math.sqrt(2), function.dtype), function.args[0])))
    return None


def clamp(x: Expr, low: Expr | None, high: Expr | None) -> Expr:
    if low is not None:
        x = op("maximum", x, low)
    if high is not None:
        x = op("minimum", x, high)
    return x


def relu(x: Expr) -> Expr:
    return op("maximum", x, const(0, x.dtype))


def reciprocal(x: Expr) -> Expr:
    return op("div", const(1, x.dtype), x)


def log1p(x: Expr) -> Expr:
    """Of exp(-abs(x)) in one, as the losses with logits have it."""
    if isinstance(x, Op) and x.name == "exp" and isinstance(x.args[0], Op) and is_negated_size(x.args[0]):
        return op("softplus", x.args[0])
    return op("log1p", x)


def is_negated_size(x: Op) -> bool:
    return x.name == "neg" and isinstance(x.args[0], Op) and x.args[0].name == "abs"


UNARY: dict[str, Build] = {
    "neg": lambda x: op("neg", x),
    "abs": lambda x: x if x.dtype is torch.uint8 else op("abs", x),
    "relu": relu,
    "sigmoid": lambda x: op("sigmoid", x),
    "silu": lambda x: op("silu", x),
    "square": lambda x: op("mul", x, x),
    "reciprocal": reciprocal,
    "sqrt": lambda x: op("sqrt", x),
    "rsqrt": lambda x: op("rsqrt", x),
    "sign": sign,
    "sgn": sign,
    "relu6": lambda x: clamp(x, const(0, x.dtype), const(6, x.dtype)),
    "hardswish": lambda x: op(
        "div", op("mul", x, clamp(op("add", x, const(3, x.dtype)), const(0, x.dtype), const(6, x.dtype))), const(6, x.dtype)
    ),
    "hardsigmoid": lambda x: op(
        "div", clamp(op("add", x, const(3, x.dtype)), const(0, x.dtype), const(6, x.dtype)), const(6, x.dtype)
    ),
    "deg2rad": lambda x: op("mul", x, const(math.pi / 180, x.dtype)),
    "rad2deg": lambda x: op("mul", x, const(180 / math.pi, x.dtype)),
}
# Integer powers above this overflow for all but 0, 1 and -1.
LARGEST_POWER = 64
ROUNDING = ("floor", "ceil", "trunc", "round")
FLOAT_UNARY = (*ROUNDING, "lgamma", *(name for name in MATH if name not in MATH_OF_TWO))


#: Unary operators that jump, and those that ATen refuses bools.
JUMPS = ("sign", "sgn")
NOT_OF_BOOLS = ("abs", "relu", *ROUNDING)


def unary(name: str, build: Build) -> Callable[..., TensorExpr]:
    def lower(low: Lowering, node: torch.fx.Node, x: Any) -> TensorExpr:
        x = low.value(x)
        if x.dtype is torch.bool and name in NOT_OF_BOOLS:
            raise NoLowering("not of bools")
        expr = as_held(low, x).expr if name in JUMPS else x.expr
        return result(node, build(cast(expr, compute_type(meta_of(node).dtype))))

    return lower


def float_unary(name: str) -> Callable[..., TensorExpr]:
    def lower(low: Lowering, node: torch.fx.Node, x: Any) -> TensorExpr:
        dtype = meta_of(node).dtype
        x = low.value(x)
        if x.dtype is torch.bool and name in NOT_OF_BOOLS:
            raise NoLowering("not of bools")
        if not dtype.is_floating_point:
            return result(node, x.expr)  # rounding an integer
        expr = as_held(low, x).expr if name in ROUNDING else x.expr
        given = cast(expr, compute_type(dtype))
        return result(node, log1p(given) if name == "log1p" else op(name, given))

    return lower


for _name, _build in UNARY.items():
    lowers(f"{_name}.default")(unary(_name, _build))
for _name in FLOAT_UNARY:
    lowers(f"{_name}.default")(float_unary(_name))


def binary(build: Build) -> Callable[..., TensorExpr]:
    def lower(low: Lowering, node: torch.fx.Node, a: Any, b: Any) -> TensorExpr:
        size, dtype = out_size(node), meta_of(node).dtype
        return result(node, build(operand(low, a, size, dtype), operand(low, b, size, dtype)))

    return lower


def with_alpha(name: str, swapped: bool = False) -> Callable[..., TensorExpr]:
    def lower(low: Lowering, node: torch.fx.Node, a: Any, b: Any, alpha: Any = 1) -> TensorExpr:
        size, dtype = out_size(node), meta_of(node).dtype
        # Of ATen's kernels only those for GPUs add numbers without rounding them to a half type.
        addend = element if meta_of(node).device.type == "cpu" else operand
        alpha = fitting(alpha, dtype)
        if dtype is torch.bool:
            if name != "add" or alpha != 1:
                raise NoLowering("arithmetic on bools")
            return result(node, op("or", operand(low, a, size, dtype), operand(low, b, size, dtype)))
        x, y = addend(low, a, size, dtype), addend(low, b, size, dtype)
        if swapped:
            x, y = y, x
        if not (isinstance(alpha, (int, float)) and alpha == 1):
            y = op("mul", y, addend(low, alpha, size, dtype))
        alone = all(len(each.users) == 1 for each in node.all_input_nodes)  # what others read is there anyway
        return result(node, (one_and_function(x, y) if name == "add" and alone else None) or op(name, x, y))

    return lower


lowers("add.Tensor", "add.Scalar")(with_alpha("add"))
lowers("sub.Tensor", "sub.Scalar")(with_alpha("sub"))
lowers("rsub.Tensor", "rsub.Scalar")(with_alpha("sub", swapped=True))
lowers("mul.Tensor", "mul.Scalar")(binary(lambda a, b: op("and" if a.dtype is torch.bool else "mul", a, b)))
lowers("maximum.default")(binary(lambda a, b: op("or" if a.dtype is torch.bool else "maximum", a, b)))
lowers("minimum.default")(binary(lambda a, b: op("and" if a.dtype is torch.bool else "minimum", a, b)))
lowers("bitwise_and.Tensor", "bitwise_and.Scalar")(binary(lambda a, b: op("and", a, b)))
lowers("bitwise_or.Tensor", "bitwise_or.Scalar")(binary(lambda a, b: op("or", a, b)))
lowers("bitwise_xor.Tensor", "bitwise_xor.Scalar")(binary(lambda a, b: op("xor", a, b)))
lowers("atan2.default")(binary(lambda a, b: op("atan2", a, b)))
lowers("hypot.default")(binary(lambda a, b: op("hypot", a, b)))


@lowers("copysign.Tensor")
def lower_copysign(low: Lowering, node: torch.fx.Node, a: Any, b: Any) -> TensorExpr:
    return binary(lambda x, y: op("copysign", x, y))(low, node, a, b)  # type: ignore[no-any-return]  # lowerings are untyped


@lowers("div.Tensor", "div.Scalar", "div.Tensor_mode", "div.Scalar_mode")
def lower_div(low: Lowering, node: torch.fx.Node, a: Any, b: Any, rounding_mode: str | None = None) -> TensorExpr:
    size, dtype = out_size(node), meta_of(node).dtype
    if rounding_mode is not None and not dtype.is_floating_point:
        if not surely_positive(b, dtype):
            raise NoLowering("integer division by what may be zero")
        name = "floordiv" if rounding_mode == "floor" else "truncdiv"
        return result(node, op(name, operand(low, a, size, dtype), operand(low, b, size, dtype)))
    if rounding_mode is not None:
        a, b = as_held(low, a), as_held(low, b)
    x, y = operand(low, a, size, dtype), operand(low, b, size, dtype)
    if rounding_mode == "trunc":
        quotient = op("div", x, y)
        # Of two tensors eager holds the quotient in their half type before it cuts; not where one number divides.
        several = isinstance(b, TensorExpr) and any(extent != 1 for extent in b.size)
        return result(node, op("trunc", rounded(quotient, dtype) if several else quotient))
    if rounding_mode == "floor":
        return result(node, op("floordiv", x, y))
    return result(node, op("div", x, y))


def surely_positive(divisor: Any, dtype: torch.dtype) -> bool:
    """Whether the divisor is a number above 0, and still is when the type holds it: 256 is 0 to a byte."""
    is_number = isinstance(divisor, int) and not isinstance(divisor, bool)
    return is_number and divisor > 0 and not overflows(divisor, dtype)


@lowers("remainder.Tensor", "remainder.Scalar", "fmod.Tensor", "fmod.Scalar")
def lower_remainder(low: Lowering, node: torch.fx.Node, a: Any, b: Any) -> TensorExpr:
    size, dtype = out_size(node), meta_of(node).dtype
    if not dtype.is_floating_point and not surely_positive(b, dtype):
        raise NoLowering("integer remainder by what may be zero")
    name = "remainder" if "remainder" in str(node.target) else "fmod"
    return result(node, op(name, *(element(low, as_held(low, each), size, dtype) for each in (a, b))))


@lowers("pow.Tensor_Scalar")
def lower_pow_scalar(low: Lowering, node: torch.fx.Node, x: Any, exponent: Any) -> TensorExpr:
    dtype = meta_of(node).dtype
    size = out_size(node)
    base = operand(low, low.value(x), size, dtype)
    if dtype is not torch.float32:
        exponent = fitting(exponent, dtype)
    if exponent == 2 and isinstance(exponent, (int, float)) and dtype is not torch.bool:
        return result(node, op("mul", base, base))
    if not dtype.is_floating_point:
        if dtype is torch.bool or not isinstance(exponent, int) or not 0 < exponent <= LARGEST_POWER:
            raise NoLowering("integer power")
        return result(node, whole_power(base, exponent))
    simple: dict[float, Callable[[], Expr]] = {
        3: lambda: op("mul", op("mul", base, base), base),
        0.5: lambda: op("sqrt", base),
        -0.5: lambda: op("rsqrt", base),
        -1: lambda: reciprocal(base),
        -2: lambda: reciprocal(op("mul", base, base)),
        1: lambda: base,
    }
    if exponent in (0.5, -0.5) and dtype is torch.float16:  # of which eager takes no root
        simple = {0.5: lambda: half_power(base)}
    if isinstance(exponent, (int, float)) and exponent in simple:
        return result(node, simple[exponent]())
    return result(node, op("pow", base, element(low, exponent, size, dtype)))


def half_power(base: Expr) -> Expr:
    """The value of `pow` for the exponent 0.5, positive also for -0 and -inf. Written as `pow` it would be a root again to
    GCC."""
    positive = op("add", op("sqrt", base), const(0.0, base.dtype))
    return where(compare("eq", base, const(-math.inf, base.dtype)), const(math.inf, base.dtype), positive)


def whole_power(base: Expr, exponent: int) -> Expr:
    """By squaring: products of integers wrap around alike in any order."""
    if exponent == 1:
        return base
    half = whole_power(base, exponent // 2)
    square = op("mul", half, half)
    return op("mul", square, base) if exponent % 2 else square


@lowers("pow.Tensor_Tensor", "pow.Scalar")
def lower_pow(low: Lowering, node: torch.fx.Node, a: Any, b: Any) -> TensorExpr:
    size, dtype = out_size(node), meta_of(node).dtype
    if isinstance(b, TensorExpr) and isinstance(b.expr, Const) and isinstance(a, TensorExpr):
        return lower_pow_scalar(low, node, a, b.expr.value)  # type: ignore[no-any-return]  # a lowering
    if not dtype.is_floating_point:
        raise NoLowering("integer power")
    # Of a negative number there are powers for whole exponents only, which others may round to.
    return result(node, op("pow", element(low, a, size, dtype), element(low, as_held(low, b), size, dtype)))


# Comparisons and logic


def comparison(name: str) -> Callable[..., TensorExpr]:
    def lower(low: Lowering, node: torch.fx.Node, a: Any, b: Any) -> TensorExpr:
        size = out_size(node)
        dtype = operand_dtype(node, *node.args[:2])
        if dtype not in SUPPORTED:
            raise NoLowering("a type without kernels")
        return result(node, compare(name, *(element(low, as_held(low, each), size, dtype) for each in (a, b))))

    return lower


for _name in ("eq", "ne", "lt", "le", "gt", "ge"):
    lowers(f"{_name}.Tensor", f"{_name}.Scalar")(comparison(_name))


def truth(low: Lowering, x: TensorExpr) -> Expr:
    expr = as_held(low, x).expr
    return expr if expr.dtype is torch.bool else compare("ne", expr, const(0, expr.dtype))


@lowers("logical_not.default")
def lower_logical_not(low: Lowering, node: torch.fx.Node, x: Any) -> TensorExpr:
    return result(node, op("logical_not", truth(low, low.value(x))))


def logical(name: str) -> Callable[..., TensorExpr]:
    def lower(low: Lowering, node: torch.fx.Node, a: Any, b: Any) -> TensorExpr:
        size = out_size(node)
        sides = [expand(truth(low, low.value(each)), each.size, size) for each in (a, b)]
        return result(node, op(name, *sides))

    return lower


for _name in ("and", "or", "xor"):
    lowers(f"logical_{_name}.default")(logical(_name))


@lowers("bitwise_not.default")
def lower_bitwise_not(low: Lowering, node: torch.fx.Node, x: Any) -> TensorExpr:
    expr = low.value(x).expr
    return result(node, op("logical_not" if expr.dtype is torch.bool else "not", expr))


def predicate(build: Build) -> Callable[..., TensorExpr]:
    def lower(low: Lowering, node: torch.fx.Node, x: Any) -> TensorExpr:
        expr = as_held(low, low.value(x)).expr
        if not expr.dtype.is_floating_point:
            raise NoLowering("constant for integers")
        return result(node, build(expr))

    return lower


lowers("isnan.default")(predicate(lambda x: op("isnan", x, dtype=torch.bool)))
lowers("isinf.default")(predicate(lambda x: op("isinf", x, dtype=torch.bool)))
for _name, _infinity in (("isposinf", math.inf), ("isneginf", -math.inf)):
    lowers(f"{_name}.default")(predicate(lambda x, infinity=_infinity: compare("eq", x, const(infinity, x.dtype))))
lowers("isfinite.default")(
    predicate(lambda x: op("logical_not", op("or", op("isinf", x, dtype=torch.bool), op("isnan", x, dtype=torch.bool))))
)


@lowers("where.self")
def lower_where(low: Lowering, node: torch.fx.Node, condition: Any, a: Any, b: Any) -> TensorExpr:
    size, dtype = out_size(node), meta_of(node).dtype
    mask = expand(truth(low, low.value(condition)), condition.size, size)
    return result(node, where(mask, element(low, a, size, dtype), element(low, b, size, dtype)))


@lowers("masked_fill.Scalar", "masked_fill.Tensor")
def lower_masked_fill(low: Lowering, node: torch.fx.Node, x: Any, mask: Any, fill: Any) -> TensorExpr:
    size, dtype = out_size(node), meta_of(node).dtype
    condition = expand(truth(low, low.value(mask)), mask.size, size)
    fill = fitting(fill, dtype)
    return result(node, where(condition, element(low, fill, size, dtype), element(low, x, size, dtype)))


@lowers("clamp.default", "clamp.Tensor")
def lower_clamp(low: Lowering, node: torch.fx.Node, x: Any, min: Any = None, max: Any = None) -> TensorExpr:
    size, dtype = out_size(node), meta_of(node).dtype
    for each in (min, max):
        if isinstance(each, int) and not (dtype.is_floating_point or dtype is torch.bool) and each < torch.iinfo(dtype).min:
            raise NoLowering("a bound below what the type holds")  # wraps around up to torch 2.13, is no bound or refused later
    bounds = [None if each is None else element(low, fitting(each, dtype), size, dtype) for each in (min, max)]
    return result(node, clamp(operand(low, low.value(x), size, dtype), *bounds))


lowers("clamp_min.default", "clamp_min.Tensor")(lambda low, node, x, bound: lower_clamp(low, node, x, bound, None))
lowers("clamp_max.default", "clamp_max.Tensor")(lambda low, node, x, bound: lower_clamp(low, node, x, None, bound))


# Types and copies


def rounded(expr: Expr, dtype: torch.dtype) -> Expr:
    """A value rounded as by a store to memory: to its half type; other types are unchanged."""
    if dtype is torch.float16:
        return op("round_to_half", expr)
    if dtype is torch.bfloat16:
        return op("round_to_bfloat16", expr)
    return expr


@lowers("_to_copy.default")
def lower_to_copy(low: Lowering, node: torch.fx.Node, x: Any, dtype: torch.dtype | None = None, **how: Any) -> TensorExpr:
    if (
        any(how.get(name) for name in ("pin_memory",))
        or str(how.get("device") or "cpu") != "cpu"
        or how.get("layout") not in (None, torch.strided)
    ):
        raise NoLowering("a copy to elsewhere")
    return convert(low, node, low.value(x))


def convert(low: Lowering, node: torch.fx.Node, x: TensorExpr) -> TensorExpr:
    target = meta_of(node).dtype
    if not target.is_floating_point:
        x = as_held(low, x)
    expr = cast(x.expr, compute_type(target))
    return TensorExpr(x.size, target, rounded(expr, target) if target is not x.dtype else expr)


@lowers("convert_element_type.default")
def lower_convert(low: Lowering, node: torch.fx.Node, x: Any, dtype: torch.dtype) -> TensorExpr:
    return convert(low, node, low.value(x))


@lowers("clone.default", "contiguous.default", "positive.default")
def lower_clone(low: Lowering, node: torch.fx.Node, x: Any, memory_format: Any = None) -> TensorExpr:
    return low.value(x)


@lowers("copy.default")
def lower_copy(low: Lowering, node: torch.fx.Node, x: Any, source: Any, non_blocking: bool = False) -> TensorExpr:
    return result(node, operand(low, low.value(source), out_size(node), meta_of(node).dtype))


@lowers("copy_.default")
def lower_copy_into(low: Lowering, node: torch.fx.Node, x: Any, source: Any, non_blocking: bool = False) -> TensorExpr:
    """A mutation that the graph ends with: the kernel that computes the value writes it where it belongs."""
    target = node.args[0]
    assert isinstance(target, torch.fx.Node)
    target_value = low.value(x)
    buffer = low.buffers.get(low.storage.get(target, ""))
    if buffer is None or target.op != "placeholder" or overlaps(buffer.size, buffer.stride):
        raise NoLowering("a mutation of something else than a plain input")
    if low.storage.get(node.args[1]) == buffer.name and not is_view(node.args[1]):  # type: ignore[arg-type]  # an argument that is a node
        return target_value  # written there as it was made
    low.settle_readers(buffer.name, node)
    given = low.value(source)
    if reads_elsewhere(given.expr, buffer):
        given = low.store(given.expr, given.size, given.dtype)
    low.store_in(buffer, operand(low, given, target_value.size, target_value.dtype), target_value.size, None)
    low.storage[node] = buffer.name
    return target_value


def reads_elsewhere(expr: Expr, buffer: Buffer) -> bool:
    """Whether an element needs others of the buffer than its own, which may have been written by then."""
    own = load_all(buffer).expr
    assert isinstance(own, Load)
    return any(load.buffer == buffer.name and not same_place(load, own, buffer.size) for load in loads(expr))


def same_place(a: Load, b: Load, sizes: Sizes) -> bool:
    strides = zip(sizes, a.strides, b.strides, strict=True) if len(a.strides) == len(b.strides) else None
    if strides is None or a.gathers or b.gathers or not equal(a.offset, b.offset):
        return False
    return all(size == 1 or equal(x, y) for size, x, y in strides)


def overlaps(sizes: Sizes, strides: Sizes) -> bool:
    """Whether two elements may be one: an expanded tensor. Uncertain counts as yes."""
    reach: Any = 0
    for size, stride in sorted(
        zip(sizes, strides, strict=True), key=lambda pair: pair[1] if isinstance(pair[1], int) else 1 << 62
    ):
        if size == 1:
            continue
        if not isinstance(stride, int) or not isinstance(size, int):
            return not all(equal(a, b) for a, b in zip(strides, contiguous_strides(sizes), strict=True))
        if stride <= reach:
            return True
        reach += stride * (size - 1)
    return False


# Activations with arguments, and derivatives


@lowers("gelu.default")
def lower_gelu(low: Lowering, node: torch.fx.Node, x: Any, approximate: str = "none") -> TensorExpr:
    return result(node, gelu(low.value(x).expr, approximate))


@lowers("gelu_backward.default")
def lower_gelu_backward(low: Lowering, node: torch.fx.Node, grad: Any, x: Any, approximate: str = "none") -> TensorExpr:
    return result(node, op("mul", low.value(grad).expr, gelu_derivative(low.value(x).expr, approximate)))


@lowers("leaky_relu.default")
def lower_leaky_relu(low: Lowering, node: torch.fx.Node, x: Any, slope: Any = 0.01) -> TensorExpr:
    expr = low.value(x).expr
    scaled = op("mul", expr, const(slope, expr.dtype))
    return result(node, where(compare("gt", expr, const(0, expr.dtype)), expr, scaled))


@lowers("elu.default")
def lower_elu(low: Lowering, node: torch.fx.Node, x: Any, alpha: Any = 1, scale: Any = 1, input_scale: Any = 1) -> TensorExpr:
    expr = low.value(x).expr
    t = expr.dtype
    negative = op("mul", const(alpha * scale, t), op("expm1", op("mul", expr, const(input_scale, t))))
    return result(node, where(compare("gt", expr, const(0, t)), op("mul", expr, const(scale, t)), negative))


@lowers("hardtanh.default")
def lower_hardtanh(low: Lowering, node: torch.fx.Node, x: Any, min_val: Any = -1, max_val: Any = 1) -> TensorExpr:
    return lower_clamp(low, node, x, min_val, max_val)  # type: ignore[no-any-return]  # lowerings are untyped


@lowers("softplus.default")
def lower_softplus(low: Lowering, node: torch.fx.Node, x: Any, beta: Any = 1, threshold: Any = 20) -> TensorExpr:
    expr = low.value(x).expr
    scaled = op("mul", expr, const(beta, expr.dtype))
    soft = op("div", op("softplus", scaled), const(beta, expr.dtype))
    return result(node, where(compare("gt", scaled, const(threshold, expr.dtype)), expr, soft))


@lowers("softshrink.default")
def lower_softshrink(low: Lowering, node: torch.fx.Node, x: Any, bound: Any = 0.5) -> TensorExpr:
    expr, dtype = low.value(x).expr, meta_of(node).dtype
    if low.device.type == "cpu" and rounds_bound_of_softshrink(dtype):
        bound = held(bound, dtype)
    upper, lower = const(bound, expr.dtype), const(-bound, expr.dtype)
    inside = where(op("isnan", expr, dtype=torch.bool), expr, const(0, expr.dtype))
    below = where(compare("lt", expr, lower), op("sub", expr, lower), inside)
    return result(node, where(compare("gt", expr, upper), op("sub", expr, upper), below))


@lowers("threshold.default")
def lower_threshold(low: Lowering, node: torch.fx.Node, x: Any, threshold: Any, fill: Any) -> TensorExpr:
    expr = as_held(low, low.value(x)).expr
    filling = const(held(fitting(fill, meta_of(node).dtype), meta_of(node).dtype), expr.dtype)
    return result(node, where(compare("le", expr, const(threshold, expr.dtype)), filling, expr))


@lowers("threshold_backward.default")
def lower_threshold_backward(low: Lowering, node: torch.fx.Node, grad: Any, x: Any, threshold: Any) -> TensorExpr:
    size, dtype = out_size(node), meta_of(node).dtype
    g, v = operand(low, grad, size, dtype), operand(low, as_held(low, x), size, dtype)
    if not v.dtype.is_floating_point:
        raise NoLowering("threshold of integers")
    return result(node, where(compare("le", v, const(threshold, v.dtype)), const(0, g.dtype), g))


def derivative(build: Build, jumps: bool = False) -> Callable[..., TensorExpr]:
    """grad times (or a function of) the forward's input or output, element by element, which may jump. At NaN, where some of
    ATen's scalar code and vector code differ, what the latter gives."""

    def lower(low: Lowering, node: torch.fx.Node, grad: Any, x: Any) -> TensorExpr:
        size, dtype = out_size(node), meta_of(node).dtype
        seen = as_held(low, x) if jumps else x
        return result(node, build(operand(low, grad, size, dtype), operand(low, seen, size, dtype)))

    return lower


def of_mish(x: Expr) -> tuple[Expr, Expr, Expr]:
    """(e^x, n, n + 2) in double, n = e^x * (e^x + 2): tanh(log(1 + e^x)) is n / (n + 2), from 20 on 1."""
    if x.dtype is torch.float64:
        raise NoLowering("a function in float64 that ATen computes more accurately")
    e = cast(op("exp", op("minimum", x, const(20, x.dtype))), torch.float64)
    n = op("mul", e, op("add", e, const(2, e.dtype)))
    return e, n, op("add", n, const(2, n.dtype))


@lowers("mish.default")
def lower_mish(low: Lowering, node: torch.fx.Node, x: Any) -> TensorExpr:
    v = operand(low, x, out_size(node), meta_of(node).dtype)
    _, n, d = of_mish(v)
    return result(node, op("mul", cast(v, n.dtype), op("div", n, d)))


def mish_backward(grad: Expr, x: Expr) -> Expr:
    """grad * (n / d + x * 4 * e^x * (1 + e^x) / d^2), d = n + 2."""
    e, n, d = of_mish(x)
    share = op("div", const(1, d.dtype), d)
    product = op("mul", op("mul", e, op("add", const(1, e.dtype), e)), share)
    rest = op("mul", op("mul", cast(x, e.dtype), const(4, e.dtype)), product)
    return op("mul", cast(grad, e.dtype), op("mul", op("add", n, rest), share))


lowers("mish_backward.default")(derivative(mish_backward))


@lowers("softplus_backward.default")
def lower_softplus_backward(low: Lowering, node: torch.fx.Node, grad: Any, x: Any, beta: Any, threshold: Any) -> TensorExpr:
    def build(g: Expr, v: Expr) -> Expr:
        scaled = op("mul", v, const(beta, v.dtype))
        if v.dtype is torch.float64:  # whose sigmoid has nothing of the tail below -709
            z = op("exp", scaled)
            slope = op("div", op("mul", g, z), op("add", z, const(1, z.dtype)))
        else:
            slope = op("mul", g, op("sigmoid", scaled))
        return where(compare("gt", scaled, const(threshold, v.dtype)), g, slope)

    return derivative(build)(low, node, grad, x)


@lowers("log_sigmoid_backward.default")
def lower_log_sigmoid_backward(low: Lowering, node: torch.fx.Node, grad: Any, x: Any, exps: Any) -> TensorExpr:
    """`exps` is the forward's exp(-abs(x)), on a CPU; elsewhere nothing."""
    size, dtype = out_size(node), meta_of(node).dtype
    v = operand(low, x, size, dtype)
    z = operand(low, exps, size, dtype) if 0 not in low.value(exps).size else op("exp_below", op("neg", op("abs", v)))
    one = const(1, v.dtype)
    share = op("div", z, op("add", one, z))
    slope = where(compare("lt", v, const(0, v.dtype)), op("sub", one, share), share)
    return result(node, op("mul", operand(low, grad, size, dtype), slope))


def silu_backward(grad: Expr, x: Expr) -> Expr:
    one, s = const(1, x.dtype), op("sigmoid", x)
    return op("mul", grad, op("mul", s, op("add", one, op("mul", x, op("sub", one, s)))))


lowers("silu_backward.default")(derivative(silu_backward))
lowers("sigmoid_backward.default")(derivative(lambda g, y: op("mul", op("mul", g, op("sub", const(1, y.dtype), y)), y)))
lowers("tanh_backward.default")(derivative(lambda g, y: op("mul", g, op("sub", const(1, y.dtype), op("mul", y, y)))))


@lowers("hardtanh_backward.default")
def lower_hardtanh_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, x: Any, low_bound: Any, high_bound: Any
) -> TensorExpr:
    def build(g: Expr, v: Expr) -> Expr:
        inside = op("and", compare("gt", v, const(low_bound, v.dtype)), compare("lt", v, const(high_bound, v.dtype)))
        return where(inside, g, const(0, g.dtype))

    return derivative(build, jumps=True)(low, node, grad, x)


@lowers("elu_backward.default")
def lower_elu_backward(
    low: Lowering, node: torch.fx.Node, grad: Any, alpha: Any, scale: Any, input_scale: Any, is_result: bool, x: Any
) -> TensorExpr:
    def build(g: Expr, v: Expr) -> Expr:
        steep, flat = const(input_scale, g.dtype), const(alpha * scale, g.dtype)
        rest = op("add", v, flat) if is_result else op("mul", flat, op("exp", op("mul", v, steep)))
        below = op("mul", op("mul", g, steep), rest)
        return where(compare("gt", v, const(0, v.dtype)), op("mul", g, const(scale, g.dtype)), below)

    return derivative(build, jumps=True)(low, node, grad, x)


@lowers("hardswish_backward.default")
def lower_hardswish_backward(low: Lowering, node: torch.fx.Node, grad: Any, x: Any) -> TensorExpr:
    def build(g: Expr, v: Expr) -> Expr:
        three = const(3, v.dtype)
        between = op("mul", g, op("add", op("div", v, three), const(0.5, v.dtype)))
        below = compare("le", v, op("neg", three))
        return where(below, const(0, g.dtype), where(compare("ge", v, three), g, between))

    return derivative(build, jumps=True)(low, node, grad, x)


@lowers("hardsigmoid_backward.default")
def lower_hardsigmoid_backward(low: Lowering, node: torch.fx.Node, grad: Any, x: Any) -> TensorExpr:
    # ATen has a sixth in float32, also for float64.
    sixth = float(torch.tensor(1 / 6, dtype=torch.float32))

    def build(g: Expr, v: Expr) -> Expr:
        three = const(3, v.dtype)
        between = op("and", compare("gt", v, op("neg", three)), compare("lt", v, three))
        return where(between, op("mul", g, const(sixth, g.dtype)), const(0, g.dtype))

    return derivative(build, jumps=True)(low, node, grad, x)


@lowers("leaky_relu_backward.default")
def lower_leaky_relu_backward(low: Lowering, node: torch.fx.Node, grad: Any, x: Any, slope: Any, is_result: bool) -> TensorExpr:
    def build(g: Expr, v: Expr) -> Expr:
        return where(compare("gt", v, const(0, v.dtype)), g, op("mul", g, const(slope, g.dtype)))

    return derivative(build, jumps=True)(low, node, grad, x)


@lowers("addcmul.default", "addcdiv.default")
def lower_addc(low: Lowering, node: torch.fx.Node, x: Any, a: Any, b: Any, value: Any = 1) -> TensorExpr:
    size, dtype = out_size(node), meta_of(node).dtype
    if dtype is torch.bool:
        raise NoLowering("not of bools")
    base, left, right = (operand(low, low.value(each), size, dtype) for each in (x, a, b))
    scale = operand(low, fitting(value, compute_type(dtype)), size, dtype)
    if "addcmul" in str(node.target):
        if base.dtype.is_floating_point:  # rounded once, as ATen's vectors are
            return result(node, op("fma", op("mul", scale, left), right, base))
        return result(node, op("add", base, op("mul", op("mul", scale, left), right)))
    return result(node, op("add", base, op("div", op("mul", scale, left), right)))


@lowers("lerp.Scalar", "lerp.Tensor")
def lower_lerp(low: Lowering, node: torch.fx.Node, start: Any, end: Any, weight: Any) -> TensorExpr:
    size, dtype = out_size(node), meta_of(node).dtype
    a, b, w = (operand(low, each, size, dtype) for each in (start, end, weight))
    one, difference = const(1, w.dtype), op("sub", b, a)
    near = op("add", a, op("mul", w, difference))
    far = op("sub", b, op("mul", difference, op("sub", one, w)))
    return result(node, where(compare("lt", op("abs", w), const(0.5, w.dtype)), near, far))
