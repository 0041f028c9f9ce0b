"""The debug folder, and checking compiled graphs against eager."""

from __future__ import annotations

import pytest
import torch

import fxjit
from fxjit import config, debug
from fxjit.errors import AccuracyError


def test_each_compile_writes_a_folder(tmp_path):
    def f(x, y):
        x = torch.relu(x) + y
        fxjit.graph_break()
        return x * 2

    def backend(gm, inputs):
        debug.write("notes.txt", "one")
        debug.write("notes.txt", "two")
        return gm.forward

    with config.patch(debug_dir=str(tmp_path)):
        fxjit.compile(f, backend=backend)(torch.ones(3), torch.ones(3))
    folders = sorted(tmp_path.iterdir())
    assert len(folders) == 2
    first = folders[0]
    assert {path.name for path in first.iterdir()} == {
        "source.py",
        "graph.py",
        "graph.svg",
        "guards.txt",
        "bytecode_before.txt",
        "bytecode_after.txt",
        "timing.txt",
        "notes.txt",
        "notes_2.txt",
    }
    assert "torch.relu(x) + y" in (first / "source.py").read_text()
    assert "relu" in (first / "graph.svg").read_text() and "relu" in (first / "graph.py").read_text()
    assert "x" in (first / "guards.txt").read_text() and "trace" in (first / "timing.txt").read_text()


def test_nothing_is_written_when_nothing_is_asked_for(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    fxjit.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    assert debug.write("a.txt", "") is None and not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path, caplog):
    (tmp_path / "file").write_text("")
    with config.patch(debug_dir=str(tmp_path / "file")):
        assert torch.equal(fxjit.compile(lambda x: x + 1, backend="eager")(torch.ones(2)), torch.full((2,), 2.0))
    assert "cannot be written" in caplog.text


def wrong(gm, inputs):
    return lambda *args: tuple(each + 0.01 if each.is_floating_point() else each for each in gm.forward(*args))


def test_verify_correctness_finds_a_wrong_backend():
    def f(x):
        return torch.sin(x) * 3

    with config.patch(verify_correctness=True):
        with pytest.raises(AccuracyError, match=r"backend='wrong' and eager do not agree: result 0 differs by up to 0\.01"):
            fxjit.compile(f, backend=wrong)(torch.randn(5))
        x = torch.randn(5)
        assert torch.equal(fxjit.compile(f, backend="eager")(x), f(x))
    assert torch.allclose(fxjit.compile(f, backend=wrong)(x), f(x) + 0.01)


def test_verify_correctness_looks_at_inputs_that_are_written_to():
    def f(x):
        x.mul_(2)
        return x + torch.rand(3)

    def forgets(gm, inputs):
        return lambda *args: gm.forward(*(each.clone() for each in args))

    with config.patch(verify_correctness=True):
        x = torch.ones(3)
        fxjit.compile(f, backend="eager")(x)
        assert torch.equal(x, torch.full((3,), 2.0))
        with pytest.raises(AccuracyError, match="input 0"):
            fxjit.compile(f, backend=forgets)(torch.ones(3))
