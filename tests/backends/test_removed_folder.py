"""A process whose working directory was removed: what compiles in others compiles there, and is kept and told as well."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

import pytest

PROGRAM = textwrap.dedent("""
    import os
    import torch, fxjit
    os.rmdir(os.getcwd())
    def f(x):
        return torch.relu(x) * 2 + 1
    assert fxjit.compile(f, backend="native")(torch.ones(3)).tolist() == [3.0, 3.0, 3.0]
    assert fxjit.explain(f)(torch.ones(3)).graph_count == 1
    try:
        os.getcwd()
    except FileNotFoundError:
        print("as it was")
""")


@pytest.mark.parametrize("cache", ["kept", "relative"])
def test_what_compiles_elsewhere_compiles_in_a_removed_folder(cache, tmp_path):
    (tmp_path / "gone").mkdir()
    (tmp_path / "program.py").write_text(PROGRAM, encoding="utf-8")
    folder = tmp_path / "cache" if cache == "kept" else "cache"
    environment = os.environ | {"FXJIT_CACHE_DIR": str(folder), "FXJIT_LOGS": "compile,recompiles,graph_code"}
    done = subprocess.run([sys.executable, str(tmp_path / "program.py")], cwd=tmp_path / "gone", env=environment,
                          capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "as it was\n"
    assert "relu" in done.stderr
    assert cache == "kept" or "cannot keep compiled kernels" in done.stderr
    assert cache == "relative" or any((tmp_path / "cache").iterdir())
