"""`CompileProfiler`: a backend that only watches. It runs graphs eagerly and reports breaks, recompiles and skips.

with CompileProfiler() as prof:
    fxjit.compile(my_model, backend=prof)(x)
    print(prof.report())
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from . import events
from .events import FrameCompiled, FrameSkipped, GraphBreak, Recompiled


class CompileProfiler:
    """Statistics over a run: `frame_count`, `op_count`, and what `report()` says."""

    compiler_name = "CompileProfiler"

    def __init__(self) -> None:
        self.frame_count = 0
        self.op_count = 0
        self.breaks: Counter[str] = Counter()
        self.places: dict[str, str] = {}
        self.recompiles: list[Recompiled] = []
        self.skips: list[FrameSkipped] = []
        self._stack = ExitStack()

    def __call__(self, gm: Any, example_inputs: Any) -> Callable[..., Any]:
        self.frame_count += 1
        self.op_count += sum("call" in node.op for node in gm.graph.nodes)
        forward: Callable[..., Any] = gm.forward
        return forward

    def __enter__(self) -> CompileProfiler:
        self._stack.enter_context(events.listen(self._listen))
        return self

    def __exit__(self, *exc_info: object) -> None:
        self._stack.close()

    def _listen(self, event: events.Event) -> None:
        if isinstance(event, GraphBreak):
            self.breaks[event.reason] += 1
            if event.user_stack:
                frame = event.user_stack[-1]
                self.places.setdefault(event.reason, f"{frame.filename}:{frame.lineno}")
        elif isinstance(event, Recompiled):
            self.recompiles.append(event)
        elif isinstance(event, FrameSkipped):
            self.skips.append(event)
        elif isinstance(event, FrameCompiled):
            pass  # counted where the graph arrives

    def get_metrics(self) -> dict[str, dict[str, Any]]:
        recompiled = Counter(event.function for event in self.recompiles)
        return {
            "graph_breaks": dict(self.breaks),
            "recompiles": dict(recompiled),
            "skips": dict(Counter(each.reason for each in self.skips)),
            "graphs": {"count": self.frame_count, "ops": self.op_count},
        }

    def report(self) -> str:
        """Tables of graph breaks, recompiles with the guard that failed, and skipped frames."""
        parts = [
            "fxjit profiler report",
            "=====================",
            f"{self.frame_count} graphs with {self.op_count} operators were captured.",
            "",
            _table(
                "Graph breaks",
                ("reason", "count", "first place"),
                [(reason, str(count), self.places.get(reason, "")) for reason, count in self.breaks.most_common()],
                "No graph breaks detected.",
            ),
            _table(
                "Recompiles",
                ("function", "compile", "the guard that failed"),
                [
                    (f"{each.function} ({each.code.co_filename}:{each.code.co_firstlineno})", str(each.count), why)
                    for each in self.recompiles
                    for why in (each.why[:1] or ("unknown",))
                ],
                "No recompiles detected.",
            ),
            _table(
                "Skipped frames",
                ("function", "reason", "explanation"),
                [(each.function, each.reason, each.explanation) for each in self.skips],
                "No frames were skipped.",
            ),
        ]
        return "\n".join(parts)


def _table(title: str, head: tuple[str, ...], rows: list[tuple[str, ...]], otherwise: str) -> str:
    if not rows:
        return f"{title}\n{'-' * len(title)}\n{otherwise}\n"
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]]
    return f"{title}\n{'-' * len(title)}\n" + "\n".join(lines) + "\n"
