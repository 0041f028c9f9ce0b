"""`NotImplemented` as a condition: Python warns of it each time (and raises, from 3.14 on)."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit

PROGRAMS: dict[str, Callable[[Any], Any]] = {
    "if": lambda n: 1 if n else 2,
    "not": lambda n: not n,
    "and": lambda n: n and 3,
    "or": lambda n: n or 3,
    "bool": lambda n: bool(n),
    "if of a constant": lambda n: 1 if NotImplemented else 2,
    "all": lambda n: all([n, 1]),
    "any": lambda n: any([0, n]),
    "filter": lambda n: list(filter(None, [n, 0])),
    "takewhile": lambda n: len(list(itertools.takewhile(lambda each: each, [n]))),
    "comprehension": lambda n: [k for k in (1, 2) if n],
    "a comparison's": lambda n: 1 if object().__eq__(n) else 2,
    "a method's": lambda n: 1 if (3).__add__("x") else 2,
}


def _outcome(program: Callable[..., Any], given: Any) -> tuple[Any, list[type[Warning]]]:
    with warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        try:
            result = program(given, torch.ones(2))[0]
        except TypeError as error:
            result = str(error)
    return result, [each.category for each in told if "NotImplemented" in str(each.message)]


@pytest.mark.parametrize("name", PROGRAMS)
def test_each_call_warns_as_in_eager(name: str) -> None:
    condition = PROGRAMS[name]

    def program(given: Any, x: torch.Tensor) -> Any:
        return condition(given), x + 1

    compiled = fxjit.compile(program, backend="eager")
    for given in (NotImplemented, NotImplemented, 1, NotImplemented):
        assert _outcome(compiled, given) == _outcome(program, given)
