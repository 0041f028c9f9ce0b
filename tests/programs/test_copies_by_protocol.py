"""copy.copy and copy.deepcopy of what says how it is copied: slots, arguments of `__new__`, `__reduce__` in Python and in C;
and of tensors. All in one graph, and as eager."""

from __future__ import annotations

import collections
import copy
import dataclasses
import types
import typing

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


class Pair(typing.NamedTuple):
    number: int
    items: list


class Slots:
    __slots__ = ("items", "number", "unset")

    def __init__(self):
        self.number, self.items = 1, [2]


class SlotsAndMore(Slots):
    def __init__(self):
        super().__init__()
        self.more = {"a": [4]}


@dataclasses.dataclass(slots=True)
class SlotsOfFields:
    number: int = 1
    items: list = dataclasses.field(default_factory=lambda: [1])


@dataclasses.dataclass(frozen=True, slots=True)
class Frozen:
    number: int = 1
    items: tuple = ([1], 2)


class Reduced:
    def __init__(self, number, items=()):
        self.number, self.items = number, list(items)

    def __reduce__(self):
        return Reduced, (self.number + 5, self.items), {"seen": [1]}


class ReducedEx(dict):
    def __reduce_ex__(self, protocol):
        return ReducedEx, (), None, None, iter([("a", [protocol]), ("b", 2)])


class ByName:
    number = 3

    def __reduce__(self):
        return "THE_ONE"


class WithState:
    __slots__ = ("number",)

    def __init__(self):
        self.number = 2

    def __getstate__(self):
        return {"number": self.number}

    def __setstate__(self, state):
        self.number = state["number"] * 10


THE_ONE = ByName()
MAKERS = {
    "deque": lambda: collections.deque([1, [2], 3], maxlen=3),
    "defaultdict": lambda: collections.defaultdict(list, a=[1]),
    "Counter": lambda: collections.Counter("aab"),
    "namespace": lambda: types.SimpleNamespace(a=1, b=[2]),
    "slice": lambda: slice(1, 2),
    "namedtuple": lambda: Pair(1, [2]),
    "slots": Slots, "slots and more": SlotsAndMore, "slots of fields": SlotsOfFields, "frozen": Frozen,
    "reduce": lambda: Reduced(1, [2]), "reduce_ex": lambda: ReducedEx(q=1), "by name": lambda: THE_ONE, "state": WithState,
}


def shown(value):
    """What a copy is made of, as plain values."""
    if isinstance(value, slice):
        return value.start, value.stop, value.step
    if isinstance(value, (dict, collections.deque)):
        return type(value).__name__, [*value.items()] if isinstance(value, dict) else [*value], getattr(value, "maxlen", None)
    if isinstance(value, tuple):
        return type(value).__name__, [*value]
    slots = [(name, getattr(value, name)) for name in ("number", "items", "unset") if hasattr(value, name)]
    return type(value).__name__, slots, dict(vars(value)) if hasattr(value, "__dict__") else None


def parts(value):
    if isinstance(value, dict):
        return [*value.values()]
    return [getattr(value, "items", None), getattr(value, "b", None)]


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy])
def test_copies_are_made_as_the_class_says(how, name):
    make = MAKERS[name]

    def fn(x):
        before = make()
        after = how(before)
        inside = [one is other for one, other in zip(parts(before), parts(after))]
        return x + 1, shown(after), after is before, inside

    graphs = fxjit.testing.CompileCounter()
    x = torch.arange(3.0)
    expected, actual = fn(x), fxjit.compile(fn, backend=graphs, fullgraph=True)(x)
    assert str(actual) == str(expected)
    assert graphs.frame_count == 1


def test_a_deep_copy_that_contains_itself():
    def fn(x):
        before = types.SimpleNamespace(a=[1], x=2)
        before.me = before
        before.a.append(before)
        after = copy.deepcopy(before)
        return x * after.x, after.me is after, after.a[1] is after, after is before

    assert_same_as_eager(fn, torch.ones(2))


def of_an_input(x):
    after = copy.copy(x)
    return after + 1, after is x


def written_afterwards(x):
    after = copy.copy(x)
    after.mul_(2)
    return after


def of_a_result(x):
    middle = x * 2
    after = copy.copy(middle)
    after.add_(1)
    return middle, after


def of_a_view(x):
    after = copy.copy(x[1:])
    return after._is_view(), after.t() * 2


def of_what_has_attributes(x):
    middle = x * 1
    middle.scale = 3
    return copy.copy(middle).scale * middle, copy.deepcopy(middle).scale


def of_what_requires_grad(x):
    middle = x.clone().requires_grad_()
    return copy.copy(middle).requires_grad, x + 1


IN_THE_GRAPH = [of_an_input, written_afterwards, of_a_result]


@pytest.mark.parametrize("fn", [*IN_THE_GRAPH, of_a_view, of_what_has_attributes, of_what_requires_grad])
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_copied_tensor_is_another_of_the_same_memory(fn, backend):
    assert_same_as_eager(fn, torch.arange(6.0).view(2, 3), backend=backend, fullgraph=fn in IN_THE_GRAPH)
