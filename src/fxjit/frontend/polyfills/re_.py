"""Functions of re, which look at the part of a text that is str's. Those that call the user's functions are in plain Python."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import fold_call, handles
from fxjit.frontend.values.concrete import builtin_part
from fxjit.frontend.values.iteration import CallableIteratorValue
from fxjit.frontend.values.sequence import TupleValue


def replaced(pattern: re.Pattern[Any], repl: Callable[[re.Match[Any]], Any], string: Any, count: int = 0) -> tuple[Any, int]:
    """`pattern.subn` with a function."""
    parts = []
    end = number = 0
    for match in pattern.finditer(string):
        if count and number == count:
            break
        number += 1
        if end < match.start():
            parts.append(string[end:match.start()])
        part = repl(match)
        if part is not None:
            parts.append(part)
        end = match.end()
    if end < len(string):
        parts.append(string[end:])
    return string[:0].join(parts), number


def _sub(pattern: Any, repl: Any, string: Any, count: int = 0) -> Any:
    return replaced(pattern, repl, string, count)[0]


def _module_sub(pattern: Any, repl: Any, string: Any, count: int = 0, flags: int = 0) -> Any:
    return replaced(re.compile(pattern, flags), repl, string, count)[0]


def _module_subn(pattern: Any, repl: Any, string: Any, count: int = 0, flags: int = 0) -> Any:
    return replaced(re.compile(pattern, flags), repl, string, count)


def _made_while_tracing(t: Tracer, fn: Any, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return fold_call(t, fn, [builtin_part(arg.realize()) for arg in args],
                     {name: builtin_part(arg.realize()) for name, arg in kwargs.items()})


def _looks(fn: Any) -> None:
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return _made_while_tracing(t, fn, args, kwargs)


for _name in ("match", "fullmatch", "search", "split", "findall"):
    _looks(getattr(re, _name))
    _looks(getattr(re.Pattern, _name))


def _replaces(fn: Any, body: Callable[..., Any]) -> None:
    """A call with a template is made while tracing; one with a function is traced."""
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        repl = args[1].realize() if len(args) > 1 else kwargs.get("repl")
        if repl is None or issubclass(repl.pytype(), (str, bytes)):
            return _made_while_tracing(t, fn, args, kwargs)
        return t.inline(t.make(body), args, kwargs)


for _fn, _body in ((re.Pattern.sub, _sub), (re.Pattern.subn, replaced), (re.sub, _module_sub), (re.subn, _module_subn)):
    _replaces(_fn, _body)


def _finds(fn: Any) -> None:
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        found = _made_while_tracing(t, lambda *known, **named: tuple(fn(*known, **named)), args, kwargs)
        return CallableIteratorValue(TupleValue(protocol.unpack(t, found)))


_finds(re.finditer)
_finds(re.Pattern.finditer)
