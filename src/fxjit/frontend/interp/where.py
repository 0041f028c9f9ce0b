"""Where in the user's program the trace was when an exception of our own was raised, for pipeline.py's error messages."""

from __future__ import annotations

import traceback
from types import TracebackType

from fxjit.frontend.interp.machine import Machine, user_stack


def users_stack_of(error: BaseException) -> list[traceback.FrameSummary]:
    """The user's frames under way where `error` came from, outermost first; none where no frame was being interpreted."""
    innermost: Machine | None = None
    step: TracebackType | None = error.__traceback__
    while step is not None:
        if step.tb_frame.f_code in _STEPPING:
            innermost = step.tb_frame.f_locals["self"]
        step = step.tb_next
    return user_stack(innermost)


_STEPPING = (Machine.run.__code__, Machine.run_root.__code__)
