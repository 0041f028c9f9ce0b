"""`io.StringIO` and `io.BytesIO` that are made while tracing: a real one stands beside the trace, on which calls with known
arguments are made at once. One that outlives the trace is made again from its state."""

from __future__ import annotations

import io
from collections.abc import Callable
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Rebuilder, Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.concrete import NotConcrete, concrete, is_concrete

Buffer = io.StringIO | io.BytesIO

#: Attributes that are computed from the state.
_FACTS: Final = ("closed", "newlines", "line_buffering", "encoding", "errors")
_READING: Final = ("getvalue", "read", "read1", "readline", "readlines", "tell", "readable", "writable", "seekable", "isatty")
_CHANGING: Final = ("write", "seek", "truncate", "flush", "close")


class BufferValue(Value):
    """A buffer whose content is known."""

    def __init__(self, real: Buffer) -> None:
        super().__init__(None)
        self.real = real

    def pytype(self) -> type:
        return type(self.real)

    def rebuild(self, cg: Rebuilder) -> None:
        state: Any = None if self.real.closed else self.real.__getstate__()
        cg.call(buffer_with, type(self.real), state and state[:-1])  # the last is its dict, in which is nothing

    def apply(self, t: Tracer, name: str, *args: Value, **kwargs: Value) -> Value:
        """`buffer.name(*args)`, where all arguments are known."""
        try:
            known = [concrete(arg) for arg in args]
            named = {key: concrete(arg) for key, arg in kwargs.items()}
        except NotConcrete:
            shown = ", ".join(arg.describe() for arg in args)
            t.break_("call-builtin", function=f"{self.pytype().__name__}.{name}", args=shown)
        if name not in _READING or known:  # reading moves on
            t.effects.mutate(self)
        return protocol.fold(t, lambda: getattr(self.real, name)(*known, **named))

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name in _FACTS and hasattr(self.pytype(), name):
            return protocol.fold(t, getattr, self.real, name)
        return protocol.generic_getattr(t, self, name)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        t.break_("attribute-unsupported", value=self.describe(), name=name)

    def check_open(self, t: Tracer) -> Value:
        """The buffer itself; a closed one raises what its `__enter__` does."""
        protocol.fold(t, lambda: self.real.__enter__() and None)
        return self

    def tp_iter(self, t: Tracer) -> Value:
        return self.check_open(t)

    def tp_iternext(self, t: Tracer) -> Value | None:
        t.effects.mutate(self)
        line = protocol.fold(t, next, self.real, None)
        return None if line.as_constant() is None else line

    def meth___enter__(self, t: Tracer) -> Value:
        return self.check_open(t)

    def meth___exit__(self, t: Tracer, *exc_info: Value) -> Value:
        return self.apply(t, "close")

    def meth_writelines(self, t: Tracer, lines: Value) -> Value:
        self.check_open(t)
        for line in protocol.unpack(t, lines):
            self.apply(t, "write", line)
        return t.make(None)

    def print(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """`print(*args, file=self, sep=..., end=...)`."""
        between, behind = [_text_option(t, kwargs, name, usual) for name, usual in (("sep", " "), ("end", "\n"))]
        for at, arg in enumerate(args):
            if at:
                self.apply(t, "write", between)
            self.apply(t, "write", protocol.str_(t, arg))
        self.apply(t, "write", behind)
        return t.make(None)


def _text_option(t: Tracer, kwargs: dict[str, Value], name: str, usual: str) -> Value:
    value = kwargs.get(name)
    if value is None or (value.is_constant() and value.as_constant() is None):
        return t.make(usual)
    if not issubclass(value.pytype(), str):
        t.raise_(TypeError, f"{name} must be None or a string, not {value.pytype().__name__}")
    return value


def _method(name: str) -> Callable[..., Value]:
    def method(self: BufferValue, t: Tracer, *args: Value, **kwargs: Value) -> Value:
        return self.apply(t, name, *args, **kwargs)
    return method


for _name in (*_READING, *_CHANGING):
    setattr(BufferValue, f"meth_{_name}", _method(_name))


def buffer_with(cls: type[Any], state: tuple[Any, ...] | None) -> Any:
    """Run-time helper of new code: a buffer in this state, a closed one for None."""
    made = cls()
    if state is None:
        made.close()
    else:
        made.__setstate__((*state, None))
    return made


def _buffer_class(cls: type[Any]) -> None:
    @handles(cls)
    def make(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not all(map(is_concrete, (*args, *kwargs.values()))):
            t.break_("class-instantiation-unsupported", cls=cls.__qualname__)
        try:
            return BufferValue(cls(*map(concrete, args), **{name: concrete(value) for name, value in kwargs.items()}))
        except (TypeError, ValueError) as error:
            t.raise_(type(error), *error.args)


_buffer_class(io.StringIO)
_buffer_class(io.BytesIO)
