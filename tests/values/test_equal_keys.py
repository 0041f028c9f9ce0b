"""Keys that are equal and not the same: True, 1 and 1.0; 0.0 and -0.0; a NaN, which is equal to nothing; and the order of sets.

A dict or set keeps the key that was put in first, whichever equal one it is asked for; results must show that one.
"""

from __future__ import annotations

import collections
import dataclasses
import decimal
import enum
import itertools
import types
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import assert_same, assert_same_as_eager

import fxjit
from fxjit import config
from fxjit.frontend.values import keys

NAN, OTHER_NAN = float("nan"), float("nan")


class Text(str):
    pass


class Color(enum.IntEnum):
    RED = 1


class Thing:
    def __init__(self, number: int) -> None:
        self.number = number


def shown(value: Any) -> Any:
    """Values with their types, all the way down."""
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, Mapping):
        return type(value), [(shown(k), shown(v)) for k, v in value.items()]
    if isinstance(value, list | tuple | set | frozenset):
        return type(value), [shown(item) for item in value]
    return type(value), repr(value)


def assert_calls_agree(program: Callable[..., Any], *calls: Callable[[], tuple[Any, ...]]) -> None:
    """Each call makes its arguments anew; one function is compiled for all, so that guards are met as well."""
    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager", dynamic=False)
    for make in calls * 2:
        mine, theirs = make(), make()
        results = []
        for function, args in ((program, mine), (compiled, theirs)):
            try:
                with config.patch(recompile_limit=64):
                    results.append((shown(function(torch.ones(1), *args)), shown(args)))
            except (KeyError, TypeError) as error:
                results.append((type(error), str(error)))
        assert results[0] == results[1], f"{program.__name__}{make()}"


#: Groups of keys that are equal.
EQUAL: dict[str, tuple[Any, Any, Any]] = {
    "numbers": (True, 1, 1.0),
    "zeros": (0.0, -0.0, False),
    "tuples": ((1, 2), (True, 2.0), (1.0, 2)),
    "text": ("a", Text("a"), "a"),
    "members": (Color.RED, 1, True),
    "frozensets": (frozenset([1]), frozenset([True]), frozenset([1.0])),
    "nans": (NAN, OTHER_NAN, 1.0),
    "nans in tuples": ((NAN, 1), (OTHER_NAN, 1), (NAN, True)),
}


def first_key(x, d, k):
    return x * d.get(k, 3), next(iter(d))


def keys_after_a_look(x, d, k):
    return x, k in d, list(d), list(d.items()), [key for key in d.keys()]


def stored(x, d, k):
    d[k] = 5
    return x, list(d)


def popped_and_stored(x, d, k):
    found = d.pop(k, None)
    d[k] = 6
    return x, found, list(d), d


def set_default(x, d, k):
    d.setdefault(k, 7)
    d.setdefault("more", 8)
    return x, d.popitem(), d


def merged(x, d, k):
    return x, {**d, k: 1}, {k: 1, **d}, d | {k: 2}, {k: 2} | d, dict(d, more=3)


def copies(x, d, k):
    return x * (k in d), dict(d), d.copy(), collections.OrderedDict(d), collections.Counter(list(d) + [k])


def default_dict(x, d, k):
    made = collections.defaultdict(list)
    for key in [*d, k]:
        made[key].append(1)
    return x, made


def views(x, d, k):
    other = {k: 1, "last": 2}
    keys, others = d.keys(), other.keys()
    return x, keys & others, keys | others, keys - other, keys ^ others, keys & [k], d.items() & other.items()


def sets(x, d, k):
    a, b = set(d), {k}
    return x, k in a, a & b, b & a, a | b, b | a, a - b, a ^ b, a.intersection([k]), a.union([k])


def sets_in_place(x, d, k):
    a, b = set(d), {k}
    a.add(k)
    b |= a
    a &= {k}
    return x, a, b


def equal_dicts(x, d, k):
    return x, d == {k: 1}, list(d.keys()) == [k], {k} == set(d)


