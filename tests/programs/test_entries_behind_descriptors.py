"""Entries of an instance's dict that a property or another data descriptor of its class stands in front of: caches, validated
fields, cached properties of other libraries. Reading and writing them by `__dict__` goes past the descriptor."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

X = torch.randn(3)


class Cached:
    """A property that keeps its value under its own name."""

    @property
    def doubled(self) -> Any:
        if "doubled" not in self.__dict__:
            self.__dict__["doubled"] = self.base * 2
        return self.__dict__["doubled"]

    @doubled.setter
    def doubled(self, value: Any) -> None:
        self.__dict__["doubled"] = value + 1

    @doubled.deleter
    def doubled(self) -> None:
        del self.__dict__["doubled"]

    def __init__(self, base: Any) -> None:
        self.base = base


class Positive:
    """A descriptor that checks what is written."""

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, obj: Any, owner: type | None = None) -> Any:
        return self if obj is None else obj.__dict__.get(self.name, 0)

    def __set__(self, obj: Any, value: Any) -> None:
        if value < 0:
            raise ValueError(f"{self.name} is negative")
        obj.__dict__[self.name] = value


class Checked:
    size = Positive()


class Delegating:
    """A descriptor that can be deleted only: it comes before the instance's dict, too."""

    class _Deletable:
        def __get__(self, obj: Any, owner: type | None = None) -> Any:
            return obj.__dict__.get("field", "nothing")

        def __delete__(self, obj: Any) -> None:
            obj.__dict__.pop("field")

    field = _Deletable()


class CachedModule(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    @property
    def last(self) -> Any:
        return self.__dict__.get("last")

    @last.setter
    def last(self, value: Any) -> None:
        self.__dict__["last"] = value

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before = self.last
        self.__dict__["last"] = x * 2
        return self.linear(x) if before is None else self.linear(x) + before


def read_twice(x: torch.Tensor, made: Any) -> Any:
    return made.doubled + x, made.doubled, dict(made.__dict__)


def write(x: torch.Tensor, made: Any) -> Any:
    made.doubled = x
    return made.doubled, made.__dict__["doubled"]


def remove(x: torch.Tensor, made: Any) -> Any:
    made.__dict__["doubled"] = x
    del made.doubled
    return x + 1, "doubled" in made.__dict__, made.doubled


def remove_one_that_was_there(x: torch.Tensor, made: Any) -> Any:
    made.__dict__.pop("doubled", None)
    return x + 1, sorted(made.__dict__)


def put_and_leave(x: torch.Tensor, made: Any) -> Any:
    made.__dict__["doubled"] = x + 1
    made.__dict__["other"] = x + 2
    return x * 2


@pytest.mark.parametrize("fn", [read_twice, write, remove, remove_one_that_was_there, put_and_leave])
@pytest.mark.parametrize("filled", [False, True], ids=["empty", "filled"])
def test_a_property_that_keeps_its_value(fn: Any, filled: bool) -> None:
    made = Cached(torch.ones(3))
    if filled:
        made.__dict__["doubled"] = torch.full((3,), 5.0)
    assert_same_as_eager(fn, X, made, fullgraph=True)


@pytest.mark.parametrize("fn", [read_twice, write, remove, put_and_leave])
def test_an_object_that_the_function_makes(fn: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        made = Cached(x)
        return fn(x, made), made, made.__dict__

    def shown(x: torch.Tensor) -> Any:
        result, made, entries = program(x)
        return result, type(made), dict(made.__dict__), entries is made.__dict__

    assert_same_as_eager(shown, X, fullgraph=True)

    def given_out(x: torch.Tensor) -> Any:
        return program(x)[1]

    import fxjit
    ours, theirs = fxjit.compile(given_out, backend="eager")(X), given_out(X)
    assert ours.__dict__.keys() == theirs.__dict__.keys()
    for name, value in theirs.__dict__.items():
        torch.testing.assert_close(ours.__dict__[name], value)


def test_a_descriptor_that_checks() -> None:
    def fn(x: torch.Tensor, checked: Any) -> Any:
        before = checked.size
        checked.size = x.shape[0]
        checked.__dict__["size"] -= 5  # past the check
        try:
            checked.size = -1
        except ValueError as error:
            return x + checked.size, before, str(error)
        return x

    assert_same_as_eager(fn, X, Checked(), fullgraph=True)


def test_a_descriptor_that_can_only_be_deleted() -> None:
    def fn(x: torch.Tensor, made: Any) -> Any:
        before = made.field
        made.__dict__["field"] = x
        after = made.field
        del made.field
        made.__dict__["field"] = 3
        return after + 1, before, made.field, made.__dict__

    assert_same_as_eager(fn, X, Delegating(), fullgraph=True)


def test_across_a_break() -> None:
    def fn(x: torch.Tensor, made: Any) -> Any:
        made.__dict__["doubled"] = x + 1
        torch._dynamo.graph_break()
        x = made.doubled * 2
        made.__dict__["doubled"] = x
        return x

    assert_same_as_eager(fn, X, Cached(torch.ones(3)), fullgraph=False)


def test_a_module_over_calls() -> None:
    import fxjit
    torch.manual_seed(0)
    ours, theirs = CachedModule(), CachedModule()
    theirs.load_state_dict(ours.state_dict())
    compiled = fxjit.compile(ours, backend="eager", fullgraph=True)
    for _ in range(3):
        torch.testing.assert_close(compiled(X), theirs(X))
        torch.testing.assert_close(ours.last, theirs.last)
