"""`torch.utils.checkpoint` is the call itself, with what the reentrant kind does to gradients."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint, checkpoint_sequential

import fxjit


def layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Dropout(0.5), nn.Linear(3, 3))


@pytest.mark.parametrize("reentrant", [True, False])
def test_values_gradients_and_dropout(assert_same_as_eager, reentrant):
    model = layers()
    assert_same_as_eager(lambda x: checkpoint(model, x, use_reentrant=reentrant), torch.randn(2, 3, requires_grad=True))


def test_options_and_keywords(assert_same_as_eager):
    def scaled(x, scale=1.0):
        return x.sin() * scale

    def program(x):
        options = {"preserve_rng_state": False, "determinism_check": "none"}
        return checkpoint(scaled, x, use_reentrant=False, scale=2.0, **options)

    assert_same_as_eager(program, torch.randn(3, requires_grad=True))


def test_sequential(assert_same_as_eager):
    model = layers()
    assert_same_as_eager(
        lambda x: checkpoint_sequential(model, 2, x, use_reentrant=False), torch.randn(2, 3, requires_grad=True)
    )


def test_the_reentrant_kind_has_no_gradient_without_one_of_its_arguments():
    model = layers()

    def call(x):
        return checkpoint(model, x, use_reentrant=True)

    for fn in (call, fxjit.compile(call, backend="eager", fullgraph=True)):
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            assert not fn(torch.randn(2, 3)).requires_grad
        assert [str(each.message) for each in told] == ["None of the inputs have requires_grad=True. Gradients will be None"]


def test_keywords_of_the_reentrant_kind():
    def call(x):
        return checkpoint(torch.clamp, x, use_reentrant=True, min=0)

    fxjit.reset()
    with pytest.raises(ValueError, match="Unexpected keyword arguments: min"):
        fxjit.compile(call, backend="eager")(torch.randn(3, requires_grad=True))


@pytest.mark.parametrize("action", ["always", "error", "ignore"])
def test_what_is_said_of_a_checkpoint_that_does_not_choose_its_kind(action):
    def call(x):
        return checkpoint(torch.sin, x)

    fxjit.reset()
    told = []
    for fn in (call, fxjit.compile(call, backend="eager")):
        with warnings.catch_warnings(record=True) as given:
            warnings.simplefilter(action)
            try:
                fn(torch.randn(3, requires_grad=True))
            except UserWarning as error:
                given.append(error)
        told.append([str(getattr(each, "message", each)) for each in given])
    assert told[0] == told[1]


@pytest.mark.parametrize("options", [{"debug": True}, {"context_fn": lambda: None}])
def test_what_the_reentrant_kind_does_not_take(assert_same_as_eager, options):
    def call(x):
        try:
            return checkpoint(torch.sin, x, use_reentrant=True, **options)
        except ValueError as error:
            return str(error), x + 1

    assert_same_as_eager(call, torch.randn(3, requires_grad=True))
