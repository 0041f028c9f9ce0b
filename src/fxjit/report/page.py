"""The page of a run as HTML: nothing from outside, no script, light or dark, and readable on a narrow window."""

from __future__ import annotations

import html
import platform
from collections.abc import Iterable, Sequence

from .flame import flame_html, flame_of
from .kernels import kernel_source
from .record import FrameNote, Kernel, Run
from .source import STYLE, colour, source_html

_STYLE = STYLE + """
h1 { font-size: 1.5em } h2 { font-size: 1.15em; margin-top: 2em }
.facts { display: flex; flex-wrap: wrap; gap: .5em 1.5em; padding: 0; list-style: none } .facts b { font-size: 1.3em }
.kind { white-space: nowrap; border-radius: .3em; padding: 0 .4em; background: var(--skip1) }
.kind.break { color: var(--bad) } .kind.skipped, .kind.recompiled { color: var(--warn) }
tr { border-bottom: 1px solid var(--line) } td.num, th.num { text-align: right; white-space: nowrap }
details > pre { overflow: auto; max-height: 30em; background: var(--skip1); padding: .6em; font-size: 12px }
summary { cursor: pointer } .dim { color: var(--dim) }
.flame { min-width: 40em; font: 12px/1.7 system-ui, sans-serif } .row { display: flex } .box { overflow: hidden }
.bar { margin: 0 1px 1px 0; padding: 0 .4em; overflow: hidden; white-space: nowrap; border-radius: 2px; cursor: help }
.d0 { background: var(--skip2) } .d1 { background: var(--g1) } .d2 { background: var(--g2) } .d3 { background: var(--g0) }
.d4 { background: var(--g3) }
"""


def render(run: Run) -> str:
    """The page of a `Run` that is closed."""
    title = html.escape(f"fxjit report: {run.title}")
    sections, skipped = source_html(run.source)
    parts = (
        f"<h1>{title}</h1>{_facts(run)}",
        "<h2>Frames, in order</h2>", _frames(run.notes),
        "<h2>Compiled again</h2>", _recompiles(run.notes),
        "<h2>Where compile seconds went</h2>", flame_html(flame_of(run.spans)),
        "<h2>Kernels</h2>", _kernels(run.kernels),
        "<h2>Caches</h2>", _caches(run.counts),
        "<h2>Source</h2>",
        "<p><span class='key skipped'>runs as it stands</span></p>" if skipped else "",
        sections or "<p>No source is to be had.</p>",
    )
    return (f"<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport content='width=device-width'>"
            f"<title>{title}</title><style>{_STYLE}</style></head><body>{''.join(parts)}</body></html>\n")


def _facts(run: Run) -> str:
    kinds = [note.kind for note in run.notes]
    compiling = flame_of(run.spans).seconds
    facts = (
        (f"{run.seconds:.1f} s", "the run"), (f"{compiling:.1f} s", "compiling"), (str(run.graphs), "graphs"),
        (str(kinds.count("break")), "graph breaks"), (str(kinds.count("recompiled")), "recompiles"),
        (str(kinds.count("skipped")), "skipped frames"), (platform.python_version(), "Python"),
    )
    shown = "".join(f"<li><b>{html.escape(value)}</b> {html.escape(name)}</li>" for value, name in facts)
    return f"<ul class=facts>{shown}</ul>"


def _table(head: Sequence[str], rows: Iterable[str], numbers: Sequence[str] = ()) -> str:
    """`numbers`: the columns of numbers, which their heads stand over."""
    cells = "".join(f"<th{' class=num' if each in numbers else ''}>{html.escape(each)}</th>" for each in head)
    return f"<div class=scroll><table><tr>{cells}</tr>{''.join(rows)}</table></div>"


def _unfold(head: str, text: str) -> str:
    """A head line with the text under it; `head` alone where there is no more to say."""
    shown = html.escape(head)
    if text.strip() in ("", head):
        return shown
    return f"<details><summary>{shown}</summary><pre>{html.escape(text)}</pre></details>"


