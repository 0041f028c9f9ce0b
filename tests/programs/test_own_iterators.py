"""Iterators of the program's that begin anew when they are asked for an iterator: functions of Python ask once."""

from __future__ import annotations

import collections
import functools
import heapq
import itertools
import math
import operator

import pytest
import torch
from tests.differential import assert_same, outcome

import fxjit


class Steps:
    def __init__(self, end, log):
        self.end, self.at, self.log = end, 0, log

    def __iter__(self):
        self.log.append("iter")
        self.at = 0
        return self

    def __next__(self):
        self.at += 1
        self.log.append(self.at)
        if self.at > self.end:
            raise StopIteration
        return self.at


CONSUMERS = {
    "islice": lambda it: list(itertools.islice(it, 2)),
    "islice with a step": lambda it: list(itertools.islice(it, 1, 4, 2)),
    "islice without an end": lambda it: list(itertools.islice(it, None)),
    "islice twice": lambda it: [*itertools.islice(it, 1), next(it)],
    "accumulate": lambda it: list(itertools.accumulate(it)),
    "accumulate from": lambda it: list(itertools.accumulate(it, operator.mul, initial=3)),
    "takewhile": lambda it: list(itertools.takewhile(lambda v: v < 3, it)),
    "dropwhile": lambda it: list(itertools.dropwhile(lambda v: v < 3, it)),
    "starmap": lambda it: list(itertools.starmap(lambda *v: v, zip(it))),
    "compress": lambda it: list(itertools.compress(it, [1, 0, 1, 1])),
    "compress by it": lambda it: list(itertools.compress([1, 2, 3], it)),
    "pairwise": lambda it: list(itertools.pairwise(it)),
    "zip_longest": lambda it: list(itertools.zip_longest(it, [1, 2])),
    "chain": lambda it: list(itertools.chain(it, [9])),
    "filterfalse": lambda it: list(itertools.filterfalse(lambda v: v % 2, it)),
    "cycle": lambda it: [v for v, _ in zip(itertools.cycle(it), range(7))],
    "combinations": lambda it: list(itertools.combinations(it, 2)),
    "product": lambda it: list(itertools.product(it, repeat=2)),
    "map": lambda it: list(map(str, it)),
    "zip": lambda it: list(zip(it, [1, 2])),
    "reduce": lambda it: functools.reduce(operator.add, it),
    "reduce from": lambda it: functools.reduce(operator.add, it, 5),
    "sum": sum, "max": max, "any": any, "sorted": sorted, "tuple": tuple, "set": set, "prod": math.prod,
    "deque": lambda it: collections.deque(it, 2),
    "nsmallest": lambda it: heapq.nsmallest(2, it),
    "starred": lambda it: [*it, *it],
    "a function and an end": lambda it: list(iter(it.__next__, 3)),
}  # fmt: skip


@pytest.mark.parametrize("consumer", CONSUMERS)
@pytest.mark.parametrize("varies", [False, True])
def test_it_is_asked_for_an_iterator_as_often_as_by_python(consumer, varies):
    use = CONSUMERS[consumer]

    def program(x, it):
        return x + 1, use(it)

    fxjit.reset()
    found = []
    for call in (program, fxjit.compile(program, backend="eager")):
        results = []
        for end in (3, 4 if varies else 3, 0):
            log = []
            results.append((outcome(call, (torch.ones(2), Steps(end, log))), log))
        found.append(results)
    assert_same(*found)


def test_an_iterator_without_end_is_not_run_to_its_end():
    def program(x):
        odd = itertools.takewhile(lambda v: v < 7, itertools.islice(itertools.count(1), 0, None, 2))
        return x * sum(odd)

    assert torch.equal(fxjit.compile(program, backend="eager")(torch.ones(2)), torch.full((2,), 9.0))
