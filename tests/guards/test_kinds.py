"""Each kind of guard holds, fails when its fact changes, does not fail for what does not matter; C and Python agree.

`holds` of frames.py checks a guard in C and asserts that its Python meaning is the same.
"""

from __future__ import annotations

import collections
import enum
import functools
import gc
import math
import types
import weakref
from typing import Any

import pytest
import torch
from frames import Frame, X, Y, Z, guard_set, holds

from fxjit.guards.kinds import (
    CodeIs,
    ConstIs,
    Guard,
    HasAttr,
    HasKey,
    IdIs,
    InstanceHasAttr,
    KeysAre,
    LengthIs,
    NotSameObject,
    PythonCheck,
    SameObject,
    SetIs,
    TypeIs,
)


class Plain:
    pass


class Sub(Plain):
    pass


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


def test_type_is_exact() -> None:
    assert holds(TypeIs(X, Plain), x=Plain())
    assert not holds(TypeIs(X, Plain), x=Sub())
    assert not holds(TypeIs(X, int), x=True)


def test_type_follows_a_change_of_class() -> None:
    thing = Sub()
    guard = TypeIs(X, Sub)
    assert holds(guard, x=thing)
    thing.__class__ = Plain
    assert not holds(guard, x=thing)


def test_identity() -> None:
    one, other = [1], [1]
    assert holds(IdIs(X, one), x=one)
    assert not holds(IdIs(X, one), x=other)
    assert holds(IdIs(X, None), x=None)
    assert not holds(IdIs(X, None), x=0)


NAN = float("nan")

#: Constants that Python finds equal, or nearly so, one beside the other.
CONSTANTS: list[Any] = [
    None,
    True,
    False,
    0,
    1,
    -1,
    0.0,
    -0.0,
    1.0,
    NAN,
    math.inf,
    2**40,
    -(2**40),
    2**70,
    2**70 + 1,
    1j,
    complex(1, -0.0),
    complex(1, 0.0),
    "",
    "a",
    "é",
    "1",
    b"",
    b"a",
    (),
    (1,),
    (True,),
    (1.0,),
    (0.0,),
    (-0.0,),
    ("a", (1, 2)),
    ("a", (1, 2.0)),
    (1, 2),
    [1],
    frozenset(),
    frozenset({1}),
    frozenset({True}),
    frozenset({1.0}),
    frozenset({1, "a"}),
    slice(1, 2),
    slice(1, 2.0),
    slice(None, 2, 1),
    range(3),
    range(0, 3, 1),
    range(4),
    torch.float32,
    torch.float64,
    torch.device("cpu"),
    torch.device("cpu", 0),
    torch.device("meta"),
    torch.strided,
    torch.contiguous_format,
    torch.Size([1, 2]),
    torch.Size([2, 2]),
    Level.LOW,
    Level.HIGH,
    Plain,
    Sub,
    len,
    ...,
    NotImplemented,
    (Plain, 1),
    (Sub, 1),
]


def named(value: Any) -> str:
    """The test's id: the order in which a set shows its elements differs between processes, and runners compare ids."""
    shown = f"{{{', '.join(sorted(map(repr, value)))}}}" if isinstance(value, (set, frozenset)) else repr(value)
    return f"{type(value).__name__} {shown}"[:40]


@pytest.mark.parametrize("value", CONSTANTS, ids=named)
def test_a_constant_is_itself_and_no_other(value: Any) -> None:
    guard = ConstIs(X, value)
    assert holds(guard, x=value)
    same = [other for other in CONSTANTS if holds(guard, x=other)]
    expected = [value]
    if isinstance(value, range) and len(value) == 3:
        expected = [range(3), range(0, 3, 1)]
    assert len(same) == len(expected)
    assert all(type(a) is type(b) for a, b in zip(same, expected, strict=True))


