"""Decisions to run a graph, or a call of one, as it was captured: counted, logged and reported in one place.

rules.py decides; entries from the disk (stored/graphs.py) repeat what was decided, without the rules.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

from fxjit import events, logs
from fxjit.counters import counters

Stage = Literal["split", "captured graph", "AOTAutograd", "compiled graphs", "call plan", "executor", "call"]
log = logs.artifact("compile")


@dataclass(frozen=True, slots=True)
class Decision:
    """The id of a rule, the stage that evaluates it, and its reason in a sentence."""

    id: str
    stage: Stage
    reason: str


def report(decision: Decision, graph: Any, because: str = "") -> None:
    """Counts and logs that the graph, or a call of it, runs as captured, and reports it to `explain`."""
    counters["run_as_captured"][decision.id] += 1
    level = logs.WARNING if decision.id == "over-budget" else logs.INFO  # the time was lost, and may be again
    further = f" [{because}]" if because else ""
    log.log(level, "a graph runs as it was captured (%s): %s%s", decision.id, decision.reason, further)
    events.record_event(events.RunsAsCaptured(decision.id, decision.stage, decision.reason, graph))
