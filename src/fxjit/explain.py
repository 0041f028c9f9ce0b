"""`explain(fn)(*args)`: one run of a function, and what became of it: graphs, breaks, skips, guards, seconds.

The run has entries of its own, so it neither uses nor changes what was compiled before.
"""

from __future__ import annotations

import html
import importlib
import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, overload

from . import _C, api, config, events
from .errors import ConfigError, InvalidArgument, displayed
from .events import FrameCompiled, FrameSkipped, GraphBreak, RunsAsCaptured
from .options import RegionOptions
from .report.source import STYLE, SourceNotes, colour, source_html


@dataclass(slots=True)
class Explanation:
    """The findings of `explain`. Printing it reads well; unpacked, it gives itself, the guards, graphs and operators."""

    function: str
    graphs: list[Any] = field(default_factory=list)
    break_reasons: list[GraphBreak] = field(default_factory=list)
    skips: list[FrameSkipped] = field(default_factory=list)
    ops_per_graph: list[list[str]] = field(default_factory=list)
    out_guards: list[Any] = field(default_factory=list)
    run_as_captured: list[tuple[int, RunsAsCaptured]] = field(default_factory=list)
    """Graphs, by number from 1, that the backend runs operator by operator, each with its rule (docs/rules.md)."""
    tiers: list[str] = field(default_factory=list)
    """Of what was compiled before: each graph that a helper process was given (`config.tiers`), and what became of it."""
    stored: tuple[str, ...] = ()
    """With `config.store_entries`, functions of what was compiled before that the next process starts with compiled."""
    not_stored: tuple[tuple[str, str], ...] = ()
    """Those that it traces again, each with why."""
    phases: dict[str, float] = field(default_factory=dict)
    guards_of: dict[tuple[str, int], list[str]] = field(default_factory=dict)
    """File and first line of each function that was compiled -> its guards in words."""
    seconds: float = 0.0

    @property
    def graph_count(self) -> int:
        return len(self.graphs)

    @property
    def graph_break_count(self) -> int:
        return len(self.break_reasons)

    @property
    def op_count(self) -> int:
        return sum(map(len, self.ops_per_graph))

    @property
    def compile_times(self) -> str:
        parts = [f"{phase} {seconds * 1e3:.1f} ms" for phase, seconds in self.phases.items()]
        return ", ".join(parts) or "nothing was compiled"

    def __iter__(self) -> Iterator[Any]:
        return iter((self, self.out_guards, self.graphs, self.ops_per_graph))

    def __str__(self) -> str:
        found = [events.count(self.graph_count, "graph"), events.count(self.graph_break_count, "graph break"),
                 events.count(self.op_count, "op")]
        lines = ["fxjit produced {}, with {} and {}, for {}.".format(*found, self.function)]
        if self.break_reasons:
            lines.append("Break reasons:")
            for number, each in enumerate(self.break_reasons, 1):
                head, *rest = each.summary()
                lines += [f"{number}. {head}", *(f"   {line}" for line in rest)]
        if self.skips:
            lines.append("Skipped frames (what they call is still compiled):")
            lines += ["- " + str(each).replace("\n", "\n  ") for each in self.skips]
        for number, ops in enumerate(self.ops_per_graph, 1):
            shown = ", ".join(ops[:12]) + (f", ... ({len(ops)} in all)" if len(ops) > 12 else "")
            lines.append(f"Graph {number}: {shown or 'no operators'}")
        for number, why in self.run_as_captured:
            lines.append(f"Graph {number} runs as it was captured ({why.rule}): {why.reason}")
        lines += self.tiers
        if self.stored:
            lines.append("Kept on the disk for the next process: " + ", ".join(self.stored))
        lines += [f"Traced again by each process: {function}: {why}" for function, why in self.not_stored]
        lines.append(f"Guards: {len(self.out_guards)}")
        lines.append(f"Compile times: {self.compile_times}")
        return "\n".join(lines)

    @overload
    def to_html(self, path: str | os.PathLike[str]) -> Path: ...

    @overload
    def to_html(self, path: None = None) -> str: ...

    def to_html(self, path: str | os.PathLike[str] | None = None) -> Path | str:
        """A page that shows the source: each line in the colour of its graph, breaks and skips in the margin. Its text; or,
        with a path, the file that it is written to."""
        return _page(self) if path is None else _write(_page(self), Path(path))

    def _repr_html_(self) -> str:
        """What a notebook shows: the page in a frame of its own, whose styles are not the notebook's."""
        page = html.escape(_page(self))
        return f'<iframe srcdoc="{page}" style="width: 100%; height: 32em; border: 1px solid #8884"></iframe>'


