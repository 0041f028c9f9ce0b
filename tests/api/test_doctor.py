"""`python -m fxjit doctor` and `cache` say what there is, and what to do about what there is not."""

from __future__ import annotations

import json
import warnings

import pytest

from fxjit import config, doctor, torch_compat
from fxjit.__main__ import main


def test_everything_is_examined(capsys):
    main(["doctor"])
    out = capsys.readouterr().out
    for what in ("Python", "torch", "extension", "tensors", "C++ compiler", "SIMD", "GPU", "Triton", "cache", "settings"):
        assert what in out
    assert "-march=native" in out


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


def test_the_cache_is_shown_and_cleared(tmp_path, capsys):
    (tmp_path / "cache" / "ab").mkdir(parents=True)
    (tmp_path / "cache" / "ab" / "kernel.so").write_bytes(b"x" * 2_000_000)
    with config.patch(cache_dir=str(tmp_path / "cache")):
        assert main(["cache"]) == 0
        assert "1 files, 2.0 MB" in capsys.readouterr().out
        assert main(["cache", "clear"]) == 0
        assert not (tmp_path / "cache").exists()
        assert main(["cache"]) == 0
        assert "0 files" in capsys.readouterr().out


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
