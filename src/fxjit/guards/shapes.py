"""Guards on sizes that the trace kept symbolic.

torch's ShapeEnv records what a trace assumed of its symbols (`s0 == 2*s1`, `s0 % 8 == 0`, `2 <= s0 <= 128`). The
frontend gives symbols their places with `torch_source(source)` where it makes fake tensors and symbolic numbers; at
the end `shape_guards` turns the record into `ShapeExpr` guards over our own sources, with programs for the stack
machine of _shape_program.c. What these cannot say (true division, powers of variables, floats) is a `PythonCheck`, counted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import sympy
import torch
from sympy.logic.boolalg import BooleanAtom
from sympy.printing.str import StrPrinter

from fxjit._C import SHAPE_OPS
from fxjit.guards.kinds import ConstIs, Guard, PythonCheck, ShapeExpr
from fxjit.guards.relation import Relation
from fxjit.guards.source import AttrSource, RandomSource, Source, TensorOffsetSource, TensorSizeSource, TensorStrideSource
from fxjit.tensor_wrappers import is_ragged
from fxjit.torch_private import get_or, optional

if TYPE_CHECKING:
    from torch._guards import Source as _TorchsSource
    from torch.utils._sympy.printers import PythonPrinter as _PythonPrinter
else:
    _TorchsSource = get_or("torch._guards.Source", object)
    _PythonPrinter = get_or("torch.utils._sympy.printers.PythonPrinter", StrPrinter)

_GuardSource: Final = optional("torch._guards.GuardSource")

# -- our sources, for the ShapeEnv ---------------------------------------------------------------------------------


class TorchSource(_TorchsSource):
    """One of our sources in the form that ShapeEnv and FakeTensorMode take."""

    def __init__(self, ours: Source) -> None:
        self.ours = ours

    @property
    def name(self) -> str:  # type: ignore[override]  # a cached_property there
        return self.ours.name

    @property
    def _name_template(self) -> str:
        return self.ours.name.replace("{", "{{").replace("}", "}}")

    @property
    def guard_source(self) -> Any:
        return _GuardSource.LOCAL

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TorchSource) and self.ours == other.ours

    def __hash__(self) -> int:
        return hash(self.ours)

    def __repr__(self) -> str:
        return f"TorchSource({self.name})"


def torch_source(source: Source) -> TorchSource:
    """`source` as ShapeEnv and FakeTensorMode take it."""
    return TorchSource(source)


def our_source(source: Any) -> Source | None:
    """The source behind one of torch's: what `torch_source` wrapped, or a number of it; else None."""
    if isinstance(source, TorchSource):
        return source.ours
    base = our_source(getattr(source, "base", None)) if hasattr(source, "base") else None
    if base is not None and getattr(source, "member", None) == "_base":  # what a view is a view of
        return AttrSource(base, "_base")
    prop = getattr(getattr(source, "prop", None), "name", None)
    if base is None:
        return None
    if prop == "SIZE":
        return TensorSizeSource(base, source.idx)
    if prop == "STRIDE":
        return TensorStrideSource(base, source.idx)
    if prop == "STORAGE_OFFSET":
        return TensorOffsetSource(base)
    return None


# -- the guards ----------------------------------------------------------------------------------------------------


def shape_guards(shape_env: Any, inputs: Iterable[tuple[Source, Any]]) -> list[Guard]:
    """All that `shape_env` assumed, as guards; nothing where there is none.

    `inputs` are the symbolic numbers and the fake tensors (better their `Numbers`, taken before the trace could change
    them in place) that the trace made of objects from outside, with their sources.
    Sizes and strides that are plain ints in a fake tensor are left to its TensorIs (made with `fake=`), unless the
    tensor has a symbolic one as well.
    """
    return [] if shape_env is None else list(dict.fromkeys(_Collector(shape_env, inputs).guards()))


