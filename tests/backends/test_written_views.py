"""Writes to views whose functional form is another: windows that leave elements out, and operands that partly share memory."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same, outcome

import fxjit


def in_windows_of_a_result(x):
    y = x + 1
    y.unfold(0, 2, 2).mul_(3)
    return y


def to_what_has_windows(x):
    windows = x.unfold(0, 2, 2)
    x.mul_(2)
    return windows + 0


UNFOLDINGS = {
    "windows": lambda x: x.unfold(0, 2, 2).mul_(3),
    "windows with gaps": lambda x: x.unfold(0, 2, 3).mul_(3),
    "one window": lambda x: x.unfold(0, 2, 3)[0].fill_(3),
    "a subscript": lambda x: x.unfold(0, 2, 3).__setitem__(0, 7.0),
    "a part of each": lambda x: x.unfold(0, 2, 2).select(1, 0).fill_(3),
    "copied to": lambda x: x.unfold(0, 2, 2).copy_(x.unfold(0, 2, 2) * 2),
    "one of overlapping windows": lambda x: x.unfold(0, 3, 2)[0].mul_(2),
    "a part of overlapping windows": lambda x: x.unfold(0, 3, 2).select(1, 1).mul_(2),
    "overlapping windows": lambda x: x.unfold(0, 3, 2).mul_(2),
    "one of overlapping windows of a result": lambda x: (lambda y: (y.unfold(0, 3, 2)[0].mul_(2), y))(x + 1),
    "a list": lambda x: torch._foreach_add_([x.unfold(0, 2, 3)[0]], 1),
    "of a result": in_windows_of_a_result,
    "the base": to_what_has_windows,
}

OPERANDS = {
    "copied behind": lambda x: x[1:].copy_(x[:-1]),
    "copied before": lambda x: x[:-1].copy_(x[1:]),
    "a subscript": lambda x: x.__setitem__(slice(1, None), x[:-1]),
    "added": lambda x: x[1:].add_(x[:-1]),
    "multiplied by a part": lambda x: x[1:3].mul_(x[2:4]),
    "turned": lambda x: (lambda y: y.add_(y.t()))(x[:4].view(2, 2)),
    "given as out": lambda x: torch.add(x[1:3], 1, out=x[2:4]),
    "lerp": lambda x: x[1:3].lerp_(x[2:4], 0.5),
    "the same part": lambda x: x[1:3].add_(x[1:3]),
    "other parts": lambda x: x[:2].add_(x[2:4]),
    "another part by a subscript": lambda x: x.__setitem__(slice(0, 2), x[2:4]),
    "every second": lambda x: x[::2].add_(x[1::2][:1]),
    "itself": lambda x: x.mul_(x),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("program", [*UNFOLDINGS.values(), *OPERANDS.values()], ids=[*UNFOLDINGS, *OPERANDS])
def test_writes_are_eagers(program, backend):
    def function(x):
        return program(x), x + 1

    compiled = fxjit.compile(function, backend=backend)
    for size in (6, 5, 7, 8):
        given, expected = torch.arange(float(size)), torch.arange(float(size))
        assert_same(outcome(function, (expected,)), outcome(compiled, (given,)))
        assert_same(expected, given)