def test_constants_made_anew_are_the_same() -> None:
    def again(text: str) -> Any:
        return eval(text, {"torch": torch})

    for text in (
        "'ab' * 50",
        "10**30",
        "1.5 + 1",
        "(1, 'x', (2.5, None))",
        "float('nan')",
        "torch.device('cpu')",
        "frozenset({'a', 2})",
        "torch.Size([3, 4])",
        "b'12' + b'3'",
        "slice(1, 10, 3)",
    ):
        assert holds(ConstIs(X, again(text)), x=again(text)), text


def test_length() -> None:
    for value in ([1, 2], (1, 2), {1: 1, 2: 2}, {1, 2}, "ab", collections.deque([1, 2]), range(2), torch.ones(2, 5)):
        assert holds(LengthIs(X, 2), x=value)
        assert not holds(LengthIs(X, 3), x=value)
    assert not holds(LengthIs(X, 2), x=5)


def test_keys_and_their_order() -> None:
    guard = KeysAre(X, ("a", 1, None))
    assert holds(guard, x={"a": 0, 1: 0, None: 0})
    assert holds(guard, x=["a", 1, None])
    assert holds(guard, x=collections.OrderedDict.fromkeys(("a", 1, None)))
    for other in (
        {"a": 0, None: 0, 1: 0},
        {"a": 0, 1: 0},
        {"a": 0, 1: 0, None: 0, 2: 0},
        {"a": 0, True: 0, None: 0},
        {"a": 0, 1.0: 0, None: 0},
        {},
        5,
    ):
        assert not holds(guard, x=other)


def test_an_ordered_dict_has_an_order_of_its_own() -> None:
    moved = collections.OrderedDict.fromkeys("abc")
    moved.move_to_end("a")
    assert holds(KeysAre(X, ("b", "c", "a")), x=moved)
    assert not holds(KeysAre(X, ("a", "b", "c")), x=moved)


class Loud(dict[str, int]):
    """A dict that answers otherwise than it holds: what guards look at is what it holds, and they run none of its code."""

    def __iter__(self) -> Any:
        raise AssertionError("asked")

    __len__ = __contains__ = keys = __iter__


class LoudSet(set[str]):
    __iter__ = __len__ = __contains__ = Loud.__iter__


class LoudDeque(collections.deque[str]):
    __iter__ = __len__ = __contains__ = Loud.__iter__


def test_guards_run_no_code_of_a_container_s_class() -> None:
    assert holds(LengthIs(X, 2), x=LoudDeque("ab"))
    assert not holds(LengthIs(X, 3), x=LoudDeque("ab"))
    assert holds(LengthIs(X, 3), x=collections.deque("abc", maxlen=3))
    loud = Loud(a=1, b=2)
    assert holds(KeysAre(X, ("a", "b")), x=loud)
    assert not holds(KeysAre(X, ("b", "a")), x=loud)
    assert holds(LengthIs(X, 2), x=loud)
    assert holds(HasKey(X, "a", True), x=loud)
    assert not holds(HasKey(X, "c", True), x=loud)
    assert holds(SetIs(X, frozenset("ab")), x=LoudSet("ab"))
    assert not holds(SetIs(X, frozenset("ab")), x=LoudSet("ac"))


def test_keys_that_are_objects() -> None:
    one, two = Plain(), Plain()
    guard = KeysAre(X, (one, two))
    assert holds(guard, x={one: 1, two: 2})
    assert not holds(guard, x={one: 1, Plain(): 2})
    assert not holds(guard, x={two: 1, one: 2})


def test_set_elements_in_any_order() -> None:
    things = [Plain() for _ in range(5)]
    elements = frozenset({"a", 1, None, (2, 3), *things})
    guard = SetIs(X, elements)
    assert holds(guard, x=set(elements)) and holds(guard, x=elements)
    assert holds(guard, x={*reversed(list(elements))})
    for other in (
        elements - {1} | {True},
        elements - {"a"},
        elements | {"b"},
        elements - {things[0]} | {Plain()},
        3,
        list(elements),
        {},
    ):
        assert not holds(guard, x=other)
    assert holds(SetIs(X, frozenset()), x=set())


