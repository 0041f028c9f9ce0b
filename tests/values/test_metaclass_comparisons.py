"""Classes that compare, or are hashed, as a metaclass of the program's says: its code runs at each call, also where Python
compares what containers hold, and what it raises arrives."""

from __future__ import annotations

import bisect
import heapq
import re
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


class Ordered(type):
    """Ordered by name, or the other way round."""

    turned = False

    def __lt__(cls, other: type) -> bool:
        return (cls.__name__ < other.__name__) != Ordered.turned

    def __gt__(cls, other: Any) -> bool:
        return bool(other < cls)

    def __eq__(cls, other: object) -> bool:
        return cls is other

    def __hash__(cls) -> int:
        return id(cls) >> 4


class Unhashable(type):
    def __hash__(cls) -> int:
        raise RuntimeError("no hash")

    def __eq__(cls, other: object) -> bool:
        return cls is other


A, B, C = Ordered("A", (), {}), Ordered("B", (), {}), Ordered("C", (), {})
R = Unhashable("R", (), {"three": lambda self: 3})
S: Any = Unhashable("S", (R,), {})


def names(classes: Any) -> list[str]:
    return [each.__name__ for each in classes]


def sort_of_list() -> Any:
    found = [B, C, A]
    found.sort()
    return names(found)


def heap() -> Any:
    found = [B, C, A]
    heapq.heapify(found)
    return names(found)


COMPARISONS: dict[str, Callable[[], Any]] = {
    "sorted": lambda: names(sorted([B, C, A])),
    "reverse": lambda: names(sorted([B, C, A], reverse=True)),
    "key": lambda: names(sorted([B, C, A], key=lambda each: each)),
    "sort": sort_of_list,
    "pairs": lambda: sorted([(1, B), (1, A)])[0][1].__name__,
    "nested": lambda: ((1, (A, B)) < (1, (B, A)), (A,) == (A,), (A, B) > (B, A)),
    "extremes": lambda: (max(A, B, C).__name__, min([A, B, C]).__name__, max([(A, 1), (B, 0)])[1]),
    "bisect": lambda: bisect.bisect([A, B], C),
    "heap": heap,
}


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("name", COMPARISONS)
def test_each_call_compares(name: str, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function = COMPARISONS[name]

    def fn(x: torch.Tensor) -> tuple[Any, torch.Tensor]:
        return function(), x + 1

    compiled = fxjit.compile(fn, backend=backend)
    for turned in (False, True, False):
        monkeypatch.setattr(Ordered, "turned", turned)
        assert compiled(torch.ones(2))[0] == function(), turned


def key_of_a_dict() -> Any:
    try:
        return {R: 1}
    except RuntimeError as error:
        return str(error)


def element_of_a_set() -> Any:
    try:
        return {1, S}
    except RuntimeError as error:
        return str(error)


UNHASHABLE: dict[str, Callable[[], Any]] = {
    "call": lambda: (R() is None, type(R()) is R, S().three()),
    "super": lambda: super(S, S()).three(),
    "attributes": lambda: (isinstance(S(), (R, int)), issubclass(S, R), S.__mro__[1] is R, R.__name__),
    "places": lambda: (R in (S, R), [R, S].index(S), (R, S).count(R)),
    "key": key_of_a_dict,
    "element": element_of_a_set,
}


@pytest.mark.parametrize("name", UNHASHABLE)
def test_a_class_without_a_hash(name: str) -> None:
    function = UNHASHABLE[name]
    compiled = fxjit.compile(lambda x: (function(), x + 1), backend="eager")
    for _ in range(2):
        assert compiled(torch.ones(2))[0] == function()


def test_variables_are_tensors():
    """`torch.autograd.Variable` is no base class of anything; programs of years ago ask for it."""
    from torch.autograd import Variable

    def program(x: torch.Tensor) -> Any:
        return (x + 1, isinstance(x, Variable), isinstance(1, Variable), isinstance(torch.nn.Parameter(x), Variable),
                isinstance(x, (int, Variable)), isinstance(Variable(x), Variable))

    assert_same_as_eager(program, torch.ones(2))


def test_torchs_public_metaclasses_with_instances_of_their_own_are_known():
    """Each has a rule in core.py; a new one is to be looked at."""
    def below(cls: type) -> Any:
        for each in type.__subclasses__(cls):
            yield each
            yield from below(each)

    found = {each.__qualname__ for each in below(type)
             if isinstance(each.__dict__.get("__instancecheck__"), types.FunctionType)
             and re.fullmatch(r"torch(\.[a-z]\w*)*", str(each.__dict__["__module__"]))}
    assert found == {"_ParameterMeta", "_BufferMeta", "_LegacyStorageMeta", "VariableMeta"}
