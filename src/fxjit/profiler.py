"""`CompileProfiler`: a backend that only observes. It runs graphs eagerly and reports breaks, recompiles and skips.

with CompileProfiler() as prof:
    fxjit.compile(my_model, backend=prof)(x)
    print(prof.report())
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from . import config, events
from .events import FrameCompiled, FrameSkipped, GraphBreak, Recompiled


class CompileProfiler:
    """Statistics over a run: `frame_count`, `op_count`, and what `report()` says. While it listens no limit of recompiles
    holds, so that every guard that fails is reported, and not only those before the limit."""

    compiler_name = "CompileProfiler"

    def __init__(self) -> None:
        self.frame_count = 0
        self.op_count = 0
        self.breaks: list[GraphBreak] = []
        self.recompiles: list[Recompiled] = []
        self.skips: list[FrameSkipped] = []
        self._stack = ExitStack()

    def __call__(self, gm: Any, example_inputs: Any) -> Callable[..., Any]:
        self.frame_count += 1
        self.op_count += sum("call" in node.op for node in gm.graph.nodes)
        forward: Callable[..., Any] = gm.forward
        return forward

    def __enter__(self) -> CompileProfiler:
        unlimited = dict.fromkeys(("recompile_limit", "accumulated_recompile_limit"), sys.maxsize)
        self._stack.enter_context(config.patch(unlimited))
        self._stack.enter_context(events.listen(self._listen))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _listen(self, event: events.Event) -> None:
        if isinstance(event, GraphBreak):
            self.breaks.append(event)
        elif isinstance(event, Recompiled):
            self.recompiles.append(event)
        elif isinstance(event, FrameSkipped):
            self.skips.append(event)
        elif isinstance(event, FrameCompiled):
            pass  # counted where the graph arrives

    def get_metrics(self) -> dict[str, dict[str, Any]]:
        recompiled = Counter(event.function for event in self.recompiles)
        return {
            "graph_breaks": dict(Counter(each.reason for each in self.breaks)),
            "recompiles": dict(recompiled),
            "skips": dict(Counter(each.reason for each in self.skips)),
            "graphs": {"count": self.frame_count, "ops": self.op_count},
        }

    def report(self) -> str:
        """Graph breaks by place, recompiles with the guards that failed, and skipped frames; each with all that is known of
        its reason."""
        breaks = Counter("\n".join(each.summary()) for each in self.breaks)
        skips = Counter(map(str, self.skips))
        parts = [
            "fxjit profiler report",
            "=====================",
            f"Captured: {events.count(self.frame_count, 'graph')}, {events.count(self.op_count, 'operator')}.",
            "",
            _section("Graph breaks", breaks, "No graph breaks detected."),
            _section("Recompiles", Counter(map(_recompile_text, self.recompiles)), "No recompiles detected."),
            _section("Skipped frames (what they call is still compiled)", skips, "No frames were skipped."),
        ]
        return "\n".join(parts)


def _recompile_text(event: Recompiled) -> str:
    head = f"{event.function} ({event.code.co_filename}:{event.code.co_firstlineno}), compile {event.count}, because"
    return "\n".join([head, *(f"  {why}" for why in event.why or ("unknown",))])


def _section(title: str, found: Counter[str], otherwise: str) -> str:
    lines = [title, "-" * len(title)]
    for number, (text, times) in enumerate(found.items(), 1):
        head, *rest = text.splitlines()
        lines += [f"{number}. {head}" + (f" ({times} times)" if times > 1 else ""), *(f"   {line}" for line in rest)]
    return "\n".join([*lines, *([] if found else [otherwise]), ""])
