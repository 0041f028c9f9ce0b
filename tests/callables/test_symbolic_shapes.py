"""Questions that libraries ask of sizes (torch.fx.experimental.symbolic_shapes): eager's answers, in one graph."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.fx.experimental import symbolic_shapes

import fxjit
from fxjit.testing import CompileCounter

QUESTIONS = ["guard_or_false", "guard_or_true", "guard_size_oblivious", "is_symbolic", "has_free_symbols",
             "has_free_unbacked_symbols"]


@pytest.fixture(autouse=True)
def _ours():
    fxjit.reset()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # guard_size_oblivious
        yield


@pytest.mark.parametrize("dynamic", [True, False])
@pytest.mark.parametrize("name", QUESTIONS)
def test_a_question_of_a_size_has_eagers_answer(name: str, dynamic: bool):
    question = getattr(symbolic_shapes, name)

    def f(x):
        return x + (1 if question(x.shape[0] == 3) else 2)

    counter = CompileCounter()
    compiled = fxjit.compile(f, backend=counter, fullgraph=True, dynamic=dynamic)
    for size in (3, 4, 3, 5):
        x = torch.arange(float(size))
        assert compiled(x).equal(f(x))


@pytest.mark.parametrize("name", ["has_free_symbols", "has_free_unbacked_symbols"])
def test_a_question_of_tensors_and_sequences(name: str):
    question = getattr(symbolic_shapes, name)

    def f(x, y):
        return x + (1 if question(x) or question((x.shape[0], y.shape[1], 4)) else 2)

    compiled = fxjit.compile(f, backend="eager", fullgraph=True, dynamic=True)
    x, y = torch.ones(3), torch.ones(2, 5)
    assert compiled(x, y).equal(f(x, y))
