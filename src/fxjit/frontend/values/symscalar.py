"""Numbers that the graph computes: sizes that vary (SymInt), and what follows from them (SymFloat, SymBool).

trace.py makes them of what operators return. Arithmetic goes in the graph; a decision (a branch, a hash, an index into a list)
evaluates the symbol, which adds a guard on the shapes it stands for.
"""

from __future__ import annotations

import math
import numbers
import operator
import types
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final

import torch

from fxjit import torch_private
from fxjit.errors import SkipFrameSignal, leave_trace
from fxjit.fake_execution import DECIDES_ON_DATA
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.iteration import is_item_of_resumed_loop
from fxjit.frontend.values.tensor import TensorValue
from fxjit.guards.kinds import ConstIs

if TYPE_CHECKING:
    import torch.fx

Sym = torch.SymInt | torch.SymFloat | torch.SymBool

#: Operators that raise where their second operand is zero.
_DIVISIONS: Final = (
    operator.truediv, operator.floordiv, operator.mod, operator.itruediv, operator.ifloordiv, operator.imod, divmod,
)
_TYPES: Final[dict[type, type]] = {torch.SymInt: int, torch.SymFloat: float, torch.SymBool: bool}


class SymValue(Value):
    """A symbolic number: `node` computes it, `sym` is its expression over the sizes of the graph's inputs."""

    node: torch.fx.Node
    #: Of a float that is a quotient of two integers: what was divided, by what. Made an integer again, it needs no float.
    quotient: tuple[Value, int] | None = None
    #: The function of Python's, and its operands, of what an operator gave.
    made: tuple[Callable[..., Any], tuple[Value, ...]] | None = None

    def __init__(self, node: torch.fx.Node, sym: Sym, source: Any = None) -> None:
        super().__init__(source)
        self.node = node
        self.sym = sym

    def pytype(self) -> type:
        return _TYPES[type(self.sym)]

    def describe(self) -> str:
        return f"{self.pytype().__name__} {self.sym}"

    def graph_arg(self, t: Tracer) -> Any:
        return self.node

    def rebuild(self, cg: Rebuilder) -> None:
        raise AssertionError("a symbolic number is a graph output or has a source")

    def specialize(self, t: Tracer) -> Value:
        """The constant it has in this call; the entry holds for this number only from now on."""
        if self.source is not None and is_item_of_resumed_loop(t.root.code, self.source):
            why = f"each iteration needs its own number, {self.source}, while tracing"
            leave_trace(SkipFrameSignal("skip-loop", {"why": why}))
        if self.source is not None and isinstance(self.sym, torch.SymFloat):
            number = self.sym.node.hint
            t.guard(ConstIs(self.source, number))
            return t.make(number)
        return t.make(self._decide(t, self.pytype()))

    def _decide(self, t: Tracer, convert: Callable[[Any], Any]) -> Any:
        random = t.new_source_state("random symbols").get("all")
        if random is not None and random & self.sym.node.expr.free_symbols:
            truth = _is_for_all(self.sym) if convert is bool else None
            if truth is not None:
                return truth
            t.break_("data-random", value=self.describe())
        try:
            return convert(self.sym)
        except DECIDES_ON_DATA as error:
            t.break_("data-symbol", value=str(self.sym), why=str(error).splitlines()[0])
        except AssertionError as error:  # torch's ranges of numbers have no sum of two infinities
            known = t.computed_number(*self.made) if self.made is not None else None
            if known is None or not known.is_constant():
                t.break_("data-symbol", value=self.describe(), why=f"torch has no range for it ({error})")
            return known.as_constant()

    def depends_on_data(self) -> bool:
        """Whether it is known only when the graph runs."""
        return bool(getattr(self.sym.node, "hint", 0) is None)

    # -- decisions -----------------------------------------------------------------------------------------------

    def nb_bool(self, t: Tracer) -> Value:
        return t.make(self._decide(t, bool))

    def tp_hash(self, t: Tracer) -> Value:
        return protocol.hash_(t, self.specialize(t))

    def tp_repr(self, t: Tracer) -> Value:
        return protocol.repr_(t, self.specialize(t))

    def tp_str(self, t: Tracer) -> Value:
        return protocol.str_(t, self.specialize(t))

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(self.pytype())
        kind = self.pytype()
        if name in ("real", "numerator") and kind is not bool and hasattr(kind, name):
            return self
        if name in ("imag", "denominator") and kind is not bool and hasattr(kind, name):
            return t.make(1 if name == "denominator" else kind())
        if not name.startswith("__") and isinstance(protocol.type_lookup(kind, name), types.MethodDescriptorType):
            return protocol.make_builtin_method(t, self, name)
        return protocol.getattr_(t, self.specialize(t), name)

    def meth_conjugate(self, t: Tracer) -> Value:
        return _as_integer(t, self)

    def tp_iter(self, t: Tracer) -> Value:
        t.raise_(TypeError, f"'{self.pytype().__name__}' object is not iterable")

    # -- arithmetic ----------------------------------------------------------------------------------------------

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        if isinstance(other, TensorValue):
            return NOT_IMPLEMENTED
        if _is_number_of_a_subclass(other):
            fixed = self.specialize(t)
            return protocol.binary(t, op, other, fixed) if reflected else protocol.binary(t, op, fixed, other)
        if not is_number(other):
            if other.pytype() in (int, float, bool, complex) or not hasattr(other, "items"):
                return NOT_IMPLEMENTED
            # `[x] * n`: the length of a list is a fact of the trace
            fixed = self.specialize(t)
            return protocol.binary(t, op, other, fixed) if reflected else protocol.binary(t, op, fixed, other)
        if self.pytype() is not bool:
            other = _as_integer(t, other)
        elif op not in ("&", "|") or other.pytype() is not bool:
            fixed = self.specialize(t)
            return protocol.binary(t, op, other, fixed) if reflected else protocol.binary(t, op, fixed, other)
        left, right = (other, self) if reflected else (self, other)
        if op == "**" and other.is_constant() and isinstance(other.as_constant(), float):
            left, right = (_as_float(t, v) for v in (left, right))
        if op == "**":
            right = _limited_exponent(t, left, right)
        return self._compute(t, protocol.BINARY[op], left, right)

    def _compute(self, t: Tracer, fn: Callable[..., Any], *operands: Value) -> Value:
        if not any(operand.is_constant() and isinstance(operand.as_constant(), complex) for operand in operands):
            if fn in _DIVISIONS and _is_zero_here(operands[1]):
                divisor = operands[1].specialize(t) if isinstance(operands[1], SymValue) else operands[1]
                return protocol.fold(t, fn, operands[0].pytype()(1), divisor.as_constant())  # the program's ZeroDivisionError
            result = _noted(t.emit(fn, operands), fn, *operands)
            if fn is operator.truediv and isinstance(result, SymValue):
                result.quotient = _whole_quotient(*operands)
            return result
        fixed = [operand.specialize(t) if isinstance(operand, SymValue) else operand for operand in operands]
        return protocol.fold(t, fn, *[operand.as_constant() for operand in fixed])

    def nb_unary(self, t: Tracer, op: str) -> Value | _NotImplemented:
        is_int = isinstance(self.sym, torch.SymInt)
        if isinstance(self.sym, torch.SymBool):
            return protocol.unary(t, op, self.specialize(t))
        if op in ("pos", "index", "int", "trunc", "floor", "ceil", "round") and is_int:
            return self
        if op == "float":
            return _as_float(t, self)
        if self.quotient is not None and op in ("int", "trunc", "floor", "ceil"):
            size, by = self.quotient
            if op == "ceil":
                size = t.emit(operator.add, [size, t.make(by - 1)])
            return _noted(t.emit(operator.floordiv, [size, t.make(by)]), protocol.UNARY[op], self)
        if op == "invert" and is_int:
            return self._compute(t, operator.sub, self._compute(t, operator.neg, self), t.make(1))
        target = _UNARY.get(op)
        if target is None:
            return protocol.unary(t, op, self.specialize(t))
        return _noted(t.emit(target, [self]), protocol.UNARY[op], self)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if _is_number_of_a_subclass(other):
            return protocol.compare(t, op, self.specialize(t), other)
        if isinstance(other, TensorValue) or not is_number(other):
            return NOT_IMPLEMENTED
        mine, other = _as_integer(t, self), _as_integer(t, other)
        if mine is not self:
            return protocol.compare(t, op, mine, other)
        if float in (self.pytype(), other.pytype() if isinstance(other, SymValue) else None):
            return self._compare_floats(t, protocol.COMPARE[op], other)
        return self._compute(t, protocol.COMPARE[op], self, other)

    def _compare_floats(self, t: Tracer, fn: Callable[..., Any], other: Value) -> Value:
        """By the numbers: algebra has no NaN, no infinity and no rounding (`n == n`, `n + 1 > n`)."""
        found = t.computed_number(fn, [self, other])
        if found is not None:
            return found
        result = self._compute(t, fn, self, other)
        symbols = [each for value in (self, other) if isinstance(value, SymValue) for each in value.sym.node.expr.free_symbols]
        if result.is_constant() and not all(each.is_integer for each in symbols):
            t.break_("data-symbol", value=self.describe(), why="it is known only when the graph runs whether it is a number")
        return result


