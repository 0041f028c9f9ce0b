"""Methods that fill a container take one item after the other: code that makes the next one sees what is there by then, and
what is there stays if it raises."""

import collections

import pytest
import torch
from tests.differential import assert_same_as_eager


def numbers(container, fails_at):
    for i in range(4):
        if i == fails_at:
            raise ValueError("no more")
        yield 10 * len(container) + i


def pairs(container, fails_at):
    for number in numbers(container, fails_at):
        yield number, 0


FILLED = {
    "list.extend": (lambda: [1], lambda c, items: c.extend(items), numbers),
    "list +=": (lambda: [1], lambda c, items: c.__iadd__(items), numbers),
    "list[1:1]": (lambda: [1, 2], lambda c, items: c.__setitem__(slice(1, 1), items), numbers),
    "list.__init__": (lambda: [1], lambda c, items: c.__init__(items), numbers),
    "deque.extend": (lambda: collections.deque([1]), lambda c, items: c.extend(items), numbers),
    "deque.extend with a bound": (lambda: collections.deque([1], 3), lambda c, items: c.extend(items), numbers),
    "deque.extendleft": (lambda: collections.deque([1]), lambda c, items: c.extendleft(items), numbers),
    "deque +=": (lambda: collections.deque([1]), lambda c, items: c.__iadd__(items), numbers),
    "deque.__init__": (lambda: collections.deque([1]), lambda c, items: c.__init__(items), numbers),
    "set.update": (lambda: {1}, lambda c, items: c.update(items), numbers),
    "set.__init__": (lambda: {1}, lambda c, items: c.__init__(items), numbers),
    "set.difference_update": (lambda: {10, 20, 21, 30, 32, 50, 52}, lambda c, items: c.difference_update(items), numbers),
    "set.intersection_update": (lambda: {1, 30, 31}, lambda c, items: c.intersection_update(items), numbers),
    "set.symmetric_difference_update": (lambda: {1, 30, 31}, lambda c, items: c.symmetric_difference_update(items), numbers),
    "dict.update": (lambda: {1: 1}, lambda c, items: c.update(items), pairs),
    "dict |=": (lambda: {1: 1}, lambda c, items: c.__ior__(items), pairs),
    "dict.__init__": (lambda: {1: 1}, lambda c, items: c.__init__(items), pairs),
    "OrderedDict.update": (lambda: collections.OrderedDict({1: 1}), lambda c, items: c.update(items), pairs),
    "defaultdict.update": (lambda: collections.defaultdict(int, {1: 1}), lambda c, items: c.update(items), pairs),
    "Counter.update": (lambda: collections.Counter({1: 1}), lambda c, items: c.update(items), numbers),
    "UserList.extend": (lambda: collections.UserList([1]), lambda c, items: c.extend(items), numbers),
}


@pytest.mark.parametrize("fails_at", [None, 0, 2])
@pytest.mark.parametrize("name", FILLED)
def test_what_makes_the_items_sees_those_before(name, fails_at):
    make, fill, items = FILLED[name]

    def fn(x):
        container = make()
        try:
            fill(container, items(container, fails_at))
        except ValueError as error:
            return x + 1, list(container), str(error)
        return x + 1, list(container)

    assert_same_as_eager(fn, torch.ones(2), breaks=0)


@pytest.mark.parametrize("name", ["list.extend", "list.__init__", "deque.extend", "deque.extendleft", "deque.__init__"])
def test_a_container_is_filled_with_itself(name):
    make, fill, _ = FILLED[name]

    def fn(x):
        container = make()
        fill(container, container)
        return x + 1, list(container)

    assert_same_as_eager(fn, torch.ones(2))
