"""Methods of the program's that Python calls by itself are called when and as often as the program runs, and never by a trace;
attributes of enum members."""

from __future__ import annotations

import collections
import enum

import pytest
import torch
from tests.differential import assert_same, outcome

import fxjit


def same_over_calls(program, make, calls=3):
    fxjit.reset()
    found = []
    for call in (program, fxjit.compile(program, backend="eager")):
        log = []
        given = make(log)
        found.append([(outcome(call, (torch.ones(2), given)), list(log)) for _ in range(calls)])
    assert_same(*found)


def noting(base):
    """A subclass of a container that notes who asks for its length or its items."""
    class Noting(base):
        log: list[str]

        def __len__(self):
            self.log.append("length")
            return super().__len__()

        def __iter__(self):
            self.log.append("iteration")
            return super().__iter__()

    return Noting


CONTAINERS = {
    "list": (list, [1, 2]), "dict": (dict, {"a": 1}), "set": (set, {1, 2}), "set of objects": (set, {1, object}),
    "frozenset": (frozenset, {1}), "tuple": (tuple, (1, 2)), "ordered": (collections.OrderedDict, {"a": 1}),
}  # fmt: skip


def asks_nothing(x, given):
    given.mark = getattr(given, "mark", 0) + 1
    return x * given.mark, given is None, type(given).__name__


def asks_the_base(x, given):
    base = type(given).__mro__[1]
    return x + base.__len__(given), [*base.__iter__(given)]


def asks_for_the_length(x, given):
    return x + len(given), bool(given)


def iterates(x, given):
    return x, [each for each in given], 1 in given


@pytest.mark.parametrize("program", [asks_nothing, asks_the_base, asks_for_the_length, iterates], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("kind", CONTAINERS)
def test_a_trace_asks_no_container_of_the_programs(program, kind):
    base, content = CONTAINERS[kind]

    def make(log):
        made = noting(base)(content)
        made.log = log
        return made

    same_over_calls(program, make)


class Sequence:
    def __init__(self, items, log):
        self.items, self.log = items, log

    def __len__(self):
        self.log.append("length")
        return len(self.items)

    def __getitem__(self, index):
        self.log.append(index)
        if self.items[index] is None:
            raise IndexError(index)
        return self.items[index]


def reverses(x, given):
    return x, [each for each in reversed(given)]


def takes_one_reversed(x, given):
    return x + next(reversed(given)), type(reversed(given)).__name__


def reverses_while_it_changes(x, given):
    found = []
    for each in reversed(given):
        found.append(each)
        if len(found) == 2:
            given.items[0] = 9
    return x, found


@pytest.mark.parametrize("program", [reverses, takes_one_reversed, reverses_while_it_changes], ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("items", [[1, 2, 3], [1, None, 3], [4]], ids=str)
def test_reversed_goes_down_one_by_one(program, items):
    same_over_calls(program, lambda log: Sequence(list(items), log))


class Colour(enum.Enum):
    RED = 1
    BLUE = 2

    @classmethod
    def _missing_(cls, value):
        return cls.BLUE

    def shown(self):
        return self.name


def counts_in_a_member(x, member):
    member.calls = getattr(member, "calls", 0) + 1
    return x * member.calls, member.shown()


def counts_in_one_looked_up(x, value):
    found = Colour(value)
    if not hasattr(found, "seen"):
        found.seen = []
    found.seen.append(value)
    return x * len(found.seen), found.seen[0]


@pytest.mark.parametrize(("program", "given"), [
    (counts_in_a_member, [Colour.RED, Colour.BLUE, Colour.RED, Colour.RED]), (counts_in_one_looked_up, [1, 2, 9, 1, 9]),
], ids=["given", "looked up"])
def test_attributes_of_enum_members_are_the_programs_to_set(program, given):
    fxjit.reset()
    found = []
    for call in (program, fxjit.compile(program, backend="eager")):
        found.append([outcome(call, (torch.ones(2), each)) for each in given])
        Colour.RED.shown = lambda: "own"
        found[-1] += [outcome(call, (torch.ones(2), each)) for each in given]
        for member in Colour:
            for name in ("calls", "seen", "shown"):
                member.__dict__.pop(name, None)
    assert_same(*found)


def test_whether_a_tensor_is_set_to_another():
    def program(x, _):
        made = x.new_empty(0)
        made.set_(x)
        return made.is_set_to(x), x.is_set_to(x), x.view(-1).is_set_to(x), x[1:].is_set_to(x), x.clone().is_set_to(x)

    same_over_calls(program, lambda log: None)
