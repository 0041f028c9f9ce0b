"""Functions that the graph holds as they were traced and that eager code runs later: hooks on tensors, `backward` of an
`autograd.Function`, functions under `checkpoint`. What they read of the program must stay as it was traced: where the frame
changes it behind them, the trace starts again and leaves the call to eager code.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NoReturn

import torch.fx

from fxjit.errors import BreakGraph, RestartTrace, SkipFrameSignal, leave_trace
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import NotConstant, Raised, Value
from fxjit.frontend.values.tensor import TensorValue
from fxjit.torch_private import MissingName


@contextmanager
def run_later(t: Tracer, function: str, private: Value | None = None) -> Iterator[None]:
    """A context in which such a function is traced; `function` is what it is given to, `private` an object that is its own."""
    step = t.steps
    _require_unchanged(t, step, function)
    with t.effects.recording_reads(partial(_leave_to_eager, t, step), private=private):
        try:
            yield
        except Raised as raised:  # it will, when it runs
            t.break_("call-with-effects", function=function, why=f"it raises {raised.value.describe()}")


def _require_unchanged(t: Tracer, step: int, function: str) -> None:
    if step in t.break_points.seen_later:
        t.break_("call-with-effects", function=function, why="it is run later, and reads what the program changes until then")


def _leave_to_eager(t: Tracer, step: int) -> NoReturn:
    leave_trace(RestartTrace("a function that is run later reads what is changed here",
                             action=partial(t.break_points.seen_later.add, step)))


@dataclass(eq=False)
class Recomputed:
    """A call that eager code makes once more in the backward. What it read or changed may be there for the forward alone (what
    collects results): so it is called for a trial when the frame returns, and has to come to the same operators, without
    effects. At a break that is not done for what such functions change themselves, which may not have been put back yet."""

    t: Tracer
    step: int
    function: Value
    args: Sequence[Value]
    kwargs: Mapping[str, Value]
    operators: list[tuple[object, ...]] | None = None

    def call(self) -> Value:
        t = self.t
        _require_unchanged(t, self.step, "checkpoint")
        known = next((arg.node for arg in map(Value.realize, self.args) if isinstance(arg, TensorValue)), None)
        last = None if known is None else next(iter(reversed(known.graph.nodes)))
        with t.effects.recording_reads(self._doubt, changes_too=True):
            result = t.call(self.function, self.args, self.kwargs)
        if last is not None:
            self.operators = _described(_behind(last))
        return result

    def _doubt(self) -> None:
        effects = self.t.effects
        ends = [effects.before_return] if effects.watches_reads else [effects.before_return, effects.before_break]
        for trials in ends:
            if self._try not in trials:
                trials.append(self._try)

    def _try(self) -> None:
        t = self.t
        try:
            with t.capture_subgraph("checkpoint") as nodes:
                t.call(self.function, self.args, self.kwargs)
        except (BreakGraph, Raised, NotConstant, MissingName, SkipFrameSignal):
            _leave_to_eager(t, self.step)
        if self.operators != _described(nodes):
            _leave_to_eager(t, self.step)
        t.discard(nodes)


def _behind(last: torch.fx.Node) -> list[torch.fx.Node]:
    found, node = [], last.next
    while node.op != "root":
        found.append(node)
        node = node.next
    return found


def _described(nodes: Sequence[torch.fx.Node]) -> list[tuple[object, ...]]:
    """What operators do, to which others."""
    nodes = [node for node in nodes if node.op != "placeholder"]
    places = {node: f"%{place}" for place, node in enumerate(nodes)}

    def text(each: Any) -> str:
        return repr(torch.fx.node.map_arg(each, lambda node: places.get(node, node)))

    return [(node.op, node.target, text(node.args), text(node.kwargs)) for node in nodes]
