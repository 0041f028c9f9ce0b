"""What all tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from fxjit import config

# A slow machine compiles for long: what tests read from stderr does not depend on it, in their child processes neither.
config.progress = 0.0
os.environ.setdefault("FXJIT_PROGRESS", "0")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole-library", action="store_true", help="compare bytecode over every file of the standard library")
    parser.addoption("--stored-entries", metavar="FOLDER",
                     help="keep compiled entries in this folder: in a second run with it, programs start compiled")
    parser.addoption("--update-golden", action="store_true", help="write the files of tests/golden anew")


@pytest.fixture(autouse=True)
def compiled_anew(request: pytest.FixtureRequest) -> Iterator[None]:
    """No graph comes from what another test, or an earlier run, left on the disk, and none is left to eager for being small:
    tests look at how graphs are compiled."""
    folder = request.config.getoption("--stored-entries")
    if folder is not None:
        with config.patch(store_entries=True, cache_dir=folder, small_graphs_as_captured=False):
            yield
        return
    with config.patch(cache_graphs=False, small_graphs_as_captured=False):
        yield


@pytest.fixture
def texts(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The programs that the native backend encodes meanwhile, as text."""
    from fxjit.backends.native import pipeline
    from fxjit.backends.native.executor.python_text import python_text

    found: list[str] = []
    encode = pipeline.encode
    monkeypatch.setattr(pipeline, "encode", lambda listing: found.append(python_text(listing)) or encode(listing))
    return found
