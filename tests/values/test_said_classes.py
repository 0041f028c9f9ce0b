"""`isinstance` of objects that give another `__class__` than their type: proxies, stand-ins of tests, and those that refuse."""

from __future__ import annotations

import abc
import collections
import types
import unittest.mock
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


class Real:
    pass


class Abstract(abc.ABC):
    pass


Abstract.register(Real)
LIVING = Real()


class Proxy:
    """What it stands for is asked for everything, as wrapt's proxies and Django's lazy objects do."""

    def __init__(self, real: Any) -> None:
        object.__setattr__(self, "real", real)

    def __getattribute__(self, name: str) -> Any:
        real = object.__getattribute__(self, "real")
        return real.__class__ if name == "__class__" else object.__getattribute__(self, name)


class Property:
    @property
    def __class__(self) -> type:
        return Real


class Attribute:
    __class__ = Real


class Refusing:
    error: type[Exception] = AttributeError

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":
            raise object.__getattribute__(self, "error")(name)
        return object.__getattribute__(self, name)


class Failing(Refusing):
    error = ValueError


class NoClass:
    def __getattribute__(self, name: str) -> Any:
        return 5 if name == "__class__" else object.__getattribute__(self, name)


MAKERS: dict[str, Callable[[], Any]] = {
    "a proxy": lambda: Proxy(LIVING), "a proxy of a number": lambda: Proxy(1), "a property": Property,
    "an attribute": Attribute,
    "refuses": Refusing, "fails": Failing, "a number": NoClass, "a weak proxy": lambda: weakref.proxy(LIVING),
    "a mock": lambda: unittest.mock.Mock(spec=Real), "a class": lambda: Real, "a module": lambda: types.ModuleType("m"),
    "a list": list, "an ordered dict": collections.OrderedDict, "a tensor": lambda: torch.ones(1),
}
CLASSES = {"Real": Real, "Abstract": Abstract, "int": int, "Proxy": Proxy, "a tuple": (int, Real), "a union": int | Real}


@pytest.mark.parametrize("cls", CLASSES.values(), ids=CLASSES)
@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_isinstance_asks_what_eager_asks(make: Callable[[], Any], cls: Any) -> None:
    made = make()

    def answer(x: torch.Tensor) -> Any:
        return x + 1, isinstance(made, cls)

    def decides(x: torch.Tensor) -> Any:
        return x * 2 if isinstance(made, cls) else x * 3

    for fn in (answer, decides):
        assert_same_as_eager(fn, torch.ones(2), fullgraph=False)


def test_the_class_of_a_weak_proxy_is_that_of_what_it_stands_for() -> None:
    proxy = weakref.proxy(LIVING)

    def fn(x: torch.Tensor) -> torch.Tensor:
        return x + (proxy.__class__ is Real) + 2 * (type(proxy) is weakref.ProxyType)

    assert_same_as_eager(fn, torch.ones(2), fullgraph=False)


def test_a_reading_that_a_class_gets_later_is_asked() -> None:
    class Late:
        pass

    def fn(x: torch.Tensor, obj: Late) -> torch.Tensor:
        return x + isinstance(obj, Real)

    def calls(run: Callable[..., torch.Tensor]) -> list[torch.Tensor]:
        found = [run(torch.zeros(2), Late())]
        Late.__getattribute__ = Proxy.__getattribute__  # type: ignore[method-assign]
        late = Late()
        object.__setattr__(late, "real", LIVING)
        found.append(run(torch.zeros(2), late))
        del Late.__getattribute__
        return found

    assert [float(y[0]) for y in calls(fn)] == [float(y[0]) for y in calls(fxjit.compile(fn, backend="eager"))] == [0, 1]
