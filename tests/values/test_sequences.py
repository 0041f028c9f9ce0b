"""Lists, tuples, named tuples, ranges and slices: compiled functions against eager, mutated arguments included."""

from __future__ import annotations

import collections
from typing import NamedTuple

import torch
from tests.differential import assert_same_as_eager

import fxjit

X = torch.arange(6.0).reshape(2, 3)


class Point(NamedTuple):
    x: int
    y: torch.Tensor

    def scaled(self, by):
        return self.y * by * self.x


Pair = collections.namedtuple("Pair", ["first", "second"])


def test_list_display_and_iteration():
    def f(x):
        items = [x, x + 1, x * 2]
        total = x * 0
        for item in items:
            total = total + item
        return total, items

    assert_same_as_eager(f, X)


def test_list_methods():
    def f(x):
        items = [3, 1, 2]
        items.append(5)
        items.extend([7, 8])
        items.insert(0, 9)
        items.remove(1)
        popped = items.pop()
        other = items.copy()
        other.reverse()
        items.sort()
        return x + popped, items, other, items.index(5), items.count(3), len(items)

    assert_same_as_eager(f, X)


def test_list_slices():
    def f(x):
        items = list(range(10))
        items[2:4] = [x, x, x]
        items[-1] = 0
        del items[0]
        del items[1::4]
        return items, items[::-1], items[1:3], x

    assert_same_as_eager(f, X)


def test_list_operators():
    def f(x):
        a = [1, 2] + [3]
        b = a * 2
        a += (4,)
        b *= 2
        return x, a, b, a == [1, 2, 3, 4], a < b, 3 in a, 7 not in a, a != b

    assert_same_as_eager(f, X)


def test_argument_list_is_mutated_in_place():
    def f(items, x):
        items.append(x + 1)
        items[0] = x
        return items

    assert_same_as_eager(f, [1, 2, 3], X)


def test_aliases_stay_aliases():
    def f(x):
        inner = [x]
        outer = [inner, inner]
        inner.append(x + 1)
        return outer, outer[0] is outer[1]

    result = assert_same_as_eager(f, X)
    assert result[0][0] is result[0][1]


def test_argument_identity_is_kept():
    def f(items, x):
        items.append(x)
        return {"items": items}, items is items

    assert_same_as_eager(f, [1], X)
    items = [1]
    import fxjit

    out = fxjit.compile(f, fullgraph=True, backend="eager")(items, X)
    assert out[0]["items"] is items


def test_a_list_can_contain_itself():
    def f(x):
        items = [x + 1]
        items.append(items)
        return items

    import fxjit

    out = fxjit.compile(f, fullgraph=True, backend="eager")(X)
    assert out[1] is out


def test_two_arguments_that_are_one_list():
    def f(a, b, x):
        a.append(x + 1)
        return len(b), b[-1]

    import fxjit

    compiled = fxjit.compile(f, fullgraph=True, backend="eager")
    same = [1]
    assert compiled(same, same, X)[0] == 2
    length, last = compiled([1], [5], X)
    assert (length, last) == (1, 5)


def test_tuples():
    def f(x):
        a = (x, 1, "two")
        b, *rest = a
        (c, d), e = (1, 2), 3
        return a[1:], rest, a + (c, d, e), (1, 2) < (1, 3), a[1:].index(1), (1, 1).count(1), b

    assert_same_as_eager(f, X)


def test_namedtuple():
    def f(x, p):
        q = Pair(x, second=3)
        r = q._replace(second=4)
        first, second = q
        return q, r, first + second, p.scaled(2), p._fields, Pair._make([1, x]), r._asdict(), p.x

    assert_same_as_eager(f, X, Point(3, X))


def test_argument_namedtuple_comes_back():
    def f(p):
        return p, p.y + 1, isinstance(p, tuple), type(p) is Point

    assert_same_as_eager(f, Point(3, X))


def test_torch_size():
    def f(x):
        size = x.shape
        return x.reshape(size[::-1]), size.numel(), len(size), size + (1,), tuple(size), size[0], list(size)

    assert_same_as_eager(f, X)


def test_return_types_of_torch():
    def f(x):
        result = x.max(dim=1)
        values, indices = result
        return result.values + 1, indices, result, values

    assert_same_as_eager(f, X)


def test_ranges():
    def f(x):
        total = 0
        for i in range(1, 10, 3):
            total += i
        r = range(10)
        return x + total, r[2:5], 3 in r, len(r), list(reversed(r)), r.index(4), r == range(0, 10), r

    assert_same_as_eager(f, X)


def test_slices():
    def f(x):
        s = slice(0, 1)
        return x[s], s.start, s.stop, s.step, s.indices(5), s, [1, 2, 3][s], s == slice(0, 1)

    assert_same_as_eager(f, X)


def test_sorting():
    def f(x):
        rows = [(2, "b"), (1, "z"), (2, "a")]
        return (
            sorted(rows),
            sorted(rows, key=lambda row: row[1], reverse=True),
            sorted([3, 1, 2]),
            sorted(["bb", "a"], key=len),
            x,
        )

    assert_same_as_eager(f, X)


