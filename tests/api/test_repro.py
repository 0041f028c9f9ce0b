"""`repro_after`: a graph that its backend fails on is left behind as a script that fails alike."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import fxjit
from fxjit import config
from fxjit.backends.native import ops
from fxjit.errors import AccuracyError, BackendCompilerFailed


def calls_tanh(gm):
    return any(node.op.startswith("call") and "tanh" in str(node.target) for node in gm.graph.nodes)


def refuses_tanh(gm, inputs):
    if calls_tanh(gm):
        raise ValueError("no tanh here")
    return gm.forward


def wrong_tanh(gm, inputs):
    if not calls_tanh(gm):
        return gm.forward
    return lambda *args: tuple(each + 0.5 for each in gm.forward(*args))


def program(x, w):
    hidden = torch.relu(x @ w)
    shifted = torch.sin(hidden) + 1
    return (torch.tanh(shifted) * hidden).sum(0), hidden.cos()


def compile_and_fail(folder: Path, backend, error, **settings) -> list[Path]:
    with config.patch(debug_dir=str(folder), **settings), pytest.raises(error):
        fxjit.compile(program, backend=backend)(torch.randn(3, 4), torch.randn(4, 5))
    return sorted(folder.glob("repro_*/repro.py"))


def run_script(script: Path, backend: str) -> subprocess.CompletedProcess[str]:
    """Runs it as a user would, with the backend of this file in the place of its name."""
    text = script.read_text()
    name = next(line for line in text.splitlines() if line.startswith("BACKEND = "))
    script.write_text(text.replace(name, f"from test_repro import {backend} as BACKEND"))
    here = Path(__file__).resolve()
    places = [str(here.parent), str(here.parents[2] / "src"), os.environ.get("PYTHONPATH", "")]
    return subprocess.run([sys.executable, str(script)], env={**os.environ, "PYTHONPATH": os.pathsep.join(places)},
                          capture_output=True, text=True, timeout=300, check=False)


def forward_of(script: Path) -> str:
    return script.read_text().partition("def forward")[2].partition("return")[0]


def test_a_failing_compile_leaves_the_smallest_graph_that_fails_alike(tmp_path):
    (script,) = compile_and_fail(tmp_path, refuses_tanh, BackendCompilerFailed, repro_after="dynamo")
    assert "ValueError: no tanh here" in script.read_text()
    assert "tanh(" in forward_of(script) and "matmul" not in forward_of(script) and "cos" not in forward_of(script)
    ran = run_script(script, "refuses_tanh")
    assert ran.returncode != 0 and "no tanh here" in ran.stderr


def test_level_1_leaves_the_whole_graph(tmp_path):
    (script,) = compile_and_fail(tmp_path, refuses_tanh, BackendCompilerFailed, repro_after="dynamo", repro_level=1)
    assert all(word in forward_of(script) for word in ("relu", "sin", "tanh", "cos", "sum"))


def test_level_3_writes_every_graph_before_its_compile(tmp_path):
    with config.patch(debug_dir=str(tmp_path), repro_after="dynamo", repro_level=3):
        fxjit.compile(program, backend="eager")(torch.randn(3, 4), torch.randn(4, 5))
    (script,) = tmp_path.glob("repro_*/repro.py")
    ran = run_script(script, "wrong_tanh")
    assert ran.returncode != 0 and "AccuracyError" in ran.stderr


def test_level_4_reduces_wrong_results(tmp_path):
    (script,) = compile_and_fail(tmp_path, wrong_tanh, AccuracyError, repro_after="dynamo", repro_level=4)
    assert "tanh(" in forward_of(script) and "cos" not in forward_of(script)
    ran = run_script(script, "wrong_tanh")
    assert ran.returncode != 0 and "AccuracyError" in ran.stderr


def test_after_aot_the_graph_is_one_of_aten(tmp_path, monkeypatch):
    from fxjit.backends.aot import node_by_node

    def refuse(gm, inputs, name):
        if calls_tanh(gm):
            raise ValueError("no tanh here")
        return gm.forward

    monkeypatch.setattr(node_by_node, "run_nodes", refuse)
    (script,) = compile_and_fail(tmp_path, "aot_eager", BackendCompilerFailed, repro_after="aot")
    assert "aten.tanh" in forward_of(script) and "aten.mm" not in forward_of(script)
    ran = subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=300, check=False)
    assert "neither raised nor differed" in ran.stdout, ran.stderr  # aot_eager itself has no fault


@pytest.mark.parametrize(("stage", "wrong"), [("dynamo", "tanh("), ("aot", "aten.tanh")])
def test_a_wrong_kernel_is_reduced_and_named(tmp_path, monkeypatch, capsys, stage, wrong):
    """`native` with one operation that computes something else: the script has that operator, `bisect` names its kernel."""
    from fxjit.__main__ import main

    monkeypatch.setitem(ops.SCALARS, "tanh", dataclasses.replace(ops.SCALARS["tanh"], cpp="({0} * 0.5f)"))
    (script,) = compile_and_fail(tmp_path, "native", AccuracyError, repro_after=stage, repro_level=4)
    assert wrong in forward_of(script) and "cos" not in forward_of(script) and "AccuracyError" in script.read_text()
    assert main(["bisect", str(script.parent)]) == 1
    said = capsys.readouterr().out
    assert "1 differ" in said and "differs from its loops" in said and "(tanh" in said
    monkeypatch.undo()
    assert main(["bisect", str(script.parent)]) == 0


def test_bisect_says_that_another_backend_has_no_kernels(tmp_path, capsys):
    from fxjit.__main__ import main

    (script,) = compile_and_fail(tmp_path, wrong_tanh, AccuracyError, repro_after="dynamo", repro_level=4)
    assert main(["bisect", str(script.parent)]) != 0
    said = capsys.readouterr()
    assert "only native has kernels" in said.out + said.err


def test_a_wrong_result_after_aot_is_reduced(tmp_path, monkeypatch):
    from fxjit.backends.aot import node_by_node

    def wrong(gm, inputs, name):
        def run(args):
            return [each + 0.5 if calls_tanh(gm) else each for each in gm.forward(*args)]

        run._boxed_call = True
        return run

    monkeypatch.setattr(node_by_node, "run_nodes", wrong)
    (script,) = compile_and_fail(tmp_path, "aot_eager", AccuracyError, repro_after="aot", repro_level=4)
    assert "aten.tanh" in forward_of(script) and "aten.mm" not in forward_of(script) and "AccuracyError" in script.read_text()


def test_nothing_fails_and_nothing_is_written(tmp_path):
    with config.patch(debug_dir=str(tmp_path), repro_after="dynamo"):
        fxjit.compile(program, backend="eager")(torch.randn(3, 4), torch.randn(4, 5))
    assert not list(tmp_path.glob("repro_*"))


def test_a_folder_that_cannot_be_written_does_not_hide_the_error(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with config.patch(debug_dir=str(tmp_path / "file"), repro_after="dynamo"), pytest.raises(BackendCompilerFailed):
        fxjit.compile(program, backend=refuses_tanh)(torch.randn(3, 4), torch.randn(4, 5))
    assert "no script could be written" in caplog.text
