"""Raising, catching, re-raising. The stack is laid out as CPython lays it: an `except` block has the exception that was
handled before it, and the one it handles, on top."""

from __future__ import annotations

from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.interp import raising
from fxjit.frontend.interp.dispatch import op
from fxjit.frontend.interp.machine import Machine
from fxjit.frontend.values.base import Raised


@op("LOAD_ASSERTION_ERROR")
def load_assertion_error(m: Machine, i: Instruction) -> None:
    m.stack.append(m.t.make(AssertionError))


@op("RAISE_VARARGS")
def raise_varargs(m: Machine, i: Instruction) -> None:
    cause = m.stack.pop() if i.arg == 2 else None
    if i.arg == 0:
        handled = raising.current_exception(m)
        if handled is None:
            m.t.break_("opcode-exception", value="raise", why="the exception it raises again comes from a caller")
        raise Raised(handled)
    raising.do_raise(m.t, m.stack.pop(), cause)


@op("RERAISE")
def reraise(m: Machine, i: Instruction) -> None:
    raise Raised(m.stack.pop())


@op("PUSH_EXC_INFO")
def push_exc_info(m: Machine, i: Instruction) -> None:
    stack = m.stack
    exc = stack.pop()
    stack.append(m.handled if m.handled is not None else m.t.make(None))
    stack.append(exc)
    m.handled = exc


@op("POP_EXCEPT")
def pop_except(m: Machine, i: Instruction) -> None:
    before = m.stack.pop()
    m.handled = None if before.is_constant() else before


@op("CHECK_EXC_MATCH")
def check_exc_match(m: Machine, i: Instruction) -> None:
    against = m.stack.pop()
    m.stack.append(m.t.make(raising.matches(m.t, m.stack[-1], against)))