def test_a_list_is_empty_while_it_is_sorted():
    def f(x, change):
        values, seen = [3, 1, 2], []

        def key(value):
            seen.append(len(values))
            change(values)
            return value

        try:
            values.sort(key=key)
            return x + 1, values, seen
        except ValueError as error:
            return x + 2, values, seen, str(error)

    assert_same_as_eager(f, X, lambda values: None)
    assert_same_as_eager(f, X, lambda values: values.append(4))
    assert_same_as_eager(f, X, lambda values: (values.extend([4]), values.pop()))
    assert_same_as_eager(f, X, lambda values: (values.insert(0, 4), values.clear()))
    assert_same_as_eager(f, X, lambda values: (values.clear(), values.sort(), values.reverse()))


def test_a_list_whose_items_cannot_be_compared_stays_partly_sorted():
    class Picky:
        def __init__(self, value):
            self.value = value

        def __lt__(self, other):
            if 5 in (self.value, other.value):
                raise KeyError(self.value)
            return self.value < other.value

    def f(x):
        values, mixed = [Picky(value) for value in (9, 3, 7, 1, 5, 2)], [3, 2, "a", 1]
        for each in (values, mixed):
            try:
                each.sort()
            except (KeyError, TypeError) as error:
                x = x + len(str(error))
        return x, [each.value for each in values], mixed

    assert_same_as_eager(f, X)


def test_errors_are_those_of_cpython():
    def f(x):
        seen = []
        items = [1, 2]
        for attempt in (
            lambda: items[5],
            lambda: items.pop(9),
            lambda: [].pop(),
            lambda: items.remove(7),
            lambda: items.index(7),
            lambda: tuple(items)[3],
            lambda: items["a"],
            lambda: 5 in 5,
            lambda: items + (1,),
            lambda: [1] < ["a"],
            lambda: range(3)[9],
            lambda: len(5),
        ):
            try:
                attempt()
            except Exception as error:
                seen.append((type(error).__name__, str(error)))
        return seen, x

    assert_same_as_eager(f, X)


def test_unpacking_errors():
    def f(x):
        seen = []
        for items in ([1], [1, 2, 3]):
            try:
                a, b = items
            except ValueError as error:
                seen.append(str(error))
        return seen, x

    assert_same_as_eager(f, X)


def test_nested_containers_in_and_out():
    def f(tree):
        return {"out": [tree["a"][0] * 2, (tree["b"], [tree["a"][1]])]}, tree["a"]

    assert_same_as_eager(f, {"a": [X, X + 1], "b": (1, X)})


def test_comprehensions():
    def f(x):
        return (
            [x + i for i in range(3) if i != 1],
            {i: x * i for i in range(2)},
            {i % 2 for i in range(5)},
            sum(x * i for i in range(3)),
        )

    assert_same_as_eager(f, X)


def test_mutation_while_iterating():
    def f(x):
        items = [1, 2, 3, 4]
        seen = []
        for item in items:
            seen.append(item)
            if item == 2:
                items.remove(1)
        return seen, items, x

    assert_same_as_eager(f, X)


def test_equality_of_tensors_in_lists_is_by_identity_first():
    def f(x):
        return [x] == [x], x

    assert_same_as_eager(f, X)


def test_length_is_guarded():
    import fxjit

    def f(items, x):
        return x + len(items)

    compiled = fxjit.compile(f, fullgraph=True, backend="eager")
    assert torch.equal(compiled([1, 2], X), X + 2)
    assert torch.equal(compiled([1, 2, 3], X), X + 3)


def test_ranges_longer_than_any_list():
    def f(x):
        long, errors = range(10**30), []
        for broken in (lambda: len(long), lambda: long[10**30], lambda: long.index(-1)):
            try:
                broken()
            except (OverflowError, IndexError, ValueError) as error:
                errors.append((type(error), str(error)))
        return x, errors, long[10**29], long.count(7), long.index(10**20), 10**25 in long, range(5).count(3.0)

    assert_same_as_eager(f, X)


def test_a_deque_that_grows_is_compiled_for_its_length_alone():
    @fxjit.disable
    def newest(memory, count):
        return list(memory)[-count:]

    def program(x, memory):
        if len(memory) < 3:
            return x + 1
        found = newest(memory, 2)
        return x * found[0] + found[1], bool(memory), len(memory)

    compiled = fxjit.compile(program, backend="eager")
    compiles = []
    for length in range(20):
        memories = [collections.deque([torch.ones(2)] * length, maxlen=16) for _ in range(2)]
        assert repr(program(torch.ones(2), memories[0])) == repr(compiled(torch.ones(2), memories[1]))
        compiles.append(fxjit.counters["frames"]["ok"])
    assert compiles[6:] == compiles[6:7] * 14, "four ways to go: short or long, with a length that is known or varies"


def test_a_deque_that_is_looked_at_is_known():
    def looks(x, memory):
        return x + len(memory), [x * each for each in memory], memory[-1] if memory else None

    def changes(x, memory):
        before = len(memory)
        memory.append(x)
        memory.rotate(1)
        return len(memory) - before, memory.popleft() + x, memory

    def unread(x, memory, other):
        return x + (memory is other), {1: memory}, len(memory)

    compiled = {program: fxjit.compile(program, backend="eager", fullgraph=True) for program in (looks, changes, unread)}
    for length in (0, 1, 2, 5, 2, 3):
        for program in (looks, changes):
            given = [(torch.ones(2), collections.deque(map(float, range(length)), maxlen=4)) for _ in range(2)]
            assert repr(program(*given[0])) == repr(compiled[program](*given[1]))
            assert repr(given[0]) == repr(given[1])
        memory = collections.deque(range(length))
        for other in (memory, memory.copy()):
            assert repr(unread(torch.ones(2), memory, other)) == repr(compiled[unread](torch.ones(2), memory, other))
