"""One element's expression as C++ text."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Generic, TypeAlias, TypeVar

import torch

from ..index import Size, Sizes, to_c
from ..ir import Const, Expr, Gather, Iota, Load, Op, walk
from ..ops import SCALARS
from .fp16 import ConvertedRows
from .prelude import C_TYPES

# The name of a load's value where it need not be read, and whether that depends on the innermost loop.
Given: TypeAlias = "Callable[[Load], tuple[str, bool] | None]"
Loops: TypeAlias = "Scope[Line]"

HALVES = (torch.float16, torch.bfloat16)

#: How a line begins that notes a wrong index.
NOTE = "bad |="
#: Steps from which the compiler does not see powers of two, and work of an element (`ops.work`) from which it is not to: a
#: polynomial of 12 operations takes 2.1 ns an element at steps of 32 or 128 as GCC 12 compiles these, and 0.5 and 0.7 so, with
#: vectors of 256 bits at 16 2.1 and 0.4; in loops of constant length, GELU at steps of 8 3.2 and 0.4, of 4 1.8 and 0.4. At 24,
#: 96 and 768 it makes no difference. At 2 it takes longer so (0.12 and 0.15), as one multiplication does at 16 and 512 (0.37
#: and 0.44, 1.34 and 1.60). Zen 5, one thread.
LEAST_HIDDEN_STEP, HEAVY = 4, 8
#: The same where an element is less work and a type has less than 32 bits: one multiplication of bfloat16 at steps of 4, 16, 64
#: and 128 takes 0.21, 0.29, 1.20 and 1.29 ns with the step seen, 0.31, 0.35, 0.73 and 1.00 without; in a transpose of 64 x 64
#: 0.87 and 0.19; of uint8 and int16 in one of 128 x 128 0.34 and 0.20.
LEAST_HIDDEN_STEP_OF_NARROW = 32


class Line(str):
    """A line of C++, with what loop fission has to know of it: the names it reads (what else it mentions does no harm), and
    the value it defines, if it does: its name, its type, and what computing it costs (`ops.SCALARS`)."""

    __slots__ = ("cost", "ctype", "defines", "reads")
    reads: frozenset[str]
    defines: str | None
    ctype: str
    cost: int

    def __new__(cls, text: str, reads: Sequence[str], defines: str | None = None, ctype: str = "", cost: int = 0) -> Line:
        line = super().__new__(cls, text)
        line.reads, line.defines, line.ctype, line.cost = frozenset(reads), defines, ctype, cost
        return line


LineT = TypeVar("LineT", bound=str)


class Scope(Generic[LineT]):
    """Lines of one loop level, with the names of the values computed in it or outside it."""

    def __init__(self, outer: Scope[LineT] | None = None) -> None:
        self.outer = outer
        self.lines: list[LineT] = []
        self.names: dict[object, str] = {}

    def find(self, key: object) -> str | None:
        scope: Scope[LineT] | None = self
        while scope is not None:
            if key in scope.names:
                return scope.names[key]
            scope = scope.outer
        return None


class Printer:
    """Prints expressions into a loop body; values that do not depend on the innermost loop go in the scope outside it.

    `loops` are the names of the variables that stand for an expression's dimensions. Equal values are computed once: the
    key of a value is made of its operands' names.
    """

    def __init__(self, pointers: Mapping[str, str], symbols: dict[str, str], innermost: str | None = None) -> None:
        self.pointers = pointers
        self.symbols = symbols
        #: The variable of the innermost loop, where that is not the one of an expression's last dimension.
        self.innermost = innermost
        self.counter = 0
        self.checks = False
        #: Names of constants by their text, where the kernel makes integers of floats (`hides_constants`); else none.
        self.opaque: dict[str, str] = {}
        self.hides_constants = False
        #: Names of the innermost loops' steps through memory by their text; and how the variables of these loops begin, where
        #: the kernel hides them.
        self.steps: dict[str, str] = {}
        self.hides_steps: str | None = None
        self.least_hidden_step = LEAST_HIDDEN_STEP
        self.rows: ConvertedRows | None = None
        #: Names of sizes that are divided for, by their text.
        self.quotients: dict[str, str] = {}

    @contextmanager
    def converting(self, rows: ConvertedRows | None) -> Iterator[None]:
        """Loads and stores are those of a loop that has `rows` in arrays."""
        self.rows = rows
        yield
        self.rows = None

    def fresh(self) -> str:
        self.counter += 1
        return f"t{self.counter}"

    def size(self, size: Size) -> str:
        """Sizes that vary and are quotients are calculated once a kernel: GCC leaves divisions in the loops of vectors.
        SegResNet with images of sides that vary, one thread of a Zen 5: 91 ms, and 61."""
        text = to_c(size, self.symbols)
        return self.quotients.setdefault(text, f"z{len(self.quotients)}") if "fx_" in text else text

    def affine(self, strides: Sizes, offset: Size, loops: list[str]) -> str:
        terms = [] if offset == 0 else [self.size(offset)]
        for stride, name in zip(strides, loops, strict=True):
            if stride == 0:
                continue
            terms.append(name if stride == 1 else f"{name} * {self.step(stride, name, loops)}")
        return " + ".join(terms) if terms else "0"

    def step(self, stride: Size, name: str, loops: list[str]) -> str:
        """As a number, or as a name whose number the compiler does not know: GCC makes no vectors of a loop that steps through
        memory by a large power of two, as it looks for a way to load all that lies between."""
        text = self.size(stride)
        power = isinstance(stride, int) and stride >= self.least_hidden_step and stride & (stride - 1) == 0
        innermost = self.hides_steps and name.startswith(self.hides_steps) and name == (self.innermost or loops[-1])
        if not (innermost and power):
            return text
        if text not in self.steps:
            self.steps[text] = self.fresh()
        return self.steps[text]

    def varies(self, strides: Sizes, loops: list[str]) -> bool:
        """Whether a place with these strides is another one in each iteration of the innermost loop."""
        if not loops or not strides:
            return False
        if self.innermost is None:
            return strides[-1] != 0
        return self.innermost in loops and strides[loops.index(self.innermost)] != 0

    def emit(self, expr: Expr, loops: list[str], inner: Loops, outer: Loops, given: Given | None = None) -> str:
        """Adds what computes `expr` to the scopes and returns its name. `given` names loads whose value is at hand."""
        values: dict[int, tuple[str, bool]] = {}
        for node in walk(expr):
            name, deep = self.one(node, loops, inner, outer, values, given)
            values[id(node)] = (name, deep)
        return values[id(expr)][0]

    def one(
        self, node: Expr, loops: list[str], inner: Loops, outer: Loops, values: dict[int, tuple[str, bool]], given: Given | None
    ) -> tuple[str, bool]:
        if isinstance(node, Const):
            return self.constant(node), False
        if isinstance(node, Op):
            operands = [values[id(arg)] for arg in node.args]
            deep = any(flag for _, flag in operands)
            names = [name for name, _ in operands]
            scope = inner if deep else outer
            ctype = type_in(scope, inner, node.dtype)
            return self.named(operation(node, names), ctype, scope, names, SCALARS[node.name].cost), deep
        if isinstance(node, Iota):
            deep = self.varies(node.strides, loops)
            text = f"({C_TYPES[node.dtype]})({self.affine(node.strides, node.offset, loops)})"
            return self.named(text, C_TYPES[node.dtype], inner if deep else outer, ()), deep
        assert isinstance(node, Load)
        at_hand = given(node) if given else None
        if at_hand is not None:
            return at_hand
        if (widened := self.widened(node, loops, inner, outer, values)) is not None:
            return self.named(widened, C_TYPES[node.dtype], inner, ()), True
        element, scope, indices, deep = self.element(node, loops, inner, outer, values)
        return self.named(load_text(element, node.memory_dtype), type_in(scope, inner, node.dtype), scope, indices), deep

    def constant(self, node: Const) -> str:
        """As a literal, or as a name that the compiler cannot fold: what is no number of the integer type becomes, converted
        while compiling, another integer than the processor makes of it, and eager's are the processor's."""
        text = literal(node)
        if not self.hides_constants or not node.dtype.is_floating_point or -128 <= node.value < 128:
            return text
        if text not in self.opaque:
            self.opaque[text] = self.fresh()
        return self.opaque[text]

    def divided_sizes(self) -> list[str]:
        """Definitions for the head of the kernel, once all else is printed."""
        return [f"const int64_t {name} = {text};" for text, name in self.quotients.items()]

    def opaque_constants(self) -> list[str]:
        """Their definitions, for the head of the kernel, behind those of `divided_sizes`."""
        steps = [f"const int64_t {name} = fx_hidden<int64_t>({text});" for text, name in self.steps.items()]
        return [*steps, *(f"const auto {name} = fx_hidden({text});" for text, name in self.opaque.items())]

    def element(
        self, load: Load, loops: list[str], inner: Loops, outer: Loops, values: dict[int, tuple[str, bool]]
    ) -> tuple[str, Loops, list[str], bool]:
        """(the place in memory, the scope it is read in, the names it depends on, whether it varies in the innermost loop)"""
        found = [values[id(gather.index)] for gather in load.gathers]
        deep = self.varies(load.strides, loops) or any(own for _, own in found)
        scope = inner if deep else outer
        place = self.affine(load.strides, load.offset, loops)
        # An index is checked where it is known: in the loop over its row, the check would keep GCC from making vectors of it.
        indices = [self.checked(g, name, inner if own else outer) for g, (name, own) in zip(load.gathers, found, strict=True)]
        for gather, index in zip(load.gathers, indices, strict=True):
            place += f" + {index} * {self.size(gather.stride)}" if gather.stride != 1 else f" + {index}"
        return f"{self.pointers[load.buffer]}[{place}]", scope, indices, deep

    def widened(
        self, load: Load, loops: list[str], inner: Loops, outer: Loops, values: dict[int, tuple[str, bool]]
    ) -> str | None:
        """The element in an array on the stack that a row of half numbers is widened to before the loop."""
        rows = self.rows
        if rows is None or not rows.widens(load.memory_dtype) or load.strides[loops.index(rows.loop)] != 1:
            return None
        if load.gathers and (inner is outer or any(values[id(gather.index)][1] for gather in load.gathers)):
            return None
        # The indices of a row that is looked up are wanted before the loop, as the row is.
        return rows.widened(self.element(load, rows.at_start(loops), outer, outer, values)[0])

    def stored(self, pointer: str, strides: Sizes, offset: Size, loops: list[str], value: str, dtype: torch.dtype) -> str:
        """The statement that stores the value of this iteration in memory, or in an array that is rounded after the loop."""
        rows = self.rows
        if rows is not None and rows.narrows(dtype) and strides[loops.index(rows.loop)] == 1:
            return f"{rows.narrowed(f'{pointer}[{self.affine(strides, offset, rows.at_start(loops))}]')} = {value};"
        return f"{pointer}[{self.affine(strides, offset, loops)}] = {store_text(value, dtype)};"

    def copied(self, expr: Expr, dtype: torch.dtype, loops: list[str], inner: Loops, outer: Loops, given: Given) -> str | None:
        """The name of the bits of a half type that are only moved, and need not be widened and rounded; None for any other."""
        if not isinstance(expr, Load) or expr.memory_dtype is not dtype or dtype not in HALVES or given(expr) is not None:
            return None
        values: dict[int, tuple[str, bool]] = {}
        for node in walk(expr):
            if node is not expr:
                values[id(node)] = self.one(node, loops, inner, outer, values, given)
        element, scope, indices, _ = self.element(expr, loops, inner, outer, values)
        return self.named(f"{element}.bits", "uint16_t", scope, indices)  # GCC vectorises no assignment of a struct

    def checked(self, gather: Gather, index: str, scope: Loops) -> str:
        """The index, 0 in place of a wrong one, which is noted."""
        index, wrong = self.bounds(gather, index, scope)
        if (line := Line(f"{NOTE} {wrong};", [wrong])) not in scope.lines:
            scope.lines.append(line)
        return self.named(f"{wrong} ? 0 : {index}", "int64_t", scope, (wrong, index))

    def bounds(self, gather: Gather, index: str, scope: Loops) -> tuple[str, str]:
        """The index, wrapped, and whether it is out of bounds: one comparison, since negative numbers are large ones then."""
        self.checks = True
        size = self.size(gather.size)
        if gather.wrap:
            index = self.named(f"{index} < 0 ? {index} + {size} : {index}", "int64_t", scope, [index])
        return index, self.named(f"(uint64_t){index} >= (uint64_t){size}", "int", scope, [index])

    def named(self, text: str, ctype: str, scope: Loops, reads: Sequence[str], cost: int = 1) -> str:
        found = scope.find(text)
        if found is None:
            found = self.fresh()
            scope.lines.append(Line(f"const {ctype} {found} = {text};", reads, found, ctype, cost))
            scope.names[text] = found
        return found


def type_in(scope: Loops, inner: Loops, dtype: torch.dtype) -> str:
    """The type of a value's name. GCC 12 vectorises no loop of a parallel region that chooses by a `bool` from outside it."""
    return "int" if dtype is torch.bool and scope is not inner else C_TYPES[dtype]


