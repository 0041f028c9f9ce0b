"""Functions of a class in a descriptor of C: bound as that binds them, not as a method."""

from __future__ import annotations

import abc
import functools
from typing import Any

import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter, same


class Static(staticmethod):
    """With the `__get__` of its base, as `abc.abstractstaticmethod`."""


class OfClass(classmethod):
    pass


class Telling(staticmethod):
    def __get__(self, obj: Any, cls: Any = None) -> Any:
        return functools.partial(self.__func__, obj is None)


class Model:
    @Static
    def twice(x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @OfClass
    def named(cls, x: torch.Tensor) -> Any:
        return x + 1, cls.__name__

    @Telling
    def told(through_class: bool, x: torch.Tensor) -> Any:
        return x * 3, through_class

    @functools.lru_cache  # noqa: B019
    def cached(self, n: int) -> int:
        return n + 1


class Derived(Model, abc.ABC):
    @Static
    def twice(x: torch.Tensor) -> torch.Tensor:
        return Model.twice(x) + 1

    @OfClass
    def named(cls, x: torch.Tensor) -> Any:
        return super().named(x), super(Derived, cls).twice(x)


@pytest.mark.parametrize("given", [Model(), Derived(), Derived], ids=["an instance", "of a subclass", "a class"])
def test_subclasses_of_staticmethod_and_classmethod_bind_as_their_bases(given: Any) -> None:
    def program(x: torch.Tensor) -> Any:
        return given.twice(x), given.named(x)

    fxjit.reset()
    counter = CompileCounter()
    assert same(program(torch.ones(2)), fxjit.compile(program, backend=counter, fullgraph=True)(torch.ones(2)))
    assert counter.frame_count == 1


@pytest.mark.parametrize("name", ["told", "cached"])
@pytest.mark.parametrize("given", [Model(), Derived()], ids=["an instance", "of a subclass"])
def test_others_bind_as_they_please(given: Any, name: str) -> None:
    def program(x: torch.Tensor) -> Any:
        return (x + 1, given.cached(2)) if name == "cached" else (given.told(x), type(given).told(x))

    fxjit.reset()
    assert same(program(torch.ones(2)), fxjit.compile(program, backend="eager")(torch.ones(2)))
