"""One element's expression as Triton text: the scalar operations, and the printer that names their values.

Values are blocks. Each is known with the axes it varies along, so that what does not vary along the reduction is computed
outside its loop, and so that a load is masked along just those axes. The words are chosen so that a result is the one
eager's CUDA kernels give: division and roots round correctly, NaN goes through maxima, the functions are libdevice's,
which nvcc's math library is too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import torch

from ..index import Size, Sizes, to_c
from ..ir import Const, Expr, Gather, Iota, Load, Op, walk
from ..ops import MATH_OF_TWO
from .cpp import Scope

TYPES: dict[torch.dtype, str] = {
    torch.float32: "tl.float32",
    torch.float64: "tl.float64",
    torch.float16: "tl.float16",
    torch.bfloat16: "tl.bfloat16",
    torch.bool: "tl.int1",
    torch.uint8: "tl.uint8",
    torch.int8: "tl.int8",
    torch.int16: "tl.int16",
    torch.int32: "tl.int32",
    torch.int64: "tl.int64",
}
POINTERS: dict[torch.dtype, str] = {
    torch.float32: "*fp32",
    torch.float64: "*fp64",
    torch.float16: "*fp16",
    torch.bfloat16: "*bf16",
    torch.bool: "*i1",
    torch.uint8: "*u8",
    torch.int8: "*i8",
    torch.int16: "*i16",
    torch.int32: "*i32",
    torch.int64: "*i64",
}
LIBDEVICE = (
    "exp", "log", "sin", "cos", "tan", "asin", "acos", "atan", "sinh", "cosh", "tanh", "asinh", "acosh", "atanh",
    "exp2", "expm1", "log2", "log10", "log1p", "erf", "erfc", "lgamma", "rsqrt", "trunc",
)  # fmt: skip
LIBDEVICE_OF_TWO = (*MATH_OF_TWO, "copysign")


@dataclass(frozen=True, slots=True)
class Word:
    """An operation's texts by kind of operand: floats (of 32 bits; `double` where 64 differ), integers, bools."""

    floats: str = ""
    integers: str = ""
    bools: str = ""
    double: str = ""


def same(text: str) -> Word:
    return Word(text, text, text)


WORDS: dict[str, Word] = {
    "cast": Word(),  # `conversion`
    "round_to_half": Word("{0}.to(tl.float16).to(tl.float32)"),
    "round_to_bfloat16": Word("{0}.to(tl.bfloat16).to(tl.float32)"),
    "add": Word("({0} + {1})", "({0} + {1})", "({0} | {1})"),
    "sub": Word("({0} - {1})", "({0} - {1})", "({0} ^ {1})"),
    "mul": Word("({0} * {1})", "({0} * {1})", "({0} & {1})"),
    "div": Word("tl.div_rn({0}, {1})", double="({0} / {1})"),
    # Triton's own minus is 0 - x, which loses the sign of zero.
    "neg": Word("({0} * -1.0)", "(-{0})", "{0}"),
    "abs": Word("tl.abs({0})", "tl.abs({0})", "{0}"),
    "maximum": Word("fx_max({0}, {1})", "tl.maximum({0}, {1})", "({0} | {1})"),
    "minimum": Word("fx_min({0}, {1})", "tl.minimum({0}, {1})", "({0} & {1})"),
    "floordiv": Word("fx_floordiv_float({0}, {1})", "fx_floordiv({0}, {1})", double="fx_floordiv_double({0}, {1})"),
    "truncdiv": Word("", "({0} // {1})"),
    "remainder": Word("fx_mod_float({0}, {1})", "fx_mod({0}, {1})"),
    "fmod": Word("libdevice.fmod({0}, {1})", "({0} % {1})"),
    "eq": same("({0} == {1})"),
    "ne": same("({0} != {1})"),
    "lt": same("({0} < {1})"),
    "le": same("({0} <= {1})"),
    "gt": same("({0} > {1})"),
    "ge": same("({0} >= {1})"),
    "where": same("tl.where({0}, {1}, {2})"),
    "and": Word("", "({0} & {1})", "({0} & {1})"),
    "or": Word("", "({0} | {1})", "({0} | {1})"),
    "xor": Word("", "({0} ^ {1})", "({0} ^ {1})"),
    "not": Word("", "(-{0} - 1)", "({0} == 0)"),
    "logical_not": same("({0} == 0)"),
    "shl": Word("", "fx_shl({0}, {1}, {bits})"),
    "shr": Word("", "fx_shr({0}, {1}, {bits})"),
    "philox": Word("", "fx_philox({0}.to(tl.int64), {1}.to(tl.int64), {2}.to(tl.int64)).to({kind})"),
    "fma": Word("tl.fma({0}, {1}, {2})"),
    "isnan": Word("({0} != {0})", "({0} != {0})", "({0} != {0})"),
    "isinf": Word('(tl.abs({0}) == float("inf"))'),
    "sqrt": Word("tl.sqrt_rn({0})", double="tl.sqrt({0})"),
    "floor": Word("tl.floor({0})"),
    "ceil": Word("tl.ceil({0})"),
    "round": Word("libdevice.nearbyint({0})"),
    "exp_below": Word("libdevice.exp({0})"),
    "sigmoid": Word("(1.0 / (1.0 + libdevice.exp(-{0})))"),
    "silu": Word("({0} / (1.0 + libdevice.exp(-{0})))"),
    # By `erf`, as ATen's kernels on a GPU: `erfc`, which is nearer below -4, takes half as long again, and then memory waits.
    "gelu": Word("(0.5 * {0} * (1.0 + libdevice.erf(0.7071067811865476 * {0})))"),
    "normal_cdf": Word("(0.5 + 0.5 * libdevice.erf(0.7071067811865476 * {0}))"),
    "gelu_slope": Word(
        "(0.5 * (1.0 + libdevice.erf(0.7071067811865476 * {0})) + 0.3989422804014327 * {0} * libdevice.exp(-0.5 * {0} * {0}))"
    ),
    "softplus": Word("(tl.maximum({0}, 0.0) + libdevice.log1p(libdevice.exp(-tl.abs({0}))))"),
    **{name: Word(f"libdevice.{name}({{0}})") for name in LIBDEVICE},
    **{name: Word(f"libdevice.{name}({{0}}, {{1}})") for name in LIBDEVICE_OF_TWO},
}