class _Collector:
    def __init__(self, shape_env: Any, inputs: Iterable[tuple[Source, Any]]) -> None:
        self._env = shape_env
        #: Every number of an input and the expression it must equal.
        self._numbers: list[tuple[Source, sympy.Expr]] = []
        #: Ragged sizes of jagged tensors: only equality says anything about them.
        self._ragged: set[sympy.Symbol] = set()
        for source, value in inputs:
            self._numbers.extend(_numbers_of(source, value))
            self._ragged.update(_ragged_symbols(value))
        self._places: dict[sympy.Symbol, Source] = {}
        for source, expr in self._numbers:
            if isinstance(expr, sympy.Symbol):
                self._places.setdefault(expr, source)
        for symbol, theirs in shape_env.var_to_sources.items():
            known = [ours for ours in map(our_source, theirs) if ours is not None]
            final = shape_env.replace(symbol)
            if isinstance(final, sympy.Symbol) and known:
                self._places.setdefault(final, known[0])
            # A graph knows nothing of the base of a view: its sizes matter only where an assumption is about them.
            self._numbers.extend((ours, final) for ours in known if not _of_a_base(ours))

    def guards(self) -> Iterator[Guard]:
        yield from self._equalities()
        yield from self._assumptions()
        yield from self._ranges()

    def _equalities(self) -> Iterator[Guard]:
        """Each number of an input is what its expression says, given the symbols' own places."""
        for source, expr in dict.fromkeys(self._numbers):
            if isinstance(expr, sympy.Symbol) and self._places.get(expr) == source:
                continue
            # A float that was decided on is that float, to the bit.
            yield ConstIs(source, float(expr)) if isinstance(expr, sympy.Float) else self._guard(expr, equal_to=source)

    def _assumptions(self) -> Iterator[Guard]:
        for guard in self._env.guards:
            oblivious = getattr(guard, "size_oblivious", False)
            if self._env._maybe_evaluate_static(guard.expr, axioms=(), size_oblivious=oblivious) is not None:
                continue
            expr = self._env.simplify(guard.expr)
            symbols = expr.free_symbols
            always = len(symbols) == 1 and symbols <= self._ragged  # every ragged size compares so with numbers
            if not isinstance(expr, BooleanAtom) and not always:
                yield self._guard(expr)

    def _ranges(self) -> Iterator[Guard]:
        used = {symbol for expr in (*(expr for _, expr in self._numbers), *(guard.expr for guard in self._env.guards))
                for symbol in sympy.sympify(expr).free_symbols}
        for symbol, place in self._places.items():
            bounds = self._env.var_to_range.get(symbol)
            if bounds is None or (_of_a_base(place) and symbol not in used):
                continue
            if isinstance(place.root, RandomSource):  # the generator keeps to it, and nothing is there yet to be looked at
                continue
            parts = []
            if bounds.lower not in (-sympy.oo, _NegativeIntInfinity()):
                parts.append(sympy.Ge(symbol, bounds.lower, evaluate=False))
            if bounds.upper not in (sympy.oo, _IntInfinity()):
                parts.append(sympy.Le(symbol, bounds.upper, evaluate=False))
            if parts:
                yield self._guard(sympy.And(*parts, evaluate=False))

    def _guard(self, expr: Any, equal_to: Source | None = None) -> Guard:
        """`expr`, or `equal_to == expr`, as a guard."""
        symbols = sorted(expr.free_symbols, key=str)
        missing = [symbol for symbol in symbols if symbol not in self._places]
        if missing:
            raise ValueError(f"nothing outside the trace gives {missing[0]}, on which a guard depends: {expr}")
        if equal_to is not None:
            # A symbol of its own for the number, so that sympy does not simplify the equation away.
            number = sympy.Dummy("number", integer=True) if expr.is_integer else sympy.Dummy("number", real=True)
            places = {**self._places, number: equal_to}
            equal = sympy.Eq(number, expr, evaluate=False)
            return (_ragged_guard if self._ragged.intersection(symbols) else shape_guard)(equal, (number, *symbols), places)
        return (_ragged_guard if self._ragged.intersection(symbols) else shape_guard)(expr, symbols, self._places)


def _of_a_base(source: Source) -> bool:
    base = getattr(source, "base", None)
    return isinstance(base, AttrSource) and base.attr == "_base"


@dataclass(frozen=True, slots=True)
class Numbers:
    """The numbers of a fake tensor at one moment: a trace may change them in place (`x.t_()`) before it ends."""

    sizes: tuple[Any, ...]
    strides: tuple[Any, ...]
    offset: Any
    inner: tuple[tuple[str, Numbers], ...]

    @staticmethod
    def of(tensor: torch.Tensor) -> Numbers:
        """As `inputs` of shape_guards take it; to be called as soon as the input is made."""
        attrs: list[str] = tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else []
        inner = ((attr, getattr(tensor, attr)) for attr in attrs)
        strided = tensor.layout is torch.strided
        return Numbers(
            tuple(tensor.size()),
            tuple(tensor.stride()) if strided else (),
            tensor.storage_offset() if strided else 0,
            tuple((attr, Numbers.of(value)) for attr, value in inner if isinstance(value, torch.Tensor)),
        )


