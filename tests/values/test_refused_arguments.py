"""Arguments of builtins and of itertools that are of another type than is meant: refused as in eager, with its words, or taken
as what eager takes them for."""

from __future__ import annotations

import collections
import itertools
from typing import Any

import pytest
import torch
from tests.differential import outcome

import fxjit

VALUES = {"a float": 1.5, "text": "a", "None": None, "a list": [], "True": True, "a negative number": -1, "a tuple": (1, 2),
          "bytes": b"x", "a dict": {}, "three": 3, "zero": 0, "a complex number": 1j, "a range": range(3), "a class": int}
PROGRAMS = {
    "enumerate": lambda x, v: (x + 1, list(enumerate([1, 2], v))),
    "enumerate, by name": lambda x, v: (x + 1, list(enumerate([1, 2], start=v))),
    "range": lambda x, v: (x + 1, list(range(v)), list(range(1, v))),
    "sorted": lambda x, v: (x + 1, sorted([2, 1], reverse=v)),
    "sort": lambda x, v: (x + 1, [2, 1].sort(reverse=v)),
    "key": lambda x, v: (x + 1, sorted([2, 1], key=v)),
    "zip": lambda x, v: (x + 1, list(zip([1], [2], strict=v))),
    "sum": lambda x, v: (x + 1, sum([1, 2], v)),
    "count": lambda x, v: (x + 1, next(itertools.count(v)), next(itertools.count(1, v))),
    "repeat": lambda x, v: (x + 1, list(itertools.repeat(1, v))),
    "islice": lambda x, v: (x + 1, list(itertools.islice([1, 2], v))),
    "combinations": lambda x, v: (x + 1, list(itertools.combinations([1, 2], v))),
    "permutations": lambda x, v: (x + 1, list(itertools.permutations([1, 2], v))),
    "product": lambda x, v: (x + 1, list(itertools.product([1], repeat=v))),
    "deque": lambda x, v: (x + 1, collections.deque([1], v)),
    "insert": lambda x, v: (x + 1, [1].insert(v, 2)),
    "pop": lambda x, v: (x + 1, [1, 2].pop(v)),
    "item": lambda x, v: (x + 1, [1, 2, 3, 4][v]),
    "slice": lambda x, v: (x + 1, [1, 2, 3, 4][:v]),
    "repeated": lambda x, v: (x + 1, [1] * v),
    "round": lambda x, v: (x + 1, round(1.25, v)),
    "int": lambda x, v: (x + 1, int("11", v)),
    "join": lambda x, v: (x + 1, "-".join(v)),
    "replace": lambda x, v: (x + 1, "aa".replace("a", "b", v)),
    "dimension": lambda x, v: (x.sum(v), x.size(v)),
}


@pytest.mark.sweep(3)
@pytest.mark.parametrize("value", VALUES.values(), ids=VALUES)
@pytest.mark.parametrize("name", PROGRAMS)
def test_as_eager(name: str, value: Any):
    program, x = PROGRAMS[name], torch.ones(2, 3)
    with fxjit.config.patch(compile_tensorless_frames=True, allow_empty_graphs=True):
        assert repr(outcome(fxjit.compile(program, backend="eager"), (x, value))) == repr(outcome(program, (x, value)))


def test_a_missing_argument():
    def program(x: torch.Tensor) -> Any:
        return x + 1, list(itertools.combinations([1, 2]))  # type: ignore[call-overload]  # what is looked at

    assert repr(outcome(fxjit.compile(program, backend="eager"), (torch.ones(2),))) == repr(outcome(program, (torch.ones(2),)))


CONTAINERS = {"list": [1, 2], "dict": {1: 2}, "set": {1}, "tuple": (1, 2), "deque": collections.deque([1])}
METHODS = ("__add__", "__iadd__", "__mul__", "__setitem__", "__delitem__", "__eq__", "__lt__", "__len__", "__iter__", "__or__")


@pytest.mark.parametrize("arguments", [(), (1, 2, 3)], ids=["none", "three"])
@pytest.mark.parametrize("container", CONTAINERS.values(), ids=CONTAINERS)
def test_special_methods_with_another_number_of_arguments(container: Any, arguments: tuple[int, ...]):
    def program(x: torch.Tensor, given: Any) -> Any:
        refused = []
        for name in METHODS:
            method = getattr(given, name, None)
            if method is not None:
                try:
                    method(*arguments)
                except TypeError as error:
                    refused.append(f"{name}: {error}")
        return x + 1, refused

    theirs = outcome(program, (torch.ones(2), container))
    assert len(theirs[1]) >= 3
    assert repr(outcome(fxjit.compile(program, backend="eager", fullgraph=True), (torch.ones(2), container))) == repr(theirs)
