"""What a program's own `__len__` and `__bool__` give is taken as CPython takes it, and a metaclass's own operators are the
program's code, which is run at each call."""

from __future__ import annotations

import math
import operator
import sys

import pytest
import torch
from tests.differential import assert_same, outcome

import fxjit


class Length:
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


class LengthOfList(list):
    def __init__(self, n):
        self.n = n

    def __len__(self):
        return self.n


class Truth:
    def __init__(self, n):
        self.n = n

    def __bool__(self):
        return self.n


class Index:
    def __init__(self, n):
        self.n = n

    def __index__(self):
        return self.n


class Meta(type):
    def __eq__(cls, other):
        return cls.n

    def __hash__(cls):
        return 7

    def __lt__(cls, other):
        return cls.n

    def __contains__(cls, item):
        return cls.n

    def __or__(cls, other):
        return cls.n, other

    def __ror__(cls, other):
        return other, cls.n

    def __imul__(cls, other):
        return cls.n, other

    def __neg__(cls):
        return cls.n

    def __index__(cls):
        return 1 if cls.n else 0

    def __repr__(cls):
        return f"<{cls.n}>"

    def __format__(cls, spec):
        return f"{spec}{cls.n}"


class MetaLength(type):
    def __len__(cls):
        return cls.n


class MetaTruth(type):
    def __bool__(cls):
        return cls.n


class Longer(int):
    pass


NUMBERS = [0, 2, 3, -1, -7, 4, True, 2.5, "a", None, 1 << 70, -(1 << 70), Longer(3), Longer(-3)]


def matched(o):
    match o:
        case _ if o:
            return 1
    return 2


ASKING = [len, bool, operator.not_, operator.truth, matched, lambda o: 1 if o else 2, lambda o: o and 5, lambda o: any([o]),
          lambda o: [*filter(None, [o])] != [], lambda o: [1 for _ in [0] if o], lambda o: [1, 2, 3][:len(o)]]


def same_at_each_call(fn, arguments):
    fxjit.reset()  # the functions of one test share their code
    compiled = fxjit.compile(fn, backend="eager")
    with fxjit.config.patch(recompile_limit=30):
        for argument in arguments:
            assert_same(outcome(fn, (argument, torch.ones(2))), outcome(compiled, (argument, torch.ones(2))))


@pytest.mark.parametrize("make", [Length, LengthOfList, Truth, lambda n: Length(Index(n)), lambda n: Truth(Index(n))],
                         ids=["length", "list", "truth", "index", "index as truth"])
def test_what_objects_say_of_their_length_and_truth_is_checked(make):
    for ask in ASKING:
        same_at_each_call(lambda o, x, ask=ask: (ask(o), x + 1), map(make, NUMBERS))


def test_a_tensor_is_a_length_by_its_number():
    for ask in ASKING:
        same_at_each_call(lambda o, x, ask=ask: (ask(o), x + 1), map(Length, map(torch.tensor, [True, 2, -3, 2.5])))


@pytest.mark.parametrize("meta", [MetaLength, MetaTruth])
def test_a_class_is_asked_for_its_length_and_truth_at_each_call(meta):
    def changing(numbers):
        for n in numbers:
            cls.n = n
            yield cls

    for ask in ASKING:
        cls = meta("Asked", (), {"n": 1})
        same_at_each_call(lambda o, x, ask=ask: (ask(o), x + 1), changing([True, False, True, 2, 0, -1, "a", 1 << 70]))


def multiplied(o):
    o *= 3
    return o


OTHER = object()
OPERATORS = [lambda o: o == OTHER, lambda o: o != OTHER, lambda o: OTHER == o, lambda o: o == 3, lambda o: (1,) != o,
             lambda o: o < 3, lambda o: 3 > o, lambda o: 3 in o, lambda o: OTHER in o, lambda o: o | OTHER, lambda o: OTHER | o,
             lambda o: o | int, lambda o: int | o, lambda o: -o, lambda o: [5, 6][o], repr, multiplied,
             lambda o: f"{o} {o!r} {o:x}", lambda o: o in (int, 1), lambda o: [int, 1].count(o), lambda o: {int: 1}.get(o)]


@pytest.mark.parametrize("use", OPERATORS)
def test_operators_of_a_metaclass_run_at_each_call(use):
    def changing():
        for n in (True, False, True):
            cls.n = n
            yield cls

    cls = Meta("Used", (), {"n": True})
    same_at_each_call(lambda o, x: (use(o), x + 1), changing())


class MetaNumber(type):
    def __int__(cls):
        return cls.n

    __index__ = __round__ = __trunc__ = __floor__ = __ceil__ = __sizeof__ = __int__

    def __float__(cls):
        return float(cls.n)

    def __complex__(cls):
        return complex(cls.n)

    def __divmod__(cls, other):
        return cls.n, other

    def __pow__(cls, other, modulus=None):
        return cls.n

    def __bytes__(cls):
        return bytes(cls.n)


CONVERSIONS = [int, hex, oct, bin, chr, float, complex, operator.index, round, math.trunc, math.floor, math.ceil, math.sqrt,
               math.sin, bytes, lambda o: divmod(o, 3), lambda o: pow(o, 3, 5), lambda o: math.gcd(o, 4), lambda o: "a" * o,
               lambda o: complex(o, 1), lambda o: math.fsum([o, 1.0]), lambda o: round(2.12345, o), lambda o: "%d" % o,
               lambda o: "a".zfill(o), lambda o: (5).to_bytes(o, "big"), lambda o: torch.full((2,), float(o)), sys.getsizeof]


@pytest.mark.parametrize("convert", CONVERSIONS)
def test_a_metaclass_makes_a_number_of_its_class_at_each_call(convert):
    def changing():
        for n in (1, 2, 3, 1):
            cls.n = n
            yield cls

    cls = MetaNumber("Counted", (), {"n": 1})
    same_at_each_call(lambda o, x: (convert(o), x + 1), changing())


HASHES = ["a", 1.0, True, 2**70, None, 5]
KEYED = {
    "a dict": lambda o: len({o: 1}),
    "a set": lambda o: len({o}),
    "a frozenset": lambda o: len(frozenset([o])),
    "dict()": lambda o: len(dict([(o, 2)])),
    "in": lambda o: o in {1: 2},
    "get": lambda o: {1: 2}.get(o),
    "add": lambda o: set().add(o),
    "an item": lambda o: {}.__setitem__(o, 1),
    "hash": lambda o: hash(o) * 0,
}


@pytest.mark.parametrize("keyed", KEYED)
@pytest.mark.parametrize("number", HASHES)
def test_a_hash_is_a_number_where_the_object_is_a_key(number, keyed):
    class Hashed:
        def __hash__(self):
            return number

    def program(x):
        return KEYED[keyed](Hashed()), x + 1

    compiled = fxjit.compile(program, backend="eager")
    for _ in range(2):
        assert_same(outcome(program, (torch.ones(2),)), outcome(compiled, (torch.ones(2),)))
