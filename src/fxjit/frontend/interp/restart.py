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
class Stop:
    """A decided stop: before the root frame's `step`th executed instruction, which is the one at `index`."""

    step: int
    index: int
    kind: str
    reason: str
    context: dict[str, Any] = field(default_factory=dict)
    user_stack: list[traceback.FrameSummary] = field(default_factory=list)
    cause: BreakGraph | None = None


class StopList:
    """The stops decided for one frame, over all its attempts. A trace ends at the earliest."""

    def __init__(self) -> None:
        self._stops: dict[int, Stop] = {}
        self.newest: Stop | None = None
        self.reached: Stop | None = None
        #: Whether a branch on data may be taken for granted where its other side only raises.
        self.expects = True
        #: Whether arguments of torch's functions are looked through for such as have a `__torch_function__`, from the start.
        self.asks = False

    def __len__(self) -> int:
        return len(self._stops)

    def decide(self, stop: Stop) -> None:
        """Stop there in the next attempt. A stop behind one that exists cannot be found by a deterministic trace."""
        first = self.first_step
        if first is not None and stop.step >= first:
            raise InternalError(
                f"the trace diverged: it was to stop before instruction {first} and reached {stop.step} ({stop.reason})"
            )
        self._stops[stop.step] = stop
        self.newest = stop

    @property
    def first_step(self) -> int | None:
        """The earliest decided step; None where nothing is decided."""
        return min(self._stops, default=None)

    def arrive(self, step: int, index: int) -> Stop:
        """The machine stands before `step`: the stop it is there for."""
        stop = self._stops[step]
        if stop.index != index:
            raise InternalError(f"the trace diverged: step {step} was instruction {stop.index} and now is {index}")
        self.reached = stop
        return stop
