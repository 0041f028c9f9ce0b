"""Frames that are called without tensors are looked at less and less often, and in time never."""

from __future__ import annotations

import torch

import fxjit
from fxjit import regions


def looked_at(monkeypatch):
    counts = []
    own = regions.mentions_tensors
    monkeypatch.setattr(regions, "mentions_tensors", lambda code, *rest: counts.append(code.co_name) or own(code, *rest))
    return counts


def calls_of(helper):
    """A function that is given up, since it breaks in a loop, and calls `helper` so many times."""
    def outer(n, times):
        for _ in range(times):
            fxjit.graph_break()
            result = helper(n)
        return result

    return outer


def test_calls_without_tensors_are_looked_at_when_their_number_has_doubled(monkeypatch):
    def helper(n):
        return n * 2

    def outer(n):
        fxjit.graph_break()
        return [helper(each) for each in range(n)]  # a comprehension, which is not traced

    seen = looked_at(monkeypatch)
    compiled = fxjit.compile(outer, backend="eager")
    for _ in range(12):
        assert compiled(20) == outer(20)
    assert 0 < seen.count("helper") <= 16


def test_one_that_is_given_a_tensor_later_is_compiled():
    def helper(n):
        return n * 2

    counter = fxjit.testing.CompileCounter()
    compiled = fxjit.compile(calls_of(helper), backend=counter)
    assert compiled(2, 12) == 4
    assert torch.equal(compiled(torch.ones(2), 1), torch.full((2,), 2.0))  # at its first call with one
    assert counter.frame_count == 1


def test_one_that_the_user_compiles_is_looked_at_again():
    def helper(x):
        return x * 2 if isinstance(x, int) else x + 1

    counter = fxjit.testing.CompileCounter()
    assert fxjit.compile(calls_of(helper), backend=counter)(2, 12) == 4
    assert torch.equal(fxjit.compile(helper, backend=counter)(torch.ones(2)), torch.full((2,), 2.0))
    assert counter.frame_count == 1
