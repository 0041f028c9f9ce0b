"""Arguments whose names are words of Python: FX writes calls in Python."""

from __future__ import annotations

import pytest
import torch

import fxjit

x = torch.ones(3)


@fxjit.allow_in_graph
def scaled(y, **options):
    return y * options["class"] + options["other"]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [
    lambda y: torch.zeros(3).random_(**{"from": -10, "to": 10}) + y, lambda y: torch.zeros(3).uniform_(**{"from": -1.0}) + y,
    lambda y: torch.zeros(3).uniform_(**{"to": 1.0, "from": -2.0}) + y,
    lambda y: torch.ops.aten.uniform(y, **{"from": -1.0}) + y,
    lambda y: scaled(y, **{"class": 3, "other": y}),
])
def test_words_as_names(fn, backend):
    compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
    torch.manual_seed(3)
    expected = fn(x)
    torch.manual_seed(3)
    assert torch.equal(compiled(x), expected)
