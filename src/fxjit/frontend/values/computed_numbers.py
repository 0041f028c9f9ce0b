"""Numbers that Python's own functions make of one that varies: the guards compute them before the frame starts.

No symbol has an expression for `math.gcd(n, 4)` or `round(x, 2)`. Where `n` is a number of the frame's, or follows from one by
arithmetic with constants, the result is found again by the same calls: it is a number that varies by itself, as `n` is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import sympy

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.symscalar import SymValue
from fxjit.guards.kinds import ConstIs
from fxjit.guards.shapes import our_source
from fxjit.guards.source import ApplySource, RandomSource, Source

_NUMBERS: Final = (bool, int, float)
_MOST_CALLS: Final = 8


class NumberCall:
    """A function of a number: `fn(*args)`, where each argument is a constant, `...` for the number, or a `NumberCall` of it."""

    __slots__ = ("args", "fn")

    def __init__(self, args: tuple[Any, ...], fn: Callable[..., Any]) -> None:
        self.args, self.fn = args, fn

    def __call__(self, number: Any) -> Any:
        return self.fn(*[number if arg is ... else arg(number) if type(arg) is NumberCall else arg for arg in self.args])

    def __repr__(self) -> str:
        return f"{self.fn.__name__}({', '.join(['_' if arg is ... else repr(arg) for arg in self.args])})"

    def __eq__(self, other: object) -> bool:  # as text, constants differ by their type and sign, too
        return isinstance(other, NumberCall) and other.fn is self.fn and repr(other) == repr(self)

    def __hash__(self) -> int:
        return hash(repr(self))


def computed(t: Tracer, fn: Callable[..., Any], args: Sequence[Value]) -> Value | None:
    """`fn(*args)` of constants and of what follows from one number that varies; None where that is not known before the frame
    starts, and where it raises."""
    given: dict[Source, Any] = {}
    call = _call(fn, args, given, _MOST_CALLS)
    if call is None or len(given) != 1:
        return None
    ((base, known),) = given.items()
    try:
        number = call(known)
    except (ArithmeticError, TypeError, ValueError):  # the program's: the call itself raises it
        return None
    source = ApplySource(base, call, repr(call))
    if type(number) is bool:
        t.guard(ConstIs(source, number))
        return t.make(number)
    return t.varying_number(number, source) if type(number) in (int, float) else None


def _call(fn: Callable[..., Any], args: Sequence[Value], given: dict[Source, Any], most: int) -> NumberCall | None:
    """The call as a function of the number in `given`, where it is put with the source at which it is found."""
    parts: list[Any] = []
    for arg in args:
        if not isinstance(arg, SymValue):
            part = arg.as_constant() if arg.is_constant() else ...
            if type(part) not in _NUMBERS:
                return None
        elif arg.made is not None:
            part = _call(*arg.made, given, most - 1) if most else None
        else:
            found = _given(arg)
            part = None if found is None else ...
            given.update([] if found is None else [found])
        if part is None:
            return None
        parts.append(part)
    return NumberCall(tuple(parts), fn)


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
