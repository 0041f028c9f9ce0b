"""What setup.py says when it cannot build the extension."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

pytest.importorskip("setuptools")

WITHOUT = """
import os, runpy, sys
real = os.path.exists
os.path.exists = lambda path: not str(path).endswith({missing!r}) and real(path)
sys.argv = ["setup.py", "-q", "build_ext", "--build-lib", {out!r}, "--build-temp", {out!r}]
runpy.run_path("setup.py", run_name="__main__")
"""


def build(out, missing="nothing at all", **environment):
    script = WITHOUT.format(missing=missing, out=str(out))
    return subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.parametrize("header", ["Python.h", "pycore_frame.h"])
def test_missing_headers_are_named_with_the_package_that_has_them(tmp_path, header):
    done = build(tmp_path, missing=header)
    assert done.returncode != 0
    assert f"{header} was not found" in done.stderr
    assert f"apt install python{sys.version_info.major}.{sys.version_info.minor}-dev" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_missing_compiler_is_named_with_the_package_that_has_one(tmp_path):
    done = build(tmp_path, CC="no-such-compiler")
    assert done.returncode != 0
    assert "needs a C compiler; 'no-such-compiler' was not found" in done.stderr
    assert "apt install gcc" in done.stderr
    assert "Traceback" not in done.stderr
