"""`with`: the exit callable stays on the stack as a value that remembers its manager, so that a frame that breaks inside the
block can leave and enter it again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.bytecode.versions import VERSION
from fxjit.frontend.interp.dispatch import op
from fxjit.frontend.interp.stack_values import WithExitValue
from fxjit.frontend.values import protocol
from fxjit.frontend.values.contexts import manager_of

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


@op("WITH_EXCEPT_START")
def with_except_start(m: Machine, i: Instruction) -> None:
    """Call the exit with the exception on top of the stack."""
    exc = m.stack[-1].realize()
    exit_ = m.stack[-1 - VERSION.with_exit_below]
    result = m.t.call(exit_, [m.t.make(exc.pytype()), exc, protocol.getattr_(m.t, exc, "__traceback__")], None)
    if isinstance(exit_, WithExitValue):  # the block is left: a frame that breaks from here on has not to leave it again
        m.stack[-1 - VERSION.with_exit_below] = exit_.exit
    m.stack.append(result)