def test_a_key_that_is_a_nan() -> None:
    """A container finds it as the object that it is."""
    first, second = float("nan"), float("nan")
    for guard, make in (
        (SetIs(X, frozenset({first, "x"})), lambda nan: {nan, "x"}),
        (KeysAre(X, (first, 1)), lambda nan: {nan: 0, 1: 0}),
        (HasKey(X, first, True), lambda nan: {nan: 0}),
        (KeysAre(X, ((1, first),)), lambda nan: {next(iter([*guard.keys])) if nan is first else (1, nan): 0}),
    ):
        assert holds(guard, x=make(first))
        assert not holds(guard, x=make(second))
    assert HasKey(X, first, True) != HasKey(X, second, True)
    assert not holds(SetIs(X, frozenset({first, "x"})), x={first, second})
    assert not Frame(x={first, second}).holds(SetIs(X, frozenset({first, "x"}))), "checked in C"


def test_a_key_present_or_absent() -> None:
    for container in ({"k": 1}, {"k"}, ["k"], collections.OrderedDict(k=1)):
        assert holds(HasKey(X, "k", True), x=container)
        assert not holds(HasKey(X, "k", False), x=container)
        assert holds(HasKey(X, "other", False), x=container)
        assert not holds(HasKey(X, "other", True), x=container)
    assert not holds(HasKey(X, "k", True), x=5) and not holds(HasKey(X, "k", False), x=5)
    assert not holds(HasKey(X, (), False), x="text"), "asking was a TypeError"


def test_an_attribute_present_or_absent() -> None:
    class Lazy:
        cls_attr = 1

        def __init__(self) -> None:
            self.own = 1

        def __getattr__(self, name: str) -> int:
            if name == "made":
                return 1
            raise AttributeError(name)

        @property
        def broken(self) -> int:
            raise RuntimeError("no")

    thing = Lazy()
    for name in ("own", "cls_attr", "made"):
        assert holds(HasAttr(X, name, True), x=thing)
        assert not holds(HasAttr(X, name, False), x=thing)
    assert holds(HasAttr(X, "nothing", False), x=thing)
    assert not holds(HasAttr(X, "broken", True), x=thing) and not holds(HasAttr(X, "broken", False), x=thing)
    assert holds(InstanceHasAttr(X, "own", True), x=thing)
    for name in ("cls_attr", "made", "nothing", "broken"):
        assert holds(InstanceHasAttr(X, name, False), x=thing)
    assert holds(InstanceHasAttr(X, "anything", False), x=5), "an int has no dict"
    assert holds(InstanceHasAttr(X, "cls_attr", True), x=Lazy)
    del thing.own
    assert not holds(InstanceHasAttr(X, "own", True), x=thing)


def test_code_of_a_function() -> None:
    def make(n: int) -> Any:
        return lambda: n

    one, two = make(1), make(2)
    guard = CodeIs(X, one.__code__, globals())
    assert holds(guard, x=two), "two closures of one lambda share their code"
    assert not holds(guard, x=types.FunctionType(one.__code__, {}, closure=one.__closure__)), "it has other globals"
    assert not holds(guard, x=lambda: 1)
    assert not holds(guard, x=len) and not holds(guard, x=types.MethodType(one, 1))
    two.__code__ = make.__code__.replace(co_freevars=("n",)) if False else (lambda n: lambda: (n, n))(1).__code__
    assert not holds(guard, x=two)


def test_same_and_distinct_objects() -> None:
    a, b = [1], [1]
    assert holds(SameObject(X, Y), x=a, y=a)
    assert not holds(SameObject(X, Y), x=a, y=b)
    assert holds(NotSameObject((X, Y)), x=a, y=b)
    assert not holds(NotSameObject((X, Y)), x=a, y=a)
    assert not holds(NotSameObject((X, Y, Z)), x=a, y=b, z=a)


@pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 100])
def test_many_distinct_objects(n: int) -> None:
    from fxjit.guards.source import ItemSource

    objects = [[] for _ in range(n)]
    guard = NotSameObject(tuple(ItemSource(X, i) for i in range(n)))
    assert holds(guard, x=objects)
    if n > 1:
        for place in {0, (n - 1) // 2, n - 2}:
            doubled = list(objects)
            doubled[place] = doubled[n - 1]
            assert not holds(guard, x=doubled)


def test_python_checks_are_counted() -> None:
    guard = PythonCheck((X, Y), lambda x, y: x < y, "x < y")
    assert holds(guard, x=1, y=2)
    assert not holds(guard, x=2, y=1)
    assert not holds(guard, x="a", y=1), "an exception is a no"
    assert Frame(x=1, y=2).tree(guard, TypeIs(X, int)).num_python == 1
    assert Frame(x=1, y=2).tree(TypeIs(X, int)).num_python == 0


# -- weak references -----------------------------------------------------------------------------------------------


def weakly_held() -> list[tuple[str, Any]]:
    def function() -> None:
        pass

    return [
        ("object", Plain()),
        ("type", type("Made", (), {})),
        ("function", function),
        ("module", types.ModuleType("m")),
        ("tensor", torch.ones(1)),
        ("nn.Module", torch.nn.Linear(1, 1)),
    ]


@pytest.mark.parametrize("kind", [name for name, _ in weakly_held()])
def test_a_guard_keeps_nothing_alive_and_never_holds_for_an_heir(kind: str) -> None:
    obj = dict(weakly_held())[kind]
    guards: list[Guard] = [IdIs(X, obj), KeysAre(Y, (obj,)), SetIs(Z, frozenset({obj})), HasKey(Y, obj, True)]
    frame = Frame(x=obj, y={obj: 1}, z={obj})
    trees = [frame.tree(guard) for guard in guards]
    assert all(tree.check(*frame.parts) for tree in trees)
    gone = weakref.ref(obj)
    del frame, obj
    gc.collect()
    assert gone() is None
    for value in (None, Plain(), 0):
        heir = Frame(x=value, y={value: 1}, z={value})
        assert not any(tree.check(*heir.parts) for tree in trees)
        assert not any(heir.holds(guard) for guard in guards), "a tree built after the death"


def test_a_type_guard_dies_with_its_type() -> None:
    made = type("Made", (), {})
    guard = TypeIs(X, made)
    tree = Frame(x=made()).tree(guard)
    gone = weakref.ref(made)
    del made
    gc.collect()
    assert gone() is None
    assert not tree.check((Plain(),), None, {}, {})
    assert not Frame(x=Plain()).holds(guard)


def test_an_address_used_again_does_not_pass() -> None:
    for _ in range(200):
        obj = Plain()
        tree = Frame(x=obj).tree(IdIs(X, obj))
        address = id(obj)
        del obj
        heir = Plain()
        if id(heir) == address:
            assert not tree.check((heir,), None, {}, {})
            return
    pytest.skip("the allocator never reused the address")


# -- sets of guards ------------------------------------------------------------------------------------------------


def test_a_guard_set_drops_what_it_has() -> None:
    found = guard_set(TypeIs(X, int), ConstIs(X, 1), TypeIs(X, int), ConstIs(X, True), ConstIs(X, 1))
    assert list(found) == [TypeIs(X, int), ConstIs(X, 1), ConstIs(X, True)]
    assert TypeIs(X, int) in found and TypeIs(Y, int) not in found
    found.add(TypeIs(Y, int), "user.py:3")
    assert found.user_stack(TypeIs(Y, int)) == "user.py:3"


def test_guards_print_in_words() -> None:
    assert str(TypeIs(X, int)) == "<TypeIs x: type int>"
    assert ConstIs(X, 3).why(4) == "expected 3, found 4"
    assert "x is y" in NotSameObject((X, Y)).why(*[[]] * 2)
    assert HasAttr(X, "w", True).why(3) == "expected an attribute w, found none"


def test_partial_keywords_and_other_containers_are_reached() -> None:
    from fxjit.guards.source import AttrSource, ItemSource

    made = functools.partial(int, base=2)
    guard = ConstIs(ItemSource(AttrSource(X, "keywords"), "base"), 2)
    assert holds(guard, x=made)
    assert not holds(guard, x=functools.partial(int, base=3))
