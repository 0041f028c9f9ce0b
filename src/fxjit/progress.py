"""Progress of long compiles: after `config.progress` seconds one line on stderr says what is compiled and how far it is; on a
terminal it is updated in place.

Compiles say where they are by `stage` and `tick`; nothing runs beside them. The time counts from the outermost compile of a
thread, or from the wait for a compiler at a graph's first call.
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from types import CodeType

from . import config

#: Seconds between two updates of the line on a terminal.
_PAUSE = 0.5


class _Progress(threading.local):
    """What this thread compiles."""

    function = ""
    place = ""
    doing = ""
    started = due = 0.0
    process = 0
    graph = 0
    kernels = 0
    kernels_done = 0
    shown = False


_now = _Progress()


@contextlib.contextmanager
def compiling(what: CodeType | str) -> Iterator[None]:
    """The block compiles a code object of the user's, or a graph of that name. Inside another such block nothing begins."""
    if _now.function or config.progress <= 0:
        yield
        return
    if isinstance(what, str):
        _now.function, _now.place = f"the graph {what}", ""
    else:
        _now.function, _now.place = what.co_qualname, f"{what.co_filename}:{what.co_firstlineno}"
    _now.doing = ""
    _now.started = time.monotonic()
    _now.due = _now.started + config.progress
    _now.process, _now.graph, _now.kernels, _now.kernels_done, _now.shown = os.getpid(), 0, 0, 0, False
    try:
        yield
    finally:
        _now.function = ""
        if _now.shown and _is_terminal():
            _write("\r\x1b[K")


def stage(doing: str) -> None:
    """The compile under way begins to do this."""
    _now.doing = doing
    tick()


def graph() -> None:
    """One more graph goes to the backend."""
    _now.graph += 1


def kernels(more: int) -> None:
    """So many more kernels are to be compiled."""
    _now.kernels += more


def kernels_done(more: int) -> None:
    """So many of them are."""
    _now.kernels_done += more
    tick()


def tick() -> None:
    """Shows the line where it is due."""
    if _now.function and time.monotonic() >= _now.due:
        _show()


def _show() -> None:
    terminal = _is_terminal()
    if _now.process != os.getpid() or (_now.shown and not terminal):
        return
    _now.shown = True
    now = time.monotonic()
    _now.due = now + _PAUSE if terminal else float("inf")
    place = f" ({_now.place})" if _now.place and not terminal else ""  # on a terminal it shall fit in the line
    parts = [_now.doing or "begins"]
    if _now.graph:
        parts.append(f"graph {_now.graph}")
    if _now.kernels:
        parts.append(f"{_now.kernels_done} of {_now.kernels} kernels")
    line = f"fxjit: compiling {_now.function}{place} for {now - _now.started:.0f} s: {', '.join(parts)}"
    if terminal:
        _write(f"\r\x1b[K{line[: max(20, _columns() - 1)]}")
    else:
        _write(f"{line} (FXJIT_PROGRESS=0: say nothing)\n")


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        return 80


def _is_terminal() -> bool:
    try:
        return sys.stderr is not None and sys.stderr.isatty()
    except ValueError:  # closed
        return False


def _write(text: str) -> None:
    with contextlib.suppress(OSError, ValueError, AttributeError):  # closed, or none
        sys.stderr.write(text)
        sys.stderr.flush()
