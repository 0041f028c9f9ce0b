"""`match` statements."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from tests.differential import assert_same_as_eager


@dataclasses.dataclass
class Point:
    x: int
    y: int


class Plain:
    __match_args__ = ("a",)

    def __init__(self, a):
        self.a = a
        self.b = a + 1


def describe(thing):
    match thing:
        case 0 | 1:
            return "small"
        case int(n) if n > 100:
            return ("large", n)
        case int():
            return "int"
        case str("hello"):
            return "greeting"
        case str() as text:
            return text.upper()
        case []:
            return "empty"
        case [only]:
            return ("one", only)
        case [first, *rest]:
            return (first, rest)
        case {"kind": "a", "value": value, **others}:
            return (value, others)
        case {"kind": kind}:
            return kind
        case {}:
            return "mapping"
        case Point(x=0, y=y):
            return ("axis", y)
        case Point(x, y):
            return (x, y)
        case Plain(1, b=b):
            return ("one", b)
        case Plain(a):
            return a
        case None:
            return "none"
        case _:
            return "other"


THINGS = [
    0, 7, 500, "hello", "other", [], [1], (1, 2, 3), {"kind": "a", "value": 3, "z": 1}, {"kind": "b"}, {"q": 1},
    Point(0, 5), Point(1, 2), Plain(1), Plain(4), None, 1.5,
]  # fmt: skip


@pytest.mark.parametrize("index", range(len(THINGS)))
def test_match(index):
    thing = THINGS[index]

    def program(x):
        return x + 1, describe(thing)

    assert_same_as_eager(program, torch.ones(3))


def test_match_on_tensors():
    def program(x):
        match (x, x.shape):
            case torch.Tensor() as y, (n,):
                return y + n
        return x

    assert_same_as_eager(program, torch.ones(3))


def test_too_many_patterns():
    def program(x):
        try:
            match Plain(1):
                case Plain(1, 2):
                    return x
        except TypeError as error:
            return x + 1, str(error)

    assert_same_as_eager(program, torch.ones(3))
