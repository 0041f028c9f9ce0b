"""How far what takes an iterable goes in it, and whether it asks a subclass's `__iter__`: as Python's own does."""

from __future__ import annotations

import itertools
import statistics

import pytest
import torch

import fxjit

LOG: list[str] = []


class OwnSet(set):
    def __iter__(self):
        LOG.append("iter")
        return iter([7, 8])


class OwnFrozenset(frozenset):
    def __iter__(self):
        LOG.append("iter")
        return iter([7, 8])


class Iterator:
    def __init__(self, *values):
        self.values, self.place = values, 0

    def __iter__(self):
        LOG.append("iterator.iter")
        return self

    def __next__(self):
        LOG.append("next")
        if self.place == len(self.values):
            raise StopIteration
        self.place += 1
        return self.values[self.place - 1]


class Iterable:
    def __iter__(self):
        LOG.append("iter")
        return Iterator(1, 1, 2, 3)


def changed(kind, method, given):
    made = kind([1, 2])
    return getattr(made, method)(given), made


ITERABLES = {
    "set": lambda: OwnSet([1, 2]), "frozenset": lambda: OwnFrozenset([1, 2]), "iterable": Iterable,
    "iterator": lambda: Iterator(1, 2, 3), "of others": lambda: Iterator(9, 1, 2, 3),
}
METHODS = ("union", "intersection", "difference", "symmetric_difference", "issubset", "issuperset", "isdisjoint", "__and__",
           "__le__")
READERS = {
    "set": set, "frozenset": frozenset, "list": list, "dict.fromkeys": dict.fromkeys, "sorted": sorted, "in": lambda o: 8 in o,
    **{f"{kind.__name__}.{name}": (lambda o, kind=kind, name=name: changed(kind, name, o))
       for kind in (set, frozenset) for name in METHODS},
    **{name: (lambda o, name=name: changed(set, name, o)) for name in (
        "update", "intersection_update", "difference_update", "symmetric_difference_update")},
    "intersection of the empty set": lambda o: set().intersection(o),
    "intersection of several": lambda o: {1, 2, 3}.intersection([1], o),
    "issuperset of the empty set": lambda o: set().issuperset(o),
    "keys.isdisjoint": lambda o: {1: 2}.keys().isdisjoint(o),
    "groupby": lambda o: [(key, list(group)) for key, group in itertools.groupby(o)],
    "groupby, keys": lambda o: [key for key, _ in itertools.groupby(o, lambda value: value // 2)],
    "groupby, nothing": lambda o: itertools.groupby(o) is None,
    "tee": lambda o: [list(each) for each in itertools.tee(o)],
    "tee, one": lambda o: next(itertools.tee(o, 3)[1], None),
    "tee, none": lambda o: itertools.tee(o, 0),
    "mean": statistics.mean, "variance": statistics.pvariance,
}


@pytest.mark.parametrize("reader", READERS)
def test_iterables_are_read_as_far_as_python_reads_them(reader: str):
    for kind, make in ITERABLES.items():
        fxjit.reset()

        def fn(given, x):
            return READERS[reader](given), x + 1

        compiled = fxjit.compile(fn, backend="eager")
        for _ in range(2):
            assert outcome(compiled, make) == outcome(fn, make), kind


def outcome(fn, make):
    given = make()
    LOG.clear()
    try:
        result = repr(fn(given, torch.ones(1))[0])
    except Exception as error:
        result = type(error), str(error)
    return result, list(LOG), getattr(given, "place", None)


def test_equal_keys_of_groupby_are_the_same_or_equal():
    nan = float("nan")

    def fn(x):
        return [(key, len(list(group))) for key, group in itertools.groupby([nan, nan, 1, 1.0, True, 2])], x + 1

    assert repr(fxjit.compile(fn, backend="eager", fullgraph=True)(torch.ones(1))[0]) == repr(fn(torch.ones(1))[0])
