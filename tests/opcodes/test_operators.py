"""Unary, binary, in-place and comparison operators; subscripts and slices."""

from __future__ import annotations

import torch
from tests.differential import assert_same_as_eager


def test_arithmetic_on_constants_and_tensors():
    def program(x, n):
        a = n + 2 - 3 * n // 2 % 5
        b = (n << 2) | (n >> 1) & 3 ^ 1
        c = n**2 / 4
        return x + a, x * b, x - c, x / 2, x @ x, x**2, -x, +x, ~torch.tensor([1, 2])

    assert_same_as_eager(program, torch.ones(3), 5)


def test_in_place_operators():
    def program(x, items):
        y = x.clone()
        y += 1
        y *= x
        items += [3]
        n = 1
        n -= 2
        n **= 2
        return y, n

    assert_same_as_eager(program, torch.ones(3), [1])


def test_comparisons():
    def program(x, n):
        return x > 0, n < 5, n >= 5, n == 5, n != 5, 1 < n < 9, "a" <= "b"

    assert_same_as_eager(program, torch.ones(3), 5)


def test_identity_and_membership():
    def program(x, items, table):
        same = x
        return x + 1, same is x, same is not x, 2 in items, 9 not in items, "k" in table, None is None

    assert_same_as_eager(program, torch.ones(3), [1, 2], {"k": 1})


def test_not_and_truth():
    def program(x, items, n):
        return x + 1, not items, not n, bool(items), not None, items and n, items or n, n or items

    assert_same_as_eager(program, torch.ones(3), [], 4)
    assert_same_as_eager(program, torch.ones(3), [1], 0)


def test_subscripts():
    def program(x, items, table):
        items[0] = x
        table["new"] = items[1]
        del table["old"]
        del items[-1]
        return items[0] + table["new"], x[0], x[1:], x[:-1], x[::2], items[0:1], "text"[1:3]

    assert_same_as_eager(program, torch.arange(4.0), [1, 2, 3], {"old": 1})


def test_slice_assignment():
    def program(x, items):
        y = x.clone()
        y[1:3] = 7
        items[1:2] = [8, 9]
        return y, slice(1, 2, None)

    assert_same_as_eager(program, torch.arange(4.0), [1, 2, 3])


def test_operators_that_fail():
    def program(x):
        messages = []
        for action in (lambda: 1 + "a", lambda: -"a", lambda: [] < 1, lambda: 1 / 0, lambda: (1)[0], lambda: 3 in 4):
            try:
                action()
            except (TypeError, ZeroDivisionError) as error:
                messages.append(str(error))
        return x + 1, messages

    assert_same_as_eager(program, torch.ones(3))


class Declines:
    def __add__(self, other):
        return NotImplemented

    def __radd__(self, other):
        return "reflected"


class Other(Declines):
    pass


def test_operands_of_one_class_are_not_asked_the_other_way_round():
    def program(x):
        results = [1 + Declines(), Declines() + Other(), Other() + Declines(), x + Declines()]
        try:
            results.append(Declines() + Declines())
        except TypeError as error:
            results.append(str(error))
        return x + 1, results

    assert_same_as_eager(program, torch.ones(3))


def test_user_operators():
    class Number:
        def __init__(self, value):
            self.value = value

        def __add__(self, other):
            return Number(self.value + getattr(other, "value", other))

        def __radd__(self, other):
            return Number(other + self.value)

        def __lt__(self, other):
            return self.value < other.value

        def __eq__(self, other):
            return self.value == other.value

        def __neg__(self):
            return Number(-self.value)

        def __getitem__(self, key):
            return self.value, key

        def __contains__(self, item):
            return item == self.value

        def __bool__(self):
            return self.value > 0

        def __len__(self):
            return 3

    def program(x):
        a, b = Number(1), Number(2)
        total = a + b + 3
        other = 5 + a
        return (
            x + total.value, (-a).value, other.value, a < b, a == b, a != b, a[1:2], 1 in a, 7 in a,
            bool(a), not b, len(a),
        )  # fmt: skip

    assert_same_as_eager(program, torch.ones(3))
