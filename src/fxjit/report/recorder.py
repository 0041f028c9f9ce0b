"""Starts and ends the record of this process's run, and writes its page."""

from __future__ import annotations

import atexit
import contextlib
import os
import sys
from pathlib import Path

from fxjit import _C, events
from fxjit.counters import listen as listen_to_phases
from fxjit.errors import ConfigError

from .page import render
from .record import Run


class _Recorder:
    """The record that is under way in this process, and the file that it becomes."""

    def __init__(self) -> None:
        self.run: Run | None = None
        self._path = Path()
        self._process = 0
        self._open = contextlib.ExitStack()

    def start(self, path: Path, title: str) -> None:
        if self.run is not None:
            return
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigError(f"report: {path.parent} cannot be made: {error}") from error
        run = Run(title)
        self.run, self._path, self._process = run, path, os.getpid()
        _C.count_ranges(True)
        self._open.enter_context(events.listen(run.add_event))
        self._open.enter_context(listen_to_phases(run.add_span))
        atexit.register(self.finish)

    def finish(self) -> Path | None:
        run, self.run = self.run, None
        if run is None or self._process != os.getpid():  # a fork's record is its parent's
            return None
        atexit.unregister(self.finish)
        self._open.close()
        _C.count_ranges(False)
        run.close()
        try:
            self._path.write_text(render(run), encoding="utf-8")
        except OSError as error:
            print(f"fxjit: the page of the run cannot be written: {error}", file=sys.stderr)
            return None
        return self._path


_recorder = _Recorder()


def start(folder: str | os.PathLike[str], *, title: str = "", name: str = "") -> None:
    """Begins to record what is compiled and run in this process; `finish`, or the process's end, writes `folder`/`name`.
    A second call changes nothing."""
    _recorder.start(Path(folder).expanduser() / (name or f"report_{os.getpid()}.html"), title or Path(sys.argv[0]).name)


def finish() -> Path | None:
    """Writes the page, and gives its path; None where nothing is recorded, or it cannot be written (said on stderr)."""
    return _recorder.finish()
