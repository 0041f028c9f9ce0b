"""Classes that `type(name, bases, namespace)` makes: another one in each call."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxjit


def returned(x: torch.Tensor) -> Any:
    made = type("Made", (), {"k": 2})
    return x * made.k, made


def an_instance(x: torch.Tensor) -> Any:
    made = type("Made", (), {"k": 2})()
    return x * made.k, type(made)  # type: ignore[attr-defined]


def renamed(x: torch.Tensor) -> Any:
    made = type("Made", (), {"__qualname__": "A.B", "__doc__": "first", "__module__": "m"})
    said = made.__qualname__, made.__doc__, made.__module__
    made.__qualname__, made.__doc__, made.__module__ = "C.D", "second", "n"
    return x + 1, made, said, made.__qualname__, made.__doc__, made.__module__


def kept(x: torch.Tensor, found: list[type]) -> Any:
    found.append(type("Made", (Exception,), {}))
    return x + len(found), found[-1]


@pytest.mark.parametrize("program", [returned, an_instance, renamed, kept])
def test_each_call_makes_a_class_of_its_own(program: Any) -> None:
    compiled = fxjit.compile(program, backend="eager")
    more = ([],) if program is kept else ()
    results = [compiled(torch.ones(2), *more) for _ in range(3)]
    expected = [program(torch.ones(2), *([],) * len(more)) for _ in range(3)]
    assert len({result[1] for result in results}) == 3
    assert [result[2:] for result in results] == [result[2:] for result in expected]


@pytest.mark.parametrize("numbers", [
    range(0), range(5), range(-3, 10, 3), range(10, -3, -3), range(3, 40, 4), range(2**62), range(0, 10**30, 3),
    range(10**30, 10**31), range(-10**20, 10**20)
], ids=str)
@pytest.mark.parametrize("dynamic", [None, True])
def test_a_number_that_varies_is_looked_up_in_a_range_without_going_through_it(numbers: range, dynamic: bool | None) -> None:
    def program(n: int, x: torch.Tensor) -> Any:
        return n in numbers, n not in numbers, x + 1

    compiled = fxjit.compile(program, backend="eager", dynamic=dynamic)
    for n in (3, 4, 5, 7, 0, -3, 9, 10, 1000, 2**40, True):
        assert compiled(n, torch.ones(1))[:2] == program(n, torch.ones(1))[:2]
