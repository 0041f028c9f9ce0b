"""`python -m fxjit doctor` and `cache` say what there is, and what to do about what there is not."""

from __future__ import annotations

import pytest

from fxjit import config, doctor
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
