"""heapq's C functions against the plain Python that is traced in their place: results, the order of comparisons, what the list
looks like at each of them, errors, and lists that are changed meanwhile."""

from __future__ import annotations

import copy
import heapq
import random
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit
from fxjit.frontend.polyfills import heapq_
from fxjit.testing import CompileCounter

X = torch.ones(3)
FUNCTIONS = {
    "heappush": 2, "heappop": 1, "heapify": 1, "heapreplace": 2, "heappushpop": 2,
    "_heappop_max": 1, "_heapreplace_max": 2, "_heapify_max": 1,
}  # fmt: skip


class Item:
    """Compared by `key`; each comparison is noted, with the heap as it is then."""

    def __init__(self, key: int, name: int, world: World) -> None:
        self.key, self.name, self.world = key, name, world

    def __lt__(self, other: Item) -> bool:
        self.world.note(self, other)
        return self.key < other.key


class World:
    def __init__(self, keys: list[int], act: Any, when: int) -> None:
        self.heap = [Item(key, name, self) for name, key in enumerate(keys)]
        self.seen: list[Any] = []
        self.act, self.when = None, when
        self.later = act

    def note(self, one: Item, other: Item) -> None:
        self.seen.append((one.name, other.name, [item.name for item in self.heap]))
        if self.act is not None and len(self.seen) == self.when:
            self.act(self.heap)

    def run(self, fn: Any, key: int | None, prepare: Any) -> Any:
        if prepare is not None:
            prepare(self.heap)
        self.seen.clear()
        self.act = self.later
        try:
            result = fn(self.heap, *([] if key is None else [Item(key, -1, self)]))
        except Exception as error:
            result = (type(error).__name__, str(error))
        return getattr(result, "name", result), [item.name for item in self.heap], self.seen


def fail(heap: list[Any]) -> None:
    raise ValueError("cannot be compared")


def shrink(heap: list[Any]) -> None:
    heap.pop()


def reverse(heap: list[Any]) -> None:
    heap.reverse()


def empty(heap: list[Any]) -> None:
    heap.clear()


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("act", [None, fail, shrink, reverse, empty], ids=lambda act: getattr(act, "__name__", "nothing"))
def test_as_the_original(name, act):
    rng = random.Random(name)
    prepare = heapq._heapify_max if "max" in name else heapq.heapify  # type: ignore[attr-defined]  # private
    for _ in range(150):
        keys = [rng.randrange(5) for _ in range(rng.randrange(12))]
        key = rng.randrange(5) if FUNCTIONS[name] == 2 else None
        when, before = rng.randrange(1, 6), prepare if rng.random() < 0.7 else None
        ours = World(keys, act, when).run(getattr(heapq_, name.removeprefix("_")), key, before)
        assert ours == World(keys, act, when).run(getattr(heapq, name), key, before), (keys, key, when)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("heap", [(), {}, None, []], ids=str)
def test_arguments_that_are_refused(name, heap):
    def outcome(fn: Any) -> Any:
        try:
            return fn(copy.copy(heap), *([1] if FUNCTIONS[name] == 2 else []))
        except (TypeError, IndexError) as error:
            return type(error).__name__, str(error)

    assert outcome(getattr(heapq_, name.removeprefix("_"))) == outcome(getattr(heapq, name))


class Loud(list):
    """Its methods are none of heapq's business."""

    def append(self, item: Any) -> None:
        raise AssertionError("append")

    def __getitem__(self, index: Any) -> Any:
        raise AssertionError("getitem")

    def __setitem__(self, index: Any, item: Any) -> None:
        raise AssertionError("setitem")


def test_methods_of_a_subclass_are_not_called():
    heap = Loud([4, 2, 3])
    heapq_.heapify(heap)
    heapq_.heappush(heap, 1)
    assert heapq_.heappop(heap) == 1 and list(heap) == [2, 4, 3]


def test_traced():
    def f(x, numbers):
        heap = list(numbers)
        heapq.heapify(heap)
        heapq.heappush(heap, 2)
        taken = [heapq.heappop(heap), heapq.heapreplace(heap, 9), heapq.heappushpop(heap, 0), heapq.heappushpop(heap, 4)]
        pairs = [(3, "c"), (1, "a"), (2, "b")]
        heapq.heapify(pairs)
        merged = list(heapq.merge([1, 4], [2]))
        return x * taken[0], heap, taken, pairs, heapq.nsmallest(2, heap), heapq.nlargest(2, heap), merged

    assert_same_as_eager(f, X, [5, 3, 8, 1, 7, 7, 0])


def test_traced_smallest_and_largest_by_key():
    def f(x, items):
        return x + 1, [heapq.nsmallest(n, items, key=len) + heapq.nlargest(n, items, key=len) for n in (-1, 0, 1, 2, 3, 9)]

    assert_same_as_eager(f, X, ["bb", "a", "cc", "ddd", "e", "ff"])


def test_traced_objects_that_compare_themselves():
    class Task:
        def __init__(self, cost, name):
            self.cost, self.name = cost, name

        def __lt__(self, other):
            return self.cost < other.cost

    def f(x):
        heap = [Task(cost, name) for name, cost in enumerate((3, 1, 3, 2, 1))]
        heapq.heapify(heap)
        order = [heapq.heappop(heap).name for _ in range(3)]
        heapq.heappush(heap, Task(0, 9))
        return x * 2, order, [task.name for task in heap]

    assert_same_as_eager(f, X)


def test_traced_errors():
    def f(x, items):
        try:
            heapq.heappop(items)
        except IndexError as error:
            x = x + 1
            said = str(error)
        try:
            heapq.heappush(items, (1, 2))
            heapq.heappush(items, "a")
        except TypeError as error:
            return x * 2, said, str(error), items
        return x, said, "", items

    assert_same_as_eager(f, X, [])


def test_traced_heap_of_a_subclass():
    class Stack(list):
        def append(self, item):
            raise AssertionError

    def f(x):
        heap = Stack([3, 1, 2])
        heapq.heapify(heap)
        heapq.heappush(heap, 0)
        return x * heapq.heappop(heap), list(heap)

    assert_same_as_eager(f, X, fullgraph=False)


def test_one_graph():
    counter = CompileCounter()

    def f(x):
        heap: list[int] = []
        for number in (5, 1, 4):
            heapq.heappush(heap, number)
        return x * heapq.heappop(heap)

    assert torch.equal(fxjit.compile(f, backend=counter, fullgraph=True)(X), X) and counter.frame_count == 1
