"""Builtin functions and types: compiled against eager."""

from __future__ import annotations

import abc
import collections
import collections.abc
import enum
import importlib
import numbers
import sys
import types
import typing
from typing import Any, ClassVar, NamedTuple

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

X = torch.arange(6.0).reshape(2, 3)


class Animal:
    legs = 4

    def __init__(self, name):
        self.name = name

    def speak(self):
        return self.name


class Dog(Animal):
    def speak(self):
        return super().speak() + "!"


class Shape(abc.ABC):
    @abc.abstractmethod
    def area(self): ...


@Shape.register
class Square:
    pass


class Meta(type):
    def __instancecheck__(cls, obj):
        return hasattr(obj, "quack")

    def __subclasscheck__(cls, sub):
        return True


class Duck(metaclass=Meta):
    pass


@typing.runtime_checkable
class Closes(typing.Protocol):
    def close(self): ...


class File:
    quack = 1

    def close(self):
        pass


def test_isinstance():
    def f(x):
        d = Dog("rex")
        return (
            isinstance(d, Animal),
            isinstance(d, (int, Animal)),
            isinstance(1, int | str),
            isinstance(True, int),
            isinstance(1.0, (str, bytes)),
            isinstance(x, torch.Tensor),
            isinstance(x, torch.nn.Parameter),
            isinstance([], collections.abc.Sequence),
            isinstance({}, collections.abc.Mapping),
            isinstance(2, numbers.Number),
            isinstance(Square(), Shape),
            isinstance(File(), Duck),
            isinstance(3, Duck),
            isinstance(File(), Closes),
            isinstance(d, Closes),
            isinstance(None, type(None)),
            isinstance(x.shape, tuple),
            isinstance(int, type),
            isinstance(1, typing.Optional[int]), isinstance([x], typing.Iterable), isinstance(x, typing.Sequence),
            issubclass(list, typing.List), isinstance({"a": x}, (typing.Tuple, typing.Dict)),
            isinstance(x.sum, typing.Callable),
            x,
        )

    assert_same_as_eager(f, X)


def test_issubclass_and_type():
    def f(x):
        return (
            issubclass(Dog, Animal),
            issubclass(bool, int),
            issubclass(int, (str, float)),
            type(x) is torch.Tensor,
            type(Dog("a")) is Dog,
            type(Dog("a")).__name__,
            type(1) is int,
            issubclass(int, Duck),
            type([]) in (list, tuple),
            type(None),
            x,
        )

    assert_same_as_eager(f, X)


def test_attributes():
    def f(x):
        a = Animal("cat")
        setattr(a, "age", 3)
        missing = getattr(a, "nope", 7)
        a.extra = x
        delattr(a, "age")
        return (
            getattr(a, "name"),
            missing,
            hasattr(a, "age"),
            hasattr(a, "extra"),
            a.extra + 1,
            a.legs,
            getattr(x, "ndim"),
            vars(a)["name"],
            callable(a.speak),
            callable(3),
            hasattr(x, "foo"),
        )

    assert_same_as_eager(f, X)


def test_super_and_methods():
    def f(x):
        d = Dog("rex")
        method = d.speak
        return method(), Animal.speak(d), super(Dog, d).speak(), x

    assert_same_as_eager(f, X)


def test_numbers():
    def f(x, n):
        return (
            abs(-n),
            divmod(7, n),
            pow(2, n),
            pow(2, 5, 7),
            round(3.7),
            round(3.14159, 2),
            int("12"),
            int(3.9),
            float("1.5"),
            float(n),
            complex(1, 2),
            bool(n),
            bool([]),
            int("ff", 16),
            bin(5),
            hex(255),
            oct(8),
            chr(97),
            ord("a"),
            min(3, n),
            max([1, 5, n]),
            sum([1, 2, 3]),
            sum([[1], [2]], []),
            n // 2,
            n % 3,
            -n,
            ~n,
            min([], default=4),
            max("abc", key=ord),
            x * n,
        )

    assert_same_as_eager(f, X, 3)


def test_text():
    def f(x, name):
        return (
            f"{name}: {3:>5} {1.5:.3f} {name!r}",
            "a,b".split(","),
            "-".join(["a", name]),
            name.upper(),
            "%s=%d" % (name, 3),
            "{} {k}".format(1, k=name),
            "{0.__class__.__name__}".format(1),
            str(1.0),
            repr("a"),
            str([1, "b"]),
            repr({"a": (1,)}),
            name[0],
            name[::-1],
            len(name),
            "b" in "abc",
            name.startswith("w"),
            name.replace("w", "v"),
            str({1}),
            str(None),
            ascii("é"),
            format(3, "04d"),
            name.encode(),
            b"ab".decode(),
            str(torch.float32),
            "a" * 3,
            "abc" < "abd",
            str(range(3)),
            x,
        )

    assert_same_as_eager(f, X, "world")


