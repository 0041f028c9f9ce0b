"""What a compiled function keeps alive, end to end: entries go with the code or with the compiled callable, and nothing
of a compile that is over holds the user's objects."""

from __future__ import annotations

import gc
import sys
import weakref

import pytest

torch = pytest.importorskip("torch")

import fxjit  # noqa: E402

SOURCE = """
def f(x):
    return (x + 1) * scale
"""


def collect():
    """Fake tensors in the notes of a graph's nodes take more than one round."""
    for _ in range(3):
        gc.collect()


def fresh_function():
    namespace = {"scale": 2.0}
    exec(SOURCE, namespace)
    return namespace["f"]


def test_a_function_that_is_thrown_away_takes_its_code_and_its_entries_along():
    f = fresh_function()
    compiled = fxjit.compile(f, backend="eager")
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))
    code = weakref.ref(f.__code__)
    del f, compiled
    collect()
    assert code() is None


def test_graphs_go_with_the_compiled_callable():
    graphs = []

    def backend(gm, example_inputs):
        graphs.append(weakref.ref(gm))
        return gm.forward

    f = fresh_function()
    compiled = fxjit.compile(f, backend=backend)
    compiled(torch.ones(2))
    assert len(graphs) == 1 and graphs[0]() is not None
    del f, compiled, backend
    collect()
    assert graphs[0]() is None


def test_arguments_are_not_held_by_the_compile_they_caused():
    compiled = fxjit.compile(fresh_function(), backend="eager")
    x = torch.ones(2)
    compiled(x)
    seen = weakref.ref(x)
    del x
    collect()
    assert seen() is None


def test_arguments_of_a_compile_that_started_over_go_without_the_collector():
    def f(x):
        y = x + 1
        fxjit.graph_break()
        return y * 2

    x = torch.ones(2)
    argument = weakref.ref(x)
    collect()
    gc.disable()
    try:
        fxjit.compile(f, backend="eager")(x)
        del x
        assert argument() is None
    finally:
        gc.enable()


def test_calls_leak_no_references():
    compiled = fxjit.compile(fresh_function(), backend="eager")
    x = torch.ones(2)
    for _ in range(10):
        compiled(x)
    collect()
    before = sys.getrefcount(x), sys.getallocatedblocks()
    for _ in range(20_000):
        compiled(x)
    collect()
    assert sys.getrefcount(x) == before[0]
    assert sys.getallocatedblocks() - before[1] < 200


def test_a_model_that_is_thrown_away_is_freed():
    model = torch.nn.Linear(2, 2)
    compiled = fxjit.compile(model, backend="eager")
    compiled(torch.ones(1, 2))
    gone = weakref.ref(model)
    del model, compiled
    collect()
    assert gone() is None


CLASSES = """
import collections, dataclasses, enum

class Box:
    def __init__(self, value):
        self.value = value

class Scaled(Box):
    __slots__ = ("factor",)

Pair = collections.namedtuple("Pair", "first second")

@dataclasses.dataclass
class Record:
    value: object

class Color(enum.Enum):
    RED = 1

box = Box(2)

def f(x, pair, color):
    made = Scaled(x)
    made.factor = pair.first
    if color is Color.RED and isinstance(box, Box):
        return Pair(made.value * made.factor, Record(box.value).value)
    return Pair(x, 0)
"""


def test_classes_that_a_trace_looked_at_go_with_the_program():
    namespace = {}
    exec(CLASSES, namespace)
    compiled = fxjit.compile(namespace["f"], backend="eager")
    result = compiled(torch.ones(2), namespace["Pair"](3, 4), namespace["Color"].RED)
    assert torch.equal(result.first, torch.full((2,), 3.0)) and result.second == 2
    classes = {name: weakref.ref(namespace[name]) for name in ("Box", "Scaled", "Pair", "Record", "Color")}
    del namespace, compiled, result
    collect()
    assert [name for name, alive in classes.items() if alive() is not None] == []
