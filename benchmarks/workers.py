"""Rows of a benchmark that each have a process of their own, and that a file keeps, so that a run goes on where one ended."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

Row = dict[str, Any]


def measured(module: str, task: Row, limit: float, environment: Mapping[str, str] | None = None) -> Row:
    """The JSON that `python -m module --worker TASK` prints last; {"problem": ...} where it fails or takes longer than `limit`
    seconds."""
    command = [sys.executable, "-m", module, "--worker", json.dumps(task)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=limit, check=False, env=environment)
    except subprocess.TimeoutExpired:
        return {"problem": f"took more than {limit:g} s"}
    if done.returncode:
        return {"problem": (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1][:300]}
    return dict(json.loads(done.stdout.splitlines()[-1]))


class KeptRows:
    """Rows by their keys, in a JSON file where one is named."""

    def __init__(self, path: str | None) -> None:
        self.path = Path(path) if path else None
        self.rows: dict[str, Row] = {}
        if self.path is not None and self.path.exists():
            self.rows = json.loads(self.path.read_text())

    def add(self, key: str, measure: Callable[[], Row]) -> None:
        """Measures the row, unless it is there already, and keeps it."""
        if key in self.rows:
            return
        self.rows[key] = measure()
        print(key, self.rows[key], file=sys.stderr, flush=True)
        if self.path is not None:
            self.path.write_text(json.dumps(self.rows, indent=1))
