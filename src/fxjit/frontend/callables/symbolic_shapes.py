"""Functions of torch.fx.experimental.symbolic_shapes that libraries call with sizes, in traced code.

Of plain numbers the answers are eager's. Of a size that varies torch's own function is called with its symbol, which adds the
guards that the answer needs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from torch.fx.experimental import symbolic_shapes

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.sequence import SequenceValue
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.tensor import TensorValue

#: Predicates over numbers, tensors and sequences of them, that give a plain bool.
_PREDICATES: Final = ("guard_or_false", "guard_or_true", "guard_size_oblivious", "statically_known_true",
                      "has_free_unbacked_symbols")
#: Whether a number is a symbol at all: the program's own numbers never are.
_IS_A_SYMBOL: Final = ("is_symbolic", "has_free_symbols")


def _fake(t: Tracer, value: Value) -> Any:
    """The symbol or fake tensor that torch's function is to look at."""
    value = value.realize()
    if isinstance(value, SymValue):
        return value.sym
    if isinstance(value, TensorValue):
        return value.fake
    if isinstance(value, SequenceValue):
        return tuple(_fake(t, item) for item in protocol.unpack(t, value))
    if not value.is_constant():
        t.break_("call-builtin", function="symbolic_shapes", args=value.describe())
    return value.as_constant()


def _predicate(function: Callable[..., Any]) -> Callable[[Tracer, list[Value], dict[str, Value]], Value]:
    def query(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        known = [_fake(t, arg) for arg in args]
        named = {name: _fake(t, arg) for name, arg in kwargs.items()}
        return protocol.fold(t, lambda: function(*known, **named))

    return query


def _never(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return t.make(False)


for _names, _handler in ((_PREDICATES, _predicate), (_IS_A_SYMBOL, lambda _: _never)):
    for _function in (getattr(symbolic_shapes, _name, None) for _name in _names):
        if _function is not None:  # a release may lack one
            handles(_function)(_handler(_function))
