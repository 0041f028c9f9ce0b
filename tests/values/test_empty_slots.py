"""Slots that are empty: a look-up fails as in eager, and an entry holds as long as they are."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxjit


class Slotted:
    __slots__ = ("a", "b")


class Derived(Slotted):
    __slots__ = ("c",)


class WithAnswers:
    __slots__ = ("a",)

    def __getattr__(self, name: str) -> int:
        return 4


def reads(obj: Any, x: torch.Tensor) -> Any:
    try:
        return x + obj.a
    except AttributeError as error:
        return x - 1, str(error)


def fills(obj: Any, x: torch.Tensor) -> Any:
    try:
        value = obj.a
    except AttributeError:
        value = obj.a = 3
    return x * value


def asks(obj: Any, x: torch.Tensor) -> Any:
    return x + hasattr(obj, "a") + getattr(obj, "b", 5)


def deletes(obj: Any, x: torch.Tensor) -> Any:
    try:
        del obj.a
    except AttributeError as error:
        return x, str(error)
    return x + 1


@pytest.mark.parametrize("cls", [Slotted, Derived, WithAnswers])
@pytest.mark.parametrize("fn", [reads, fills, asks, deletes])
def test_an_empty_slot(fn: Any, cls: Any) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(fn, backend="eager")
    objects = cls(), cls()
    x = torch.ones(2)
    for step in range(7):
        if step == 3:
            for obj in objects:
                obj.a = 9
        if step == 5:
            for obj in objects:
                if "a" in dir(obj) and _slot(obj, "a") is not None:
                    del obj.a
        expected, actual = fn(objects[0], x), compiled(objects[1], x)
        assert str(expected) == str(actual)
        assert [_slot(objects[0], name) for name in "ab"] == [_slot(objects[1], name) for name in "ab"]
    assert cls is WithAnswers or not fxjit.counters["graph_break"]


def _slot(obj: Any, name: str) -> Any:
    for cls in type(obj).__mro__:
        if name in getattr(cls, "__slots__", ()):
            try:
                return cls.__dict__[name].__get__(obj, type(obj))
            except AttributeError:
                return None
    return None
