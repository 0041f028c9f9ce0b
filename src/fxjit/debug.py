"""The debug folder: with FXJIT_DEBUG=1 or `config.debug_dir`, each compile writes what it made, one file a stage.

    fxjit_debug/0003_forward/  source.py  graph.py  graph.svg  guards.txt  bytecode_before.txt  bytecode_after.txt
                               timing.txt  and what the backend adds: aot_forward.py, aot_backward.py, fusion.txt,
                               output_code.txt (C++, Triton and the program that calls them), aten_forward.json...
                               (the graphs as data: `python -m fxjit replay` and `bisect` read them)

The pipeline opens a folder for a frame and hands over what it has; a backend calls `write` or `stage` while it compiles.
When it is off, all of this is one test of a setting.
"""

from __future__ import annotations

import dis
import html
import inspect
import itertools
import logging
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import CodeType
from typing import Any

from . import config, logs
from .events import FrameCompiled

_here = threading.local()
_numbers = itertools.count()


def enabled() -> bool:
    return config.debug or bool(config.debug_dir)


def folder() -> Path | None:
    """The folder of the compile that this thread is at, made at its first use; None when there is none to write."""
    opened: Path | None = getattr(_here, "folder", None)
    if opened is None:
        return None
    try:
        opened.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        logs.artifact("compile").warning("the debug folder %s cannot be written: %s", opened, error)
        _here.folder = None
        return None
    return opened


@contextmanager
def compile_folder(code: CodeType) -> Iterator[None]:
    """Directs the files written in the block to a folder of this compile."""
    if not enabled():
        yield
        return
    base = config.debug_folder()
    name = re.sub(r"[^A-Za-z0-9_]+", "_", code.co_qualname).strip("_")[-60:]
    with writing_to(base / f"{next(_numbers):04d}_{name}"):
        yield


@contextmanager
def writing_to(place: Path) -> Iterator[None]:
    """Directs the files written in the block to this folder."""
    before = getattr(_here, "folder", None)
    _here.folder = place
    try:
        yield
    finally:
        _here.folder = before


def write(name: str, text: str) -> Path | None:
    """Adds a file to the folder of the compile under way. A name that is taken gets a number."""
    place = folder()
    if place is None:
        return None
    path = place / name
    for number in itertools.count(2):
        if not path.exists():
            break
        path = place / f"{Path(name).stem}_{number}{Path(name).suffix}"
    path.write_text(text, encoding="utf-8")
    return path


def stage(log: logging.Logger, name: str, head: str, make: Callable[[], str]) -> None:
    """Publishes the result of one stage of a backend: in the stage's log, after `head`, and in a file, where that is
    wanted."""
    said, kept = log.isEnabledFor(logging.INFO), folder() is not None
    text = make() if said or kept else ""
    if said:
        log.info("%s%s", head, text)
    if kept:
        write(name, text)


def write_compile(event: FrameCompiled, new_code: CodeType) -> None:
    """The files that every compile has."""
    if folder() is None:
        return
    write("source.py", _source(event.code))
    if event.graph is not None:
        write("graph.py", event.graph.print_readable(print_output=False))
        write("graph.svg", graph_picture(event.graph))
    write("guards.txt", "".join(f"{guard.describe()}\n" for guard in event.guards))
    write("bytecode_before.txt", dis.Bytecode(event.code).dis())
    write("bytecode_after.txt", dis.Bytecode(new_code).dis())
    write("timing.txt", "".join(f"{stage:<12} {seconds * 1e3:9.2f} ms\n" for stage, seconds in event.seconds.items()))


def _source(code: CodeType) -> str:
    place = f"# {code.co_filename}:{code.co_firstlineno} {code.co_qualname}\n"
    try:
        return place + inspect.getsource(code)
    except (OSError, TypeError):
        return place + "# its source is not to be had\n"


# ---- the picture ----

_ROW, _LEFT, _WIDTH = 30, 160, 460
_FILLS = {"placeholder": "#d8e6fa", "output": "#f9dede", "get_attr": "#eadcf7"}


def graph_picture(gm: Any) -> str:
    """An FX graph as SVG: a box a node, in order, and an arc from each node to those that use it."""
    nodes = list(gm.graph.nodes)
    row = {node: number for number, node in enumerate(nodes)}
    shapes = []
    for node, number in row.items():
        y = number * _ROW + 8
        label = html.escape(f"{node.name} = {_target(node)}{_shape(node)}"[:72])
        fill = _FILLS.get(node.op, "#e4f3e4")
        shapes.append(
            f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH}" height="22" rx="4" fill="{fill}" stroke="#888"/>'
            f'<text x="{_LEFT + 8}" y="{y + 15}">{label}</text>'
        )
        for used in node.all_input_nodes:
            start, end = row[used] * _ROW + 19, y + 11
            bend = _LEFT - min(150, 12 + 6 * (number - row[used]))
            shapes.append(f'<path d="M{_LEFT},{start} C{bend},{start} {bend},{end} {_LEFT},{end}" fill="none" stroke="#678"/>')
    height = len(nodes) * _ROW + 16
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_LEFT + _WIDTH + 20}" height="{height}" '
        f'font-family="monospace" font-size="12">{"".join(shapes)}</svg>\n'
    )


def _target(node: Any) -> str:
    if node.op in ("placeholder", "output"):
        return str(node.op)
    return node.target if isinstance(node.target, str) else getattr(node.target, "__name__", str(node.target))


def _shape(node: Any) -> str:
    value = node.meta.get("val", node.meta.get("example_value"))
    shape = getattr(value, "shape", None)
    return "" if shape is None else f"  {tuple(shape)} {str(getattr(value, 'dtype', '')).removeprefix('torch.')}"
