"""Iterators: consumed in part or whole, alive at the end, existing before; itertools."""

from __future__ import annotations

import itertools
import warnings

import torch
from tests.differential import assert_same_as_eager

import fxjit

X = torch.arange(6.0).reshape(2, 3)


def test_iter_and_next():
    def f(x):
        it = iter([1, x, 3])
        first = next(it)
        second = next(it)
        rest = list(it)
        return first, second, rest, next(it, "end"), next(iter([]), None)

    assert_same_as_eager(f, X)


def test_zip_map_filter_enumerate_reversed():
    def f(x):
        return (
            list(zip([1, 2, 3], "abc", (x, x, x))),
            list(map(lambda a, b: a + b, [1, 2], [x, 4])),
            list(filter(None, [0, 1, 2])),
            list(filter(lambda v: v > 1, [1, 2])),
            list(enumerate("ab", start=5)),
            list(reversed([1, 2, 3])),
            list(reversed((1, 2))),
            list(reversed("ab")),
            list(zip()),
            dict(zip("ab", (1, x))),
        )

    assert_same_as_eager(f, X)


def test_zip_strict():
    def f(x):
        seen = [list(zip([1], [2], strict=True))]
        for pair in (([1, 2], [1]), ([1], [1, 2])):
            try:
                list(zip(*pair, strict=True))
            except ValueError as error:
                seen.append(str(error))
        return seen, x

    assert_same_as_eager(f, X)


def test_stop_iteration():
    def f(x):
        try:
            next(iter([]))
        except StopIteration:
            return x + 1

    assert_same_as_eager(f, X)


def test_iterators_that_leave_the_frame():
    def f(x):
        a = iter([1, x, 3])
        next(a)
        b = zip([1, 2, 3], [4, 5, 6])
        next(b)
        c = enumerate([7, 8])
        next(c)
        d = iter({"a": 1, "b": 2}.items())
        next(d)
        e = itertools.chain([1, 2], [3])
        next(e)
        r = iter(range(5))
        next(r)
        return a, b, c, d, e, r, reversed([1, 2, 3]), map(abs, [-1, -2]), iter("ab"), iter({5})

    assert_same_as_eager(f, X)


def test_an_iterator_over_an_argument_stays_tied_to_it():
    def f(items, x):
        it = iter(items)
        next(it)
        return it, x + 1

    compiled = fxjit.compile(f, fullgraph=True, backend="eager")
    items = [1, 2, 3]
    it, _ = compiled(items, X)
    items.append(4)
    assert list(it) == [2, 3, 4]


def test_an_argument_iterator_is_advanced():
    def f(it, x):
        return next(it) + next(it), x + 1

    compiled = fxjit.compile(f, fullgraph=True, backend="eager")
    for make in (
        lambda: iter([1, 2, 3, 4]),
        lambda: iter((1, 2, 3, 4)),
        lambda: iter(range(1, 5)),
        lambda: itertools.count(1),
    ):
        it = make()
        assert compiled(it, X)[0] == 3
        assert next(it) == 3


def test_an_argument_iterator_that_cannot_be_read_breaks_the_graph():
    def f(it, x):
        y = x + 1
        return next(it), y

    it = zip([1, 2], [3, 4])
    first, _ = fxjit.compile(f, backend="eager")(it, X)
    assert first == (1, 3)
    assert next(it) == (2, 4)


def test_itertools():
    def f(x):
        return (
            list(itertools.chain([1], (x,), "a")),
            list(itertools.chain.from_iterable([[1], [2]])),
            list(itertools.islice(itertools.count(3, 2), 4)),
            list(itertools.islice([1, 2, 3, 4, 5], 1, 4, 2)),
            list(itertools.repeat(x, 2)),
            list(itertools.islice(itertools.cycle([1, 2]), 5)),
            list(itertools.product([1, 2], "ab")),
            list(itertools.product([0, 1], repeat=2)),
            list(itertools.permutations([1, 2, 3], 2)),
            list(itertools.combinations([1, 2, 3], 2)),
            list(itertools.combinations_with_replacement([1, 2], 2)),
        )

    assert_same_as_eager(f, X)