class NoWord(Exception):
    """The operation has no Triton text for this type."""


def operation(node: Op, operands: Sequence[str]) -> str:
    if node.name == "cast":
        return conversion(operands[0], node.args[0].dtype, node.dtype)
    word = WORDS.get(node.name, Word())
    # By the last operand: comparisons of floats give bools, and a choice is made by one.
    kind = node.args[-1].dtype
    if kind is torch.float64 and word.double:
        text = word.double
    elif kind.is_floating_point:
        text = word.floats
    else:
        text = word.bools if kind is torch.bool else word.integers
    if not text:
        raise NoWord(f"{node.name} of {kind}")
    return text.format(*operands, bits=8 * kind.itemsize, kind=TYPES[kind])


def conversion(value: str, source: torch.dtype, target: torch.dtype) -> str:
    if target is torch.bool:
        return f"({value} != 0)"
    if source.is_floating_point and target is torch.uint8:
        return f"{value}.to(tl.int64).to(tl.uint8)"
    return f"{value}.to({TYPES[target]})"


def literal(node: Const) -> str:
    value = node.value
    if node.dtype is torch.bool:
        return "True" if value else "False"
    if not node.dtype.is_floating_point:
        return str(int(value))
    value = float(value)
    if node.dtype is torch.float32:
        # Rounded here as ATen rounds a Python number.
        value = float(torch.tensor(value, dtype=torch.float64).to(torch.float32))
    if value == 0:
        return "0.0"
    if math.isnan(value):
        return 'float("nan")'
    if math.isinf(value):
        return 'float("inf")' if value > 0 else 'float("-inf")'
    return repr(value)


# A value's name, and the axes ("x", "y", "r") it varies along.
Named: TypeAlias = "tuple[str, frozenset[str]]"
Given: TypeAlias = "Callable[[Load], Named | None]"
NOWHERE: frozenset[str] = frozenset()


