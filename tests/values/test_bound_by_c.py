"""Functions of a class in a descriptor of C: bound as that binds them, not as a method."""

from __future__ import annotations

import abc
import functools
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

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


class Passing:
    """A descriptor that passes itself off as what it stands for, as wrapt's do."""

    def __init__(self, of: Any) -> None:
        self.of = of

    @property
    def __class__(self) -> Any:
        return type(self.of)

    def __get__(self, obj: Any, cls: Any = None) -> Any:
        return functools.partial(lambda fn, *args: (fn(*args), "passed on"), self.of.__get__(obj, cls))


@pytest.mark.parametrize("of", [staticmethod(lambda x: x + 1), classmethod(lambda cls, x: (x, cls.__name__)),
                                lambda self, x: x * 2], ids=["static", "of the class", "a method"])
def test_what_passes_itself_off_as_another_is_what_it_is(of: Any) -> None:
    class Holder:
        made = Passing(of)

    def program(x: torch.Tensor) -> Any:
        return x + 1, Holder().made(x)

    fxjit.reset()
    assert same(program(torch.ones(2)), fxjit.compile(program, backend="eager")(torch.ones(2)))


class Proxy:
    """Says that it has the attributes, and the class, of what it stands for."""

    own = 3

    def __init__(self, of: Any) -> None:
        object.__getattribute__(self, "__init__")
        type(self).slot.__set__(self, of)

    __slots__ = ("slot",)

    @property
    def __dict__(self) -> Any:
        return self.slot.__dict__

    @property
    def __class__(self) -> Any:
        return type(self.slot)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.slot, name), "asked"


@pytest.mark.parametrize("also", [False, True], ids=["alone", "beside what it stands for"])
def test_attributes_of_a_proxy_that_gives_anothers_dict(also: bool) -> None:
    layer = torch.nn.Linear(2, 2)
    proxy = Proxy(layer)

    def program(x: torch.Tensor) -> Any:
        seen = layer(x) if also else x + 1
        said = isinstance(proxy, torch.nn.Linear), type(proxy) is Proxy, "training" in vars(proxy)
        return seen, proxy.training, proxy.own, said

    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager")
    for layer.training in (True, False, True):
        assert same(program(torch.ones(2)), compiled(torch.ones(2)))


class ReadOfTheClass:
    """A property of a class, as torch and others write it: it binds a classmethod by hand."""

    def __init__(self, getter: Any) -> None:
        self.getter = getter if isinstance(getter, (classmethod, staticmethod)) else classmethod(getter)

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self.getter.__get__(instance, owner)()


class HasProperties:
    @ReadOfTheClass
    def title(cls) -> str:
        return cls.__name__.lower()

    @ReadOfTheClass
    @staticmethod
    def constant() -> int:
        return 3


class OfTitle(HasProperties):
    pass


def test_a_descriptor_binds_a_classmethod_itself() -> None:
    def program(x: torch.Tensor, instance: Any) -> Any:
        bare = classmethod(lambda cls, more: (cls, more))
        return (x * HasProperties.constant, HasProperties.title, OfTitle.title, instance.title, instance.constant,
                bare.__get__(instance)(1), bare.__get__(None, int)(2), staticmethod(len).__get__(instance)([1, 2]))

    assert_same_as_eager(program, torch.ones(2), OfTitle())
