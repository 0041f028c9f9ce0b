"""What the class of an object decides where the object says another one, where its class is registered, or blocks a method:
protocols of typing, namespaces, dicts of the program's own, `super()` of proxies."""

from __future__ import annotations

import collections.abc
import types
import typing
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit


@typing.runtime_checkable
class HasMethod(typing.Protocol):
    def method(self) -> None: ...


@typing.runtime_checkable
class HasNumber(typing.Protocol):
    number: int


class With:
    number = 1

    def method(self) -> None: ...


class Blocks(With):
    method = None
    number = None


class BlocksByInstance:
    def __init__(self) -> None:
        self.method = self.number = None


class Registered: ...


HasMethod.register(Registered)
HasNumber.register(Registered)


class SaysNamespace(str):
    __class__ = types.SimpleNamespace


class Ordered(dict):
    """As collections.OrderedDict is written in Python."""

    def __eq__(self, other: object) -> bool:
        return dict.__eq__(self, other) and (not isinstance(other, Ordered) or list(self) == list(other))

    __ne__ = collections.abc.Mapping.__ne__
    __hash__ = None


class Base:
    def name(self) -> str:
        return "of the base"


class Derived(Base):
    def name(self) -> str:
        return super(Derived, self).name() + ", derived"  # noqa: UP008  # a proxy has no cell


class Proxy:
    def __init__(self, behind: object) -> None:
        self.__behind = behind

    def __getattribute__(self, name: str) -> Any:
        if name.startswith("_Proxy__"):
            return object.__getattribute__(self, name)
        return getattr(self.__behind, name)


MADE: dict[str, Callable[[], Any]] = {
    "with": With, "blocks": Blocks, "blocks by instance": BlocksByInstance, "registered": Registered, "other": Base,
    "says namespace": lambda: SaysNamespace("x"), "namespace": types.SimpleNamespace,
    "ordered": lambda: Ordered(a=1, b=2), "proxy": lambda: Proxy(Derived()),
}  # fmt: skip


def is_of_protocol(x: torch.Tensor, made: Any) -> Any:
    return x + 1, isinstance(made, HasMethod), isinstance(made, HasNumber)


def compares(x: torch.Tensor, made: Any) -> Any:
    other = types.SimpleNamespace()
    return x + 1, made == other, other == made, made != other, other != made


def compares_in_another_order(x: torch.Tensor, made: Any) -> Any:
    turned, same = Ordered(b=2, a=1), Ordered(a=1, b=2)
    return x + 1, made == turned, made != turned, turned != made, made == same, made != same, made != {"b": 2, "a": 1}


def calls_super_of_a_proxy(x: torch.Tensor, made: Any) -> Any:
    return x + 1, Derived.__dict__["name"](made)


def story(fn: Callable[..., Any], made: Any) -> Any:
    try:
        x, *others = fn(torch.ones(2), made)
        return x.tolist(), others
    except (TypeError, AttributeError) as error:
        return type(error), str(error)


@pytest.mark.parametrize("made", MADE)
@pytest.mark.parametrize("fn", [is_of_protocol, compares, compares_in_another_order, calls_super_of_a_proxy])
def test_as_in_eager(fn: Callable[..., Any], made: str) -> None:
    compiled = fxjit.compile(fn, backend="eager")
    for _ in range(2):
        given = MADE[made]()
        assert story(compiled, given) == story(fn, given)


def test_a_class_that_is_registered_later() -> None:
    class Later: ...

    compiled = fxjit.compile(is_of_protocol, backend="eager")
    assert story(compiled, Later()) == story(is_of_protocol, Later())
    HasMethod.register(Later)
    assert story(compiled, Later())[1] == [True, False]
