"""Classes whose metaclass has a `__getattribute__` in Python: it is traced where something is read of them, and the trace
itself reads nothing of them, since that would run it."""

from __future__ import annotations

import enum
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit
from fxjit.testing import CompileCounter

X = torch.arange(3.0)
READ: list[str] = []


class _GivesValues(enum.EnumMeta):
    """Gives the value of a member that is read."""

    def __getattribute__(cls, name: str) -> Any:
        found = super().__getattribute__(name)
        return found.value if isinstance(found, enum.Enum) else found


class Kind(str, enum.Enum, metaclass=_GivesValues):
    CUBE = "cube"
    SIMPLEX = "simplex"


class Layer(torch.nn.Module):
    def __init__(self, kind: Any = Kind.CUBE) -> None:
        super().__init__()
        self.kind = kind

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.kind == Kind.CUBE:
            return x * 2
        if self.kind == Kind.SIMPLEX:
            return x * 3
        raise ValueError(self.kind)


@pytest.mark.parametrize("kind", [Kind.CUBE, Kind.SIMPLEX, "simplex"])
def test_an_enumeration_that_gives_its_members_values(kind: Any) -> None:
    assert_same_as_eager(Layer(kind), X, graphs=1)


def test_a_member_of_such_an_enumeration() -> None:
    (cube, _) = Kind
    assert isinstance(cube, Kind)
    assert_same_as_eager(lambda x: (x + 1, cube.value, cube.name, cube == "cube", isinstance(cube, enum.Enum)), X, graphs=1)


class _Notes(type):
    """Notes what is read of its classes."""

    scale = 5

    def __getattribute__(cls, name: str) -> Any:
        READ.append(name)
        return super().__getattribute__(name)

    def __getattr__(cls, name: str) -> Any:
        return f"no {name}"

    @property
    def doubled(cls) -> Any:
        return cls.factor * 2

    def times(cls, number: float) -> Any:
        return cls.factor * number


class Base:
    inherited = 7.0


class Noted(Base, metaclass=_Notes):
    factor = 3.0

    @staticmethod
    def shifted(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    @classmethod
    def scaled(cls, x: torch.Tensor) -> torch.Tensor:
        return x * cls.factor

    def method(self, x: torch.Tensor) -> torch.Tensor:
        return x - self.factor  # type: ignore[no-any-return]  # what the metaclass gives has no type


USES: list[Callable[[torch.Tensor], Any]] = [
    lambda x: x * Noted.factor,
    lambda x: x * Noted.inherited,
    lambda x: Noted.shifted(x),
    lambda x: Noted.scaled(x),
    lambda x: x * Noted.doubled,
    lambda x: x * Noted.times(2.0),
    lambda x: x * Noted.scale,
    lambda x: (x + 1, Noted.missing),  # type: ignore[attr-defined]  # the metaclass has a `__getattr__`
    lambda x: (x + 1, getattr(Noted, "absent", None), hasattr(Noted, "factor")),
    lambda x: x * type.__getattribute__(Noted, "factor"),
    lambda x: (x + 1, Noted is Noted, [Noted][0] is Noted),
]


@pytest.mark.parametrize("use", USES)
def test_what_is_read_is_captured_and_is_read_no_oftener_than_in_eager(use: Callable[[torch.Tensor], Any]) -> None:
    READ.clear()
    wanted = use(X)
    read = READ.copy()
    fxjit.reset()
    compiled = fxjit.compile(use, backend="eager", fullgraph=True)
    for _ in range(2):
        READ.clear()
        assert str(compiled(X)) == str(wanted)
        assert READ == read


def test_an_attribute_that_changes_is_read_anew() -> None:
    fxjit.reset()
    counter = CompileCounter()
    compiled = fxjit.compile(lambda x: x * Noted.factor, backend=counter, fullgraph=True)
    kept = type.__getattribute__(Noted, "factor")
    try:
        for factor in (3.0, 4.0, 4.0, 5.0):
            Noted.factor = factor
            assert torch.equal(compiled(X), X * factor)
    finally:
        Noted.factor = kept
    assert counter.frame_count > 1


def test_a_metaclass_whose_answer_changes_is_asked_anew() -> None:
    class Meta(type):
        def __getattribute__(cls, name: str) -> Any:
            return type.__getattribute__(cls, name)

    class Changes(metaclass=Meta):
        a = 1.0

    def program(x: torch.Tensor) -> torch.Tensor:
        return x + Changes.a

    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager")
    assert torch.equal(compiled(X), program(X))
    Meta.__getattribute__ = lambda cls, name: 9.0  # type: ignore[method-assign,assignment]  # what is tested
    assert torch.equal(compiled(X), X + 9.0)
    del Meta.__getattribute__
    assert torch.equal(compiled(X), X + 1.0)


def test_one_that_looks_as_objects_do_breaks_the_graph() -> None:
    """Behind `type` in the order of look-up is `object`, which looks for what the metaclass has, not the class."""

    class Meta(type):
        b = 2.0

        def __getattribute__(cls, name: str) -> Any:
            return super(type, cls).__getattribute__(name)

    class Looks(metaclass=Meta):
        b = 5.0

    assert_same_as_eager(lambda x: x + Looks.b, X, fullgraph=False)
