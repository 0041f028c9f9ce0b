"""The README stays true: its Python runs, and so does every command it names."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def run(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, *command], cwd=ROOT, capture_output=True, text=True, timeout=600)


def test_the_python_in_it_runs(tmp_path):
    blocks = re.findall(r"```python\n(.*?)```", README, re.S)
    assert blocks
    for number, block in enumerate(blocks):
        script = tmp_path / f"block{number}.py"
        script.write_text(block)
        done = run(str(script))
        assert done.returncode == 0, done.stderr
        assert "Traceback" not in done.stderr


def test_the_demo_trains_two_models_that_agree_with_eager(tmp_path):
    pytest.importorskip("sklearn")
    pytest.importorskip("matplotlib")
    picture = tmp_path / "out.png"
    done = run("-m", "fxjit", "demo", "--steps", "6", "--without-torch-compile", "--plot", str(picture))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "All losses agree" in done.stdout
    for column in ("first step, s", "ms a step", "graphs", "breaks", "recompiles", "final loss", "test accuracy"):
        assert column in done.stdout
    assert picture.stat().st_size > 10_000


def test_doctor_says_what_it_found():
    done = run("-m", "fxjit", "doctor")
    assert done.returncode == 0, done.stderr
    for word in ("Python", "torch", "ompiler", "cache"):
        assert word in done.stdout


def test_a_script_nobody_edits_runs_with_fxjit(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import torch, sys\n"
                      "f = torch.compile(lambda x: x.sin() + 1, backend='eager')\n"
                      "assert torch.equal(f(torch.ones(3)), torch.ones(3).sin() + 1)\n"
                      "import fxjit\n"
                      "print('frames', fxjit.counters['frames']['ok'], sys.argv[1:])\n")
    done = run("-m", "fxjit", "run", str(script), "one", "two")
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "frames 1 ['one', 'two']"


@pytest.mark.parametrize("target", ["demo", "test", "lint", "build", "clean"])
def test_make_knows_the_targets_it_names(target):
    assert re.search(rf"^{target}:", (ROOT / "Makefile").read_text(), re.M)


def test_links_lead_somewhere():
    for target in re.findall(r"\]\((?!http)([^)#]+)", README):
        assert (ROOT / target).exists(), target
