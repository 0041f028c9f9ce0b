"""`__getattr__` is asked wherever the lookup ends in AttributeError, whoever raised it: a slot, a property, a descriptor, a
`__getattribute__`; by `getattr` with a default and by `hasattr`, too."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit


class Raising:
    def __get__(self, instance: Any, owner: Any = None) -> Any:
        raise AttributeError("raised by a descriptor")


class RaisingData(Raising):
    def __set__(self, instance: Any, value: Any) -> None:
        pass


class Answering:
    def __getattr__(self, name: str) -> Any:
        return 7


class Slot(Answering):
    __slots__ = ("a",)


class OfProperty(Answering):
    @property
    def a(self) -> Any:
        raise AttributeError("raised by a property")


class OfPropertyInside(Answering):
    @property
    def a(self) -> Any:
        return object.__getattribute__(self, "missing")


class OfDescriptor(Answering):
    a = Raising()


class OfDataDescriptor(Answering):
    a = RaisingData()


class Cached(Answering):
    @functools.cached_property
    def a(self) -> Any:
        raise AttributeError("raised by a cached property")


class OwnLookup(Answering):
    def __getattribute__(self, name: str) -> Any:
        if name == "a":
            raise AttributeError("raised by the lookup")
        return object.__getattribute__(self, name)


class OfDict(Answering, dict):  # type: ignore[type-arg]
    __slots__ = ("a",)


class OtherError(Answering):
    @property
    def a(self) -> Any:
        raise KeyError("not for the hook")


class Refusing:
    @property
    def a(self) -> Any:
        raise AttributeError("raised by a property")

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"refused: {name}")


class Without:
    __slots__ = ("a",)


class Layer(torch.nn.Module):
    @property
    def a(self) -> Any:
        return self.missing


class AnsweringLayer(torch.nn.Module):
    @property
    def a(self) -> Any:
        raise AttributeError("raised by a property")

    def __getattr__(self, name: str) -> Any:
        return 8 if name == "a" else super().__getattr__(name)


KINDS = [Slot, OfProperty, OfPropertyInside, OfDescriptor, OfDataDescriptor, Cached, OwnLookup, OfDict, OtherError, Refusing,
         Without, Layer, AnsweringLayer]  # fmt: skip


def changed(x, make):
    instance = make()
    instance.a = 2
    before = instance.a
    del instance.a
    return x * before, getattr(instance, "a", 0)


PROGRAMS = [
    lambda x, make, instance: x * instance.a,
    lambda x, make, instance: x * getattr(instance, "a", 3),
    lambda x, make, instance: x * hasattr(instance, "a"),
    lambda x, make, instance: x * object.__getattribute__(instance, "a"),
    lambda x, make, instance: x * make().a,
    lambda x, make, instance: x * getattr(make(), "a", 5),
    lambda x, make, instance: changed(x, make),
]


def outcome(program: Callable[..., Any], kind: type) -> str:
    try:
        return str(program(torch.ones(1), kind, kind()))
    except Exception as error:
        return f"{type(error).__name__}: {error}"


@pytest.mark.parametrize("kind", KINDS)
def test_who_is_asked_for_a_missing_attribute(kind: type):
    fxjit.reset()
    for program in PROGRAMS:
        compiled = fxjit.compile(program, backend="eager")
        for _ in range(2):
            assert outcome(compiled, kind) == outcome(program, kind)
