"""Places where CPython's own tests found traced code to differ from eager: each is a program, run both ways."""

from __future__ import annotations

import abc
import collections
import contextlib
import copy
from typing import Any, NamedTuple

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


@fxjit.disable
def identities(*objects: Any) -> list[bool]:
    """What eager code sees of objects that a break hands over."""
    return [a is b for a in objects for b in objects]


def assert_same_with_breaks(fn: Any, *args: Any) -> Any:
    return assert_same_as_eager(fn, *args, fullgraph=False)


class Counter:
    made = 0
    limit = 10

    def __init__(self) -> None:
        Counter.made += 1

    def left(self) -> int:
        return self.limit - self.made


def test_class_attributes_written_in_the_trace_are_seen_by_instances() -> None:
    def fn(x: torch.Tensor) -> Any:
        Counter.made = 0
        a = Counter()
        first = a.left()
        b = Counter()
        Counter.limit = 5
        return x + 1, first, a.left(), b.made, Counter.limit

    Counter.limit = 10
    expected = [torch.ones(2) + 1, 9, 3, 2, 5]
    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    for _ in range(2):
        Counter.limit = 10
        assert [compiled(torch.ones(2))[i] for i in range(1, 5)] == expected[1:]
    assert (Counter.made, Counter.limit) == (2, 5)


def test_a_number_that_varies_is_still_a_number() -> None:
    """An entry for an int that nothing depends on does not serve a text."""
    def fn(obj: Any) -> Any:
        return "text" if isinstance(obj, str) else obj

    compiled = fxjit.compile(fn, backend="eager")
    with fxjit.config.patch(compile_tensorless_frames=True, allow_empty_graphs=True):
        assert [compiled(each) for each in (3, 5, 7, "a", 2.5, None, "c")] == [3, 5, 7, "text", 2.5, None, "text"]


class Base(metaclass=abc.ABCMeta):
    def __eq__(self, other: object) -> bool:
        order.append("Base")
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]


class Virtual:
    def __eq__(self, other: object) -> bool:
        order.append("Virtual")
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]


Base.register(Virtual)
order: list[str] = []


def test_a_virtual_subclass_is_not_asked_first() -> None:
    def fn(x: torch.Tensor) -> Any:
        order.clear()
        return x + 1, Base() == Virtual(), list(order)

    assert assert_same_as_eager(fn, torch.ones(2))[2] == ["Base", "Virtual"]


class Left:
    def __add__(self, other: Any) -> Any:
        return "Left.__add__"

    def __radd__(self, other: Any) -> Any:
        return "Left.__radd__"


class Inherits(Left):
    pass


class Overrides(Left):
    def __radd__(self, other: Any) -> Any:
        return "Overrides.__radd__"


def test_the_right_operand_is_asked_first_only_where_it_overrides() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x + 1, Left() + Inherits(), Left() + Overrides()

    assert assert_same_as_eager(fn, torch.ones(2))[1:] == ("Left.__add__", "Overrides.__radd__")


class Unequal:
    def __eq__(self, other: object) -> bool:
        raise AssertionError

    def __ne__(self, other: object) -> bool:
        return NotImplemented

    __hash__ = None  # type: ignore[assignment]


class Blocks:
    __contains__ = None

    def __iter__(self) -> Any:
        return iter([1])


def test_ne_of_its_own_and_methods_set_to_none() -> None:
    def unequal(x: torch.Tensor) -> Any:
        return x + 1, Unequal() != 3

    def contains(x: torch.Tensor) -> Any:
        return x + 1, 1 in Blocks()

    assert_same_as_eager(unequal, torch.ones(2))
    assert_same_with_breaks(contains, torch.ones(2))


def test_constants_and_immutable_containers_keep_their_identity() -> None:
    def fn(x: torch.Tensor) -> Any:
        a = (1, 2)
        b = (1, 2)
        c = frozenset(a)
        d = copy.copy(c)
        e = copy.deepcopy(((1, 2), 3))
        seen = identities(a, b, c, d)
        return x + 1, seen, a is b, c is d, e

    assert_same_with_breaks(fn, torch.ones(2))


class Listed(list):  # type: ignore[type-arg]
    pass


class Stated:
    def __init__(self) -> None:
        self.value = [1]

    def __getstate__(self) -> Any:
        return {"value": [*self.value, 2]}

    def __setstate__(self, state: Any) -> None:
        self.value = state["value"]


class Reduced:
    def __reduce_ex__(self, protocol: Any) -> str:
        return ""


def test_copies() -> None:
    def fn(x: torch.Tensor) -> Any:
        items = Listed([[1], 2])
        items.name = "n"  # type: ignore[attr-defined]
        deep, shallow = copy.deepcopy(items), copy.copy(items)
        deep[0].append(3)
        state = copy.copy(Stated()).value, copy.deepcopy(Stated()).value
        return x + 1, list(items), list(deep), list(shallow), deep.name, shallow[0] is items[0], state  # type: ignore[attr-defined]

    def cycle(x: torch.Tensor) -> Any:
        inner: list[Any] = [x]
        outer = (inner, 1)
        inner.append(outer)
        made = copy.deepcopy(outer)
        return made[0][1] is made, made[0] is inner, made[0][0] + 1

    def reduced(x: torch.Tensor) -> Any:
        one = Reduced()
        return x + 1, copy.copy(one) is one, copy.deepcopy(one) is one

    assert_same_as_eager(fn, torch.ones(2))
    assert_same_as_eager(cycle, torch.ones(2))
    assert_same_with_breaks(reduced, torch.ones(2))


