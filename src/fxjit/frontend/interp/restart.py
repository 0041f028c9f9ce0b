"""Where a trace is to stop, decided before it starts: what makes a restart after a graph break deterministic.

A break is found while its instruction is half done. The machine then decides a stop before that instruction and
starts the trace anew; the second run counts the same root instructions and stops there with its state untouched.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from fxjit.errors import BreakGraph, InternalError

if TYPE_CHECKING:
    import traceback


@dataclass(slots=True)
class BreakPoint:
    """A decided stop: before the root frame's `step`th executed instruction, which is the one at `index`."""

    step: int
    index: int
    kind: str
    reason: str
    context: dict[str, Any] = field(default_factory=dict)
    user_stack: list[traceback.FrameSummary] = field(default_factory=list)
    cause: BreakGraph | None = None


class BreakPoints:
    """The stops decided for one frame, over all its attempts. A trace ends at the earliest."""

    def __init__(self) -> None:
        self._points: dict[int, BreakPoint] = {}
        self.newest: BreakPoint | None = None
        self.reached: BreakPoint | None = None
        #: Whether a branch on data may be taken for granted where its other side only raises.
        self.speculates = True
        #: Whether arguments of torch's functions are looked through for such as have a `__torch_function__`, from the start.
        self.dispatches = False

    def __len__(self) -> int:
        return len(self._points)

    def decide(self, point: BreakPoint) -> None:
        """Stop there in the next attempt. A stop behind one that exists cannot be found by a deterministic trace."""
        first = self.first_step
        if first is not None and point.step >= first:
            raise InternalError(
                f"the trace diverged: it was to stop before instruction {first} and reached {point.step} ({point.reason})"
            )
        self._points[point.step] = point
        self.newest = point

    @property
    def first_step(self) -> int | None:
        """The earliest decided step; None where nothing is decided."""
        return min(self._points, default=None)

    def reach(self, step: int, index: int) -> BreakPoint:
        """The machine stands before `step`: the stop it is there for."""
        point = self._points[step]
        if point.index != index:
            raise InternalError(f"the trace diverged: step {step} was instruction {point.index} and now is {index}")
        self.reached = point
        return point
