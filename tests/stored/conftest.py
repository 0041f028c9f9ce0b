"""A folder of stored entries for each test, and what a new process is to it."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

import fxjit
from fxjit import config, pipeline


@pytest.fixture(autouse=True)
def store(tmp_path: Path) -> Iterator[Path]:
    """The folder that entries are kept in."""
    with config.patch(store_entries=True, cache_graphs=True, cache_dir=str(tmp_path)):
        yield tmp_path / "kernels"
    fxjit.reset()


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The functions that are traced from here on."""
    traced: list[str] = []
    trace_frame = pipeline.trace_frame

    def noting(frame, *rest, **options):
        traced.append(frame.code.co_name)
        return trace_frame(frame, *rest, **options)

    monkeypatch.setattr(pipeline, "trace_frame", noting)
    return traced


@pytest.fixture
def new_process(tmp_path: Path) -> Iterator[Callable[[str], ModuleType]]:
    """Imports a program anew from its text, always under the same name and in the same file, without any entry in memory."""
    name, file = "stored_program", tmp_path / "stored_program.py"

    def start(text: str) -> ModuleType:
        fxjit.reset()
        file.write_text(text)
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None and spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        exec(compile(text, str(file), "exec"), module.__dict__)
        return module

    yield start
    sys.modules.pop(name, None)