class Printer:
    """Prints expressions; `loops` are the names, with their axes, that stand for an expression's dimensions.

    What varies along an axis of `looped` goes in the inner scope.
    """

    looped = frozenset("r")
    #: What a load gives where its mask says no. Without it nothing is computed from that which is kept.
    filler = ""

    def __init__(self, pointers: Mapping[str, str], symbols: Mapping[str, str], masks: Mapping[str, str], rank: int) -> None:
        self.pointers, self.symbols, self.masks = pointers, dict(symbols), masks
        # The same as numbers to calculate with, which need not fit where indices do.
        self.numbers = {symbol: f"{name}.to(tl.int64)" for symbol, name in symbols.items()}
        self.ones = "[" + ", ".join(["1"] * rank) + "]"
        self.counter = 0
        self.checks = False

    def size(self, size: Size, names: dict[str, str] | None = None) -> str:
        return to_c(size, names or self.symbols).replace("LL", "")

    def affine(
        self, strides: Sizes, offset: Size, loops: Sequence[Named], cast: str = "{}", names: dict[str, str] | None = None
    ) -> Named:
        terms = [] if offset == 0 else [self.size(offset, names)]
        axes = NOWHERE
        for stride, (name, along) in zip(strides, loops, strict=True):
            if stride == 0:
                continue
            text = cast.format(name)
            terms.append(text if stride == 1 else f"{text} * {self.size(stride, names)}")
            axes |= along
        return " + ".join(terms) if terms else "0", axes

    def mask(self, axes: frozenset[str]) -> str:
        return " & ".join(self.masks[axis] for axis in sorted(axes))

    def emit(self, expr: Expr, loops: Sequence[Named], inner: Scope[str], outer: Scope[str], given: Given) -> Named:
        """Adds what computes `expr` to the scopes; what does not vary along "r" goes in the outer one."""
        values: dict[int, Named] = {}
        for node in walk(expr):
            values[id(node)] = self.one(node, loops, inner, outer, values, given)
        return values[id(expr)]

    def one(
        self, node: Expr, loops: Sequence[Named], inner: Scope[str], outer: Scope[str], values: Mapping[int, Named],
        given: Given,
    ) -> Named:
        if isinstance(node, Const):
            return self.named(self.constant(node), outer), NOWHERE
        if isinstance(node, Op):
            operands = [values[id(arg)] for arg in node.args]
            axes = frozenset().union(*(along for _, along in operands))
            return self.named(operation(node, [name for name, _ in operands]), inner if axes & self.looped else outer), axes
        if isinstance(node, Iota):
            zero = self.named(f"tl.full({self.ones}, 0, tl.int64)", outer)
            text, axes = self.affine(node.strides, node.offset, loops, f"({zero} + {{}})", self.numbers)
            text = conversion(f"({zero} + {text})", torch.int64, node.dtype)
            return self.named(text, inner if axes & self.looped else outer), axes
        at_hand = given(node)
        return at_hand if at_hand is not None else self.load(node, loops, inner, outer, values)

    def constant(self, node: Const) -> str:
        text = f"tl.full({self.ones}, {literal(node)}, {TYPES[node.dtype]})"
        # Older versions of Triton fill with zero, not with minus zero.
        return f"({text} * -1.0)" if node.value == 0 and math.copysign(1, node.value) < 0 else text

    def load(
        self, node: Load, loops: Sequence[Named], inner: Scope[str], outer: Scope[str], values: Mapping[int, Named]
    ) -> Named:
        place, axes = self.affine(node.strides, node.offset, loops)
        axes = axes.union(*(values[id(gather.index)][1] for gather in node.gathers))
        scope = inner if axes & self.looped else outer
        mask = self.mask(axes)
        for gather in node.gathers:
            index, inside = self.checked(gather, values[id(gather.index)], scope)
            place += f" + {index}" + ("" if gather.stride == 1 else f" * {self.size(gather.stride)}")
            mask = f"{mask} & {inside}" if mask else inside
        if not axes:
            # A block of one all the same: every value is a block.
            place = f"tl.full({self.ones}, 0, tl.int32) + {place}"
        text = f"tl.load({self.pointers[node.buffer]} + ({place}){f', {mask}{self.filler}' if mask else ''})"
        if node.dtype is not node.memory_dtype:
            text += f".to({TYPES[node.dtype]})"
        return self.named(text, scope), axes

    def checked(self, gather: Gather, index: Named, scope: Scope[str]) -> tuple[str, str]:
        """The index, wrapped, and whether it is in bounds; one out of bounds stops the program, as eager's does."""
        self.checks = True
        size, (name, axes) = self.size(gather.size), index
        if gather.wrap:
            name = self.named(f"tl.where({name} < 0, {name} + {size}, {name})", scope)
        inside = self.named(f"({name} >= 0) & ({name} < {size})", scope)
        mask = self.mask(axes)
        text = f"{inside} | (({mask}) == 0)" if mask else inside
        line = f'tl.device_assert({text}, "index out of range in self")'
        if line not in scope.lines:
            scope.lines.append(line)
        return name, inside

    def named(self, text: str, scope: Scope[str]) -> str:
        found = scope.find(text)
        if found is None:
            found = f"t{self.counter}"
            self.counter += 1
            scope.lines.append(f"{found} = {text}")
            scope.names[text] = found
        return found


def stored(value: str, kind: torch.dtype) -> str:
    """A value of the type computed with, as the type in memory."""
    return f"{value}.to({TYPES[kind]})"
