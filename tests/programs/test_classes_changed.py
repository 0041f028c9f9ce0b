"""Classes that change between calls or within one, and look-ups that must not run the program's own code."""

from __future__ import annotations

import types
from typing import Any

import torch
from tests.differential import assert_same_as_eager

import fxjit


def test_a_method_overridden_in_a_subclass_after_compiling_is_called() -> None:
    class Base:
        factor = 2

        def scale(self) -> int:
            return 3

    class Derived(Base):
        pass

    def run(x: torch.Tensor, obj: Derived) -> torch.Tensor:
        return x * obj.scale() + obj.factor

    compiled, x, obj = fxjit.compile(run, backend="eager", fullgraph=True), torch.ones(2), Derived()
    assert torch.equal(compiled(x, obj), run(x, obj))
    Derived.scale = lambda self: 5  # type: ignore[method-assign]
    assert torch.equal(compiled(x, obj), run(x, obj))
    Derived.factor = 7
    assert torch.equal(compiled(x, obj), run(x, obj))


def test_bases_and_name_of_a_class_are_read_each_time() -> None:
    class A:
        pass

    class B:
        pass

    class C(A):
        pass

    def run(x: torch.Tensor, cls: type) -> tuple[torch.Tensor, tuple[type, ...], str]:
        return x + len(cls.__name__), cls.__bases__, cls.__qualname__

    compiled, x = fxjit.compile(run, backend="eager", fullgraph=True), torch.ones(2)
    for change in (lambda: None, lambda: setattr(C, "__bases__", (B,)), lambda: setattr(C, "__name__", "Longer")):
        change()
        got, expected = compiled(x, C), run(x, C)
        assert torch.equal(got[0], expected[0]) and got[1:] == expected[1:]


def test_a_hash_is_the_one_that_the_class_had_then() -> None:
    class A:
        pass

    def run(x: torch.Tensor) -> tuple[torch.Tensor, bool, int]:
        a = A()
        before = hash(a)
        A.__hash__ = lambda self: 42  # type: ignore[method-assign]
        after = hash(a)
        del A.__hash__
        return x + 1, before == object.__hash__(a), after

    got, expected = fxjit.compile(run, backend="eager")(torch.ones(1)), run(torch.ones(1))
    assert got[1:] == expected[1:] == (True, 42)


def test_attribute_hooks_are_asked_for_nothing_but_what_the_program_asks() -> None:
    asked: list[str] = []

    class Watched:
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return object.__getattribute__(self, name)

    class WatchedModule(types.ModuleType):
        def __getattribute__(self, name: str) -> Any:
            asked.append(name)
            return types.ModuleType.__getattribute__(self, name)

    def run(x: torch.Tensor, first: Any, second: Any) -> Any:
        first.a = 2
        second.b = 3
        return x * first.a + second.b

    run(torch.ones(1), Watched(), WatchedModule("m"))
    expected, asked[:] = list(asked), []
    fxjit.compile(run, backend="eager")(torch.ones(1), Watched(), WatchedModule("m"))
    assert asked == expected


class Shown(str):
    def __str__(self) -> str:
        return "shown"


class Counted(int):
    def __int__(self) -> int:
        return 100


class Shouted(str):
    pass


def test_a_str_or_int_of_a_subclass_is_what_it_is_not_what_it_says() -> None:
    def run(x: torch.Tensor, text: Shown, number: Counted, plain: Shouted) -> tuple[torch.Tensor, str, str, str, int, int]:
        return x + number, text.upper(), str(text), str(plain), number + 1, int(number)

    assert_same_as_eager(run, torch.ones(1), Shown("kept"), Counted(4), Shouted("loud"), fullgraph=False)


def test_a_class_assigned_to_an_object_is_its_class_from_then_on() -> None:
    class Extended(types.ModuleType):
        added = 1

    def run(x: torch.Tensor) -> tuple[torch.Tensor, bool, bool, bool]:
        module = types.ModuleType("m")
        module.__class__ = Extended
        there = hasattr(module, "added")
        module.__class__ = types.ModuleType
        return x + 1, there, hasattr(module, "added"), type(module) is types.ModuleType

    assert fxjit.compile(run, backend="eager")(torch.ones(1))[1:] == run(torch.ones(1))[1:] == (True, False, True)


def test_a_metaclass_that_computes_its_order_sees_its_own_writes() -> None:
    class Once(type):
        runs = 0

        def mro(cls) -> list[type]:
            if cls.runs > 0:
                raise RuntimeError("again")
            cls.runs += 1
            return type.mro(cls)

    def run(x: torch.Tensor) -> tuple[torch.Tensor, str]:
        class Base:
            pass

        class Other:
            pass

        class Middle(Base):
            pass

        class Derived(Middle, metaclass=Once):
            pass

        try:
            Middle.__bases__ = (Other,)
        except RuntimeError as error:
            return x + 1, f"{error} {Derived.runs}"
        return x + 1, f"not raised {Derived.runs}"

    assert fxjit.compile(run, backend="eager")(torch.ones(1))[1] == run(torch.ones(1))[1] == "again 1"


def test_frozensets_have_no_methods_that_change_them() -> None:
    def run(x: torch.Tensor, word: str) -> tuple[torch.Tensor, bool, frozenset[str], bool]:
        letters = frozenset(word)
        letters.__init__("other")  # type: ignore[misc]
        return x + len(letters), hasattr(letters, "add"), letters, hasattr(set(letters), "add")

    assert_same_as_eager(run, torch.ones(1), "word")


def test_sets_are_iterated_over_in_the_same_order() -> None:
    def run(x: torch.Tensor, word: str) -> tuple[torch.Tensor, list[str], set[str], list[int], list[str]]:
        letters = set(word)
        numbers = {8, 0, 16, 7, 15, 24, 1}
        numbers.discard(8)
        numbers.add(8)
        return x + len(letters), list(letters), letters, list(numbers), list(frozenset(dict.fromkeys(word)))

    compiled = fxjit.compile(run, backend="eager", fullgraph=True)
    for word in ("gallahad", "simsalabim", "abracadabra", "the quick brown fox jumps over"):
        got, expected = compiled(torch.ones(1), word), run(torch.ones(1), word)
        assert got[1] == expected[1] and list(got[2]) == list(expected[2]) and got[3:] == expected[3:]


def test_a_tuple_inside_what_it_holds_is_one_tuple() -> None:
    def run(x: torch.Tensor) -> tuple[torch.Tensor, list[Any]]:
        items: list[Any] = []
        items.append((x, items))
        return x + 1, items

    items = fxjit.compile(run, backend="eager", fullgraph=True)(torch.ones(1))[1]
    assert items[0][1] is items and len(items) == 1
