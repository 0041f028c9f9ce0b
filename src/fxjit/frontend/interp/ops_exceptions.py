"""Raising, catching, re-raising. The stack is laid out as CPython lays it: an `except` block has the exception that was
handled before it, and the one it handles, on top."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.interp import raising
from fxjit.frontend.interp.dispatch import op
from fxjit.frontend.interp.stack_values import PreviousExceptionValue
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Raised, Value
from fxjit.frontend.values.exceptions import GROUPS

if TYPE_CHECKING:
    from fxjit.frontend.interp.machine import Machine


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
    stack.append(PreviousExceptionValue(m.handled, exc))
    stack.append(exc)
    m.handled = exc


@op("POP_EXCEPT")
def pop_except(m: Machine, i: Instruction) -> None:
    before = m.stack.pop()
    assert isinstance(before, PreviousExceptionValue), "PUSH_EXC_INFO put it there"
    m.handled = before.before
    before.in_force = False


@op("CHECK_EXC_MATCH")
def check_exc_match(m: Machine, i: Instruction) -> None:
    against = m.stack.pop()
    m.stack.append(m.t.make(raising.matches(m.t, m.stack[-1], against)))


@op("CHECK_EG_MATCH")
def check_eg_match(m: Machine, i: Instruction) -> None:
    """`except*`: what the clause leaves of the exception, and above it what it takes, which is then what is handled."""
    against = m.stack.pop().realize()
    raising.refuse_groups(m.t, against)
    exc = m.stack.pop().realize()
    _leave_real_ones(m, exc)
    left, taken = protocol.unpack(m.t, m.t.inline(m.t.make(GROUPS["match"]), [exc, against], {}))
    m.stack += [left, taken]
    if not taken.is_constant():
        m.handled = taken
        innermost = [each for each in m.stack if isinstance(each, PreviousExceptionValue) and each.in_force][-1]
        innermost.handling = taken


@op("PREP_RERAISE_STAR")
def prep_reraise_star(m: Machine, i: Instruction) -> None:
    raised = m.stack.pop()
    original = m.stack.pop().realize()
    _leave_real_ones(m, original)
    m.stack.append(m.t.inline(m.t.make(GROUPS["raised_again"]), [original, raised], {}))


def _leave_real_ones(m: Machine, exc: Value) -> None:
    if getattr(exc, "has_traceback", False):
        m.t.break_("opcode-exception", value="except*", why="the parts of a group that was raised for real have its traceback")
