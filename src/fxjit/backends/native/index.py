"""Arithmetic on sizes and strides: a Python int where the size is static, a sympy expression where it is a symbol.

The lowering and the scheduler calculate with these; `to_c` prints them for kernels, executor/encode.py for the executor.
Index expressions of the loop IR are affine (one stride a loop and an offset), so all that is needed of algebra is
products, equality and exact division.
"""

from __future__ import annotations

import functools
import hashlib
import weakref
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextvars import ContextVar
from fractions import Fraction
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Generic, TypeAlias, TypeVar

import sympy
from torch.utils._sympy.functions import FloorDiv, Max, Min

if TYPE_CHECKING:
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

Size: TypeAlias = "int | sympy.Expr"
Sizes: TypeAlias = "tuple[Size, ...]"
Place = TypeVar("Place")


class UnprintableSize(Exception):
    """A symbolic size that uses a function neither C nor the executor can be given."""


def size_of(value: Any) -> Size:
    """An int or the sympy expression behind a SymInt (or a SymInt-like integer expression)."""
    if isinstance(value, int):
        return value
    expr = sympy.sympify(value.node.expr if hasattr(value, "node") else value)
    if hasattr(value, "node") and not expr.is_Atom:
        expr = expr.xreplace(_numbers_found(value.node.shape_env))
    return as_size(_by_inputs(_by_symbols(without_floats(expr))))


class RoundedSymbol(sympy.Symbol):  # type: ignore[misc]  # sympy is untyped
    """An integer that is made of floats, other than a quotient: a symbol of its own, which the node of the graph gives that
    calculates it (executor/plan.py). An expression may say the same numbers in another order, which rounds otherwise."""

    __slots__ = ("made_of",)
    made_of: sympy.Expr


def _by_symbols(expr: sympy.Expr) -> sympy.Expr:
    """The expression, in which integers that are made of floats are symbols."""
    if expr.is_Atom:
        return expr
    rounded = [part for part in expr.atoms(sympy.Function) if type(part).__name__ in _ROUNDINGS]
    return expr.xreplace({part: _symbol_of(part) for part in rounded}) if rounded else expr


class InputSize(sympy.Symbol):  # type: ignore[misc]  # sympy is untyped
    """A size that an input has, which is made of symbols that no input has by themselves (input_sizes.py)."""

    __slots__ = ("made_of",)
    made_of: sympy.Expr

    @classmethod
    def of(cls, size: sympy.Expr) -> InputSize:
        name = hashlib.sha256(sympy.srepr(size).encode()).hexdigest()[:12]
        known = {"positive": True} if size.is_positive else {"nonnegative": True} if size.is_nonnegative else {}
        symbol = cls(f"input_{name}", integer=True, **known)
        symbol.made_of = size
        return symbol


#: What sizes are made of in the graph that is compiled, in terms of those that its inputs have.
replaced_sizes: Final[ContextVar[Mapping[sympy.Expr, sympy.Expr]]] = ContextVar("replaced_sizes", default=MappingProxyType({}))


def _by_inputs(expr: sympy.Expr) -> sympy.Expr:
    """The expression in terms of sizes that inputs have, if there is one."""
    parts = replaced_sizes.get()
    if not parts or expr.is_Integer or (said := replaced(expr, parts)) == expr:
        return expr
    divides = any(p.exp.is_negative for p in said.atoms(sympy.Pow)) or not all(n.is_Integer for n in said.atoms(sympy.Rational))
    return expr if divides or said.free_symbols & parts.keys() else said


def replaced(expr: sympy.Expr, parts: Mapping[sympy.Expr, sympy.Expr]) -> sympy.Expr:
    """The expression with each part replaced, in that order: a later one may be made of earlier ones' values."""
    for part, value in parts.items():
        if expr.has(part):
            expr = sympy.expand(expr.xreplace({part: value}))
    return expr


def _symbol_of(rounded: sympy.Expr) -> RoundedSymbol:
    name = hashlib.sha256(sympy.srepr(rounded).encode()).hexdigest()[:12]
    known = {"positive": True} if rounded.is_positive else {"nonnegative": True} if rounded.is_nonnegative else {}
    symbol = RoundedSymbol(f"rounded_{name}", integer=True, **known)
    symbol.made_of = rounded
    return symbol


