"""Writes to attributes of builtin objects: what the class says of them, no AttributeError of the trace's own."""

from __future__ import annotations

import collections
import functools
import random

import numpy as np
import pytest
import torch

import fxjit

MADE = {
    "array flags": lambda: (np.arange(6.0) + 1).flags,
    "list": lambda: [1],
    "defaultdict": lambda: collections.defaultdict(int),
    "deque": collections.deque,
    "slice": lambda: slice(1),
    "range": lambda: range(3),
    "generator": lambda: random.Random(1),
    "complex": lambda: 1j,
    "method": lambda: [1].append,
    "zip": lambda: zip([1], strict=True),
    "size": lambda: torch.Size([1]),
    "exception": lambda: ValueError("a"),
}
NAMES = ("writeable", "__class__", "default_factory", "maxlen", "start", "seed", "real", "__self__", "__doc__", "args",
         "missing")


GIVEN = [property(len), staticmethod(len), functools.partial(max, 1), slice(2), [].append, type.__dict__["mro"]]


@pytest.mark.parametrize("value", GIVEN, ids=lambda value: type(value).__name__)
@pytest.mark.parametrize("name", ["fget", "func", "__func__", "start", "__self__", "__objclass__", "missing"])
def test_of_what_is_given(name, value):
    def fn(x, given):
        try:
            setattr(given, name, 1)
        except (AttributeError, TypeError) as error:
            return x + 1, type(error)
        return x + 1, "written"

    fxjit.reset()
    assert fxjit.compile(fn, backend="eager")(torch.ones(2), value)[1] == fn(torch.ones(2), value)[1]


@pytest.mark.parametrize("kind", MADE)
def test_as_eager(kind):
    make = MADE[kind]
    for name in NAMES:
        def fn(x, name=name):
            made = make()
            try:
                setattr(made, name, None)
            except (AttributeError, TypeError, ValueError) as error:
                return x + 1, type(error)
            return x + 1, getattr(made, name)

        fxjit.reset()
        expected, got = fn(torch.ones(2)), fxjit.compile(fn, backend="eager")(torch.ones(2))
        assert got[1] == expected[1], name
