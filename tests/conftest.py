"""What all tests share."""

from __future__ import annotations

import gc
import logging
import os
import random
import signal
import zlib
from collections import Counter
from collections.abc import Generator, Iterator

import numpy as np
import pytest
import torch

from fxjit import config

# A slow machine compiles for long: what tests read from stderr does not depend on it, in their child processes neither.
config.progress = 0.0
os.environ.setdefault("FXJIT_PROGRESS", "0")
# Nor does it depend on what another run left on the disk.
os.environ.setdefault("FXJIT_STORE_ENTRIES", "0")
# Nor on how fast the machine is.
config.measure_machine = False
os.environ.setdefault("FXJIT_MEASURE_MACHINE", "0")

# Whoever starts the tests in the background of a shell has Ctrl-C ignored in them, and in all that they start.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--whole-library", action="store_true", help="compare bytecode over every file of the standard library")
    parser.addoption("--all-sweeps", action="store_true", help="run all programs of the tests that are marked `sweep`")
    parser.addoption("--seed", type=int, default=0, help="other random numbers in every test that draws some")
    parser.addoption("--stored-entries", metavar="FOLDER",
                     help="keep compiled entries in this folder: in a second run with it, programs start compiled")
    parser.addoption("--update-golden", action="store_true", help="write the files of tests/golden anew")


#: A test of several crossed parameters with so many programs or more is a sweep of this share.
CROSSED = ((24, 3), (8, 2))


def share_of(item: pytest.Item, programs: int) -> int:
    """Of so many programs that a test runs, one in this number does by default."""
    marker = item.get_closest_marker("sweep")
    if marker is not None:
        return int(marker.args[0])
    if len(list(item.iter_markers("parametrize"))) < 2:
        return 1
    return next((share for least, share in CROSSED if programs >= least), 1)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Of the programs of a test that is marked `sweep`, or has several parameters, one in its share runs, along the diagonals
    of what the parameters span, so that each of their values is in some. Tests that are named one by one always run."""
    if config.getoption("--all-sweeps") or any("::" in each for each in config.args):
        return
    names = [item.nodeid.partition("[")[0] for item in items]
    programs, seen = Counter(names), Counter[str]()
    kept, left_out = [], []
    for item, name in zip(items, names, strict=True):
        share = share_of(item, programs[name])
        (left_out if (seen[name] + seen[name] // share) % share else kept).append(item)
        seen[name] += 1
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = kept


@pytest.fixture(autouse=True, scope="module")
def older_objects_are_not_traversed() -> None:
    """What earlier modules left (a million objects in a whole run) is taken out of the collector's sight: a test that collects
    garbage goes over its own module's objects only."""
    gc.collect()
    gc.freeze()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """The random numbers of a test depend on its name and `--seed`, and not on the tests that ran before it in its process."""
    seed = zlib.crc32(item.nodeid.encode(), item.config.getoption("--seed"))
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call() -> Generator[None, object, object]:
    """pytest gives its handlers to each logger that does not propagate; torch writes a trace of each graph (texts, stacks)
    where its trace logger has a handler, which would be a tenth of the time of all tests."""
    trace = logging.getLogger("torch.__trace")
    for handler in [*trace.handlers]:
        if type(handler).__module__ == "_pytest.logging":
            trace.removeHandler(handler)
    return (yield)


def pytest_unconfigure() -> None:
    gc.unfreeze()


@pytest.fixture(autouse=True)
def compiled_anew(request: pytest.FixtureRequest) -> Iterator[None]:
    """No graph comes from what another test, or an earlier run, left on the disk, and none is left to eager for being small:
    tests look at how graphs are compiled. Under `--stored-entries` that holds for those that are marked `compiles`."""
    folder = request.config.getoption("--stored-entries")
    if folder is not None and request.node.get_closest_marker("compiles") is None:
        with config.patch(store_entries=True, cache_dir=folder, small_graphs_as_captured=False):
            yield
        return
    with config.patch(cache_graphs=False, store_entries=False, small_graphs_as_captured=False):
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
