"""What a guard means in Python and what the C tree says agree, on objects nobody thought of."""

from __future__ import annotations

import collections
from typing import Any

from frames import Frame, X, means
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fxjit import _C
from fxjit.guards.constants import constant_key, same_constant
from fxjit.guards.kinds import (
    ConstIs,
    Guard,
    HasAttr,
    HasKey,
    IdIs,
    InstanceHasAttr,
    KeysAre,
    LengthIs,
    SetIs,
    TypeIs,
)
from fxjit.guards.source import AttrSource, DictKeySource, DictValueSource, InstanceDictSource, ItemSource, Source, TypeSource

CALM = settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])


class Thing:
    def __init__(self, fields: dict[str, Any]) -> None:
        self.__dict__.update(fields)


# Few distinct values, so that near misses are common.
scalars = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-2, 2),
    st.integers(),
    st.sampled_from([0.0, -0.0, 1.0, float("nan")]),
    st.floats(),
    st.sampled_from(["", "a", "b", "1"]),
    st.text(max_size=3),
    st.binary(max_size=2),
    st.sampled_from([1j, complex(1, 0), int, float, ...]),
)
names = st.sampled_from(["a", "b", "c"])
keys = st.recursive(
    scalars, lambda inner: st.tuples(inner) | st.tuples(inner, inner) | st.frozensets(inner, max_size=2), max_leaves=4
)
objects = st.recursive(
    keys,
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(keys, inner, max_size=3),
        st.sets(keys, max_size=3),
        st.dictionaries(names, inner, max_size=3).map(Thing),
        st.dictionaries(keys, inner, max_size=3).map(collections.OrderedDict),
        st.tuples(inner, inner),
        st.lists(inner, max_size=3).map(collections.deque),
    ),
    max_leaves=8,
)


def sources(base: Source) -> st.SearchStrategy[Source]:
    return st.recursive(
        st.just(base),
        lambda inner: st.one_of(
            st.builds(ItemSource, inner, keys),
            st.builds(ItemSource, inner, st.integers(-2, 2)),
            st.builds(AttrSource, inner, names),
            st.builds(DictKeySource, inner, st.integers(0, 2)),
            st.builds(DictValueSource, inner, st.integers(0, 2)),
            st.builds(InstanceDictSource, inner),
            st.builds(TypeSource, inner),
        ),
        max_leaves=3,
    )


@st.composite
def guards(draw: st.DrawFn) -> Guard:
    source = draw(sources(X))
    kind = draw(st.integers(0, 10))
    if kind == 0:
        return TypeIs(source, type(draw(objects)))
    if kind == 1:
        return ConstIs(source, draw(keys))
    if kind == 2:
        return LengthIs(source, draw(st.integers(0, 3)))
    if kind == 3:
        return KeysAre(source, tuple(draw(st.lists(keys, max_size=3))))
    if kind == 4:
        return SetIs(source, draw(st.frozensets(keys, max_size=3)))
    if kind == 5:
        return HasKey(source, draw(keys), draw(st.booleans()))
    if kind == 6:
        return HasAttr(source, draw(names), draw(st.booleans()))
    if kind == 7:
        return InstanceHasAttr(source, draw(names), draw(st.booleans()))
    return IdIs(source, draw(keys))


@CALM
@given(objects, guards())
def test_python_and_c_agree(x: Any, guard: Guard) -> None:
    frame = Frame(x=x)
    assert frame.holds(guard) == means(guard, frame)


@CALM
@given(objects, st.data())
def test_a_guard_made_of_an_object_holds_for_it(x: Any, data: st.DataObject) -> None:
    made: list[Guard] = [TypeIs(X, type(x)), IdIs(X, x)]
    if isinstance(x, dict | set | frozenset | list | tuple):
        made.append(LengthIs(X, len(x)))
        made.append(KeysAre(X, tuple(x)))
        made.extend(HasKey(X, key, True) for key in x)
    if isinstance(x, set | frozenset):
        made.append(SetIs(X, frozenset(x)))
    if not isinstance(x, list | dict | set | Thing | collections.deque):
        made.append(ConstIs(X, x))
    frame = Frame(x=x)
    for guard in made:
        assert frame.holds(guard) and means(guard, frame), guard
    assert frame.holds(*made)


@CALM
@given(keys, keys)
def test_constants_in_python_and_c(a: Any, b: Any) -> None:
    same = same_constant(a, b)
    assert _C.same_constant(a, b) == same
    assert (constant_key(a) == constant_key(b)) == same


@CALM
@given(objects, st.lists(guards(), max_size=6))
def test_a_tree_holds_when_all_its_guards_do(x: Any, several: list[Guard]) -> None:
    frame = Frame(x=x)
    tree = frame.tree(*several)
    expected = all(means(guard, frame) for guard in several)
    for _ in range(3):  # with and without a memory of the last failure
        assert tree.check(*frame.parts) == expected
    failure = tree.first_failure(*frame.parts)
    assert (failure is None) == expected
    if failure is not None:
        assert not means(failure[1], frame)
        assert tree.guards[failure[0]] is failure[1]