def _numbers_found(env: ShapeEnv | None) -> dict[sympy.Expr, sympy.Expr]:
    """The expressions of which a trace has found that they are numbers, after which it says the number: `n // 2` of 3 is 1."""
    if env is None:
        return {}
    seen, found = _FOUND.get(env, (0, {}))
    if seen < len(env.guards):
        sides = [guard.expr.args for guard in env.guards[seen:] if isinstance(guard.expr, sympy.Eq)]
        pairs = [pair for left, right in sides for pair in ((left, right), (right, left))]
        found = found | {expr: number for expr, number in pairs if number.is_Integer and not expr.is_Atom}
        _FOUND[env] = len(env.guards), found
    return found


#: How many of its guards were read, and what they say.
_FOUND: Final[weakref.WeakKeyDictionary[ShapeEnv, tuple[int, dict[sympy.Expr, sympy.Expr]]]] = weakref.WeakKeyDictionary()


def without_floats(expr: sympy.Expr) -> sympy.Expr:
    """The expression, in which integers that were made of floats are integer quotients: `int(n / 2.5)` is `2*n // 5`.

    That is so for `n` up to what a float can count, for a factor or divisor that is a fraction of small numbers: the float
    nearest to such a quotient is never rounded past the next integer.
    """
    rounded = [part for part in expr.atoms(sympy.Function) if type(part).__name__ in _ROUNDINGS]
    changed = {part: whole for part in rounded if (whole := _whole_quotient(part)) is not None}
    return expr.xreplace(changed) if changed else expr


_ROUNDINGS = ("TruncToInt", "FloorToInt", "CeilToInt", "RoundToInt")


def _whole_quotient(rounded: sympy.Expr) -> sympy.Expr | None:
    (inner,) = rounded.args
    if type(rounded).__name__ == "RoundToInt":
        return None
    numerator, factor = _scaled(inner)
    if numerator is None or not 0 < factor.numerator * factor.denominator < 2**20:
        return None
    over = without_floats(numerator) * factor.numerator
    if factor.denominator == 1:
        return over
    down, up = FloorDiv(over, factor.denominator), FloorDiv(over + factor.denominator - 1, factor.denominator)
    if type(rounded).__name__ == "CeilToInt":
        return up
    if type(rounded).__name__ == "FloorToInt" or numerator.is_nonnegative:
        return down
    return Max(down, 0) + Min(up, 0)  # towards zero: one of the two is 0


def _scaled(expr: sympy.Expr) -> tuple[sympy.Expr | None, Fraction]:
    """An integer expression and the number by which this float is larger; None for other floats."""
    name = type(expr).__name__
    if name == "ToFloat":
        return expr.args[0], Fraction(1)
    if expr.is_Mul and len(expr.args) == 2 and expr.args[0].is_Float:
        integer, factor = _scaled(expr.args[1])
        return integer, factor * Fraction(float(expr.args[0])) if factor == 1 else Fraction(0)
    if name in ("FloatTrueDiv", "IntTrueDiv") and expr.args[1].is_number:
        integer, factor = _scaled(expr.args[0]) if name == "FloatTrueDiv" else (expr.args[0], Fraction(1))
        by = Fraction(float(expr.args[1]))
        return integer, factor / by if factor == 1 and by > 0 else Fraction(0)
    return None, Fraction(0)


def as_size(expr: Any) -> Size:
    """Turns constant expressions back into ints, so that `isinstance(size, int)` distinguishes static from symbolic."""
    if isinstance(expr, int):
        return expr
    if expr.is_Integer:
        return int(expr)
    return expr  # type: ignore[no-any-return]  # sympy is untyped


def sizes_of(values: Iterable[Any]) -> Sizes:
    return tuple(map(size_of, values))