def explain(fn: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """`explain(fn)(*args, **kwargs)` runs `fn` once and gives an `Explanation`: the graphs, why each ended where it did, the
    frames that were skipped, and the guards. Graphs run eagerly; those of a function that `compile` gave are compiled by its
    backend, also by one that is the program's own callable, so that it says which of them run as they were captured, and by
    which rule. `explain(fn, *args)`, torch's older
    spelling, works too."""
    if not callable(fn):
        raise InvalidArgument(f"explain: expected a function or a module, not {displayed(fn)} ({type(fn).__name__}).")
    if args or kwargs:
        return _explain_call(fn, args, kwargs)
    return lambda *a, **kw: _explain_call(fn, a, kw)


def _explain_call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Explanation:
    found = Explanation(str(getattr(fn, "__qualname__", type(fn).__name__)))
    chosen = _options_of(fn)
    found.tiers = _tiers(fn, chosen)
    if chosen is not None and config.store_entries:
        kept = importlib.import_module("fxjit.stored.entries").saved(chosen)
        found.stored, found.not_stored = kept.functions, kept.left_out

    def keep_graph(gm: Any, example_inputs: Any) -> Any:
        return gm.forward if chosen is None else chosen.backend(gm, example_inputs)

    def listener(event: events.Event) -> None:
        if isinstance(event, FrameCompiled):
            _add_graph(found, event)
        elif isinstance(event, GraphBreak):
            found.break_reasons.append(event)
        elif isinstance(event, FrameSkipped):
            found.skips.append(event)
        elif isinstance(event, RunsAsCaptured):
            at_a_call = event.stage == "call"  # a graph's own number is given once it is compiled
            found.run_as_captured.append((found.graph_count + (not at_a_call), event))

    inner = getattr(fn, "_orig_mod", fn)
    start = time.perf_counter()
    with events.listen(listener):
        # Not region_options(): entries that exist already must not be used.
        compiled = api.compile_with(RegionOptions(keep_graph, None, {}, False, None), inner)
        compiled(*args, **kwargs)
    found.seconds = time.perf_counter() - start
    return found


def _options_of(fn: Any) -> RegionOptions | None:
    """The arguments that `compile` was given; None for the others."""
    region = fn.region if isinstance(fn, _C.CompiledFunction) else None
    found = getattr(fn, "options", None) if region is None else region.key
    return found if isinstance(found, RegionOptions) else None


def _tiers(fn: Any, chosen: RegionOptions | None) -> list[str]:
    inner = fn.fn if isinstance(fn, _C.CompiledFunction) else getattr(fn, "_orig_mod", fn)
    code = getattr(getattr(inner, "forward", inner), "__code__", None)
    if chosen is None or code is None:
        return []
    return [f"Entry {number} of {code.co_qualname}: graph {place} {deferred.tier}"
            for number, entry in enumerate(_C.entries(code, chosen), 1)
            for place, deferred in enumerate(entry.payload.deferred, 1)]


def _add_graph(found: Explanation, event: FrameCompiled) -> None:
    if event.graph is not None:
        found.graphs.append(event.graph)
        found.ops_per_graph.append(list(event.ops))
    found.out_guards.extend(event.guards)
    place = (event.code.co_filename, event.code.co_firstlineno)
    known = found.guards_of.setdefault(place, [])
    known += [text for guard in event.guards if (text := guard.describe()) not in known]
    for phase, seconds in event.seconds.items():
        found.phases[phase] = found.phases.get(phase, 0.0) + seconds


# ---- HTML ----

def _page(found: Explanation) -> str:
    known = SourceNotes(breaks=found.break_reasons, skips=found.skips, guards_of=found.guards_of)
    for number, graph in enumerate(found.graphs, 1):
        known.add_graph(graph, number)
    sections, skipped = source_html(known)
    key = "".join(
        f"<span class=key style='background:{colour(number)}'>graph {number}: {events.count(len(ops), 'op')}</span>"
        for number, ops in enumerate(found.ops_per_graph, 1)
    )
    key += "<span class='key skipped'>runs as it stands</span>" if skipped else ""
    title = html.escape(f"fxjit explain: {found.function}")
    return (
        f"<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'><title>{title}</title>"
        f"<style>{STYLE}</style><h1>{title}</h1><p>{key}</p>"
        f"{sections}<h2>Summary</h2><pre class=scroll>{html.escape(str(found))}</pre>"
    )


def _write(page: str, path: Path) -> Path:
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"explain: {path} cannot be written: {error}") from error
    return path
