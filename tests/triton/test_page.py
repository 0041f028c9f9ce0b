"""docs/triton.md shows what the code makes."""

from __future__ import annotations

import pathlib
import subprocess
import sys


def test_the_kernel_on_the_page_is_the_kernel_that_is_made():
    root = pathlib.Path(__file__).parents[2]
    command = [sys.executable, str(root / "tools/make_triton_page.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=root, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