def _numbers_of(source: Source, value: Any) -> Iterator[tuple[Source, sympy.Expr]]:
    """The numbers of an input if any of them is symbolic."""
    if isinstance(value, torch.SymInt | torch.SymFloat | torch.SymBool):
        yield source, value.node.expr
        return
    if isinstance(value, torch.Tensor):
        value = Numbers.of(value)
    if not isinstance(value, Numbers):
        return
    for attr, inner in value.inner:
        yield from _numbers_of(AttrSource(source, attr), inner)
    if any(not isinstance(number, int) for number in (*value.sizes, *value.strides)):
        for dim, size in enumerate(value.sizes):
            yield TensorSizeSource(source, dim), _expr(size)
        for dim, stride in enumerate(value.strides):
            yield TensorStrideSource(source, dim), _expr(stride)
    if not isinstance(value.offset, int):
        yield TensorOffsetSource(source), _expr(value.offset)


def _expr(number: Any) -> sympy.Expr:
    return sympy.Integer(number) if isinstance(number, int) else number.node.expr


def _ragged_symbols(value: Any) -> Iterator[sympy.Symbol]:
    if isinstance(value, torch.Tensor):
        value = Numbers.of(value)
    if isinstance(value, Numbers):
        yield from (size.node.expr for size in value.sizes if is_ragged(size))


# -- one guard -----------------------------------------------------------------------------------------------------


def shape_guard(expr: Any, symbols: Sequence[sympy.Symbol], places: Mapping[sympy.Symbol, Source]) -> Guard:
    """A guard that `expr`, a relation between `symbols`, holds of the numbers found at their `places`."""
    symbols = tuple(symbols)
    sources = tuple(places[symbol] for symbol in symbols)
    text = _text(expr, {symbol: places[symbol].name for symbol in symbols})
    whole = tuple(bool(symbol.is_integer) for symbol in symbols)
    if all(whole):
        program = compile_program(expr, symbols)
        return ShapeExpr(sources, text, evaluator(expr, symbols) if program is None else _Late(expr, symbols), program)
    evaluate = evaluator(expr, symbols)
    if isinstance(evaluate, Relation):
        return PythonCheck(sources, Relation(evaluate.count, evaluate.text, whole), text)

    def check(*values: Any) -> bool:
        exact = all(type(value) is (int if symbol.is_integer else float) and value == value
                    for symbol, value in zip(symbols, values, strict=True))
        return exact and evaluate(*values)

    return PythonCheck(sources, check, text)


def _ragged_guard(expr: Any, symbols: Sequence[sympy.Symbol], places: Mapping[sympy.Symbol, Source]) -> Guard:
    """The same where a number is a ragged size, which is an object of torch's that equals itself."""
    evaluate = evaluator(expr, symbols)

    def check(*values: Any) -> bool:
        try:
            return evaluate(*values)
        except RuntimeError:  # whether such a size is less than another is not defined
            return False

    sources = tuple(places[symbol] for symbol in symbols)
    return PythonCheck(sources, check, _text(expr, {symbol: places[symbol].name for symbol in symbols}))


def evaluator(expr: Any, symbols: Sequence[sympy.Symbol]) -> Callable[..., bool]:
    """The meaning of `expr` in Python: a function of the symbols' values. It is Python text where that can say it, since a
    guard on a float is evaluated at each call, and sympy takes a hundred times as long."""
    symbols = tuple(symbols)
    relation = _relation(expr, symbols)
    if relation is not None:
        return relation

    def evaluate(*values: Any) -> bool:
        numbers = {
            symbol: sympy.Integer(value) if isinstance(value, int) else sympy.Float(value)
            for symbol, value in zip(symbols, values, strict=True)
        }
        # doit: relations were made with evaluate=False.
        return bool(expr.xreplace(numbers).doit())

    return evaluate


class _Late:
    """The evaluator of a relation that the stack machine evaluates, made where it is wanted all the same."""

    __slots__ = ("_evaluate", "_of")

    def __init__(self, expr: Any, symbols: tuple[sympy.Symbol, ...]) -> None:
        self._of = expr, symbols
        self._evaluate: Callable[..., bool] | None = None

    def __call__(self, *values: Any) -> bool:
        if self._evaluate is None:
            self._evaluate = evaluator(*self._of)
        return self._evaluate(*values)


def _relation(expr: Any, symbols: Sequence[sympy.Symbol]) -> Relation | None:
    """`expr` as text of Python; None where there is none for it."""
    names = {symbol: f"v{place}" for place, symbol in enumerate(symbols)}
    try:
        return Relation(len(symbols), str(_Printer(names).doprint(expr)), None)
    except (NotImplementedError, TypeError, AssertionError, ValueError):
        return None


class _Printer(_PythonPrinter):
    """Names in the place of symbols. To put other symbols there first would evaluate the whole expression anew."""

    def __init__(self, names: Mapping[sympy.Symbol, str]) -> None:
        super().__init__()
        self._names = names

    def _print_Symbol(self, expr: sympy.Symbol) -> str:
        return self._names[expr]

    _print_Dummy = _print_Symbol