def test_own_memo() -> None:
    def fn(x: torch.Tensor) -> Any:
        memo: dict[int, Any] = {}
        made = copy.deepcopy([x, [1]], memo)
        return made[0] + 1, len(memo) > 0

    assert_same_with_breaks(fn, torch.ones(2))


def test_attributes_of_functions_made_in_the_trace() -> None:
    def fn(x: torch.Tensor) -> Any:
        def inner() -> int:
            return 1

        space = inner.__dict__
        inner.a = 1  # type: ignore[attr-defined]
        space["b"] = 2
        return x + 1, inner.a, inner.b, dict(space), inner  # type: ignore[attr-defined]

    def attributes(x: torch.Tensor) -> Any:
        result = fn(x)
        return result[:-1], vars(result[-1])

    assert_same_as_eager(attributes, torch.ones(2))


def test_a_deque_changed_behind_its_iterator() -> None:
    def fn(x: torch.Tensor) -> Any:
        queue = collections.deque([1, 2, 3])
        iterator = iter(queue)
        queue[0] = 5
        first = next(iterator)
        queue.pop()
        identities(queue)
        try:
            next(iterator)
        except RuntimeError as error:
            return x + 1, first, str(error)
        return x, first, ""

    assert_same_with_breaks(fn, torch.ones(2))


class Gone:
    def __del__(self) -> None:
        order.append("gone")


def test_objects_with_a_finalizer_are_made_for_real() -> None:
    def fn(x: torch.Tensor) -> Any:
        order.clear()
        one = Gone()
        before = list(order)
        del one
        identities()
        return x + 1, before, list(order)

    assert assert_same_with_breaks(fn, torch.ones(2))[2] == ["gone"]


class Shown(NamedTuple):
    value: int

    def __repr__(self) -> str:
        return f"<{self.value}>"


Empty = collections.namedtuple("Empty", "")


def test_texts_of_named_tuples() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x + 1, repr(Shown(1)), str(Shown(2)), repr(Empty()), Shown(1)._replace(value=3)

    assert_same_as_eager(fn, torch.ones(2))


class InitProperty:
    @property
    def __init__(self) -> Any:
        raise AttributeError("no init")


class Excess:
    def __new__(cls, *args: Any) -> Any:
        return super().__new__(cls, *args)

    def __init__(self, *args: Any) -> None:
        super().__init__()


def test_constructors() -> None:
    def by_property(x: torch.Tensor) -> Any:
        return x, InitProperty()

    def excess(x: torch.Tensor) -> Any:
        return x, Excess(1)

    assert_same_as_eager(by_property, torch.ones(2), fullgraph=False)
    assert_same_as_eager(excess, torch.ones(2), fullgraph=False)


class Buffer(bytearray):
    def __init__(self, first: int, text: bytes) -> None:
        bytearray.__init__(self, text)
        self.first = first


def test_classes_over_builtin_types_that_are_not_modelled() -> None:
    def fn(x: torch.Tensor) -> Any:
        made = Buffer(1, b"abc")
        return x + made.first, bytes(made)

    assert_same_with_breaks(fn, torch.ones(2))


def test_a_generator_under_way_inside_an_object() -> None:
    @contextlib.contextmanager
    def manager(log: list[str]) -> Any:
        log.append("in")
        try:
            yield
        except ValueError:
            log.append("out")
            raise KeyError from None

    def fn(x: torch.Tensor) -> Any:
        log: list[str] = []
        held = manager(log)
        held.__enter__()
        identities(log)
        try:
            held.__exit__(ValueError, None, None)
        except KeyError:
            log.append("caught")
        return x + 1, log

    assert_same_with_breaks(fn, torch.ones(2))


class Itself:
    pass


def test_calls_without_an_end_raise_as_eager_does() -> None:
    def fn(x: torch.Tensor) -> Any:
        return x, Itself()()  # type: ignore[operator]

    def deep(x: torch.Tensor, n: int = 0) -> Any:
        return deep(x + 1, n + 1)

    Itself.__call__ = Itself()  # type: ignore[attr-defined]
    for each in (fn, deep):
        with pytest.raises(RecursionError):
            fxjit.compile(each, backend="eager")(torch.ones(2))


def test_default_dicts_and_ordered_dicts_joined() -> None:
    def fn(x: torch.Tensor) -> Any:
        first = {1: 2} | collections.defaultdict(int, a=1)
        second = {1: 2} | collections.OrderedDict(b=1)
        third = collections.defaultdict(list) | {3: 4}
        return x + first["nothing"], first, type(second), third.default_factory

    assert_same_as_eager(fn, torch.ones(2))