def makes_integers(expr: Expr) -> bool:
    """Whether floats are converted to integers in it."""
    return any(
        isinstance(node, Op) and node.name == "cast" and node.args[0].dtype.is_floating_point
        and not node.dtype.is_floating_point and node.dtype is not torch.bool
        for node in walk(expr)
    )  # fmt: skip


def load_text(element: str, memory_dtype: torch.dtype) -> str:
    if memory_dtype is torch.bool:
        return f"((int32_t){element} != 0)"
    return f"fx_widen({element})" if memory_dtype in HALVES else element


def store_text(value: str, memory_dtype: torch.dtype) -> str:
    if memory_dtype is torch.bfloat16:
        return f"fx_bfloat({value})"
    if memory_dtype is torch.bool:
        return f"(bool){value}"
    return f"fx_halve({value})" if memory_dtype is torch.float16 else value


def operation(node: Op, operands: list[str]) -> str:
    if node.name == "cast":
        return conversion(operands[0], node.args[0].dtype, node.dtype)
    # `{f}` follows the operands' type: comparisons of floats give bools.
    suffix = "f" if node.args[-1].dtype is torch.float32 else ""
    return SCALARS[node.name].cpp.format(*operands, f=suffix, t=C_TYPES[node.dtype])


def conversion(value: str, source: torch.dtype, target: torch.dtype) -> str:
    if target is torch.bool:
        return f"({value} != 0)"
    if source is torch.bool:
        return f"({value} ? ({C_TYPES[target]})1 : ({C_TYPES[target]})0)"  # vectorised, which a conversion of it is not
    if source.is_floating_point and target is torch.uint8:
        return f"(uint8_t)(int64_t){value}"
    return f"({C_TYPES[target]}){value}"


def literal(node: Const) -> str:
    value = node.value
    if node.dtype is torch.bool:
        return "true" if value else "false"
    if not node.dtype.is_floating_point:
        number = int(value)
        if number == -(2**63):
            return "(int64_t)(-9223372036854775807LL - 1)"
        return (
            f"({C_TYPES[node.dtype]}){number}{'LL' if abs(number) >= 2**31 else ''}"
            if number >= 0
            else f"({C_TYPES[node.dtype]})({number}LL)"
        )
    single = node.dtype is torch.float32
    value = float(value)
    if math.isnan(value):
        return '__builtin_nanf("")' if single else '__builtin_nan("")'
    if single:
        # Rounded here as ATen rounds a Python number: to the nearest float, infinite when too large. Not by a tensor: this
        # runs under AOTAutograd's modes, where making one takes milliseconds.
        value = ctypes.c_float(value).value
    if math.isinf(value):
        text = "__builtin_inff()" if single else "__builtin_inf()"
        return text if value > 0 else f"(-{text})"
    text = value.hex() + ("f" if single else "")
    return f"({text})" if math.copysign(1, value) < 0 else text
