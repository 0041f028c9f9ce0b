"""What torch code leaves behind compiled is what it leaves behind eagerly: results, mutation, aliasing, gradients."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import pytest
from tests import differential

import fxjit
from fxjit.testing import EagerAndRecordGraphs


@pytest.fixture
def nothing_compiled() -> Iterator[None]:
    """Nothing is compiled, and nothing counted, before a test and behind it."""
    fxjit.reset()
    yield
    fxjit.reset()


@pytest.fixture
def assert_same_as_eager():
    """As it stands, and through AOTAutograd, whose decompositions round in another order."""
    return functools.partial(differential.assert_same_as_eager, backend=("eager", "aot_eager"))


@pytest.fixture
def graphs_of():
    """Run a function under fxjit with breaks allowed: its result, and the graphs captured."""
    def run_it(fn, *args, **kwargs):
        fxjit.reset()
        backend = EagerAndRecordGraphs()
        result = fxjit.compile(fn, backend=backend, **kwargs)(*args)
        return result, backend.graphs
    return run_it


@pytest.fixture
def breaks():
    """The reason id of the break that a function runs into."""
    def reason(fn, *args):
        fxjit.reset()
        with pytest.raises(fxjit.errors.Unsupported) as error:
            fxjit.compile(fn, backend="eager", fullgraph=True)(*args)
        return error.value.reason_id
    return reason
