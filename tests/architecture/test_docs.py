"""The pages of docs/ that are made from the code are what the code says now."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_made_pages_are_fresh():
    done = subprocess.run([sys.executable, "tools/make_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_file_says_what_it_is():
    page = (ROOT / "docs/MAP.md").read_text()
    silent = [line for line in page.splitlines() if line.startswith("* ") and line.endswith(": ")]
    assert not silent
