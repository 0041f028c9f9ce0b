"""Functions that run one code object with the globals of several namespaces: each is called with its own."""

from __future__ import annotations

import gc
import types
import weakref
from typing import Any

import pytest

torch = pytest.importorskip("torch")

import fxjit  # noqa: E402

FACTOR = 1


def scaled(x: Any) -> Any:
    return x * FACTOR


def scaled_by(factor: int) -> Any:
    return types.FunctionType(scaled.__code__, {"FACTOR": factor, "torch": torch})


class Holder:
    def __init__(self, call: Any) -> None:
        self.call = call


PROGRAMS = {
    "an argument": lambda x, fn: fn(x) + 1,
    "an attribute": lambda x, fn, make=Holder: make(fn).call(x) + 1,
    "an item": lambda x, fn: [fn, None][0](x) + 1,
    "of a nested call": lambda x, fn: torch.stack([*map(fn, (x, x + 1))]),
}


@pytest.fixture(autouse=True)
def fresh():
    fxjit.reset()
    yield
    fxjit.reset()


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_function_reads_its_own_globals(program: str) -> None:
    run, x = PROGRAMS[program], torch.arange(3.0)
    compiled = fxjit.compile(run, backend="eager", fullgraph=True)
    functions = [scaled, scaled_by(5), scaled_by(7), scaled]
    for fn in (*functions, *functions):
        assert torch.equal(compiled(x, fn), run(x, fn))


def test_a_function_made_anew_with_the_same_globals_is_not_compiled_again() -> None:
    compiled = fxjit.compile(PROGRAMS["an argument"], backend="eager")
    for _ in range(3):
        compiled(torch.ones(2), types.FunctionType(scaled.__code__, globals()))
    assert fxjit.counters["stats"]["unique_graphs"] == 1


TEXT = """
FACTOR = 3
class Mark: pass
MARK = Mark()
def helper(x): return x * FACTOR
def plain(x): return x + 1
def run(x, fn): return helper(x) + fn(x)
"""


def test_a_namespace_goes_with_its_functions() -> None:
    space: dict[str, Any] = {"__name__": "cell"}
    exec(TEXT, space)
    for fn in (space["plain"], space["helper"]):
        fxjit.compile(space["run"], backend="eager")(torch.ones(2), fn)
    mark = weakref.ref(space["MARK"])
    del space, fn
    gc.collect()
    assert mark() is None
