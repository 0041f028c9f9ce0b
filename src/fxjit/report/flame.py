"""The flame view of compile time: timed phases by what they were part of, added up."""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Span:
    """One run of a timed phase. Phases of one thread lie inside each other or apart."""

    phase: str
    function: str
    start: float
    end: float


@dataclass(slots=True)
class Flame:
    """A phase under the phases that it was part of: seconds of all its runs, and how many there were."""

    name: str
    seconds: float = 0.0
    runs: int = 0
    parts: dict[str, Flame] = field(default_factory=dict)

    def part(self, name: str) -> Flame:
        return self.parts.setdefault(name, Flame(name))

    def add(self, seconds: float) -> None:
        self.seconds += seconds
        self.runs += 1


def flame_of(spans: Iterable[Span]) -> Flame:
    """The tree: function, then its phases, then what was timed inside of those."""
    root = Flame("all compiles")
    open_spans: list[tuple[Span, Flame]] = []
    for span in sorted(spans, key=lambda each: (each.start, -each.end)):
        while open_spans and open_spans[-1][0].end < span.end:
            open_spans.pop()
        if open_spans:
            above = open_spans[-1][1]
        else:
            above = root.part(span.function or "graphs")
            above.add(span.end - span.start)
            root.add(span.end - span.start)
        found = above.part(span.phase)
        found.add(span.end - span.start)
        open_spans.append((span, found))
    return root


def flame_html(root: Flame) -> str:
    """Boxes as wide as their share of the whole, each over its parts; what is too narrow for its name says it on hover."""
    if not root.seconds:
        return "<p>Nothing was compiled.</p>"
    return f"<div class=scroll><div class=flame>{''.join(_box(root, root.seconds, root.seconds, 0))}</div></div>"


def _box(flame: Flame, whole: float, above: float, depth: int) -> Iterator[str]:
    width = 100 * flame.seconds / above if above else 0.0
    share = flame.seconds / whole
    told = f"{flame.name}: {flame.seconds:.3f} s, {share:.0%} of compile time, {flame.runs} times"
    yield f"<div class=box style='width:{min(width, 100.0):.3f}%'>"
    shown = f"{html.escape(flame.name)} {flame.seconds:.2f}&thinsp;s"
    yield f"<div class='bar d{depth % 5}' title=\"{html.escape(told)}\">{shown}</div>"
    parts = sorted(flame.parts.values(), key=lambda each: -each.seconds)
    if parts:
        inner = max(flame.seconds, sum(each.seconds for each in parts))
        yield "<div class=row>"
        for each in parts:
            if each.seconds / whole >= 0.002:
                yield from _box(each, whole, inner, depth + 1)
        yield "</div>"
    yield "</div>"
