"""tools/torchs_tests.py: what it says of a file of tests of which some pass with torch.compile, with fxjit, or with neither."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

TOOL = Path(__file__).parents[1] / "tools" / "torchs_tests.py"
FILE = '''
import sys
import time
import unittest

import torch

WITH_FXJIT = "fxjit" in sys.modules


class Tests(unittest.TestCase):
    def test_both(self):
        self.assertEqual(torch.ones(2).tolist(), [1, 1])

    def test_ours(self):
        self.assertTrue(WITH_FXJIT)

    def test_theirs(self):
        self.assertFalse(WITH_FXJIT, "only with torch.compile")

    def test_neither(self):
        raise ValueError

    @unittest.skip("for a reason")
    def test_skipped(self):
        pass

    def test_too_long(self):
        try:
            time.sleep(60)
        except Exception:
            pass
'''


def run(tmp_path: Path, *options: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "sources").mkdir()
    (tmp_path / "sources" / "test_file.py").write_text(FILE)
    return subprocess.run([sys.executable, str(TOOL), "sources", *options], capture_output=True, text=True, cwd=tmp_path,
                          timeout=300, check=False)


def test_who_passes_what(tmp_path: Path) -> None:
    done = run(tmp_path, "test_file.py", "--show", "--each", "5")
    assert done.returncode == 0, done.stderr
    *table, shown = done.stdout.splitlines()
    assert table == [
        "| file | both pass | torch.compile alone | fxjit alone | neither |",
        "| --- | --- | --- | --- | --- |",
        "| test_file.py | 1 | 1 | 1 | 2 |",
    ]
    assert shown.startswith("    Tests::test_theirs: ") and "True is not false : only with torch.compile" in shown


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    done = run(tmp_path, "test_other.py")
    assert done.returncode == 2 and "sources has no file test_other.py" in done.stderr
