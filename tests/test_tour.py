"""docs/tour.py is a page that runs: what it asserts of each stage is so."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOUR = Path(__file__).parents[1] / "docs" / "tour.py"


def test_the_tour_runs(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, str(TOUR)], capture_output=True, text=True, cwd=tmp_path, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    said = done.stdout
    assert said.endswith("Everything on this page is so.\n")
    parts = [line for line in said.splitlines() if line.startswith("---- ")]
    assert len(parts) == 11 and len(TOUR.read_text().splitlines()) < 220
