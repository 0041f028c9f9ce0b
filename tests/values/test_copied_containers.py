"""Attributes of OrderedDicts, copies of instances of subclasses of containers, and containers filled with themselves."""

from __future__ import annotations

import collections
import copy

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

x = torch.ones(2)


class Ordered(collections.OrderedDict):
    pass


class Counted(collections.OrderedDict):
    def __init__(self, *args):
        super().__init__(*args)
        self.n = len(args)

    def copy(self):
        made = super().copy()
        made["copied"] = 1
        return made


class Queue(collections.deque):
    pass


class Factory(collections.defaultdict):
    pass


class Plain(set):
    pass


class Frozen(frozenset):
    pass


class Items(list):
    def __iter__(self):
        return iter([7, 8])


def containers():
    return [collections.OrderedDict(a=[1]), Ordered(a=[1]), Counted([("a", [1])]), Queue([[1], 2], 5), Factory(list, a=[1]),
            Plain([1, 2]), Frozen([1, 2]), collections.defaultdict(list, a=[1]), collections.deque([[1]])]


def contents(made):
    return sorted(made) if isinstance(made, (set, frozenset)) else list(made.items()) if isinstance(made, dict) else list(made)


@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda obj: obj.copy()])
@pytest.mark.parametrize("given", containers(), ids=lambda given: type(given).__name__)
def test_copies(way, given):
    if hasattr(given, "__dict__"):
        given.extra = [3]

    def copied(y, given):
        made = way(given)
        attributes = getattr(made, "__dict__", {})
        shared = getattr(made, "extra", None) is getattr(given, "extra", 0)
        return y + 1, type(made), contents(made), sorted(attributes), shared, made is given

    assert_same_as_eager(copied, x, given, fullgraph=True, breaks=0)


def changed(y, given):
    given.seen, given.count = 5, given.count + 1
    del given.gone
    given.__dict__["more"] = 7
    given["z"] = y
    return given.count, hasattr(given, "gone"), dict(given.__dict__), getattr(given, "missing", None), list(given), given.copy()


def test_attributes_of_an_ordered_dict():
    given = collections.OrderedDict(a=1)
    given.count, given.gone = 3, 4
    assert_same_as_eager(changed, x, copy.deepcopy(given), fullgraph=True, breaks=0)
    mine, eager = copy.deepcopy(given), copy.deepcopy(given)
    fxjit.compile(changed, backend="eager", fullgraph=True)(x, mine)
    changed(x, eager)
    assert vars(mine) == vars(eager) and list(mine) == list(eager)


def test_the_state_dict_of_a_module():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2)).eval()

    def called(y, state):
        scaled = collections.OrderedDict((name, value * 2) for name, value in state.items())
        return torch.func.functional_call(model, state, y), torch.func.functional_call(model, scaled, y), state._metadata["1"]

    assert_same_as_eager(called, torch.randn(3, 2), model.state_dict(), fullgraph=True, breaks=0)


def inplace(obj):
    obj += obj


def slice_of_itself(obj):
    obj[1:1] = obj


@pytest.mark.parametrize("fill", [lambda obj: obj.extend(obj), inplace, lambda obj: obj.__init__(obj)])
@pytest.mark.parametrize("kind", [list, Items, collections.deque, Queue])
def test_filled_with_itself(kind, fill):
    """It ended with the memory."""
    fxjit.reset()
    mine, eager = kind([1, 2]), kind([1, 2])
    fxjit.compile(lambda y, obj: (fill(obj), y + 1), backend="eager", fullgraph=True)(x, mine)
    fill(eager)
    assert [mine[at] for at in range(len(mine))] == [eager[at] for at in range(len(eager))]


@pytest.mark.parametrize("kind", [list, Items])
def test_a_slice_of_itself(kind):
    mine, eager = kind([1, 2]), kind([1, 2])
    fxjit.compile(lambda y, obj: (slice_of_itself(obj), y + 1), backend="eager", fullgraph=True)(x, mine)
    slice_of_itself(eager)
    assert list.__repr__(mine) == list.__repr__(eager)