def test_more_itertools():
    def f(x):
        return (
            list(itertools.accumulate([1, 2, 3])),
            list(itertools.accumulate([1, 2], lambda a, b: a * b, initial=5)),
            list(itertools.takewhile(lambda v: v < 3, [1, 2, 3, 1])),
            list(itertools.dropwhile(lambda v: v < 3, [1, 3, 1])),
            list(itertools.starmap(pow, [(2, 3), (3, 2)])),
            list(itertools.compress("abc", [1, 0, 1])),
            list(itertools.pairwise([1, 2, 3])),
            list(itertools.zip_longest([1, 2], [3], fillvalue=0)),
            [list(t) for t in itertools.tee([1, 2])],
            [(k, list(g)) for k, g in itertools.groupby("aabbb")],
            [k for k, g in itertools.groupby([1, 1, 2], key=lambda v: v * 2)],
            list(itertools.filterfalse(bool, [0, 1])),
            list(itertools.accumulate([x, x])),
        )

    assert_same_as_eager(f, X)


def test_iterators_in_loops_with_break_and_else():
    def f(x):
        it = iter(range(10))
        for i in it:
            if i == 3:
                break
        else:
            i = -1
        rest = 0
        for j in it:
            rest += j
        for k, (a, b) in enumerate(zip([1, 2], [3, 4])):
            rest += k * a * b
        return x + i + rest

    assert_same_as_eager(f, X)


def test_iter_with_sentinel():
    def f(x):
        values = [3, 2, 1, 0]
        return list(iter(values.pop, 2)), values, x

    assert_same_as_eager(f, X)


def test_generators():
    def gen(n, x):
        for i in range(n):
            yield x + i

    def f(x):
        g = gen(3, x)
        first = next(g)
        return first, list(g), sum(gen(2, x)), max(i for i in range(4)), any(i > 2 for i in range(4)), [*gen(1, x)]

    assert_same_as_eager(f, X)


def test_unpacking_iterators():
    def f(x):
        a, *b, c = map(lambda v: v * 2, [1, 2, 3, 4])
        ((d, e),) = zip([1], [x])
        return a, b, c, d, e, max(*[1, 2]), print if False else 0

    assert_same_as_eager(f, X)


class Squares:
    """The old protocol: `__getitem__` from 0 on, until IndexError."""

    def __init__(self, n):
        self.n = n

    def __getitem__(self, index):
        if index < self.n:
            return index * index
        raise IndexError(index)


def test_the_old_protocol():
    def f(x):
        one, two, done = iter(Squares(4)), iter(Squares(3)), iter(Squares(1))
        next(two)
        list(done)
        return x + sum(Squares(3)), list(one), list(one), one, two, done, type(two).__name__, [*Squares(2)], 4 in Squares(3)

    eager, compiled = f(X), fxjit.compile(f, backend="eager", fullgraph=True)(X)
    assert compiled[0].equal(eager[0]) and compiled[1:3] == eager[1:3] and compiled[6:] == eager[6:]
    for theirs, ours in zip(eager[3:6], compiled[3:6], strict=True):
        assert type(ours) is type(theirs)
        assert list(ours) == list(theirs)


def test_a_callable_iterator_at_its_end_stays_there():
    def f(x):
        count = itertools.count()
        numbers = iter(lambda: next(count), 3)
        return x + sum(numbers), numbers

    _, numbers = fxjit.compile(f, backend="eager", fullgraph=True)(X)
    assert list(numbers) == []


def test_counts_and_repeats_under_warnings_that_are_errors():
    """From 3.12 on, asking an iterator of itertools for its state warns; a trace that asks does not."""

    def f(count, repeat, x):
        return next(count), list(repeat), x + 1

    with warnings.catch_warnings():
        warnings.simplefilter("error")
        compiled = fxjit.compile(f, backend="eager")
        assert compiled(itertools.count(3), itertools.repeat("a", 2), X)[:2] == (3, ["a", "a"])
        assert compiled(itertools.count(4), itertools.repeat("b", 1), X)[:2] == (4, ["b"])
