"""A resume function that is given a value which cannot be looked at while tracing runs as it stands: one more resume function
would be given the same."""

from __future__ import annotations

import faulthandler
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from tests.differential import assert_same

import fxjit
from fxjit.counters import counters


class Meta(type):
    """Classes that are equal to none, and have one hash."""

    def __eq__(cls, other: object) -> bool:
        return False

    def __hash__(cls) -> int:
        return 7


A, B = Meta("A", (), {}), Meta("B", (), {})


@pytest.fixture(autouse=True)
def ends() -> Iterator[None]:
    """The compile that never ends, if it is back, ends the run with its place."""
    faulthandler.dump_traceback_later(300, exit=True)
    yield
    faulthandler.cancel_dump_traceback_later()


def in_a_set(x: torch.Tensor, *classes: type) -> tuple[Any, ...]:
    return len({*classes}), x + 1


def a_set_of_two(x: torch.Tensor, a: type, b: type) -> tuple[Any, ...]:
    return len({a, b}), x.sin() + 1


def keys_of_a_dict(x: torch.Tensor, a: type, b: type) -> tuple[Any, ...]:
    y = x * 2
    return sorted({a: 1, b: 2}.values()), y + 1


def after_a_break(x: torch.Tensor, a: type, b: type) -> tuple[Any, ...]:
    found = {a, b}
    print(end="")
    return len(found), a in found, x.cos()


def handed_on(x: torch.Tensor, a: type, b: type) -> tuple[Any, ...]:
    def inner(found: set[type]) -> int:
        return len(found) + 1

    return inner({a, b}) + inner({b}), x * 3


@pytest.mark.parametrize("function", [in_a_set, a_set_of_two, keys_of_a_dict, after_a_break, handed_on])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_set_whose_elements_have_a_hash_of_the_programs(function: Callable[..., Any], backend: str) -> None:
    x = torch.linspace(-1, 1, 5)
    compiled = fxjit.compile(function, backend=backend)
    before = counters["frames"]["total"]
    for _ in range(3):
        assert_same(compiled(x, A, B), function(x, A, B), rtol=1e-6)
    assert counters["frames"]["total"] - before < 30
