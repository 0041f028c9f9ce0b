"""Queries of the process, the machine and its files in traced code: constants, guarded by making the query again.

An entry holds while each query that its trace made gives what it gave then. The guards are checked before the frame does
anything, so a query breaks the graph where what the trace has put off until then, or what is in the graph already, may change
the answer: a write that is deferred, an operator of the program's own, a collective that another process answers.
"""

from __future__ import annotations

import functools
import os
import shutil
import socket
import sys
from collections.abc import Callable, Iterable
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles, unknown_call
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.guards.kinds import ConstIs
from fxjit.guards.source import CallSource, ConstSource
from fxjit.homes import name_with_module

#: Of the process and the machine. What changes them ends the graph.
_SETTINGS: Final[tuple[Any, ...]] = (
    sys.getswitchinterval, sys.get_int_max_str_digits, os.getcwd, os.getpid, os.getppid, os.cpu_count, socket.gethostname,
    *(getattr(os, name) for name in ("getuid", "geteuid", "getgid", "getegid", "process_cpu_count") if hasattr(os, name)),
)
#: Of files. None of them raises for a path that is a text; what one says may change while the frame runs.
_OF_FILES: Final[tuple[Any, ...]] = (
    os.path.exists, os.path.lexists, os.path.isfile, os.path.isdir, os.path.islink, os.path.ismount, os.access, shutil.which,
)


def _handle(queries: Iterable[Callable[..., Any]], *, of_files: bool) -> None:
    for query in queries:
        handles(query)(_handler(query, of_files))


def _handler(query: Callable[..., Any], of_files: bool) -> Callable[[Tracer, list[Value], dict[str, Value]], Value]:
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if of_files and (t.graph_acts_outside or t.effects.length()):
            t.break_("call-subprocess", function=name_with_module(query))
        try:
            given = [concrete(arg) for arg in args]
            named = {name: concrete(arg) for name, arg in kwargs.items()}
        except NotConcrete:
            unknown_call(t, query, args)
        asked = functools.partial(query, *given, **named) if args or kwargs else query
        answer = protocol.fold(t, asked)
        if not answer.is_constant():
            unknown_call(t, query, args)
        t.guard(ConstIs(CallSource(ConstSource(asked, name_with_module(query))), answer.as_constant()))
        return answer
    return call


_handle(_SETTINGS, of_files=False)
_handle(_OF_FILES, of_files=True)
