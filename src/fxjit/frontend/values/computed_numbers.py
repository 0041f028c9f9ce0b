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
    """`fn(*before, number, *after)` of constants and a number, as a function of the number."""

    __slots__ = ("fn", "before", "after")  # noqa: RUF023  # as __init__ takes them: so a stored entry makes it again

    def __init__(self, fn: Callable[..., Any], before: tuple[Any, ...], after: tuple[Any, ...]) -> None:
        self.fn, self.before, self.after = fn, before, after

    def __call__(self, number: Any) -> Any:
        return self.fn(*self.before, number, *self.after)

    def __repr__(self) -> str:
        return f"{self.fn.__name__}({', '.join([*map(repr, self.before), '_', *map(repr, self.after)])})"

    def __eq__(self, other: object) -> bool:  # as text, constants differ by their type and sign, too
        return isinstance(other, NumberCall) and other.fn is self.fn and repr(other) == repr(self)

    def __hash__(self) -> int:
        return hash(repr(self))


def computed(t: Tracer, fn: Callable[..., Any], args: Sequence[Value]) -> Value | None:
    """`fn(*args)` of a number that varies and of constants; None where it is not known before the frame starts, and where it
    raises."""
    found = _origin(fn, args, _MOST_CALLS)
    if found is None:
        return None
    source, number = found
    if type(number) is bool:
        t.guard(ConstIs(source, number))
        return t.make(number)
    return t.varying_number(number, source) if type(number) in (int, float) else None


def _origin(fn: Callable[..., Any], args: Sequence[Value], most: int) -> tuple[Source, Any] | None:
    """Where the result is found, and the result."""
    varying = [place for place, arg in enumerate(args) if isinstance(arg, SymValue)]
    if len(varying) != 1 or not most:
        return None
    known = [None if isinstance(arg, SymValue) else arg.as_constant() if arg.is_constant() else arg for arg in args]
    before, after = tuple(known[:varying[0]]), tuple(known[varying[0] + 1:])
    number = args[varying[0]]
    assert isinstance(number, SymValue)
    if not all(type(constant) in _NUMBERS for constant in (*before, *after)):
        return None
    found = _given(number) if number.made is None else _origin(*number.made, most - 1)
    if found is None:
        return None
    call = NumberCall(fn, before, after)
    try:
        result = call(found[1])
    except (ArithmeticError, TypeError, ValueError):  # the program's: the call itself raises it
        return None
    return ApplySource(found[0], call, fn.__name__, ", ".join(map(repr, (*before, "_", *after)))), result


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
