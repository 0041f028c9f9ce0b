"""The compile budget: seconds of one thread's processor time that one graph may take (`config.compile_budget`).

A Python loop over hundreds of steps is a graph of thousands of nodes, which compiles for minutes. The backend's stages call
`spend` at each node; a graph that is over its budget runs as it was captured (rule "over-budget"). Processor time does not
depend on what else the machine does. The C++ compiler has a time limit of its own.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Iterator

from fxjit import config, progress


class OverBudget(RuntimeError):
    """A graph took longer to compile than it may."""

    def __init__(self, seconds: float, stage: str) -> None:
        super().__init__(f"compiling it was given up after {seconds:g} s (config.compile_budget), in {stage}")


_state = threading.local()


@contextlib.contextmanager
def limited() -> Iterator[None]:
    """The compile of one graph in this thread. What it compiles of itself has the same budget."""
    outer = getattr(_state, "end", None)
    seconds = config.compile_budget
    if outer is None and seconds > 0:
        _state.end = time.thread_time() + seconds
        _state.earliest = time.monotonic() + seconds
    try:
        yield
    finally:
        _state.end = outer


def spend(stage: str) -> None:
    """Raises OverBudget where this thread's compile has used up its time; says how far it is where that is due."""
    progress.tick()
    end = getattr(_state, "end", None)
    # A thread has no more processor time than has passed, and only the clock is read without a call of the system.
    if end is not None and time.monotonic() > _state.earliest and time.thread_time() > end:
        raise OverBudget(config.compile_budget, stage)
