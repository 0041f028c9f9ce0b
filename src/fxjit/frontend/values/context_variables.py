"""`contextvars.ContextVar` in traced code. What a variable holds when the frame begins is read from the context and guarded;
what the frame sets is known, and set for real when the graph has run. Tokens that outlive the trace are made then, with the
value that `reset` brings back."""

from __future__ import annotations

import contextvars
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Rebuilder, Value
from fxjit.frontend.values.natives import BuiltinMethodValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import IdIs
from fxjit.guards.source import ApplySource, Source

_MISSING: Final[Any] = contextvars.Token.MISSING
_METHODS: Final = ("get", "set", "reset")


def current_value(variable: contextvars.ContextVar[Any]) -> Any:
    return variable.get()


def set_value(variable: contextvars.ContextVar[Any]) -> Any:
    """The value that the variable was set to, without its default."""
    return variable.get(_MISSING)


class ContextVariableValue(Value):
    """A variable that existed before the frame."""

    def __init__(self, obj: contextvars.ContextVar[Any], source: Source) -> None:
        super().__init__(source)
        self.obj = obj
        #: What the frame has set and not reset; None where it holds what it held before.
        self.value: Value | None = None
        #: The token of the last `set`, also of one that was reset since.
        self.token: TokenValue | None = None

    def pytype(self) -> type:
        return type(self.obj)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "name":
            return t.make(self.obj.name)
        return BuiltinMethodValue(self, name) if name in _METHODS else super().tp_getattro(t, name)

    def tp_hash(self, t: Tracer) -> Value:
        return t.make(hash(self.obj))

    def held_before(self, t: Tracer) -> Value | None:
        """The value at the beginning of the frame; None where it was not set."""
        assert self.source is not None
        known, source = set_value(self.obj), ApplySource(self.source, set_value, "ContextVar.get")
        if known is _MISSING:
            t.guard(IdIs(source, _MISSING))
            return None
        return t.wrap(known, source)

    def meth_get(self, t: Tracer, default: Value | None = None, /) -> Value:
        found = self.value or self.held_before(t) or default
        if found is not None:
            return found
        try:
            known = self.obj.get()
        except LookupError:
            t.raise_(LookupError, self)
        assert self.source is not None
        return t.wrap(known, ApplySource(self.source, current_value, "ContextVar.get"))

    def meth_set(self, t: Tracer, value: Value, /) -> Value:
        t.effects.mutate(self)
        self.token = TokenValue(self, self.value, self.token)
        self.value = value
        return self.token

    def meth_reset(self, t: Tracer, token: Value, /) -> Value:
        if token is not self._newest_token():  # one that is used, of another variable, or out of order
            t.break_("call-builtin", function="ContextVar.reset", args=token.describe())
        assert isinstance(token, TokenValue)
        t.effects.mutate(self)
        token.used = True
        self.value = token.before
        return t.make(None)

    def _newest_token(self) -> TokenValue | None:
        """The last that was not used."""
        token = self.token
        while token is not None and token.used:
            token = token.earlier
        return token

    def write_back(self, cg: Rebuilder) -> None:
        token = self._newest_token()
        if token is not None:
            assert self.value is not None
            cg.push(token)  # made before the last value is set
            cg.asm.pop()
            cg.push(self.value)
            cg.asm.call_const(_set_to, 2)
        cg.asm.pop()


class TokenValue(Value):
    """The result of `ContextVar.set` in this frame. `earlier` is the token of the `set` before it, which has to be made
    first."""

    def __init__(self, variable: ContextVariableValue, before: Value | None, earlier: TokenValue | None) -> None:
        super().__init__(None)
        self.variable = variable
        self.before = before
        self.earlier = earlier
        self.used = False

    def pytype(self) -> type:
        return contextvars.Token

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "var":
            return self.variable
        if name == "old_value":
            return self.before or self.variable.held_before(t) or t.make(_MISSING)
        return super().tp_getattro(t, name)

    def rebuild(self, cg: Rebuilder) -> None:
        if self.earlier is not None:
            cg.push(self.earlier)
            cg.asm.pop()
        if self.before is None:
            cg.call(make_token, self.variable, self.used)
        else:
            cg.call(make_token, self.variable, self.used, self.before)


def make_token(variable: contextvars.ContextVar[Any], used: bool, *before: Any) -> contextvars.Token[Any]:
    """Run-time helper of new bytecode: a token with the variable's earlier value, or else its present one."""
    outer = variable.set(before[0]) if before else None
    token = variable.set(variable.get(None))
    if used:
        variable.reset(token)
    if outer is not None:
        variable.reset(outer)
    return token


def _set_to(variable: contextvars.ContextVar[Any], value: Any) -> None:
    variable.set(value)


@wraps(contextvars.ContextVar)
def _wrap_variable(t: Tracer, obj: contextvars.ContextVar[Any], source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return ContextVariableValue(obj, source)
