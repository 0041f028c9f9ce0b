"""Lazy modules whose parameters the program's own code makes: the call in which it does runs as it stands."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.modules.lazy import LazyModuleMixin

import fxjit


class Sum(LazyModuleMixin, nn.Module):
    def initialize_parameters(self, inputs):
        self.shift = nn.Parameter(torch.full(inputs[0].shape, 0.5))

    def forward(self, inputs):
        return sum(inputs) + self.shift


class Outer(LazyModuleMixin, nn.Module):
    def initialize_parameters(self, inputs):
        self.layer = Sum()

    def forward(self, inputs):
        return self.layer(inputs)


class Uninitialized(LazyModuleMixin, nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.UninitializedParameter()

    def initialize_parameters(self, inputs):
        if self.has_uninitialized_params():
            self.weight.materialize((len(inputs), 1))
            nn.init.ones_(self.weight)

    def forward(self, inputs):
        return torch.stack(inputs) * self.weight[..., None]


class Around(nn.Module):
    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, inputs):
        return self.inner([each.sin() for each in inputs]).cos()


@pytest.mark.parametrize("fullgraph", [True, False])
@pytest.mark.parametrize("make", [Sum, Outer, Uninitialized, lambda: Around(Sum()), lambda: Around(Outer())])
def test_parameters_made_by_the_program(make, fullgraph):
    theirs, ours = make(), make()
    compiled = fxjit.compile(ours, backend="eager", fullgraph=fullgraph)
    inputs = [torch.randn(2, 3) for _ in range(3)]
    for _ in range(3):
        torch.testing.assert_close(compiled(inputs), theirs(inputs))
    assert [*ours.state_dict()] == [*theirs.state_dict()]
    assert not fxjit.counters["graph_break"] and fxjit.counters["frames"]["ok"]
    before = fxjit.counters["frames"]["total"]
    compiled(inputs)
    assert fxjit.counters["frames"]["total"] == before
