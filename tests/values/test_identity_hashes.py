"""Keys and elements whose class says that its hash is the object's identity: they are found by identity, and their `__eq__`,
which may compare element by element, is not called."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fxjit


class Node:
    """An expression: `==` makes another one."""

    def __init__(self, name: str) -> None:
        self.name = name

    def __hash__(self) -> int:
        return id(self)

    def __eq__(self, other: object) -> Any:
        raise TypeError(f"{self.name} is compared")


A, B, C = Node("a"), Node("b"), Node("c")
SOME, OTHERS, TABLE = frozenset({A, B}), {A, C}, {A: 1.0, B: 2.0}


def of_given_containers(x):
    return x * TABLE[A] + TABLE.get(C, 5.0), A in SOME, C in SOME, len(SOME - OTHERS), len(SOME & OTHERS), len(OTHERS | SOME)


def of_what_is_made(x):
    one, other = Node("one"), Node("other")
    found, table = {one, A}, {one: 1, other: 2}
    return x + table[other], one in found, other in found, len(found), A in table


def of_a_dict_that_changes(x):
    table = {A: x}
    table[B] = x + 1
    del table[A]
    return table[B], len(table)


def within_tuples(x):
    return x + 1, (A, 1) in {(A, 1): 2}, {(B, 2): 3}[(B, 2)]


def among_other_keys(x):
    return x + 1, 5 in SOME, "a" in SOME, A in {1: 2, "a": 3}


@pytest.mark.parametrize("fn", [of_given_containers, of_what_is_made, of_a_dict_that_changes, within_tuples, among_other_keys],
                         ids=lambda fn: fn.__name__)  # fmt: skip
def test_found_by_identity(fn):
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    x = torch.ones(2)
    for _ in range(2):
        assert str(compiled(x)) == str(fn(x))


def test_another_object_is_another_key():
    current = A

    def looks_up(x):
        return x * TABLE.get(current, 7.0)

    fxjit.reset()
    compiled = fxjit.compile(looks_up, backend="eager", fullgraph=True)
    for current in (A, B, C, A):  # noqa: B007 - the closure's
        assert torch.equal(compiled(torch.ones(2)), looks_up(torch.ones(2)))