def mul(a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return a * b
    return as_size(sympy.expand(a * b))


def add(a: Size, b: Size) -> Size:
    if isinstance(a, int) and isinstance(b, int):
        return a + b
    return as_size(sympy.expand(a + b))


def sub(a: Size, b: Size) -> Size:
    return add(a, mul(-1, b))


def prod(sizes: Iterable[Size]) -> Size:
    total: Size = 1
    for size in sizes:
        total = mul(total, size)
    return total


def magnitude(size: Size) -> Size:
    """At least as large as the size, and as all that is computed on the way to it, without their signs."""
    if isinstance(size, int) or size.is_Integer:
        return abs(int(size))
    if size.is_Symbol:
        return size if size.is_nonnegative else Max(size, -size)
    parts = [magnitude(each) for each in size.args]
    if size.is_Mul or size.is_Pow:
        return prod(parts) if size.is_Mul else as_size(parts[0] ** size.exp)
    if type(size).__name__ in ("FloorDiv", "CleanDiv", "ModularIndexing"):
        return parts[0]
    return functools.reduce(add, parts)


def equal(a: Size, b: Size) -> bool:
    """Certainly equal. Two symbols that happen to have the same value are not."""
    if isinstance(a, int) and isinstance(b, int):
        return a == b
    return bool(a == b) or sub(a, b) == 0


def same_sizes(a: Sequence[Size], b: Sequence[Size]) -> bool:
    return len(a) == len(b) and all(map(equal, a, b))


def exact_quotient(a: Size, b: Size) -> Size | None:
    """a / b where b certainly divides a, else None."""
    if isinstance(a, int) and isinstance(b, int):
        return a // b if b and a % b == 0 else None
    if b == 0:
        return None
    over = sympy.sympify(a) / sympy.sympify(b)
    # A floor division, say, is a number like any other here.
    opaque = {part: sympy.Dummy(integer=True) for part in over.atoms(sympy.Function)}
    quotient = sympy.cancel(over.xreplace(opaque))
    numerator, denominator = quotient.as_numer_denom()
    if denominator != 1 or not quotient.is_polynomial(*quotient.free_symbols):
        return None
    if (
        any(not coefficient.is_Integer for coefficient in sympy.Poly(numerator, *numerator.free_symbols).coeffs())
        if numerator.free_symbols
        else not numerator.is_Integer
    ):
        return None
    return as_size(quotient.xreplace({dummy: part for part, dummy in opaque.items()}))


def contiguous_strides(sizes: Sequence[Size]) -> Sizes:
    strides: list[Size] = []
    running: Size = 1
    for size in reversed(sizes):
        strides.append(running)
        if size != 1:
            running = mul(running, size if size != 0 else 1)
    return tuple(reversed(strides))


def symbols_in(sizes: Iterable[Any]) -> set[sympy.Symbol]:
    found: set[sympy.Symbol] = set()
    for size in sizes:
        if not isinstance(size, int):
            found |= size.free_symbols
    return found


def solve_sums(known: Collection[sympy.Symbol], sums: Mapping[sympy.Symbol, sympy.Expr]) -> dict[sympy.Symbol, sympy.Expr]:
    """Solves for the symbols that inputs have only together with others: `n` is `total - m` where an input has `m + n`.

    `sums` has each such size under a symbol of its own, which may be taken for known.
    """
    found: dict[sympy.Symbol, sympy.Expr] = {}
    todo = {total: sympy.expand(size) for total, size in sums.items()}
    while todo:
        left = {}
        for total, size in todo.items():
            unknown = size.free_symbols.difference(known, found)
            if len(unknown) != 1:
                left[total] = size
                continue
            (symbol,) = unknown
            factor = size.coeff(symbol)
            rest = size - factor * symbol
            if factor.is_Integer and symbol not in rest.free_symbols:
                value = total - rest.xreplace(found)
                found[symbol] = value if factor == 1 else FloorDiv(value, factor)
        if len(left) == len(todo):
            return found
        todo = left
    return found


class Found(Generic[Place]):
    """Where a program finds its symbols: which numbers of its inputs give them."""

    def __init__(self) -> None:
        self.places: dict[sympy.Symbol, Place] = {}
        #: Numbers of inputs that are no symbol, under symbols of their own.
        self.sums: dict[sympy.Symbol, sympy.Expr] = {}

    def tell(self, size: Size, place: Place) -> None:
        """The number at `place` is `size`."""
        if isinstance(size, int):
            return
        if size.is_Symbol:
            self.places.setdefault(size, place)
        else:
            total = sympy.Symbol(f"total{len(self.sums)}", integer=True)
            self.sums[total], self.places[total] = size, place

    def solved(self, wanted: Collection[sympy.Symbol]) -> dict[sympy.Symbol, sympy.Expr]:
        """Symbols without a place, expressed by those that have one; empty if every wanted symbol has a place."""
        return {} if self.places.keys() >= set(wanted) else solve_sums(self.places, self.sums)

    def place(self, symbol: sympy.Symbol) -> Place:
        if symbol not in self.places:
            raise UnprintableSize(f"no input says what {symbol} is")
        return self.places[symbol]


def segments(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[int], list[int]]] | None:
    """Cuts both shapes into the shortest runs of dimensions whose products agree: [(dims of old, dims of new), ...].

    None where the products cannot be brought together. Dimensions of size 1 join whichever run is open.
    """
    runs: list[tuple[list[int], list[int]]] = []
    i = j = 0
    while i < len(old) or j < len(new):
        left: list[int] = []
        right: list[int] = []
        a: Size = 1
        b: Size = 1
        if i < len(old):
            left.append(i)
            a = old[i]
            i += 1
        if j < len(new):
            right.append(j)
            b = new[j]
            j += 1
        while not equal(a, b):
            grow_left = _needs_more(a, b, i < len(old), j < len(new))
            if grow_left is None:
                return None
            if grow_left:
                left.append(i)
                a = mul(a, old[i])
                i += 1
            else:
                right.append(j)
                b = mul(b, new[j])
                j += 1
        runs.append((left, right))
    return runs


