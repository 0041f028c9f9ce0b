"""What a trace relied on is guarded: change it, and the next call sees the change."""

from __future__ import annotations

import functools
import types

import pytest
import torch

import fxjit

LIMIT = 3
TABLE = {"scale": 2}
helper_calls = 0


class Thing:
    factor = 2

    def __init__(self):
        self.value = 1
        self.items = [1, 2]

    def times(self, x):
        return x * self.factor * self.value


def helper(x, by=1, *, plus=0):
    return x * by + plus


class ComparedWithEager:
    """A compiled function beside its eager self."""

    def __init__(self, program):
        fxjit.reset()
        fxjit.counters.clear()
        self.program = program
        self.compiled = fxjit.compile(program, backend="eager", fullgraph=True)

    def assert_same(self, *args):
        expected, got = self.program(*args), self.compiled(*args)
        assert torch.equal(expected, got), (expected, got)

    @property
    def frames(self):
        return fxjit.counters["frames"]["ok"]


@pytest.fixture
def x():
    return torch.arange(1.0, 4.0)


def test_a_global(x, monkeypatch):
    compiled = ComparedWithEager(lambda x: x * LIMIT)
    compiled.assert_same(x)
    monkeypatch.setitem(globals(), "LIMIT", 7)
    compiled.assert_same(x)
    assert compiled.frames == 2


def test_an_item_of_a_global_dict(x, monkeypatch):
    compiled = ComparedWithEager(lambda x: x * TABLE["scale"])
    compiled.assert_same(x)
    monkeypatch.setitem(TABLE, "scale", 5)
    compiled.assert_same(x)
    assert compiled.frames == 2


def test_a_builtin_that_is_shadowed(x, monkeypatch):
    compiled = ComparedWithEager(lambda x: x * len([1, 2]))
    compiled.assert_same(x)
    monkeypatch.setitem(globals(), "len", lambda items: 9)
    compiled.assert_same(x)


def test_a_free_variable(x):
    n = 2

    def program(x):
        return x * n

    compiled = ComparedWithEager(program)
    compiled.assert_same(x)
    n = 3
    compiled.assert_same(x)
    assert compiled.frames == 2


def test_a_helper_that_is_replaced(x, monkeypatch):
    compiled = ComparedWithEager(lambda x: helper(x))
    compiled.assert_same(x)
    monkeypatch.setitem(globals(), "helper", lambda x: x - 1)
    compiled.assert_same(x)


def test_defaults_of_a_helper(x, monkeypatch):
    compiled = ComparedWithEager(lambda x: helper(x))
    compiled.assert_same(x)
    monkeypatch.setattr(helper, "__defaults__", (5,))
    compiled.assert_same(x)
    monkeypatch.setattr(helper, "__kwdefaults__", {"plus": 3})
    compiled.assert_same(x)


def test_code_of_a_helper(x, monkeypatch):
    compiled = ComparedWithEager(lambda x: helper(x))
    compiled.assert_same(x)
    monkeypatch.setattr(helper, "__code__", (lambda x, by=1, *, plus=0: x - by - plus).__code__)
    compiled.assert_same(x)


def test_attributes_of_an_argument(x):
    compiled = ComparedWithEager(lambda x, thing: thing.times(x))
    thing = Thing()
    compiled.assert_same(x, thing)
    compiled.assert_same(x, thing)
    assert compiled.frames == 1
    thing.value = 4
    compiled.assert_same(x, thing)
    thing.factor = 5  # hides the class's
    compiled.assert_same(x, thing)
    thing.times = lambda x: x - 1
    compiled.assert_same(x, thing)


def test_attributes_of_a_class(x, monkeypatch):
    compiled = ComparedWithEager(lambda x: Thing().times(x))
    compiled.assert_same(x)
    monkeypatch.setattr(Thing, "factor", 9)
    compiled.assert_same(x)
    monkeypatch.setattr(Thing, "times", lambda self, x: x + self.factor)
    compiled.assert_same(x)


def test_contents_of_an_argument(x):
    compiled = ComparedWithEager(lambda x, items: x * sum(items) + len(items))
    compiled.assert_same(x, [1, 2])
    compiled.assert_same(x, [1, 2])
    assert compiled.frames == 1
    compiled.assert_same(x, [1, 3])
    compiled.assert_same(x, [1, 2, 3])
    compiled.assert_same(x, (1, 2))


def test_only_what_was_read_is_guarded(x):
    compiled = ComparedWithEager(lambda x, thing, table: x * table["a"])
    compiled.assert_same(x, Thing(), {"a": 1, "b": 2})
    other = Thing()
    other.value = 77
    compiled.assert_same(x, other, {"a": 1, "b": 5})
    assert compiled.frames == 1


def test_a_partial(x):
    compiled = ComparedWithEager(lambda x, fn: fn(x))
    compiled.assert_same(x, functools.partial(helper, by=2))
    compiled.assert_same(x, functools.partial(helper, by=2))
    assert compiled.frames == 1
    compiled.assert_same(x, functools.partial(helper, by=3))
    compiled.assert_same(x, functools.partial(helper, plus=3))


def test_functions_as_arguments(x):
    compiled = ComparedWithEager(lambda x, fn: fn(x))

    def make(n):
        return lambda x: x * n

    compiled.assert_same(x, make(2))
    compiled.assert_same(x, make(2))
    assert compiled.frames == 1
    compiled.assert_same(x, make(3))
    compiled.assert_same(x, helper)


def test_bound_methods_as_arguments(x):
    compiled = ComparedWithEager(lambda x, method: method(x))
    first, second = Thing(), Thing()
    second.value = 5
    compiled.assert_same(x, first.times)
    compiled.assert_same(x, second.times)
    compiled.assert_same(x, types.MethodType(helper, x))


def test_which_exception_class_is_a_global(x, monkeypatch):
    def program(x):
        try:
            raise ValueError
        except Caught:  # noqa: F821
            return x + 1
        except ValueError:
            return x + 2

    monkeypatch.setitem(globals(), "Caught", KeyError)
    compiled = ComparedWithEager(program)
    compiled.assert_same(x)
    monkeypatch.setitem(globals(), "Caught", ValueError)
    compiled.assert_same(x)


def test_the_same_object_twice(x):
    def program(x, a, b):
        a.append(1)
        return x * len(b) if a is b else x + len(b)

    shared = []
    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(compiled(x, [], []), x)
    assert torch.equal(compiled(x, shared, shared), x)
    assert torch.equal(compiled(x, shared, shared), x * 2)
    assert shared == [1, 1]
