"""The object model, where CPython's own tests found traced code to differ: lifetimes, descriptors, subclasses, exceptions."""

from __future__ import annotations

import itertools
import weakref
from typing import Any, ClassVar, Generic, TypeVar

import torch
from tests.differential import assert_same_as_eager

import fxjit

X = torch.ones(2)
T = TypeVar("T")


@fxjit.disable
def show(*objects: Any) -> Any:
    """What eager code sees of what a break hands over."""
    return [type(each).__name__ for each in objects]


@fxjit.disable
def refer(obj: Any) -> Any:
    return weakref.ref(obj)


@fxjit.disable
def make(cls: type) -> Any:
    return cls()


class Plain:
    pass


def test_what_came_into_a_frame_lives_as_long_as_it_does() -> None:
    def fn(x: torch.Tensor) -> Any:
        held = make(Plain)
        ref = refer(held)
        show(x)
        alive = ref() is not None
        held = None
        show(x)
        return x + 1, alive, ref() is not None

    assert assert_same_as_eager(fn, X, fullgraph=False)[1:] == (True, False)


class Stored:
    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __set__(self, obj: Any, value: Any) -> None:
        obj.__dict__[self.name] = value + 1


class HasStored:
    value = Stored()


def test_a_descriptor_with_set_alone() -> None:
    def fn(x: torch.Tensor) -> Any:
        one = HasStored()
        one.value = 1
        return x + one.value, one.value

    assert_same_as_eager(fn, X, fullgraph=False)


class First:
    def __new__(cls, *args: Any) -> Any:
        return super().__new__(cls)


class Second(First):
    def __new__(cls, n: int) -> Any:
        made = super().__new__(cls, n)
        made.n = n
        return made


def test_new_through_super() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x + Second(3).n

    assert_same_as_eager(fn, X)


class Doubling(list):  # type: ignore[type-arg]
    def __getitem__(self, index: Any) -> Any:
        return list.__getitem__(self, index) * 2


class Backwards(list):  # type: ignore[type-arg]
    def __iter__(self) -> Any:
        return iter(self[::-1])


class Keys(dict):  # type: ignore[type-arg]
    __setattr__ = dict.__setitem__  # type: ignore[assignment]


def test_subclasses_that_redefine_how_items_are_read_and_written() -> None:
    def read(x: torch.Tensor, items: Any) -> Any:
        return x + items[0], items[1], list(items), len(items)

    def write(x: torch.Tensor) -> Any:
        made = Keys()
        made.y = 42
        return x + 1, made["y"]

    assert_same_as_eager(read, X, Doubling([1, 2]))
    assert_same_as_eager(read, X, Backwards([1, 2]))
    assert_same_as_eager(write, X, fullgraph=False)


class Box(Generic[T]):
    def __init__(self, item: T) -> None:
        self.item = item


def test_generic_classes_note_their_parameters() -> None:
    def fn(x: torch.Tensor) -> Any:
        made = Box[int](2)
        return x + made.item, made.__orig_class__  # type: ignore[attr-defined]

    assert_same_as_eager(fn, X)


def test_iterators_are_of_their_own_kind() -> None:
    def fn(x: torch.Tensor) -> Any:
        pairs = itertools.combinations([1, 2, 3], 2)
        first = next(pairs)
        taking = itertools.takewhile(bool, [1, 0])
        return x + 1, first, show(pairs, taking, itertools.product([1], [2])), list(pairs), list(taking)

    assert_same_as_eager(fn, X, fullgraph=False)


def test_a_comparison_that_changes_what_it_compares() -> None:
    class Clears:
        def __init__(self, items: list[Any]) -> None:
            self.items = items

        def __eq__(self, other: object) -> Any:
            self.items.clear()
            return NotImplemented

    def fn(x: torch.Tensor) -> Any:
        left: list[Any] = []
        right: list[Any] = []
        left.append(Clears(right))
        right.append(Clears(left))
        return x + 1, left == right

    assert_same_as_eager(fn, X)


def test_exceptions_as_objects() -> None:
    def fn(x: torch.Tensor) -> Any:
        error = ValueError("a")
        error.__cause__ = None
        group = ExceptionGroup("some", [ValueError(1), TypeError(2)])
        show(error)
        return x + 1, error.__suppress_context__, str(group), str(ExceptionGroup("one", [ValueError(1)]))

    def refused(x: torch.Tensor) -> Any:
        ValueError().__cause__ = 3  # type: ignore[assignment]
        return x

    assert_same_as_eager(fn, X, fullgraph=False)
    assert_same_as_eager(refused, X, fullgraph=False)


def test_names_of_generators() -> None:
    def fn(x: torch.Tensor) -> Any:
        def body() -> Any:
            yield 1

        body.__name__ = "other"
        made = body()
        return x + next(made), made.__name__

    assert_same_as_eager(fn, X)


def test_lists_too_long_to_be_made_while_tracing() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x + 1, len([0] * (1 << 60))

    assert_same_as_eager(fn, X, fullgraph=False)


def test_what_close_gives() -> None:
    def fn(x: torch.Tensor) -> Any:
        def body() -> Any:
            try:
                yield 1
            except GeneratorExit:
                return "closed"

        made = body()
        return x + next(made), made.close(), made.close()

    assert_same_as_eager(fn, X)


def test_origins_of_generic_aliases() -> None:
    def fn(x: torch.Tensor, alias: Any) -> Any:
        return x + 1, alias.__origin__ is ClassVar, type(alias) is type(ClassVar[int]), alias is ClassVar

    assert_same_as_eager(fn, X, ClassVar[int])


def test_classmethods_around_properties() -> None:
    """They are properties of the class up to Python 3.12."""

    class Base:
        scale = 2.0

        @classmethod
        @property
        def doubled(cls) -> Any:
            return cls.scale * 2

    class Derived(Base):
        scale = 3.0

    def fn(x: torch.Tensor) -> Any:
        return [x * made.doubled for made in (Base, Derived, Base(), Derived())]

    if Derived.doubled == 6.0:  # type: ignore[comparison-overlap]  # up to the Python
        assert_same_as_eager(fn, X)
    else:
        assert_same_as_eager(lambda x: (x + 1, outcome_of(fn, x)), X, fullgraph=False)


def outcome_of(fn: Any, x: torch.Tensor) -> Any:
    try:
        return fn(x)
    except TypeError as error:
        return type(error)
