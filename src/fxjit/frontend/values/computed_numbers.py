"""Numbers that Python's own functions make of those that vary: the guards compute them before the frame starts.

No symbol has an expression for `math.gcd(n, m)` or `round(x, 2)`. Where `n` and `m` are numbers of the frame's, or follow from
such by arithmetic, the result is found again by the same calls: it is a number that varies by itself, as `n` is.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import sympy
import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.symscalar import SymValue
from fxjit.guards.kinds import ConstIs
from fxjit.guards.parts import TogetherSource, together
from fxjit.guards.shapes import our_source
from fxjit.guards.source import ApplySource, RandomSource, Source

_NUMBERS: Final = (bool, int, float)
_MOST_CALLS: Final = 8


class NumberCall:
    """A function of a number, or of a tuple of numbers: `fn(*args, **named)`, where each argument is a constant, `...` for what
    is given, or a `NumberCall` of it; those by name are constants."""

    __slots__ = ("args", "fn", "named")

    def __init__(self, args: tuple[Any, ...], fn: Callable[..., Any], named: tuple[tuple[str, Any], ...] = ()) -> None:
        self.args, self.fn, self.named = args, fn, named

    def __call__(self, number: Any) -> Any:
        given = [number if arg is ... else arg(number) if type(arg) is NumberCall else arg for arg in self.args]
        return self.fn(*given, **dict(self.named))

    def __repr__(self) -> str:
        given = ["_" if arg is ... else repr(arg) for arg in self.args]
        given += [f"{name}={arg!r}" for name, arg in self.named]
        return f"{self.fn.__name__}({', '.join(given)})"

    def __eq__(self, other: object) -> bool:  # as text, constants differ by their type and sign, too
        return isinstance(other, NumberCall) and other.fn is self.fn and repr(other) == repr(self)

    def __hash__(self) -> int:
        return hash(repr(self))


def computed(t: Tracer, fn: Callable[..., Any], args: Sequence[Value],
             kwargs: Mapping[str, Value] | None = None) -> Value | None:
    """`fn(*args)` of constants, of what follows from numbers that vary, and of lists and tuples of these, as tuples; None
    where that is not known before the frame starts, and where it raises."""
    given: dict[Source, Any] = {}
    call = _call(fn, args, given, _MOST_CALLS, kwargs or {})
    if call is None or not given:
        return None
    if len(given) == 1:
        ((base, known),) = given.items()
    else:
        base, known = TogetherSource(tuple(given)), tuple(given.values())
        call = _call(fn, args, given, _MOST_CALLS, kwargs or {})  # that there are several is known by now
        assert call is not None
    try:
        result = call(known)
    except (ArithmeticError, TypeError, ValueError):  # the program's: the call itself raises it
        return None
    if type(result) is not tuple:
        return _found(t, result, call, base)
    items = [_found(t, item, NumberCall((call, place), operator.getitem), base) for place, item in enumerate(result)]
    found = [item for item in items if item is not None]
    return TupleValue(found) if len(found) == len(items) else None


def found_at(value: Value) -> tuple[Source, Any] | None:
    """Where a number that varies, or a tuple or a list of such, is found before the frame starts, and what it is now (a tuple
    of a list, too); None where that is not known."""
    given: dict[Source, Any] = {}
    call = _call(_same, [value], given, _MOST_CALLS)
    if call is None or not given:
        return None
    call = _call(_same, [value], given, _MOST_CALLS)  # whether there are several numbers is known by now
    assert call is not None
    (part,) = call.args
    base, known = next(iter(given.items())) if len(given) == 1 else (TogetherSource(tuple(given)), tuple(given.values()))
    if part is ...:
        return base, known
    try:
        return ApplySource(base, part, repr(part)), part(known)
    except (ArithmeticError, TypeError, ValueError):  # the program's
        return None


def _same(number: Any) -> Any:
    return number


def _found(t: Tracer, number: Any, call: NumberCall, base: Source) -> Value | None:
    """What `call` of what is at `base` gives, which is `number` now."""
    source = ApplySource(base, call, repr(call))
    if type(number) is bool:
        t.guard(ConstIs(source, number))
        return t.make(number)
    return t.varying_number(number, source) if type(number) in (int, float) else None


def _call(fn: Callable[..., Any], args: Sequence[Value], given: dict[Source, Any], most: int,
          named: Mapping[str, Value] | None = None) -> NumberCall | None:
    """The call as a function of the numbers in `given`, where they are put with the sources at which they are found."""
    parts: list[Any] = []
    for arg in map(Value.realize, args):
        if arg.is_constant():
            part = arg.as_constant()
            if type(part) not in _NUMBERS and (type(part) is not tuple or any(type(each) not in _NUMBERS for each in part)):
                part = None
        elif isinstance(arg, (TupleValue, ListValue)) and arg.pytype() in (tuple, list, torch.Size):
            part = _call(together, arg.items, given, most - 1) if most else None
        elif not isinstance(arg, SymValue):
            part = None
        elif arg.made is not None:
            part = _call(*arg.made, given, most - 1) if most else None
        else:
            found = _given(arg)
            given.update([] if found is None else [found])
            part = _of_expression(arg, arg.sym.node.expr, given) if found is None else _place(found[0], given)
        if part is None:
            return None
        parts.append(part)
    known = {name: value.as_constant() if value.is_constant() else None for name, value in (named or {}).items()}
    plain = all(type(value) in _NUMBERS for value in known.values())
    return NumberCall(tuple(parts), fn, tuple(known.items())) if plain else None


def _place(source: Source, given: dict[Source, Any]) -> Any:
    return ... if len(given) == 1 else NumberCall((..., list(given).index(source)), operator.getitem)


def _of_expression(number: SymValue, expr: sympy.Expr, given: dict[Source, Any]) -> Any:
    """The same of a size that torch calculated of others (`x.numel()`): a sum or a product of these, and of integers."""
    if isinstance(expr, sympy.Integer):
        return int(expr)
    if isinstance(expr, sympy.Symbol):
        found = _at_symbol(number, expr)
        given.update([] if found is None else [found])
        return None if found is None else _place(found[0], given)
    fn = operator.add if isinstance(expr, sympy.Add) else operator.mul if isinstance(expr, sympy.Mul) else None
    parts = [] if fn is None else [_of_expression(number, each, given) for each in expr.args]
    if fn is None or any(part is None for part in parts):
        return None
    return functools.reduce(lambda left, right: NumberCall((left, right), fn), parts)


def _at_symbol(number: SymValue, symbol: sympy.Symbol) -> tuple[Source, Any] | None:
    env = number.sym.node.shape_env
    sources = map(our_source, env.var_to_sources.get(symbol, ()))
    source = next((each for each in sources if each is not None and not isinstance(each.root, RandomSource)), None)
    known = env.backed_var_to_val.get(symbol)
    return None if source is None or known is None or not known.is_Integer else (source, int(known))


def _given(number: SymValue) -> tuple[Source, Any] | None:
    """A number that the frame was given, or a size of a tensor that it was given."""
    node = number.sym.node
    source = number.source
    if source is None and isinstance(node.expr, sympy.Symbol):
        sources = map(our_source, node.shape_env.var_to_sources.get(node.expr, ()))
        source = next((each for each in sources if each is not None), None)
    if source is None or isinstance(source.root, RandomSource) or number.depends_on_data():
        return None
    return source, node.hint
