"""functools.partial: the dict of its keywords is the program's to write to."""

from __future__ import annotations

import copy
import functools

import pytest
import torch
from tests.differential import assert_same, outcome

import fxjit


def function(x, a=1, *, b=0, c=0):
    return x * a + b * 10 + c * 100


def counts(x, **given):
    given["more"] = 1
    return x * len(given)


class Counting(functools.partial):
    def __call__(self, x):
        self.keywords["b"] = self.keywords.get("b", 0) + 1
        return super().__call__(x)


def written(x, p):
    p.keywords["b"] += 1
    y = p(x)
    p.keywords["c"] = 2
    return y, p(x), dict(p.keywords), p(x, b=7)


def written_elsewhere(x, p, keywords=None):
    known = p.keywords
    known["b"] = known.get("b", 0) + 1
    return p(x), p.keywords is known


def taken_out(x, p):
    y = p(x)
    p.keywords.pop("b", None)
    p.keywords["a"] = 3
    return y, p(x), list(p.keywords)


def of_another(x, p):
    q = functools.partial(p, c=2)
    q.keywords["b"] = q.keywords.get("b", 0) + 5
    p.keywords["b"] = 3
    return p(x), q(x), q.keywords, p.keywords


def made(x, p):
    q = functools.partial(function, b=len(p.keywords))
    q.keywords["b"] += 1
    r = functools.partial(q, 2, c=3)
    r.keywords["b"] = 9
    return q(x), r(x), q.keywords, q.keywords is q.keywords, r.args, r.func is function


def copied(x, p):
    q = copy.copy(p)
    q.keywords["c"] = 1
    return q(x), p(x), len(p.keywords)


def spread(x, p):
    return functools.partial(counts, **p.keywords)(x, q=2), {**p.keywords, "w": 1}


PROGRAMS = [written, written_elsewhere, taken_out, of_another, made, copied, spread]


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda each: each.__name__)
@pytest.mark.parametrize("cls", [functools.partial, Counting])
def test_keywords_are_a_dict_that_calls_read(program, cls):
    fxjit.reset()
    found = []
    for call in (program, fxjit.compile(program, backend="eager")):
        p = cls(function, b=1)
        results = []
        for _ in range(3):
            results.append((outcome(call, (torch.ones(2), p)), dict(p.keywords)))
        p.keywords.clear()
        p.keywords["b"] = 5
        results.append((outcome(call, (torch.ones(2), p)), dict(p.keywords)))
        found.append(results)
    assert_same(*found)


def test_one_that_leaves_the_function_has_the_dict_that_was_written():
    def program(x, n):
        p = functools.partial(function, b=n)
        keywords = p.keywords
        keywords["c"] = x.dim()
        return p, keywords

    compiled = fxjit.compile(program, backend="eager")
    for n in (1, 2, 3):
        p, keywords = compiled(torch.ones(2), n)
        assert p.keywords is keywords and p.keywords == {"b": n, "c": 1} and p.func is function
        keywords["b"] = 0
        assert torch.equal(p(torch.ones(2)), torch.full((2,), 101.0))
