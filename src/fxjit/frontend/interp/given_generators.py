"""Generators that existed before the frame: an argument, or a variable that a break left behind.

One that has not begun is traced as if the frame had made it: its body, from the beginning, over the arguments that it was made
with. Where the trace took something of it the real one is closed when the graph has run, as an exhausted one is; where it would
be left in the middle of its body the trace breaks before it is looked at. Any other can only be passed on.
"""

from __future__ import annotations

import inspect
import types
from typing import Any, Final

from fxjit.frontend.bytecode.decode import decode
from fxjit.frontend.interp.generators import GeneratorValue
from fxjit.frontend.interp.machine import Machine
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Lazy, Value
from fxjit.frontend.values.iterators import is_left_over
from fxjit.frontend.values.namespaces import namespace_value
from fxjit.frontend.values.objects import UserObjectValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import ConstIs, IdIs, TypeIs
from fxjit.guards.source import ApplySource, AttrSource, Source
from fxjit.skips import Verdict, function_verdict

_NAMED: Final = inspect.CO_VARARGS, inspect.CO_VARKEYWORDS


class ForeignGeneratorValue(UserObjectValue):
    """A generator whose body cannot be followed, so that advancing it breaks the graph."""

    def tp_iter(self, t: Tracer) -> Value:
        return self

    def tp_iternext(self, t: Tracer) -> Value | None:
        t.break_("value-iterator", value=self.describe(), type="generator")


@wraps(types.GeneratorType)
def _wrap_generator(t: Tracer, generator: types.GeneratorType[Any, Any, Any], source: Source) -> Value:
    t.guard(TypeIs(source, types.GeneratorType))
    code, body = generator.gi_code, generator.gi_frame
    # That of a loop which broke before would break there again. And nothing says which cells free variables are in.
    if body is None or is_left_over(source) or code.co_freevars or not has_not_begun(generator):
        return ForeignGeneratorValue(types.GeneratorType, source, generator)
    namespace = body.f_globals
    function: Any = types.FunctionType(code, namespace)
    if function_verdict(function)[0] is not Verdict.TRACE:
        return ForeignGeneratorValue(types.GeneratorType, source, generator)
    t.guard(ConstIs(ApplySource(source, has_not_begun), True))
    t.guard(IdIs(AttrSource(source, "gi_code"), code))
    frame = AttrSource(source, "gi_frame")
    t.guard(IdIs(AttrSource(frame, "f_globals"), namespace))
    given = body.f_locals
    locals_: dict[str, Value] = {}
    for name in _parameters(code):
        read = ArgumentOf(name)
        locals_[name] = Lazy(t, given[name], ApplySource(source, read, repr(read)))
    globals_ = namespace_value(t, namespace, function.__builtins__, function=function)
    made = Machine(t, decode(code), globals_, locals_, {}, t.frame).run()
    assert isinstance(made, GeneratorValue), "the first that its code does is to make it"
    made.source = source
    return made


def has_not_begun(generator: types.GeneratorType[Any, Any, Any]) -> bool:
    """Run-time helper of guards."""
    return inspect.getgeneratorstate(generator) == inspect.GEN_CREATED


def _parameters(code: types.CodeType) -> tuple[str, ...]:
    count = code.co_argcount + code.co_kwonlyargcount + sum(bool(code.co_flags & flag) for flag in _NAMED)
    return code.co_varnames[:count]


class ArgumentOf:
    """Run-time helper of guards: what a generator that has not begun was given for a parameter."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, generator: types.GeneratorType[Any, Any, Any]) -> Any:
        body = generator.gi_frame
        assert body is not None, "it has not begun"
        return body.f_locals[self._name]

    def __repr__(self) -> str:
        return f"argument {self._name} of"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ArgumentOf) and other._name == self._name

    def __hash__(self) -> int:
        return hash(self._name)
