"""The break points of a frame, decided before a trace begins: they make the restart after a graph break deterministic.

A break is found while its instruction is half done. The machine then decides a break point before that instruction and starts
the trace anew; the second run counts the same instructions and ends there with its state untouched.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType
from typing import Any

from fxjit import config
from fxjit.errors import BreakGraph, InternalError


@dataclass(frozen=True, slots=True)
class BreakPoint:
    """Before the `step`th executed instruction, which is the one at `index`; kinds are those of `result.Break`."""

    step: int
    index: int
    kind: str
    cause: BreakGraph
    #: Of a region: the reason to skip the frame, where little before it was captured, and its context.
    skip: tuple[str, dict[str, Any]] | None = None


class BreakPoints:
    """Break points of one frame, decided over all its attempts. A trace ends at the earliest one."""

    def __init__(self) -> None:
        self._points: dict[int, BreakPoint] = {}
        #: Whether a branch on data may be speculated on where its other side is exceptional.
        self.speculates = True
        #: Conditional jumps that are no part of a joint condition (joint_conditions.py).
        self.apart: set[tuple[CodeType, int]] = set()
        #: Steps at whose calls functions are given away that are run later and read what the frame changes until then
        #: (values/run_later.py).
        self.seen_later: set[int] = set()
        #: Whether locks may be held while the graph runs.
        self.holds_locks = True
        #: Whether classes may be made while tracing.
        self.makes_classes = True
        #: Whether the program hears that a compiler is at work, where it asks.
        self.shows_compiler = True
        #: Whether a break is an error.
        self.whole = False
        #: Whether what only a run knows may be a symbol at this point.
        self.reads_data = True
        #: How many blocks this attempt is in that make numbers out of tensors symbols, whatever the setting says.
        self.blocks_with_scalars = 0
        #: Whether arguments of torch's functions are searched for a `__torch_function__` from the start.
        self.dispatches = False
        #: Whether gradients of what `leaf.data = ...` gives go to the leaf in the graph (values/given_data.py).
        self.takes_given_data = True
        #: Whether `torch.autograd.grad` is met, for which leaves that the trace makes are leaves in the graph.
        self.takes_gradients = False
        #: Whether numbers out of tensors may be left to the running program, and the steps at which they are needed at once
        #: (values/deferred_numbers.py).
        self.defers_numbers = True
        self.needed_numbers: set[int] = set()
        #: Ids of objects that were given, before this attempt, what eager would have given them by now.
        self.prepared: set[int] = set()
        #: Updated numbers that this frame's first complete trace found, and where that trace ended; None before there was one.
        self.foreseen: tuple[frozenset[str], object] | None = None

    @property
    def captures_scalars(self) -> bool:
        """Whether numbers out of tensors are symbols of the graph: also where a break is an error, as with torch.compile."""
        return self.reads_data and (self.whole or self.blocks_with_scalars > 0 or config.capture_scalar_outputs)

    @property
    def captures_shapes(self) -> bool:
        """The same for operators whose output shape depends on data."""
        return self.reads_data and (self.whole or config.capture_dynamic_output_shape_ops)

    @contextlib.contextmanager
    def without_data(self) -> Iterator[None]:
        """Inside, neither is."""
        before, self.reads_data = self.reads_data, False
        try:
            yield
        finally:
            self.reads_data = before

    def decide(self, point: BreakPoint) -> None:
        """Break there in the next attempt. A point behind one that exists cannot be found by a deterministic trace."""
        first = self.first_step
        if first is not None and point.step >= first:
            raise InternalError(f"the trace diverged: it was to break before instruction {first} and reached {point.step} "
                                f"({point.cause.reason})")
        self._points[point.step] = point

    def start_over(self) -> None:
        """Forget all points: the next attempt is about other values, and may execute other instructions."""
        self._points.clear()

    def hide_compiler(self) -> None:
        """The next attempt goes as the program does where no compiler is at work."""
        self.shows_compiler = False
        self.start_over()

    @property
    def first_step(self) -> int | None:
        """The earliest decided step; None where nothing is decided."""
        return min(self._points, default=None)

    @property
    def ends_in_region(self) -> bool:
        """Whether the trace ends at a region."""
        first = self.first_step
        return first is not None and self._points[first].kind == "region"

    def at(self, step: int, index: int) -> BreakPoint:
        """The break point before `step`, where the machine has come to."""
        point = self._points[step]
        if point.index != index:
            raise InternalError(f"the trace diverged: step {step} was instruction {point.index} and now is {index}")
        return point
