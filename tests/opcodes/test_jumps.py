"""Branches and loops on what is known while tracing, and branches on data.

PYTEST_DONT_REWRITE: `assert` is meant as it stands.
"""

from __future__ import annotations

import torch
from tests.differential import assert_same_as_eager

from fxjit import config


def test_if_and_ternary():
    def program(x, n, flag, thing):
        if n > 2 and not flag or thing is None:
            x = x + 1
        elif flag:
            x = x + 2
        else:
            x = x + 3
        return x if thing is not None else -x, n or flag, flag and n

    for n, flag, thing in ((1, True, None), (3, False, 1), (1, False, 2), (5, True, "s")):
        assert_same_as_eager(program, torch.ones(3), n, flag, thing)


def test_loops():
    def program(x, n):
        for index in range(n):
            if index == 1:
                continue
            if index == 4:
                break
            x = x + index
        else:
            x = x * 10
        while n > 0:
            n -= 1
            x = x + 1
        for key, value in {"a": 1, "b": 2}.items():
            x = x * value + len(key)
        for left, right in zip([1, 2], (3, 4)):
            x = x + left * right
        for index, item in enumerate("ab", start=1):
            x = x + index + ord(item)
        return x

    assert_same_as_eager(program, torch.ones(3), 3)
    assert_same_as_eager(program, torch.ones(3), 6)


def test_a_branch_on_data():
    def program(x):
        y = x * 2
        if y.sum() > 0:
            y = y + 1
        else:
            y = y - 1
        return y * 3

    assert_same_as_eager(program, torch.ones(3), fullgraph=False)
    assert_same_as_eager(program, -torch.ones(3), fullgraph=False)


def test_a_branch_on_data_keeps_an_operand():
    def program(x):
        y = x * 2
        z = y.sum() > 0 or x.sum() > -100
        w = y.sum() > 0 and 3
        return y, z, w

    assert_same_as_eager(program, torch.ones(3), fullgraph=False)
    assert_same_as_eager(program, -torch.ones(3), fullgraph=False)


def test_a_branch_on_data_in_a_callee():
    def pick(y):
        return y + 1 if y.sum() > 0 else y - 1

    def program(x):
        return pick(x * 2) * 3

    assert_same_as_eager(program, torch.ones(3), fullgraph=False)
    assert_same_as_eager(program, -torch.ones(3), fullgraph=False)


def test_a_branch_on_data_in_a_loop():
    def program(x):
        for index in range(3):
            if x.sum() > index:
                x = x - 1
        return x

    with config.patch(resume_in_loops=True):
        assert_same_as_eager(program, torch.ones(3), fullgraph=False)


def test_assert_on_data():
    def program(x):
        y = x + 1
        assert y.sum() > 0, "must be positive"
        return y * 2

    assert_same_as_eager(program, torch.ones(3), fullgraph=False)
    assert_same_as_eager(program, -torch.ones(3) * 5, fullgraph=False)
