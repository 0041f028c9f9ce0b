"""Displays, comprehensions, unpacking, f-strings."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same_as_eager


def test_displays():
    def program(x, items):
        return [x, *items, 1], (*items, x), {"a": x, **{"b": 1}}, {1, 2, *items}, [], (), {}, {"k": [x]}

    assert_same_as_eager(program, torch.ones(3), [3, 4])


def test_comprehensions():
    def program(x, n):
        squares = [i * i for i in range(n) if i % 2]
        pairs = [(a, b) for a in range(2) for b in range(a, 3)]
        table = {str(i): x * i for i in range(n)}
        chars = {c for c in "hello"}
        nested = [[y + i for i in range(2)] for y in (x, x * 2)]
        i = "kept"
        return squares, pairs, table, sorted(chars), nested, i

    assert_same_as_eager(program, torch.ones(3), 4)


def test_a_comprehension_with_a_closure():
    def program(x):
        scale = 3
        fs = [lambda: (i, scale) for i in range(2)]
        return [x * scale * i for i in range(2)], [f() for f in fs]

    assert_same_as_eager(program, torch.ones(3))


def test_unpacking():
    def program(x, items):
        a, b, c = items
        first, *middle, last = [0, *items, 9]
        (d, (e, f)), g = (1, (2, 3)), 4
        *init, tail = "abc"
        p, q = x.shape[0], x
        return x + a, b, c, first, middle, last, d, e, f, g, init, tail, p, q

    assert_same_as_eager(program, torch.ones(3), [5, 6, 7])


BAD = [
    lambda: _two([1]),
    lambda: _two([1, 2, 3]),
    lambda: _two(3),
    lambda: _star([1]),
    lambda: [*3],
    lambda: {**3},
    lambda: {1, *3},
    lambda: {[]: 1},
]


def _two(value):
    a, b = value
    return a


def _star(value):
    a, *b, c = value
    return a


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_unpacking_raises_what_cpython_raises(index):
    action = BAD[index]

    def program(x):
        try:
            action()
        except (TypeError, ValueError) as error:
            return x + 1, str(error)
        return x

    assert_same_as_eager(program, torch.ones(3))


def test_f_strings():
    def program(x, n, name):
        width = 6
        return (
            x + 1,
            f"{n} {name!r} {name!s} {name!a} {n:03d} {n / 3:.2f} {name:>{width}} {x.shape} {x.dtype} {n=} {[n, name]}",
            "%s-%d" % (name, n),
            "{} {k}".format(n, k=name),
            "".join([name, "!"]).upper(),
        )

    assert_same_as_eager(program, torch.ones(3), 7, "né")


def test_building_into_arguments():
    def program(x, out, table, seen):
        out.append(x)
        out.extend([1, 2])
        table.update(a=1)
        table |= {"b": 2}
        seen.add(3)
        seen |= {4}
        out += (5,)
        return len(out), sorted(seen)

    assert_same_as_eager(program, torch.ones(3), [], {}, set())
