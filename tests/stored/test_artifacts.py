"""One file with what a process compiled, for the cache of another."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch
from tests.stored.test_entries import HEAD, PROGRAMS, run

import fxjit
from fxjit import config
from fxjit.backends.store.bundle import MAGIC, sealed
from fxjit.errors import ArtifactError, InvalidArgument

TEXT = HEAD + PROGRAMS["a function"]
NewProcess = Callable[[str], ModuleType]


def saved(new_process: NewProcess, tmp_path: Path, backend: str = "eager") -> Path:
    """The file of a process that ran the program."""
    with config.patch(cache_dir=str(tmp_path / "first")):
        run(new_process(TEXT), backend=backend)
        assert fxjit.save_cache_artifacts(tmp_path / "artifacts") > 0
    return tmp_path / "artifacts"


@pytest.mark.parametrize("backend", ["native", "eager"])
def test_another_cache_has_all_of_it(new_process: NewProcess, traces: list[str], tmp_path: Path, backend: str) -> None:
    file = saved(new_process, tmp_path, backend)
    assert traces == ["fn"]
    traces.clear()
    with config.patch(cache_dir=str(tmp_path / "second")):
        assert fxjit.load_cache_artifacts(str(file)) > 0
        run(new_process(TEXT), backend=backend)
    assert not traces


def test_under_torchs_names_it_is_bytes(new_process: NewProcess, traces: list[str], tmp_path: Path) -> None:
    """`torch.compiler.save_cache_artifacts()` and `load_cache_artifacts(content)` under the drop-in."""
    fxjit.install()
    try:
        with config.patch(cache_dir=str(tmp_path / "first")):
            run(new_process(TEXT), backend="eager")
            content, info = torch.compiler.save_cache_artifacts()
        assert info.artifacts["fxjit"]
        traces.clear()
        with config.patch(cache_dir=str(tmp_path / "second")):
            assert torch.compiler.load_cache_artifacts(content).artifacts == info.artifacts
            run(new_process(TEXT), backend="eager")
            with pytest.raises(ArtifactError):
                torch.compiler.load_cache_artifacts(content[:-1])
        assert not traces
    finally:
        fxjit.uninstall()


def test_a_file_of_another_version_is_left_alone(
    new_process: NewProcess, traces: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = saved(new_process, tmp_path)
    _, head, body = file.read_bytes().removeprefix(MAGIC).split(b"\n", 2)
    manifest = json.loads(head)
    manifest["for"]["torch"] = "1.0"
    file.write_bytes(sealed(manifest, body))
    traces.clear()
    with config.patch(cache_dir=str(tmp_path / "second")), caplog.at_level(logging.WARNING, "fxjit.cache"):
        assert fxjit.load_cache_artifacts(file) == 0
        run(new_process(TEXT), backend="eager")
    assert traces == ["fn"]


def changed_byte(content: bytes) -> bytes:
    return content[:-5] + b"#" + content[-4:]


def without_end(content: bytes) -> bytes:
    return content[:-5]


def without_manifest(content: bytes) -> bytes:
    return MAGIC + b"{}\n"


def something_else(content: bytes) -> bytes:
    return b"#!/bin/sh\n"


def name_outside(content: bytes) -> bytes:
    _, head, body = content.removeprefix(MAGIC).split(b"\n", 2)
    manifest = json.loads(head)
    manifest["entries"][0][0] = "../evil.json"
    return sealed(manifest, body)


@pytest.mark.parametrize("damage", [changed_byte, without_end, without_manifest, something_else, name_outside])
def test_a_damaged_file_is_refused(new_process: NewProcess, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    file = saved(new_process, tmp_path)
    file.write_bytes(damage(file.read_bytes()))
    with config.patch(cache_dir=str(tmp_path / "second")), pytest.raises(InvalidArgument, match="artifacts"):
        fxjit.load_cache_artifacts(file)
    assert not list((tmp_path / "second").rglob("*.json"))