def test_conversions():
    def f(x):
        return (
            list("ab"),
            tuple([1, x]),
            set([1, 1]),
            frozenset((1, 2)),
            dict(a=1),
            dict([(1, 2)]),
            list({"k": 1}),
            bytes([1, 2]),
            list(range(3)),
            tuple(),
            list(),
            str(),
            int(),
            float(),
            bool(),
            list(zip([1], [2])),
            list(map(str, [1, 2])),
        )

    assert_same_as_eager(f, X)


def test_any_all_sum_of_tensors():
    def f(x):
        return any([0, 1]), all([]), all([1, 0]), sum([x, x, x]), sum([x], start=x), any(v > 2 for v in [1, 2])

    assert_same_as_eager(f, X)


def test_sorted_with_cmp():
    import functools

    def f(x):
        return sorted([3, 1, 2], key=functools.cmp_to_key(lambda a, b: b - a)), x

    assert_same_as_eager(f, X)


def test_hash_and_id():
    def f(x):
        return hash("a") == hash("a"), hash((1, 2)) == hash((1, 2)), hash(3), x

    assert_same_as_eager(f, X)


def test_errors():
    def f(x):
        seen = []
        for attempt in (
            lambda: int("x"),
            lambda: len(3),
            lambda: getattr(3, "nope"),
            lambda: iter(3),
            lambda: max([]),
            lambda: sum(["a"]),
            lambda: abs("a"),
            lambda: chr(-1),
            lambda: 1 + "a",
            lambda: "a" < 1,
            lambda: None.foo,
            lambda: hash([]),
            lambda: isinstance(1, 2),
            lambda: 1 / 0,
            lambda: int([]),
            lambda: (lambda a: a)(),
            lambda: Animal(),
            lambda: Shape(),
            lambda: [].nope,
            lambda: {}["k"],
            lambda: float("abc"),
            lambda: next(3),
            lambda: sorted([1, "a"]),
            lambda: dict(1),
        ):
            try:
                attempt()
            except Exception as error:
                seen.append((type(error).__name__, str(error)))
        return seen, x

    assert_same_as_eager(f, X)


def test_locals_and_globals():
    def f(x):
        a = 1
        here = locals()
        return sorted(here), globals()["X"] is X, x + a

    assert_same_as_eager(f, X)


def test_enum():
    class Color(enum.Enum):
        RED = 1
        BLUE = "b"

        @property
        def nice(self):
            return self.name.lower()

    class Level(enum.IntEnum):
        LOW = 1
        HIGH = 2

    def f(x, c):
        return (
            c is Color.RED,
            c.value,
            c.name,
            Color("b") is Color.BLUE,
            Color["RED"].nice,
            list(Color),
            len(Color),
            Level.HIGH + 1,
            Level.LOW < Level.HIGH,
            c == Color.BLUE,
            {Color.RED: 1}[c],
            isinstance(c, Color),
            x * Level.HIGH,
        )

    assert_same_as_eager(f, X, Color.RED)


@pytest.mark.parametrize("dynamic", [None, True])
def test_extremes_of_sizes_bools_and_floats_have_the_type_of_what_is_found(dynamic):
    def f(x, b):
        n = x.shape[0]
        of_two = max(n, b), min(n, b), max(b, n), min(b, n), max(True, n), min(False, n > 3), max(n > 3, b)
        mixed = max([n, b, 2.5]), min(n, 4.0), max(n, 4.0), max(4.0, n), min(*x.shape, b), max(n - 2, 1)
        return of_two, mixed, max(n, True, key=lambda q: -q), min((n, b), default=3), x + max(n, b), x[: max(n - 2, b)]

    compiled = fxjit.compile(f, backend="eager", dynamic=dynamic)
    for n, b in ((4, True), (5, False), (6, True), (7, 3), (1, True), (1, 1), (2, 7)):
        assert repr(compiled(torch.ones(n, 3), b)) == repr(f(torch.ones(n, 3), b))


def test_print_breaks_the_graph(capsys):
    def f(x):
        y = x + 1
        print("hello")
        return y * 2

    assert torch.equal(fxjit.compile(f, backend="eager")(X), (X + 1) * 2)
    assert capsys.readouterr().out == "hello\n"
    with pytest.raises(fxjit.errors.Unsupported):
        fxjit.compile(f, backend="eager", fullgraph=True)(X)


