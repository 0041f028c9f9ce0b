"""Sets of objects of the trace, which have addresses for hashes: iterated over in one order, which nobody sees another of."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


class Node:
    def __init__(self, value: Any, *kids: Any) -> None:
        self.value = value
        self.kids = set(kids)


def walks(x: torch.Tensor) -> Any:
    a, b = Node(x), Node(x * 2)
    c = Node(x * 3, a, b)
    seen: set[Node] = set()
    total = x * 0

    def go(node: Node) -> None:
        nonlocal total
        if node not in seen:
            seen.add(node)
            total = total + node.value
            for kid in node.kids:
                go(kid)

    go(Node(x * 4, c, a))
    return total, len(seen)


def pops(x: torch.Tensor) -> Any:
    nodes = {Node(x + i) for i in range(5)}
    total = x * 0
    while nodes:
        total = total + nodes.pop().value
    return total


def pops_some(x: torch.Tensor) -> Any:
    nodes = {Node(x + i) for i in range(5)}
    first = nodes.pop()
    second = list(nodes)[0]
    return first in nodes, second in nodes, len(nodes), sum(node.value for node in frozenset(nodes)) + first.value


def agrees(x: torch.Tensor) -> Any:
    nodes = {Node(x + i) for i in range(5)}
    first = [node for node in nodes]
    nodes.discard(first[2])
    return x + sum(a is b for a, b in zip(first[:2] + first[3:], nodes, strict=True)), list(nodes) == [*nodes]


def of_tensors(x: torch.Tensor) -> Any:
    total = x * 0
    for y in {x * 1, x * 2, x * 3}:
        total = total + y
    return total


def of_functions(x: torch.Tensor) -> Any:
    for f in {lambda y: y + 1, lambda y: y + 2}:
        x = f(x)
    return x


@pytest.mark.parametrize("fn", [walks, pops, pops_some, agrees, of_tensors, of_functions])
def test_it_is_in_the_graph(fn: Any) -> None:
    assert_same_as_eager(fn, torch.ones(2))


def left(x: torch.Tensor) -> Any:
    nodes = {Node(x), Node(x * 2)}
    return nodes, [node.value for node in nodes]


def held(x: torch.Tensor) -> Any:
    node = Node(x, Node(x + 1), Node(x + 2))
    return node.kids, [kid.value for kid in node.kids]


def left_in_an_iterator(x: torch.Tensor) -> Any:
    nodes = {Node(x), Node(x * 2), Node(x * 3)}
    steps = iter(nodes)
    first = next(steps)
    return nodes, [first.value, *(node.value for node in steps)]


def left_after_a_pop(x: torch.Tensor) -> Any:
    nodes = {Node(x), Node(x * 2), Node(x * 3)}
    first = nodes.pop()
    return nodes, [node.value for node in nodes], first.value


@pytest.mark.parametrize("fn", [left, held, left_in_an_iterator, left_after_a_pop])
def test_a_set_that_is_seen_later_has_the_order_that_was_seen(fn: Any) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(fn, backend="eager")
    for _ in range(2):
        nodes, values, *_ = compiled(torch.ones(2))
        assert all(torch.equal(node.value, value) for node, value in zip(nodes, values, strict=True))
    assert fxjit.counters["graph_break"]


GIVEN = [Node(torch.ones(2) * i) for i in range(4)]


def of_given_objects(x: torch.Tensor) -> Any:
    return [node.value + x for node in set(GIVEN)], [node.value + x for node in {*GIVEN, Node(x)} if node in GIVEN]


class Hashed(Node):
    def __init__(self, hash_value: int) -> None:
        super().__init__(None)
        self.hash_value = hash_value

    def __hash__(self) -> int:
        return self.hash_value


def test_objects_from_outside_have_the_order_of_their_addresses() -> None:
    def order_of(fn: Any) -> list[list[float]]:
        return [[float(value[0]) - 1 for value in values] for values in fn(torch.ones(2))]

    # The object that the function makes has an address of its own each time: where that is in the place of another one of the
    # set's table, the order of the others is another.
    orders = [[float(node.value[0]) for node in {*GIVEN, Hashed(hash_value)} if node in GIVEN] for hash_value in range(1024)]
    compiled = fxjit.compile(of_given_objects, backend="eager")
    for fn in [of_given_objects, *[compiled] * 9]:
        of_given, beside_a_new_one = order_of(fn)
        assert of_given == [float(node.value[0]) for node in set(GIVEN)]
        assert beside_a_new_one in orders
