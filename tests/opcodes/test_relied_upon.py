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


class Compiled:
    """A compiled function that is compared with its eager self at every call."""

    def __init__(self, program):
        fxjit.reset()
        fxjit.counters.clear()
        self.program = program
        self.compiled = fxjit.compile(program, backend="eager", fullgraph=True)

    def __call__(self, *args):
        expected, got = self.program(*args), self.compiled(*args)
        assert torch.equal(expected, got), (expected, got)

    @property
    def frames(self):
        return fxjit.counters["frames"]["ok"]


@pytest.fixture
def x():
    return torch.arange(1.0, 4.0)


def test_a_global(x, monkeypatch):
    call = Compiled(lambda x: x * LIMIT)
    call(x)
    monkeypatch.setitem(globals(), "LIMIT", 7)
    call(x)
    assert call.frames == 2


def test_an_item_of_a_global_dict(x, monkeypatch):
    call = Compiled(lambda x: x * TABLE["scale"])
    call(x)
    monkeypatch.setitem(TABLE, "scale", 5)
    call(x)
    assert call.frames == 2


def test_a_builtin_that_is_shadowed(x, monkeypatch):
    call = Compiled(lambda x: x * len([1, 2]))
    call(x)
    monkeypatch.setitem(globals(), "len", lambda items: 9)
    call(x)


def test_a_free_variable(x):
    n = 2

    def program(x):
        return x * n

    call = Compiled(program)
    call(x)
    n = 3
    call(x)
    assert call.frames == 2


def test_a_helper_that_is_replaced(x, monkeypatch):
    call = Compiled(lambda x: helper(x))
    call(x)
    monkeypatch.setitem(globals(), "helper", lambda x: x - 1)
    call(x)


def test_defaults_of_a_helper(x, monkeypatch):
    call = Compiled(lambda x: helper(x))
    call(x)
    monkeypatch.setattr(helper, "__defaults__", (5,))
    call(x)
    monkeypatch.setattr(helper, "__kwdefaults__", {"plus": 3})
    call(x)


def test_code_of_a_helper(x, monkeypatch):
    call = Compiled(lambda x: helper(x))
    call(x)
    monkeypatch.setattr(helper, "__code__", (lambda x, by=1, *, plus=0: x - by - plus).__code__)
    call(x)


def test_attributes_of_an_argument(x):
    call = Compiled(lambda x, thing: thing.times(x))
    thing = Thing()
    call(x, thing)
    call(x, thing)
    assert call.frames == 1
    thing.value = 4
    call(x, thing)
    thing.factor = 5  # hides the class's
    call(x, thing)
    thing.times = lambda x: x - 1
    call(x, thing)


def test_attributes_of_a_class(x, monkeypatch):
    call = Compiled(lambda x: Thing().times(x))
    call(x)
    monkeypatch.setattr(Thing, "factor", 9)
    call(x)
    monkeypatch.setattr(Thing, "times", lambda self, x: x + self.factor)
    call(x)


def test_contents_of_an_argument(x):
    call = Compiled(lambda x, items: x * sum(items) + len(items))
    call(x, [1, 2])
    call(x, [1, 2])
    assert call.frames == 1
    call(x, [1, 3])
    call(x, [1, 2, 3])
    call(x, (1, 2))


def test_only_what_was_read_is_guarded(x):
    call = Compiled(lambda x, thing, table: x * table["a"])
    call(x, Thing(), {"a": 1, "b": 2})
    other = Thing()
    other.value = 77
    call(x, other, {"a": 1, "b": 5})
    assert call.frames == 1


def test_a_partial(x):
    call = Compiled(lambda x, fn: fn(x))
    call(x, functools.partial(helper, by=2))
    call(x, functools.partial(helper, by=2))
    assert call.frames == 1
    call(x, functools.partial(helper, by=3))
    call(x, functools.partial(helper, plus=3))


def test_functions_as_arguments(x):
    call = Compiled(lambda x, fn: fn(x))

    def make(n):
        return lambda x: x * n

    call(x, make(2))
    call(x, make(2))
    assert call.frames == 1
    call(x, make(3))
    call(x, helper)


def test_bound_methods_as_arguments(x):
    call = Compiled(lambda x, method: method(x))
    first, second = Thing(), Thing()
    second.value = 5
    call(x, first.times)
    call(x, second.times)
    call(x, types.MethodType(helper, x))


def test_which_exception_class_is_a_global(x, monkeypatch):
    def program(x):
        try:
            raise ValueError
        except Caught:  # noqa: F821
            return x + 1
        except ValueError:
            return x + 2

    monkeypatch.setitem(globals(), "Caught", KeyError)
    call = Compiled(program)
    call(x)
    monkeypatch.setitem(globals(), "Caught", ValueError)
    call(x)


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