LAYER = torch.nn.Linear(3, 3)
OTHER = Animal("cat")
LAYER_ID, OTHER_ID = id(LAYER), id(OTHER)
NAMES = {LAYER_ID: 3, id(LAYER.weight): 5}
SEEN = {LAYER_ID}


def _added_to_a_set(x):
    SEEN.add(id(LAYER))
    return x * len(SEEN)


LASTING = {
    "a key of a dict from outside": lambda x: x * NAMES[id(LAYER)] + NAMES[id(LAYER.weight)],
    "in a set from outside": lambda x: LAYER(x) * (id(LAYER) in SEEN),
    "added to a set": _added_to_a_set,
    "compared with a number": lambda x: x * (id(LAYER) == LAYER_ID) + (id(LAYER) in [1, LAYER_ID]) + (id(LAYER) == 5),
    "calculated with": lambda x: x * (id(LAYER) % 7) + hash(id(LAYER)) % 5,
}


@pytest.mark.parametrize("program", LASTING.values(), ids=LASTING)
def test_the_identity_of_a_module_is_a_constant_where_it_matters(program):
    assert_same_as_eager(program, X)


class _Holder:
    items: ClassVar[list[int]] = [1]

    def __init__(self):
        self.pair = (1, [2])


class _Named(NamedTuple):
    scale: float
    rest: Any


_HOLDER = _Holder()
LASTING_CONTAINERS = {
    "named tuple": _Named(0.5, [1]), "named tuple of numbers": _Named(0.5, 2), "tuple": (1, [2]), "list": [1], "dict": {"a": 1},
    "ordered dict": collections.OrderedDict(a=1), "set": {1, 2}, "frozenset": frozenset([1, 2]),
    "deque": collections.deque([1]), "bytearray": bytearray(b"a"), "range": range(3, 9), "size": torch.Size([1, 2]),
    "function": lambda: 0, "instance": _HOLDER, "attribute": _HOLDER.pair, "item": _HOLDER.pair[1],
    "class attribute": _Holder.items, "parameters": LAYER._parameters,
}


@pytest.mark.parametrize("kind", LASTING_CONTAINERS)
def test_the_identity_of_a_container_that_lasts_is_a_key_from_outside(kind):
    """Of whatever kind: what a global or a closure holds. Another one in its place is another key."""
    first, second = LASTING_CONTAINERS[kind], [4]
    held, seen = [first], {id(first): 3}

    def program(x):
        key = id(held[0])
        if key not in seen:
            seen[key] = 5
        return x * seen[key] * len(seen)

    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    for held[0], found, count in ((first, 3, 1), (second, 5, 2), (first, 3, 2)):
        assert torch.equal(compiled(X), X * found * count)
    assert seen == {id(first): 3, id(second): 5}


def test_the_identity_of_a_changed_list_is_what_it_was():
    held, other = [1], [1]
    seen = {id(held): 3, id(other): 7}

    def program(x):
        held.append(len(held))
        return x * seen[id(held)] + len(held) + (id(held) in seen) + ((id(other), 1) == (id(held), 1))

    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    for length in (2, 3, 4):
        assert torch.equal(compiled(X), X * 3 + length + 1)


@pytest.mark.parametrize("program", [
    lambda x: x * len({id(LAYER), LAYER_ID}),
    lambda x: x * len({id(OTHER), OTHER_ID}),
    lambda x: x * len({OTHER_ID, id(OTHER)}),
    lambda x: x * (OTHER_ID in {id(LAYER), id(OTHER)}),
    lambda x: x * {id(OTHER): 4}[OTHER_ID] + {(id(OTHER), 1): 2}[OTHER_ID, 1],
])
def test_an_identity_and_the_number_that_it_is_are_one_key(program):
    """A number from outside may be the identity of an object: which is known when the program runs."""
    assert torch.equal(fxjit.compile(program, backend="eager")(X), program(X))


@pytest.mark.parametrize("program", [lambda x: x * len({id(x), 5}), lambda x: x * {id(x): 4, 7: 1}[7]])
def test_small_numbers_are_no_identities(program):
    assert_same_as_eager(program, X)


def test_modules_that_are_imported_by_name():
    """As they are at each call: a program may put others in their place."""
    def f(x):
        return importlib.import_module("torch.nn.functional").relu(x) + __import__("torch.nn").nn.functional.silu(x)

    assert_same_as_eager(f, X)
    name = "a_module_of_this_test"
    compiled = fxjit.compile(lambda x: x * importlib.import_module(name).scale, backend="eager", fullgraph=True)
    try:
        for scale in (2, 3):
            sys.modules[name] = types.ModuleType(name)
            sys.modules[name].scale = scale
            assert torch.equal(compiled(X), X * scale)
    finally:
        del sys.modules[name]
