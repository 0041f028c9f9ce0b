"""Functions that the graph holds as they were traced and that eager code runs later: hooks on tensors, `backward` of an
`autograd.Function`. What they read of the program must stay as it was traced: where the frame changes it behind them, the trace
starts again and leaves the call to eager code.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import NoReturn

from fxjit.errors import RestartTrace, leave_trace
from fxjit.frontend.tracer import Tracer


@contextmanager
def run_later(t: Tracer, function: str) -> Iterator[None]:
    """A context in which such a function is traced; `function` is what it is given to."""
    step = t.steps
    if step in t.break_points.seen_later:
        t.break_("call-with-effects", function=function, why="it is run later, and reads what the program changes until then")
    with t.effects.recording_reads(partial(_leave_to_eager, t, step)):
        yield


def _leave_to_eager(t: Tracer, step: int) -> NoReturn:
    leave_trace(RestartTrace("a function that is run later reads what is changed here",
                             action=partial(t.break_points.seen_later.add, step)))
