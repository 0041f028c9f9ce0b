"""Writes to views whose functional form is another: windows that leave elements out, tensors whose elements lie on each
other, and operands that partly share memory."""

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

def strided(write):
    """Writes to elements that lie on each other, of an input and of a result."""
    def function(x):
        y = x * 1
        write(x.as_strided((2, 2), (1, 1)))
        write(y.as_strided((2, 2), (1, 1)))
        return y
    return function


SELF_OVERLAPPING = {
    "multiplied": strided(lambda v: v.mul_(2)),
    "rows of them": lambda x: (lambda y: (y.as_strided((3, 2), (1, 1))[:2].mul_(2), y))(x * 1),
    "one row of them": lambda x: (lambda y: (y.as_strided((3, 2), (1, 1))[0].mul_(2), y))(x * 1),
    "another view of them": strided(lambda v: v.view_as(v).mul_(2)),
    "added": strided(lambda v: v.add_(torch.ones(2))),
    "copied to": strided(lambda v: v.copy_(torch.arange(4.0).view(2, 2))),
    "a subscript": strided(lambda v: v.__setitem__(torch.tensor([0]), 7.0)),
    "index_put": strided(lambda v: v.index_put_((torch.tensor([0, 1]),), torch.tensor(7.0), accumulate=True)),
    "given as out": strided(lambda v: torch.mul(torch.ones(2, 2), 3.0, out=v)),
    "a list": strided(lambda v: torch._foreach_mul_([v], 2)),
    "made so": lambda x: torch.empty_strided((2, 2), (1, 1)).fill_(1.0).mul_(2),
    "expanded": lambda x: (x * 1)[:1].expand(3).mul_(2),
    "expanded, copied to": lambda x: (x * 1)[:1].expand(3).copy_(torch.arange(3.0)),
    "expanded, given as out": lambda x: torch.add(torch.ones(3), 1, out=(x * 1)[:1].expand(3)),
    "expanded, index_put": lambda x: (x * 1)[:1].expand(3).__setitem__(torch.tensor([0]), 3.0),
    "unfolded, copied to": lambda x: (lambda y: (y.unfold(0, 2, 1)[:2].copy_(torch.arange(4.0).view(2, 2)), y))(x * 1),
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

PROGRAMS = {f"{kind}: {name}": program for kind, programs in (
    ("unfold", UNFOLDINGS), ("overlap", SELF_OVERLAPPING), ("operand", OPERANDS)) for name, program in programs.items()}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_writes_are_eagers(program, backend):
    def function(x):
        return program(x), x + 1

    compiled = fxjit.compile(function, backend=backend)
    for size in (6, 5, 7, 8):
        given, expected = torch.arange(float(size)), torch.arange(float(size))
        assert_same(outcome(function, (expected,)), outcome(compiled, (given,)))
        assert_same(expected, given)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_strides_that_vary_may_overlap_at_another_call(backend):
    def function(x, step):
        y, z = x + 1, x + 1
        y.as_strided((2, 2), (step, 1)).view_as(torch.ones(2, 2)).mul_(2)
        z.mul_(2)
        return y, z

    compiled = fxjit.compile(function, backend=backend, dynamic=True)
    for step in (3, 2, 1, 4):
        assert_same(outcome(function, (torch.arange(8.0), step)), outcome(compiled, (torch.arange(8.0), step)))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_an_input_may_lie_on_itself(backend):
    def function(x):
        x.mul_(2)
        return x + 1

    compiled = fxjit.compile(function, backend=backend)
    for strides in ((2, 1), (1, 1), (3, 1)):
        given, expected = (torch.arange(8.0).as_strided((3, 2), strides) for _ in range(2))
        assert_same(outcome(function, (expected,)), outcome(compiled, (given,)))
        assert_same(expected, given)
