"""The record of a run: every event of its frames in order, every timed phase of its compiles, every call of its kernels."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from types import CodeType

from fxjit import _C, events
from fxjit.counters import counters
from fxjit.events import FrameCompiled, FrameSkipped, GraphBreak, LibraryLoaded, Recompiled, RunsAsCaptured
from fxjit.resume.cache import line_gone_on_at

from .flame import Span
from .source import SourceNotes


@dataclass(slots=True)
class FrameNote:
    """One event of a frame, as the page shows it: a head line, and a text to unfold."""

    at: float
    kind: str
    """compiled, break, skipped, recompiled or as captured."""
    function: str
    place: str
    head: str
    text: str = ""
    graph: int = 0
    """The number of the graph, from 1; 0: none."""
    seconds: float = 0.0


@dataclass(slots=True)
class Kernel:
    """One kernel of a library, or (without one) one compiled graph or a matrix product of BLAS."""

    name: str
    library: str | None
    """Its key in the cache."""
    calls: int
    seconds: float


@dataclass(slots=True)
class Run:
    """What is recorded between `start` and `finish`. Times are seconds of the monotonic clock since the start."""

    title: str
    began: float = field(default_factory=time.perf_counter)
    seconds: float = 0.0
    notes: list[FrameNote] = field(default_factory=list)
    spans: list[Span] = field(default_factory=list)
    source: SourceNotes = field(default_factory=SourceNotes)
    guards_of: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    kernels: list[Kernel] = field(default_factory=list)
    libraries: dict[str, str] = field(default_factory=dict)
    """The path of each library that was loaded -> its key in the cache."""
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    graphs: int = 0

    def add_event(self, event: events.Event) -> None:
        at = time.perf_counter() - self.began
        if isinstance(event, FrameCompiled):
            self._add_compiled(event, at)
        elif isinstance(event, GraphBreak):
            self.source.breaks.append(event)
            frame = event.user_stack[-1] if event.user_stack else None
            where = f"{frame.filename}:{frame.lineno}" if frame else ""
            self.notes.append(FrameNote(at, "break", event.function, where, event.reason, str(event)))
        elif isinstance(event, FrameSkipped):
            self.source.skips.append(event)
            self.notes.append(FrameNote(at, "skipped", event.function, place_of(event.code), event.reason, str(event)))
        elif isinstance(event, Recompiled):
            nearest = event.why[0] if event.why else "what it was compiled for is gone"
            self.notes.append(FrameNote(at, "recompiled", event.function, place_of(event.code), nearest, "\n".join(event.why)))
        elif isinstance(event, RunsAsCaptured):
            self.notes.append(FrameNote(at, "as captured", "", "", event.rule, event.reason, self.graphs + 1))
        elif isinstance(event, LibraryLoaded):
            self.libraries[event.path] = event.key

    def _add_compiled(self, event: FrameCompiled, at: float) -> None:
        spent = sum(event.seconds.values())
        number, text = 0, ""
        if event.graph is not None:
            self.graphs = number = self.graphs + 1
            self.source.add_graph(event.graph, number)
            for note in self.notes:
                if note.graph == number:  # told by the backend, which knows graphs and not frames
                    note.function, note.place = event.function, place_of(event.code)
            text = event.graph.print_readable(print_output=False)
        place = (event.code.co_filename, event.code.co_firstlineno)
        known = self.guards_of.setdefault(place, [])
        described = [guard.describe() for guard in event.guards]
        known += [each for each in described if each not in known]
        stages = ", ".join(f"{stage} {seconds * 1e3:.0f} ms" for stage, seconds in event.seconds.items())
        head = f"{events.count(event.op_count, 'operator')}, {events.count(len(described), 'guard')}: {stages}"
        self.notes.append(FrameNote(at, "compiled", event.function, place_of(event.code), head,
                                    "\n".join([text, "Guards:", *described]).strip(), number, spent))

    def add_span(self, phase: str, function: str, seconds: float) -> None:
        if phase != "background":  # of another process
            end = time.perf_counter() - self.began
            self.spans.append(Span(phase, function, end - seconds, end))

    def close(self) -> None:
        """Ends the record with what was counted meanwhile."""
        self.seconds = time.perf_counter() - self.began
        self.source.guards_of = self.guards_of
        self.kernels = [Kernel(name, self.libraries.get(library or "", library), calls, spent)
                        for library, name, calls, spent in _C.counted_ranges() if calls]
        self.counts = {group: dict(found) for group, found in counters.items() if found}


def place_of(code: CodeType) -> str:
    """File and line of a code object; of a resume function the line that it goes on at."""
    return f"{code.co_filename}:{line_gone_on_at(code) or code.co_firstlineno}"