def _frames(notes: Sequence[FrameNote]) -> str:
    rows = []
    for note in notes:
        graph = f"<span class=key style='background:{colour(note.graph)}'>graph {note.graph}</span>" if note.graph else ""
        rows.append(
            f"<tr><td class=num>{note.at:.2f} s</td><td><span class='kind {html.escape(note.kind)}'>{html.escape(note.kind)}"
            f"</span></td><td>{html.escape(note.function)}<br><span class=dim>{html.escape(note.place)}</span></td>"
            f"<td class=note>{graph}{_unfold(note.head, note.text)}</td></tr>")
    head = ("at", "what", "function", "why, or how large")
    return _table(head, rows, head[:1]) if rows else "<p>No frame was compiled.</p>"


def _recompiles(notes: Sequence[FrameNote]) -> str:
    """Which guard failed, with the value that it was compiled for and the value now."""
    rows = [f"<tr><td>{html.escape(note.function)}<br><span class=dim>{html.escape(note.place)}</span></td>"
            f"<td class=note>{_unfold(note.head, note.text)}</td></tr>" for note in notes if note.kind == "recompiled"]
    head = ("function", "the guard that failed in the nearest entry: then and now")
    return _table(head, rows) if rows else "<p>No frame was.</p>"


def _kernels(kernels: Sequence[Kernel]) -> str:
    """Calls, seconds and share, of the graphs among each other, and of what runs inside of them: each table's shares add up to
    the whole, which is the time inside of compiled graphs."""
    graphs = [each for each in kernels if each.name.startswith("fxjit: ")]
    inside = [each for each in kernels if not each.name.startswith("fxjit: ")]
    of_graphs, of_parts = (sum(each.seconds for each in group) for group in (graphs, inside))
    whole = max(of_graphs, of_parts)
    if not kernels or not whole:
        return "<p>No compiled graph ran.</p>"
    rest = (f"<tr><td>ATen</td><td></td>{_spent(whole - of_parts, whole)}"
            "<td class=note>its calls, allocation, and the calls of kernels</td></tr>")
    head = ("", "calls", "in all", "share", "a call", "name, and source")
    tables = (_table(head, _kernel_rows(graphs, of_graphs), head[1:5]) if of_graphs else "",
              _table(head, [*_kernel_rows(inside, whole), rest], head[1:5]))
    return "<p>Inside of them:</p>".join(filter(None, tables))


def _kernel_rows(kernels: Sequence[Kernel], whole: float) -> list[str]:
    rows = []
    for each in sorted(kernels, key=lambda each: -each.seconds):
        source = kernel_source(each.library, each.name) if each.library else ""
        kind = "graph" if each.name.startswith("fxjit: ") else "kernel" if each.library else "BLAS"
        rows.append(f"<tr><td>{kind}</td><td class=num>{each.calls}</td>{_spent(each.seconds, whole, each.calls)}"
                    f"<td class=note>{_unfold(each.name.removeprefix('fxjit: '), source)}</td></tr>")
    return rows


def _spent(seconds: float, whole: float, calls: int = 0) -> str:
    """The cells of seconds in all, their share of the whole, and of a call where calls are counted."""
    each = f"{seconds / calls * 1e6:.1f} &micro;s" if calls else ""
    return f"<td class=num>{seconds * 1e3:.1f} ms</td><td class=num>{seconds / whole:.1%}</td><td class=num>{each}</td>"


def _caches(counts: dict[str, dict[str, int]]) -> str:
    """What was looked for on the disk, and whether it was there."""
    asked = counts.get("cache", {})
    rows = []
    for kind, prefix in (("captured graphs, with what they were lowered to", "graph "), ("kernels and other compiled C++", "")):
        numbers = [asked.get(prefix + what, 0) for what in ("hit", "miss", "not kept")]
        if any(numbers):
            rows.append(f"<tr><td class=note>{kind}</td>" + "".join(f"<td class=num>{each}</td>" for each in numbers) + "</tr>")
    head = ("", "found", "not there", "cannot be kept")
    return _table(head, rows, head[1:]) if rows else "<p>No cache was asked.</p>"
