"""CALL in all its forms, binding of arguments, and what bad calls raise."""

from __future__ import annotations

import functools

import pytest
import torch
from tests.differential import assert_same_as_eager


def everything(a, b=2, /, c=3, *rest, d, e=5, **more):
    return a, b, c, rest, d, e, more


CALLS = [
    lambda f: f(1, d=4),
    lambda f: f(1, 2, 3, 4, 5, d=6),
    lambda f: f(1, c=7, d=4, z=9),
    lambda f: f(*[1, 2], **{"d": 4, "y": 1}),
    lambda f: f(*(1,), *[2, 3], d=4, **{"q": 1}, **{"r": 2}),
    lambda f: f(1, b=3, d=4),
    lambda f: f(),
    lambda f: f(1),
    lambda f: f(1, 2, c=3, d=4, e=5),
]


@pytest.mark.parametrize("index", range(len(CALLS)))
def test_binding(index):
    call = CALLS[index]

    def program(x):
        try:
            return x + 1, call(everything)
        except TypeError as error:
            return x, str(error)

    assert_same_as_eager(program, torch.ones(3))


def two(a, b):
    return a, b


def two_of_four(a, b, c=1, d=2):
    return a


def none():
    return None


def keyword_only(*, a, b=1):
    return a


def positional_only(a, /):
    return a


BAD = [
    lambda: two(1),
    lambda: two(),
    lambda: two(1, 2, 3),
    lambda: two(1, **{"b": 2, "a": 3}),
    lambda: two(1, 2, c=3),
    lambda: two_of_four(1, 2, 3, 4, 5),
    lambda: two_of_four(),
    lambda: none(1),
    lambda: none(a=1),
    lambda: keyword_only(),
    lambda: keyword_only(1, a=1),
    lambda: keyword_only(1),
    lambda: positional_only(a=1),
    lambda: (3)(),
    lambda: two(*3),
    lambda: two(**{"a": 1, "c": 2}),
    lambda: two(**{1: 2}),
    lambda: two(**dict(a=1), **dict(a=2)),
]


@pytest.mark.parametrize("index", range(len(BAD)))
def test_bad_calls_raise_what_cpython_raises(index):
    call = BAD[index]

    def program(x):
        try:
            call()
        except TypeError as error:
            return x + 1, str(error)
        return x

    assert_same_as_eager(program, torch.ones(3))


def test_methods_and_bound_methods():
    class Thing:
        def __init__(self, scale):
            self.scale = scale

        def times(self, x, n=1):
            return x * self.scale * n

        @classmethod
        def make(cls, scale):
            return cls(scale)

        @staticmethod
        def twice(x):
            return x * 2

        @property
        def double(self):
            return self.scale * 2

        def __call__(self, x):
            return self.times(x, n=3)

    def program(x, thing):
        bound = thing.times
        other = Thing.make(4)
        return bound(x), Thing.times(thing, x, n=2), other(x), Thing.twice(x), thing.twice(x), x + other.double

    assert_same_as_eager(program, torch.ones(3), Thing(2))


def test_partial():
    def scaled(x, a, b=1):
        return x * a + b

    outside = functools.partial(scaled, b=5)

    def program(x):
        inside = functools.partial(scaled, a=2)
        again = functools.partial(inside, b=3)
        return outside(x, 2), inside(x), again(x), again(x, b=4)

    assert_same_as_eager(program, torch.ones(3))


def test_lambdas_defaults_and_recursion():
    def program(x, n):
        def fact(k):
            return 1 if k <= 1 else k * fact(k - 1)

        fs = [lambda y, i=i: y + i for i in range(3)]
        return x * fact(n), [f(x) for f in fs], (lambda *a, **k: (a, k))(1, b=2)

    assert_same_as_eager(program, torch.ones(3), 5)


def test_infinite_recursion_is_left_to_python():
    def forever(n):
        return forever(n + 1)

    def program(x):
        try:
            forever(0)
        except RecursionError:
            return x + 1

    assert_same_as_eager(program, torch.ones(3), fullgraph=False)


def test_default_arguments_are_looked_up_at_call_time():
    def inner(x, scale=2, *, offset=1):
        return x * scale + offset

    def program(x):
        return inner(x)

    assert_same_as_eager(program, torch.ones(3))
    inner.__defaults__ = (3,)
    inner.__kwdefaults__ = {"offset": 4}
    assert_same_as_eager(program, torch.ones(3))


def test_function_attributes():
    def helper(x):
        helper.calls += 1
        return x + helper.calls

    helper.calls = 0

    def program(x):
        return helper(x), helper.__name__

    import fxjit

    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.zeros(2))[0], torch.ones(2))
    assert helper.calls == 1
    assert torch.equal(compiled(torch.zeros(2))[0], torch.full((2,), 2.0))
    assert helper.calls == 2
