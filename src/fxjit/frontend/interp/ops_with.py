"""`with`: the exit callable stays on the stack as a value that remembers its manager, so that a frame that breaks inside the
block can leave and enter it again.
"""

from __future__ import annotations

from types import CodeType
from typing import TYPE_CHECKING

from fxjit.frontend.bytecode.decode import decode
from fxjit.frontend.bytecode.flow import live_before
from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.bytecode.versions import VERSION
from fxjit.frontend.interp.dispatch import op
from fxjit.frontend.interp.stack_values import WithExitValue
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.contexts import manager_of
from fxjit.frontend.values.descriptors import is_trusted
from fxjit.homes import module_of

if TYPE_CHECKING:
    from fxjit.frontend.interp.machine import Machine


@op("BEFORE_WITH")
def before_with(m: Machine, i: Instruction) -> None:
    t = m.t
    manager = manager_of(m.stack.pop().realize())
    enter = protocol.lookup_special(t, manager, "__enter__")
    exit_ = protocol.lookup_special(t, manager, "__exit__") if enter is not None else None
    if enter is None or exit_ is None:
        name = manager.pytype().__name__
        missing = "" if enter is None else " (missed __exit__ method)"
        t.raise_(TypeError, f"'{name}' object does not support the context manager protocol{missing}")
    m.stack.append(WithExitValue(manager, exit_, m.steps, m.index))
    m.stack.append(t.call(enter, [], None))


def _looks_at_tracebacks(exit_: Value) -> bool:
    """Whether it is a method of the user's that reads its third argument; contextlib's merely pass it on."""
    if not isinstance(exit_, WithExitValue):
        return False
    code = getattr(getattr(exit_.exit, "func", None), "code", None)
    if not isinstance(code, CodeType) or code.co_argcount < 4 or is_trusted(module_of(exit_.manager.pytype())):
        return False
    return code.co_varnames[3] in live_before(decode(code), 0)


@op("WITH_EXCEPT_START")
def with_except_start(m: Machine, i: Instruction) -> None:
    """Call the exit with the exception on top of the stack. One that was raised while tracing has no traceback, which an
    exit that looks at it would see."""
    exc = m.stack[-1].realize()
    exit_ = m.stack[-1 - VERSION.with_exit_below]
    if exc.source is None and _looks_at_tracebacks(exit_):
        m.t.break_("attribute-unsupported", value=exc.describe(), name="__traceback__")
    traceback = m.t.make(None) if exc.source is None else protocol.getattr_(m.t, exc, "__traceback__")
    result = m.t.call(exit_, [m.t.make(exc.pytype()), exc, traceback], None)
    if isinstance(exit_, WithExitValue):  # the block is left: a frame that breaks from here on has not to leave it again
        m.stack[-1 - VERSION.with_exit_below] = exit_.exit
    m.stack.append(result)
