"""The program's source as HTML: each line in the colour of the graph that its operators went in; breaks, skips and guards in
the margin."""

from __future__ import annotations

import html
import linecache
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from fxjit import events
from fxjit.events import FrameSkipped, GraphBreak
from fxjit.origins import is_library

COLOURS = 8
#: Of pages that show source: light or dark as the reader's other programs are.
STYLE = """
:root { color-scheme: light dark; --fg: #222; --bg: #fff; --dim: #777; --line: #ddd; --bad: #a11; --warn: #8a5200; --note: #456;
  --skip1: #eee; --skip2: #e2e2e2; --g0: #d8f0d8; --g1: #d8e6fa; --g2: #fbeccb; --g3: #eadcf7; --g4: #d5f2f0; --g5: #f9dede;
  --g6: #eef0c9; --g7: #e6e0d4 }
@media (prefers-color-scheme: dark) { :root { --fg: #ddd; --bg: #16181c; --dim: #8b8f98; --line: #343841; --bad: #ff8d85;
  --warn: #f0b35e; --note: #9db4d0; --skip1: #25282e; --skip2: #2e323a; --g0: #1f3d26; --g1: #1d3557; --g2: #4a3a12;
  --g3: #3a2852; --g4: #12403d; --g5: #4f2424; --g6: #3c3f14; --g7: #3d372a } }
body { font: 15px/1.5 system-ui, sans-serif; margin: 2em auto; max-width: 110em; padding: 0 1em; color: var(--fg);
  background: var(--bg); overflow-wrap: break-word }
.scroll { overflow-x: auto }
table { border-collapse: collapse; width: 100%; font: 13px/1.45 ui-monospace, monospace }
td, th { padding: 0 .6em; vertical-align: top } th { text-align: left } td { white-space: pre-wrap }
td.n { color: var(--dim); text-align: right; user-select: none }
td.note { white-space: normal; font-family: system-ui, sans-serif; max-width: 45em }
tr.break td { border-bottom: 2px solid var(--bad) } .why { color: var(--bad) } .skip { color: var(--warn) }
.why, .skip, .guards { cursor: help; text-decoration: underline dotted } .guards { color: var(--note) }
.skipped { background: repeating-linear-gradient(135deg, var(--skip1), var(--skip1) 6px, var(--skip2) 6px, var(--skip2) 12px) }
.key { padding: .1em .6em; margin-right: .4em; border-radius: .3em }
@media (max-width: 45em) { body { margin: 1em auto; padding: 0 .6em } td, th { padding: 0 .3em }
  td.note { overflow-wrap: anywhere }
  .source tr { display: grid; grid-template-columns: 3em 1fr } .source td.note { grid-column: 2 }
  .source td.note:empty { display: none } }
"""

Place = tuple[str, int]
"""A line of a file."""


@dataclass(slots=True)
class SourceNotes:
    """What is known about lines of source."""

    graph_lines: dict[Place, int] = field(default_factory=dict)
    """The number of the graph, from 1, that the operators of a line are in."""
    breaks: list[GraphBreak] = field(default_factory=list)
    skips: list[FrameSkipped] = field(default_factory=list)
    guards_of: Mapping[Place, Sequence[str]] = field(default_factory=dict)
    """First line of each function that was compiled -> its guards in words."""

    def add_graph(self, graph: Any, number: int) -> None:
        """The lines of one graph, from the stack that each node remembers."""
        for node in graph.graph.nodes:
            for entry in (node.meta.get("stack_trace") or "").splitlines():
                head, _, rest = entry.strip().partition('", line ')
                digits = rest.split(",")[0].strip()
                if head.startswith('File "') and digits.isdigit():
                    self.graph_lines.setdefault((head[6:], int(digits)), number)


def source_html(known: SourceNotes) -> tuple[str, bool]:
    """A table of lines for each stretch of source that something is known about; and whether any of it was skipped."""
    lines = dict(known.graph_lines)
    notes: dict[Place, list[str]] = defaultdict(list)
    breaks = set()
    for each in known.breaks:
        if each.user_stack:
            place = (each.user_stack[-1].filename, each.user_stack[-1].lineno or 0)
            breaks.add(place)
            _note(notes[place], "why", f"break: {each.reason}", each.explanation, each.hints)
    for skip in known.skips:
        if skip.cause and skip.user_stack:
            place = (skip.user_stack[-1].filename, skip.user_stack[-1].lineno or 0)
            breaks.add(place)
            _note(notes[place], "why", f"break: {skip.cause.reason}", skip.cause.explanation, skip.cause.hints)
        place = (skip.code.co_filename, skip.code.co_firstlineno)
        _note(notes[place], "skip", f"skipped: {skip.reason}", skip.explanation, skip.hints)
        skipped = {line for _, _, line in skip.code.co_lines() if line}
        lines.update({(place[0], line): SKIPPED for line in skipped if (place[0], line) not in lines})
    for place, guards in known.guards_of.items():
        if guards:
            _note(notes[place], "guards", events.count(len(guards), "guard"), "", guards)
    sections = (_section(file, first, last, lines, notes, breaks) for file, first, last in _ranges(lines, notes))
    return "".join(sections), SKIPPED in lines.values()


def colour(graph: int) -> str:
    """The CSS colour of a graph, by its number from 1."""
    return f"var(--g{(graph - 1) % COLOURS})"


SKIPPED = 0
"""In the place of a graph's number: lines of a frame that was skipped."""


def _note(notes: list[str], kind: str, title: str, text: str, hover: Sequence[str]) -> None:
    shown = f"<span class={kind} title=\"{html.escape(chr(10).join(hover))}\">{html.escape(title)}</span> {html.escape(text)}"
    if shown not in notes:
        notes.append(shown)


def _ranges(*tables: Iterable[Place]) -> Iterator[tuple[str, int, int]]:
    """The stretches of each file to show: lines that something is known about, with a few around them. Files of torch and
    its like are shown where nothing is known about any other."""
    by_file: dict[str, set[int]] = defaultdict(set)
    for table in tables:
        for file, line in table:
            by_file[file].add(line)
    by_file = {file: by_file[file] for file in by_file if not is_library(file)} or by_file
    for file, numbers in sorted(by_file.items()):
        first = last = None
        for number in sorted(numbers):
            if last is not None and first is not None and number > last + 12:
                yield file, max(1, first - 4), last + 4
                first = number
            first, last = first or number, number
        if first is not None and last is not None:
            yield file, max(1, first - 4), last + 4


def _section(
    file: str,
    first: int,
    last: int,
    lines: Mapping[Place, int],
    notes: Mapping[Place, list[str]],
    breaks: set[Place],
) -> str:
    rows = []
    for number in range(first, last + 1):
        text = linecache.getline(file, number)
        if not text and number > first:
            break
        place = (file, number)
        graph = lines.get(place)
        shade = f" style='background:{colour(graph)}'" if graph else " class=skipped" if graph == SKIPPED else ""
        mark = " class=break" if place in breaks else ""
        note = "<br>".join(notes.get(place, ()))
        rows.append(
            f"<tr{mark}><td class=n>{number}</td><td{shade}>{html.escape(text.rstrip())}</td><td class=note>{note}</td></tr>"
        )
    return f"<h2>{html.escape(file)}</h2><div class=scroll><table class=source>{''.join(rows)}</table></div>"
