"""types.SimpleNamespace and subclasses of it: made, written, compared and shown while tracing."""

from __future__ import annotations

import types

import pytest
import torch

import fxjit


class Config(types.SimpleNamespace):
    @classmethod
    def of(cls, tree):
        return cls(**{key: cls.of(each) if isinstance(each, dict) else each for key, each in tree.items()})


class Counted(types.SimpleNamespace):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.count = len(vars(self))


class Own(types.SimpleNamespace):
    def __eq__(self, other):
        return "mine"

    def __repr__(self):
        return "Own: " + super().__repr__()


def compared(x, given):
    first, second = types.SimpleNamespace(a=1), types.SimpleNamespace(a=1)
    try:
        text = first < second
    except TypeError as error:
        text = str(error)
    return x + (first == second), first != second, first == 3, first != 3, first == Config(a=1), text, first == given


def tree(x, given):
    config = Config.of({"model": {"dim": 4, "act": "relu"}, "lr": 0.5})
    config.steps = 3
    del config.model.act
    return x * config.lr, config, config.model.dim, hasattr(config.model, "act"), sorted(vars(config))


def changed(x, given):
    before = repr(given)
    given.a += 1
    given.new = x
    other = type(given)(**vars(given))
    other.a += 1
    return x * given.a, other, before, Counted(b=2, c=x).count, Counted()


def initialised_again(x, given):
    made = Config(a=1)
    made.__init__(b=2)
    return x + 1, made, repr(made), repr(types.SimpleNamespace()), repr(Config(q=given, z="t"))


def refused(x, given):
    try:
        return types.SimpleNamespace(1)
    except TypeError as error:
        return x + 1, str(error)


def methods_of_their_own(x, given):
    return x + 1, Own(a=1) == Own(a=2), Own(a=1) != Own(a=1), repr(Own(a=given)), f"{given!r:>40}"


def as_text(result):
    return [repr(each) for each in result]


@pytest.mark.parametrize("fn", [compared, tree, changed, initialised_again, refused, methods_of_their_own])
@pytest.mark.parametrize("cls", [types.SimpleNamespace, Config])
def test_as_eager_without_a_break(fn, cls):
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(fn, backend="eager")
    for _ in range(2):
        mine, theirs = cls(a=1, text="x"), cls(a=1, text="x")
        x = torch.ones(2)
        expected, got = fn(x, theirs), compiled(x, mine)
        assert as_text(got) == as_text(expected)
        assert [type(each) for each in got] == [type(each) for each in expected]
        assert repr(mine) == repr(theirs)
    assert not fxjit.counters["graph_break"]
