"""Functions and classes made by the traced frame."""

from __future__ import annotations

import builtins
import sys
from typing import Any, Final

from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.interp.dispatch import op
from fxjit.frontend.interp.machine import Machine
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.functions import MadeFunctionValue
from fxjit.guards.kinds import ConstIs
from fxjit.guards.source import CallSource, ConstSource, ItemSource

_PARTS: Final = ("closure", "annotations", "kwdefaults", "defaults")  # in the order they lie from the top


def _set_part(fn: MadeFunctionValue, part: str, value: Value) -> None:
    if part == "closure":
        fn.closure_values = value
    elif part == "annotations":
        fn.annotations = value
    elif part == "kwdefaults":
        fn.kwdefault_values = value
    else:
        assert part == "defaults"
        fn.default_values = value


@op("MAKE_FUNCTION")
def make_function(m: Machine, i: Instruction) -> None:
    code = m.stack.pop().as_constant()
    fn = MadeFunctionValue(code, m.globals.namespace)
    given: Any = i.argval if isinstance(i.argval, tuple) else ()
    for part in _PARTS:
        if part in given:
            _set_part(fn, part, m.stack.pop())
    m.stack.append(fn)


@op("SET_FUNCTION_ATTRIBUTE")
def set_function_attribute(m: Machine, i: Instruction) -> None:
    part: Any = i.argval
    fn = m.stack.pop()
    assert isinstance(fn, MadeFunctionValue)
    _set_part(fn, part, m.stack.pop())
    m.stack.append(fn)


@op("LOAD_BUILD_CLASS")
def load_build_class(m: Machine, i: Instruction) -> None:
    name = "__build_class__"
    m.stack.append(m.t.wrap(m.globals.builtins[name], ItemSource(ConstSource(m.globals.builtins, "builtins"), name)).realize())


@handles(builtins.__build_class__)
def _build_class(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    t.break_("opcode-class-body")


@handles(sys.getrecursionlimit)
def _recursion_limit(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """The program's recursion limit, guarded; tracing runs under a higher one."""
    t.guard(ConstIs(CallSource(ConstSource(sys.getrecursionlimit, "sys.getrecursionlimit")), t.root.recursion_limit))
    return t.make(t.root.recursion_limit)


@op("EXIT_INIT_CHECK")
def exit_init_check(m: Machine, i: Instruction) -> None:
    m.stack.pop()
