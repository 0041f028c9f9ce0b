"""`python -m fxjit doctor` and `cache` say what there is, and what to do about what there is not."""

from __future__ import annotations

import json
import os
import warnings

import pytest
import torch

import fxjit
from fxjit import config, doctor, torch_compat
from fxjit.__main__ import main


def test_everything_is_examined(capsys):
    main(["doctor"])
    out = capsys.readouterr().out
    for what in ("Python", "torch", "extension", "tensors", "C++ compiler", "SIMD", "GPU", "Triton", "cache", "settings"):
        assert what in out
    assert "-march=native" in out


@pytest.mark.parametrize("library, name", [("mkl", "MKL"), ("mkldnn", "oneDNN"), ("openmp", "OpenMP")])
def test_a_torch_without_a_library_is_told_and_computes_the_same(monkeypatch, library, name):
    monkeypatch.setattr(getattr(torch.backends, library), "is_available", lambda: False)
    (told,) = (each for each in doctor.examine() if each.what == "torch's libraries")
    assert told.state == "warn" and name in told.text and told.advice
    layers = torch.nn.Conv2d(3, 8, 1), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(8 * 256, 32), torch.nn.GELU()
    model, x = torch.nn.Sequential(*layers), torch.randn(4, 3, 16, 16)
    outcomes = []
    with torch.backends.mkldnn.flags(enabled=library != "mkldnn"):
        for call in (model, fxjit.compile(model, backend="native", fullgraph=True)):
            result = call(x)
            outcomes.append((result, *torch.autograd.grad(result.sin().sum(), list(model.parameters()))))
    torch.testing.assert_close(outcomes[1], outcomes[0])


def test_no_compiler(monkeypatch, capsys):
    monkeypatch.setattr(doctor, "find_compiler", lambda: None)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "BAD" in out and "apt install g++" in out


def test_a_compiler_that_does_not_work(tmp_path, capsys):
    broken = tmp_path / "cxx"
    broken.write_text("#!/bin/sh\necho 'no such option' >&2\nexit 1\n")
    broken.chmod(0o755)
    with config.patch({"cpp.compiler": str(broken)}):
        assert main(["doctor"]) == 1
    assert "cannot compile a kernel: no such option" in capsys.readouterr().out


def test_a_cache_folder_that_cannot_be_written(tmp_path, capsys):
    blocked = tmp_path / "file"
    blocked.write_text("")
    with config.patch(cache_dir=str(blocked / "cache")):
        main(["doctor"])
    out = capsys.readouterr().out
    assert "cannot be written" in out and "FXJIT_CACHE_DIR" in out


KEYS = [letter * 40 for letter in "abcdef"]
OURS = [f"{key}{suffix}" for key, suffix in zip(KEYS, (".so", ".cpp", ".cubin", ".json", ".sum"), strict=False)]
USERS = ["thesis.tex", "notes.json", f"{'z' * 40}.so", f"{KEYS[0]}.so.bak", f"{KEYS[0]}.txt", "tmp-1", ".hidden", "a" * 40]


def test_the_cache_is_shown_and_cleared_of_what_fxjit_wrote(tmp_path, capsys):
    """Whatever else is in the folder, beside it or below it, stays: FXJIT_CACHE_DIR may name a folder full of other things."""
    kernels = tmp_path / "data" / "kernels"
    users = [tmp_path / "data" / name for name in (*USERS, *OURS)] + [kernels / name for name in USERS]
    users += [kernels / "experiments" / OURS[0], tmp_path / "data" / "results" / OURS[0]]
    ours = [kernels / name for name in OURS]
    for path in (*users, *ours):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x" * 1_000_000 if path in ours else b"mine")
    (kernels / f"{KEYS[5]}.so").symlink_to(users[0])
    with config.patch(cache_dir=str(tmp_path / "data")):
        assert main(["cache"]) == 0
        assert "6 files, 5.0 MB" in capsys.readouterr().out
        assert main(["cache", "clear"]) == 0
        assert "removed 6 files, 5.0 MB" in capsys.readouterr().out
        assert main(["cache"]) == 0
        assert "0 files" in capsys.readouterr().out
    assert all(path.read_bytes() == b"mine" for path in users)
    assert not any(path.exists() for path in ours)


def test_clearing_does_not_follow_a_folder_that_is_another_users(tmp_path, capsys):
    """A folder above that everybody may write to could be exchanged while it is cleared."""
    open_to_all = tmp_path / "open"
    (open_to_all / "kernels").mkdir(parents=True)
    open_to_all.chmod(0o777)
    mine = open_to_all / "kernels" / OURS[0]
    mine.write_bytes(b"x")
    with config.patch(cache_dir=str(open_to_all)):
        assert main(["cache", "clear"]) == 1
    assert mine.exists() and "every user may write" in capsys.readouterr().err


def test_without_a_home_folder_the_cache_says_so(monkeypatch, capsys):
    monkeypatch.delenv("HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 4_000_000_000)
    with config.patch(cache_dir=""):
        assert main(["cache"]) == 1
        assert "no home folder" in capsys.readouterr().err
        main(["doctor"])
        assert "no home folder" in capsys.readouterr().out


def test_unknown_commands_and_arguments():
    for arguments in (["no-such-command"], ["doctor", "--loud"], ["cache", "burn"], []):
        with pytest.raises(SystemExit) as caught:
            main(arguments)
        assert caught.value.code == 2


def test_a_small_training_step_is_tried(capsys):
    assert main(["doctor"]) == 0
    assert "trial" in (out := capsys.readouterr().out) and "agrees with eager" in out
    assert "Everything that fxjit needs is here, and works." in out


def test_a_backend_that_fails_is_found(monkeypatch, capsys):
    from fxjit.backends.native import entry

    def broken(*args, **kwargs):
        raise RuntimeError("no code today")

    monkeypatch.setattr(entry, "compile_graph", broken)
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "a small training step failed" in out and "no code today" in out
    assert "is here, and works" not in out


def test_wrong_results_are_found(monkeypatch, capsys):
    from fxjit import api

    monkeypatch.setattr(api, "compile", lambda model, **options: lambda x: model(x) * 1.01)
    assert main(["doctor"]) == 1
    assert "is off by" in capsys.readouterr().out


def test_the_findings_as_json(monkeypatch, capsys):
    assert main(["doctor", "--json"]) == 0
    findings = json.loads(capsys.readouterr().out)
    assert {"what", "state", "text", "advice"} == set(findings[0])
    assert [each["state"] for each in findings if each["what"] == "trial"] == ["ok"]
    monkeypatch.setattr(doctor, "find_compiler", lambda: None)
    assert main(["doctor", "--json"]) == 1


@pytest.mark.parametrize("version, said", [("2.11.0", False), ("2.13.0+cpu", False), ("2.15.1+cu132", False),
                                           ("2.10.1", True), ("2.16.0a0+gitabc", True), ("3.0", True)])
def test_releases_of_torch_that_nobody_tried(version: str, said: bool):
    assert (torch_compat.untried(version) is not None) is said
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch_compat.warn_if_untried(version)
    assert [version in str(each.message) for each in caught] == [True] * said