def _text(expr: Any, names: Mapping[sympy.Symbol, str]) -> str:
    """`expr` as a person would write it, with sources for symbols."""
    try:
        return str(_Printer(names).doprint(expr))
    except (NotImplementedError, TypeError, AssertionError):  # it prints what occurs in ShapeEnv, and asserts that
        return str(expr.xreplace({symbol: sympy.Dummy(name, integer=True) for symbol, name in names.items()}))


# -- programs ------------------------------------------------------------------------------------------------------


class _CannotSay(Exception):
    """The stack machine has no words for it."""


_OP = {name: code for code, name in enumerate(SHAPE_OPS)}

_FloorDiv: Final = optional("torch.utils._sympy.functions.FloorDiv")
_Mod: Final = optional("torch.utils._sympy.functions.Mod")
_IntInfinity: Final = optional("torch.utils._sympy.numbers.IntInfinity")
_NegativeIntInfinity: Final = optional("torch.utils._sympy.numbers.NegativeIntInfinity")
_CleanDiv: Final = optional("torch.utils._sympy.functions.CleanDiv")
_PythonMod: Final = optional("torch.utils._sympy.functions.PythonMod")
_ModularIndexing: Final = optional("torch.utils._sympy.functions.ModularIndexing")
_Identity: Final = optional("torch.utils._sympy.functions.Identity")
_PowByNatural: Final = optional("torch.utils._sympy.functions.PowByNatural")
_Max: Final = optional("torch.utils._sympy.functions.Max")
_Min: Final = optional("torch.utils._sympy.functions.Min")

#: Two operands each.
_BINARY: dict[type, str] = {
    sympy.Eq: "eq", sympy.Ne: "ne", sympy.Lt: "lt", sympy.Le: "le", sympy.Gt: "gt", sympy.Ge: "ge",
    _FloorDiv: "floordiv", _CleanDiv: "floordiv",
    _Mod: "mod", _PythonMod: "mod", sympy.Mod: "mod",
}
#: Any number of operands.
_CHAINS: dict[type, str] = {
    sympy.Add: "add", sympy.Mul: "mul", sympy.Max: "max", sympy.Min: "min", _Max: "max",
    _Min: "min", sympy.And: "and", sympy.Or: "or",
}
_MAX_POWER = 8
_MAX_DEPTH = 64  # SHAPE_STACK of _shape_program.c


def compile_program(expr: Any, symbols: Sequence[sympy.Symbol]) -> tuple[int, ...] | None:
    """`expr` for the stack machine of _shape_program.c, variables by their place in `symbols`. None: it cannot be said."""
    place = {symbol: index for index, symbol in enumerate(symbols)}
    words: list[int] = []
    try:
        depth = _emit(expr, place, words)
    except _CannotSay:
        return None
    return tuple(words) if depth <= _MAX_DEPTH else None


def _emit(expr: Any, place: Mapping[sympy.Symbol, int], words: list[int]) -> int:
    """Appends the words of `expr`; returns how many stack entries they use at most."""
    kind = type(expr)
    if isinstance(expr, sympy.Symbol):
        words += (_OP["var"], place[expr])
        return 1
    if isinstance(expr, sympy.Integer | BooleanAtom):
        words += (_OP["const"], _int64(int(bool(expr)) if isinstance(expr, BooleanAtom) else int(expr)))
        return 1
    if kind in _BINARY:
        return _emit_chain(_BINARY[kind], expr.args, place, words)
    if kind in _CHAINS:
        return _emit_chain(_CHAINS[kind], expr.args, place, words)
    if kind is sympy.Not:
        depth = _emit(expr.args[0], place, words)
        words.append(_OP["not"])
        return depth
    if kind is _ModularIndexing:
        base, divisor, modulus = expr.args
        return _emit(_Mod(_FloorDiv(base, divisor), modulus), place, words)
    if kind is _Identity:
        return _emit(expr.args[0], place, words)
    if kind in (sympy.Pow, _PowByNatural):
        base, power = expr.args
        if isinstance(power, sympy.Integer) and 1 <= int(power) <= _MAX_POWER:
            return _emit_chain("mul", (base,) * int(power), place, words)
    raise _CannotSay(expr)


def _emit_chain(op: str, args: Sequence[Any], place: Mapping[sympy.Symbol, int], words: list[int]) -> int:
    depth = _emit(args[0], place, words)
    for arg in args[1:]:
        depth = max(depth, 1 + _emit(arg, place, words))
        words.append(_OP[op])
    return depth


def _int64(number: int) -> int:
    if not -(2**63) <= number < 2**63:
        raise _CannotSay(number)
    return number