def _is_zero_here(divisor: Value) -> bool:
    """Whether it is zero in this call. (An entry made for other numbers fails in a call with zero, which then runs eagerly.)"""
    known = divisor.sym.node.hint if isinstance(divisor, SymValue) else divisor.as_constant()
    return known is not None and bool(known == 0)


def _noted(result: Value, fn: Callable[..., Any], *operands: Value) -> Value:
    """`result`, with what it was made of."""
    if isinstance(result, SymValue):
        result.made = fn, operands
    return result


def _as_integer(t: Tracer, value: Value) -> Value:
    """A bool as the number that it is to arithmetic; sympy has no such thing, and takes it for a proposition."""
    if value.pytype() is not bool:
        return value
    known = value.specialize(t) if isinstance(value, SymValue) else value
    return t.make(int(known.as_constant()))


def _is_number_of_a_subclass(value: Value) -> bool:
    """An IntEnum member, a Fraction and their like: a number with operators of its own."""
    if isinstance(value, SymValue) or not value.is_constant():
        return False
    known = value.as_constant()
    return type(known) not in (bool, int, float, complex) and isinstance(known, numbers.Number)


def is_number(value: Value) -> bool:
    """Whether symbolic arithmetic takes `value` as an operand."""
    if isinstance(value, SymValue):
        return value.pytype() in (bool, int, float)
    return value.is_constant() and isinstance(value.as_constant(), (bool, int, float, complex))