def _needs_more(a: Size, b: Size, more_left: bool, more_right: bool) -> bool | None:
    if isinstance(a, int) and isinstance(b, int):
        if a < b:
            return True if more_left else None
        return False if more_right else None
    if more_left and exact_quotient(b, a) is not None:
        return True
    if more_right and exact_quotient(a, b) is not None:
        return False
    return None


def refine(a: Sequence[Size], b: Sequence[Size]) -> Sizes | None:
    """The coarsest shape that both shapes can be split into, or None. Splitting never breaks an affine index."""
    a, b = list(a), list(b)
    out: list[Size] = []
    while a or b:
        if a and a[-1] == 1:
            a.pop()
            continue
        if b and b[-1] == 1:
            b.pop()
            continue
        if not a or not b:
            return None
        x, y = a.pop(), b.pop()
        if equal(x, y):
            out.append(x)
        elif (quotient := exact_quotient(x, y)) is not None:
            out.append(y)
            a.append(quotient)
        elif (quotient := exact_quotient(y, x)) is not None:
            out.append(x)
            b.append(quotient)
        else:
            return None
    return tuple(reversed(out))


def to_c(size: Any, names: dict[str, str] | None = None) -> str:
    """C text; `names` says what the kernel calls each symbol."""
    if isinstance(size, int):
        return f"{size}LL" if abs(size) >= 2**31 else str(size)
    return _print(size, _C_NAMES if names is None else {**_C_NAMES, **names})


_C_NAMES = {"FloorDiv": "fx_idiv", "Mod": "fx_imod", "PythonMod": "fx_imod", "Max": "fx_imax", "Min": "fx_imin"}


def _print(expr: Any, names: dict[str, str]) -> str:
    if isinstance(expr, int) or expr.is_Integer:
        return str(int(expr))
    if expr.is_Symbol:
        return names.get(str(expr), str(expr))
    if expr.is_Add:
        return "(" + " + ".join(_print(each, names) for each in expr.args) + ")"
    if expr.is_Mul:
        return "(" + "*".join(_print(each, names) for each in expr.args) + ")"
    if expr.is_Pow and expr.exp.is_Integer and 0 < int(expr.exp) <= 8:
        return "(" + "*".join([_print(expr.base, names)] * int(expr.exp)) + ")"
    name = type(expr).__name__
    if name in ("CleanDiv", "ModularIndexing"):
        args = [_print(each, names) for each in expr.args]
        divided = f"{names['FloorDiv']}({args[0]}, {args[1]})"
        return divided if name == "CleanDiv" else f"{names['Mod']}({divided}, {args[2]})"
    if name in names and (len(expr.args) == 2 or name in ("Max", "Min")):
        text = _print(expr.args[0], names)
        for arg in expr.args[1:]:
            text = f"{names[name]}({text}, {_print(arg, names)})"
        return text
    raise UnprintableSize(f"{name} in {expr}")