def moved(x, d, k):
    made = collections.OrderedDict(d)
    made[k] = 2
    made.move_to_end(k)
    return x, made


PROGRAMS = [first_key, keys_after_a_look, stored, popped_and_stored, set_default, merged, copies, default_dict, views, sets,
            sets_in_place, equal_dicts, moved]


@pytest.mark.parametrize("group", EQUAL)
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_equal_keys(program: Callable[..., Any], group: str):
    pairs = itertools.product(EQUAL[group], repeat=2)
    assert_calls_agree(program, *(lambda kept=kept, asked=asked: ({kept: 1, "x": 2}, asked) for kept, asked in pairs))


def test_the_program_of_the_report():
    def program(x, d):
        return x * d[1] + isinstance(next(iter(d)), bool)

    assert_calls_agree(program, lambda: ({True: 2.0},), lambda: ({1: 2.0},), lambda: ({1.0: 2.0},))


def test_keyword_names():
    def collect(x, **kwargs):
        return x, list(kwargs)

    def program(x, d):
        return collect(x, **d)

    assert_calls_agree(program, lambda: ({"a": 1},), lambda: ({Text("a"): 1},))


@pytest.mark.parametrize("make", [lambda n: [n], lambda n: (n,), lambda n: collections.deque([n]), lambda n: {n}],
                         ids=["list", "tuple", "deque", "set"])
def test_a_nan_is_found_where_it_is(make: Callable[[float], Any]):
    def program(x, n):
        found = n in items
        return x + found, list(items).count(n), n in [n], [n] == list(items), (n, 1) == (n, 1), n == n

    for kept in (NAN, OTHER_NAN):
        items = make(kept)
        assert_calls_agree(program, lambda: (NAN,), lambda: (OTHER_NAN,), lambda: (1.0,))


def test_nans_in_containers_that_are_given():
    def program(x, items, n):
        return x, n in items, items == [n], items.index(n) if n in items else -1, (n,) in {(n,): 1}

    pairs = itertools.product((NAN, OTHER_NAN, 2.0), repeat=2)
    assert_calls_agree(program, *(lambda a=a, b=b: ([a], b) for a, b in pairs))


def compared(x, a, b):
    """What containers make of two constants that they hold."""
    return (
        x, a in (b,), (a, 1) == (b, 1), (a,) != (b,), slice(1, a) == slice(1, b), Pair(a, 1) == Pair(b, 1), ((a,),) == ((b,),),
        frozenset([a]) == frozenset([b]), {a} & {b} == set(), {a: 1} == {b: 1}, {b: 1}.get(a), [a].count(b), hash(a) == hash(b),
        hash((a,)) == hash((b,)), sorted([(a, 2), (b, 1)])[0][1], min((a, 2), (b, 1))[1],
    )  # fmt: skip


Pair = collections.namedtuple("Pair", "first second")
#: Each makes a NaN, one object at each call.
NANS = {
    "float": lambda: float("nan"),
    "float64": lambda: np.float64("nan"),
    "float32": lambda: np.float32("nan"),
    "tuple": lambda: (float("nan"),),
}


@pytest.mark.parametrize("one_first", [False, True], ids=["two, then one", "one, then two"])
@pytest.mark.parametrize("kind", NANS)
def test_nans_are_the_objects_that_they_are(kind: str, one_first: bool):
    a, b = NANS[kind](), NANS[kind]()
    one, two = (lambda: (a, a)), (lambda: (a, b))
    assert_calls_agree(compared, *((one, two) if one_first else (two, one)))


def test_what_a_comparison_of_constants_raises_is_raised():
    def program(x, a, b):
        try:
            return x, sorted([a, b])
        except (decimal.InvalidOperation, TypeError) as error:
            return x, type(error).__name__

    assert_calls_agree(program, lambda: (decimal.Decimal("nan"), decimal.Decimal(1)), lambda: (1j, 2j))


# -- objects with an equality of their own -------------------------------------------------------------------------


@dataclasses.dataclass(frozen=True)
class Point:
    x: int
    y: int = 0