def _limited_exponent(t: Tracer, base: Value, exponent: Value) -> Value:
    """The exponent of an integer's power, known to be limited where the base may be less than 1: of such a base and an
    exponent without a limit torch works out no range of the power, and runs out of its stack where it is asked for one.
    The powers of 0 are all 0 to it, so that exponent is a constant."""
    if not isinstance(exponent, SymValue) or not isinstance(exponent.sym, torch.SymInt) or base.pytype() is not int:
        return exponent
    known = base.as_constant() if base.is_constant() else None
    if known is not None and known >= 1:
        return exponent
    limited = known != 0 and exponent._decide(t, lambda sym: bool(sym <= _MAX_EXPONENT))
    return exponent if limited else exponent.specialize(t)


def _whole_quotient(size: Value, by: Value) -> tuple[Value, int] | None:
    """`size` and `by` where `size // by` is what `int(size / by)` is: integers, also where `by` is a float, and neither
    negative nor more than a float can count."""
    divisor = by.as_constant() if by.is_constant() else None
    if not isinstance(divisor, (int, float)) or divisor != divisor // 1 or not 1 <= divisor < 2**53:
        return None
    if not isinstance(size, SymValue) or not isinstance(size.sym, torch.SymInt):
        return None
    return (size, int(divisor)) if _is_for_all(size.sym >= 0) else None


def _is_for_all(sym: Any) -> bool | None:
    """The truth of a condition, where it is the same for all numbers that its symbols may stand for; else None."""
    if not isinstance(sym, torch.SymBool):
        return None
    statically_known = torch_private.get("torch.fx.experimental.symbolic_shapes.statically_known_true")
    return True if statically_known(sym) else False if statically_known(torch.sym_not(sym)) else None


def _as_float(t: Tracer, value: Value) -> Value:
    if value.is_constant():
        return t.make(float(value.as_constant()))
    if isinstance(value, SymValue) and isinstance(value.sym, torch.SymFloat):
        return value
    return _noted(t.emit(torch.sym_float, [value]), float, value)


_MAX_EXPONENT: Final = 2**32

_UNARY: Final[dict[str, Callable[[Any], Any]]] = {
    "neg": operator.neg, "abs": operator.abs, "pos": operator.pos, "int": torch.sym_int, "trunc": math.trunc,
    "floor": math.floor, "ceil": math.ceil, "round": round,
}
