"""Weak proxies that existed before, as trainers keep themselves on their modules: their object is read in their place."""

from __future__ import annotations

import weakref

import pytest
import torch

import fxjit

x = torch.ones(3)


class Trainer:
    kind = "trainer"

    def __init__(self, scale):
        self.scale, self.count = scale, 0

    def step(self, y):
        self.count += 1
        return y + self.scale

    @property
    def double(self):
        return self.scale * 2

    def __len__(self):
        return 3

    def __getitem__(self, index):
        return self.scale * index

    def __iter__(self):
        return iter([self.scale])

    def __call__(self, y):
        return y * 3

    def __str__(self):
        return "a trainer"


class Trained(torch.nn.Module):
    def __init__(self, trainer):
        super().__init__()
        self.inner = torch.nn.Linear(3, 3)
        self.trainer = weakref.proxy(trainer)

    def forward(self, y):
        return self.inner(self.trainer.step(y)) + self.trainer.double


def written(y, proxy):
    proxy.more = y + 1
    return proxy.more, proxy.count


@pytest.mark.parametrize("fn", [
    lambda y, p: y + p.scale, lambda y, p: (y + 1, p.__class__ is Trainer, isinstance(p, Trainer), type(p) is type(y)),
    lambda y, p: y * len(p), lambda y, p: y + p[2], lambda y, p: [y + each for each in p], lambda y, p: y + 1 if p else y,
    lambda y, p: (y + 1, str(p), p.kind, hasattr(p, "missing"), getattr(p, "missing", 3)), written, lambda y, p: p(y),
])
def test_what_it_does(fn):
    trainer = Trainer(x * 2)
    proxy = weakref.proxy(trainer)
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    assert str(compiled(x, proxy)) == str(compiled(x, proxy)) == str(fn(x, proxy))


def test_of_a_trainer():
    trainer = Trainer(x * 2)
    compiled = fxjit.compile(model := Trained(trainer), backend="eager", fullgraph=True)
    assert torch.equal(compiled(x), model(x)) and trainer.count == 2
    trainer.scale = x * 3
    assert torch.equal(compiled(x), model(x)) and trainer.count == 4


def test_of_others_and_of_one_that_is_gone():
    compiled = fxjit.compile(lambda y, p: y + p.scale, backend="eager")
    first, second = Trainer(x), Trainer(x * 5)
    assert torch.equal(compiled(x, weakref.proxy(first)), x * 2) and torch.equal(compiled(x, weakref.proxy(second)), x * 6)
    proxy = weakref.proxy(second)
    del second
    with pytest.raises(ReferenceError):
        compiled(x, proxy)
