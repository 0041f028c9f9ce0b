"""fxjit's own callables met in traced code: what `fxjit.disable` and `fxjit.compile` return."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fxjit import _C
from fxjit.frontend.values.base import Rebuilder, Tracer, Value
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import IdIs
from fxjit.guards.source import AttrSource, Source
from fxjit.skips import marks


class DisabledValue(Value):
    """What `disable(fn)` returned: a call of it ends the graph."""

    def __init__(self, fn: Any, source: Source) -> None:
        super().__init__(source)
        self.fn = fn

    def pytype(self) -> type:
        return _C.DisabledFunction

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        assert self.source is not None
        try:
            found = getattr(self.fn, name)
        except AttributeError as error:
            t.raise_(AttributeError, *error.args)
        return t.wrap(found, AttrSource(self.source, name))

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        said = marks.disabled(self.fn)
        message = said.reason if said is not None else None
        t.break_("user-disabled-call", function=getattr(self.fn, "__wrapped__", self.fn), message=message)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push_const(self.fn)


class CompiledValue(DisabledValue):
    """What `compile(fn)` returned: compiled code inlines the function itself."""

    def pytype(self) -> type:
        return _C.CompiledFunction

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        return t.call(self.tp_getattro(t, "__wrapped__"), args, kwargs)


@wraps(_C.DisabledFunction)
def _wrap_disabled(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return DisabledValue(obj, source)


@wraps(_C.CompiledFunction)
def _wrap_compiled(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return CompiledValue(obj, source)