class Near:
    """Equal to what is near: not transitive, and equal hashes say nothing."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Near) and abs(self.number - other.number) < 2

    def __hash__(self) -> int:
        return 7


class Never(Near):
    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = Near.__hash__


def made_sets(x, a, b):
    return (
        x, len({a} & {b}), len({a} | {b}), len({a} - {b}), len({a} ^ {b}), {a} == {b}, {a} <= {b}, {a}.isdisjoint({b}),
        frozenset([a]) == frozenset([b]), len({frozenset([a]), frozenset([b])}), (a, 1) in {(b, 1)}, {(a, 1): 3}.get((b, 1)),
        len({(a,), (b,)}), {a: 1} == {b: 1}, {a: 1}.keys() & {b: 1}.keys() == set(), {a: 1}.items() == {b: 1}.items(),
        list(({a: 1} | {b: 2}).values()), len({a}.symmetric_difference([b])), {a}.issubset([b]),
    )  # fmt: skip


def given_sets(x, a, b):
    s, t, d, e = a[0], b[0], a[1], b[1]
    return x, len(s & t), len(s | t), s == t, s <= t, s.isdisjoint(t), d == e, d.keys() == e.keys(), len(d | e)


@pytest.mark.parametrize("kind", [Point, Near, Never])
@pytest.mark.parametrize("program", [made_sets, given_sets], ids=lambda program: program.__name__)
def test_sets_call_the_equality_of_their_elements(program: Callable[..., Any], kind: Callable[[int], Any]):
    objects = [kind(number) for number in (1, 2, 3, 1)]

    def call(i: int, j: int) -> Callable[[], tuple[Any, ...]]:
        if program is made_sets:
            return lambda: (objects[i], objects[j])
        return lambda: (({objects[i]}, {objects[i]: 1}), ({objects[j]}, {objects[j]: 1}))

    fxjit.reset()
    for order in ([(0, 1), (0, 0), (0, 3), (3, 0)], [(0, 0), (0, 2), (1, 0)], [(0, 3), (0, 2)]):
        compiled = fxjit.compile(program, backend="eager")
        for i, j in order * 2:
            assert compiled(torch.ones(1), *call(i, j)()) == program(torch.ones(1), *call(i, j)()), (i, j)


# -- the order of sets ---------------------------------------------------------------------------------------------


def with_gaps() -> set[int]:
    """A set that iterates in another order than its copies."""
    made = set(range(100))
    made -= set(range(100)) - {63, 64}
    return made


def iterated(x, s):
    for item in s:
        x = x * 2 + item
    return x


def changed_and_iterated(x, s):
    s.add(1)
    return iterated(x, s)


def derived(x, s):
    return [iterated(x, made) for made in (s.copy(), s | {3}, s - {3}, set(s), s & {0, 8, 63, 64})]


def listed(x, s):
    return x, list(s), tuple(s), [*s], repr(s), s.copy().pop() if s else None


@pytest.mark.parametrize("program", [iterated, changed_and_iterated, derived, listed], ids=lambda program: program.__name__)
def test_the_order_of_a_set_that_was_given(program: Callable[..., Any]):
    assert list({0, 8}) != list({8, 0})
    assert list(with_gaps()) != list(with_gaps().copy())
    makers = [lambda: {0, 8}, lambda: {8, 0}, with_gaps, lambda: {64, 63}, set]
    assert_calls_agree(program, *(lambda make=make: (make(),) for make in makers))


def test_what_puts_a_set_in_order_needs_none_of_its_own():
    def program(x, s):
        s.add(5)
        s.discard(8)
        return x, sorted(s), sorted(s, reverse=True, key=None), min(s), max(s)

    def with_a_key(x, s):
        s.add(5)
        return x, sorted(s, key=lambda item: item % 8), min(s, key=lambda item: item % 8)

    makers = [lambda: {0, 8}, lambda: {8, 0}, with_gaps, lambda: {64, 63, True}, lambda: {1.5, float("inf"), 2}, set]
    for make in makers:
        assert_same_as_eager(program, torch.ones(2), make())
    assert_calls_agree(with_a_key, *(lambda make=make: (make(),) for make in makers))
    assert_calls_agree(program, lambda: ({NAN, 2.0, 1.0},), lambda: ({1.0, 2.0, NAN},))
    words = ["one", "two", "three"]
    assert_calls_agree(lambda x, s: (x, sorted(s | {"four"}), min(s)), lambda: (set(words),), lambda: (frozenset(words),))


def test_the_order_of_a_set_of_objects():
    """It follows from their addresses."""

    def given(x, s):
        for thing in s:
            x = x * 2 + thing.number
        return x

    def made(x, *things):
        return given(x, set(things)), given(x, {things[0], things[1]}), given(x, {(thing, 1)[0] for thing in things})

    for _ in range(4):
        things = [Thing(number) for number in range(6)]
        assert_calls_agree(given, lambda: (set(things),), lambda: (set(things[:3]),), lambda: (frozenset(things),))
        assert_calls_agree(made, lambda: tuple(things), lambda: tuple(things[::-1]), lambda: tuple(things[2:]))


class Marker:
    """Hashed by identity."""


UNSET, HOLDER = Marker(), [Marker()]


def by_identity(x, marker=UNSET):
    table = {}
    for key in (hash((1, UNSET)), hash((1, HOLDER[0])), hash(UNSET) ^ 5, id(HOLDER[0]) % 7,
                hash((UNSET, 2)) == hash((UNSET, 2))):
        table.setdefault(key, len(table))
    return x + len(table), list(table), hash(frozenset([UNSET])) == hash(frozenset([UNSET]))


def test_hashes_of_objects_that_live_longer_than_a_call():
    """They are numbers of the entry, which is of these very objects."""
    compiled = fxjit.compile(by_identity, backend="eager", fullgraph=True)
    for _ in range(3):
        for _ in range(2):
            assert repr(compiled(torch.ones(2))) == repr(by_identity(torch.ones(2)))
        HOLDER[0] = Marker()


def test_the_hash_of_an_argument_is_another_one_in_each_call():
    def fn(x, marker):
        return x + 1, hash((1, marker))

    compiled = fxjit.compile(fn, backend="eager")
    for _ in range(12):
        marker = Marker()
        assert repr(compiled(torch.ones(2), marker)) == repr(fn(torch.ones(2), marker))


def test_a_large_dict_is_not_gone_through_for_each_key(monkeypatch):
    """Constants are found by their hash, however large they are, where no key of the trace is known late."""
    looked = []
    monkeypatch.setattr(keys, "_holds_late", lambda key: looked.append(key))

    def fn(x):
        table = {number * 7919: number for number in range(3000)}
        return x + (table == table.copy()), sum(number in table for number in range(0, 10**6, 7919)), {*table} == set(table)

    assert_same(fxjit.compile(fn, backend="eager", fullgraph=True)(torch.ones(1)), fn(torch.ones(1)))
    assert not looked


class LikeText:
    def __init__(self, text):
        self.text = text

    def __hash__(self):
        return hash(self.text)

    def __eq__(self, other):
        return other == self.text


def test_an_object_takes_the_place_of_a_text_that_was_deleted_from_an_objects_dict():
    def fn(x):
        held = types.SimpleNamespace(first=1, second=2)
        table = vars(held)
        del table["first"]
        table[LikeText("first")] = 3
        return x + table["first"], len(table), held.second

    assert_same_as_eager(fn, torch.ones(2), fullgraph=False)

    def of_another(x, held):
        table = held.__dict__
        del table["first"]
        table[LikeText("first")] = 3
        return x + 1, len(table), held.second

    for _ in range(2):
        eager, ours = types.SimpleNamespace(first=1, second=2), types.SimpleNamespace(first=1, second=2)
        assert_same(fxjit.compile(of_another, backend="eager")(torch.ones(2), ours), of_another(torch.ones(2), eager))
        assert [type(key) for key in vars(ours)] == [type(key) for key in vars(eager)]
