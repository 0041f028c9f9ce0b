"""Classes made in the frame by `collections.namedtuple` and its like: each call has its own, and what it wrote to it."""

import collections
import dataclasses
import enum
import types
import typing

import pytest
import torch

import fxjit

HELD = {}


def is_only_used(x):
    Pair = collections.namedtuple("Pair", "a b")
    return Pair(x, 1).a + Pair(2, 3).b, None


def is_returned(x):
    Pair = collections.namedtuple("Pair", "a b", defaults=[3])
    return x + Pair(1).b, Pair


def an_instance_is_returned(x):
    Pair = collections.namedtuple("Pair", "a b")
    return x + 1, Pair(1, Pair(2, 3))


def a_tensor_in_it_is_returned(x):
    Pair = collections.namedtuple("Pair", "a b")
    pair = Pair(x + 1, 2)
    return pair.a, pair


def is_written_to(x):
    Pair = collections.namedtuple("Pair", "a b")
    before = getattr(Pair, "mark", 0)
    Pair.mark = before + 1
    return x + before, Pair


def a_field_is_written_to(x):
    Pair = collections.namedtuple("Pair", "a b")
    length = len(Pair.a.__doc__)
    Pair.a.__doc__ = "changed"
    return x + length, Pair


def a_table_is_written_to(x):
    Pair = collections.namedtuple("Pair", "a b")
    before = Pair._field_defaults.get("a", 0)
    Pair._field_defaults["a"] = before + 1
    return x + before, Pair


def defaults_are_written_to(x):
    Pair = collections.namedtuple("Pair", "a", defaults=([1],))
    Pair().a.append(2)
    return x + len(Pair().a), Pair


def a_function_is_written_to(x):
    Pair = collections.namedtuple("Pair", "a b")
    Pair.__new__.__defaults__ = (getattr(Pair, "mark", 1), 6)
    Pair.mark = 7
    return x + Pair().a, Pair


def two_are_compared(x):
    Pair = collections.namedtuple("Pair", "a b")
    Other = collections.namedtuple("Pair", "a b")
    return x + (Pair is Other) + (Pair == Other), (Pair, Other, Other(1, 2))


def is_held_over_calls(x):
    Pair = collections.namedtuple("Pair", "a b")
    before = isinstance(HELD.get("pair"), Pair)
    HELD["pair"] = Pair(1, 2)
    return x + before, Pair


def crosses_a_break(x):
    Pair = collections.namedtuple("Pair", "a b")
    fxjit.graph_break()
    before = getattr(Pair, "mark", 0)
    Pair.mark = before + 1
    return Pair(x, 1).a + before, Pair


def in_a_closure_across_a_break(x):
    Pair = collections.namedtuple("Pair", "a b")
    fxjit.graph_break()
    return (lambda: Pair(x, 1).a + 1)(), Pair


def of_typing(x):
    Pair = typing.NamedTuple("Pair", [("a", int)])
    before = getattr(Pair, "mark", 0)
    Pair.mark = before + 1
    return x + before, Pair


def is_subclassed(x):
    class Pair(collections.namedtuple("Pair", "a b")):
        def total(self):
            return self.a + self.b
    return Pair(x, 1).total(), Pair


def by_type(x):
    Made = type("Made", (), {"count": 1})
    Made.count += 1
    return x + Made.count, Made


def by_a_statement(x):
    class Made:
        count = 1
    Made.count += 1
    return x + Made.count, Made


def by_make_dataclass(x):
    Made = dataclasses.make_dataclass("Made", ["a"])
    before = getattr(Made, "mark", 0)
    Made.mark = before + 1
    return x + before + Made(3).a, Made


def by_enum(x):
    Made = enum.Enum("Made", "A B")
    before = getattr(Made.A, "mark", 0)
    Made.A.mark = before + 1
    return x + before + Made.B.value, Made


def by_new_type(x):
    Made = typing.NewType("Made", int)
    before = getattr(Made, "mark", 0)
    Made.mark = before + 1
    return x + before, Made


def by_new_class(x):
    Made = types.new_class("Made", (), {}, lambda names: names.update(count=1))
    Made.count += 1
    return x + Made.count, Made


PROGRAMS = [each for each in list(globals().values()) if isinstance(each, types.FunctionType) and each.__module__ == __name__]


@pytest.mark.parametrize("program", PROGRAMS)
def test_each_call_has_its_own(program):
    ends = []
    for call in (program, fxjit.compile(program, backend="eager")):
        HELD.clear()
        made = [call(torch.ones(2)) for _ in range(3)]
        classes = [each if isinstance(each, type) else type(each) for _, each in made]
        ends.append((
            [result.tolist() for result, _ in made], [str(each) for _, each in made], len(set(classes)),
            [getattr(cls, "mark", None) for cls in classes], len({id(each) for _, each in made}),
        ))
    assert ends[0] == ends[1]


@pytest.mark.compiles
@pytest.mark.parametrize("program", [is_only_used, is_returned, an_instance_is_returned, is_written_to, two_are_compared])
def test_without_a_break(program):
    result, _ = fxjit.compile(program, backend="eager", fullgraph=True)(torch.ones(2))
    assert result.tolist() == program(torch.ones(2))[0].tolist()
