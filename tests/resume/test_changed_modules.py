"""torch's tools that change a module (parametrisations, norms of weights, pruning) break once where they are called, not once
for each thing in them that cannot be traced."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from tests.differential import assert_same, number_of_breaks
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.utils import parametrizations, parametrize, prune

import fxjit


class Symmetric(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.triu() + x.triu(1).T


def registered(x: Tensor) -> Tensor:
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    return layer(x * 2) + 1


def registered_and_removed(x: Tensor) -> tuple[Tensor, list[str]]:
    layer = nn.Linear(3, 3)
    parametrize.register_parametrization(layer, "weight", Symmetric())
    result = layer(x * 2)
    parametrize.remove_parametrizations(layer, "weight")
    return result, [name for name, _ in layer.named_parameters()]


#: With how many breaks, one of which makes the layer.
CHANGES: dict[str, tuple[Callable[[Tensor], object], int]] = {
    "registered": (registered, 2),
    "registered and removed": (registered_and_removed, 3),
    "weight norm": (lambda x: parametrizations.weight_norm(nn.Linear(3, 3))(x * 2), 2),
    "spectral norm": (lambda x: parametrizations.spectral_norm(nn.Linear(3, 3))(x * 2), 2),
    "orthogonal": (lambda x: parametrizations.orthogonal(nn.Linear(3, 3))(x * 2), 2),
    "pruned": (lambda x: prune.l1_unstructured(nn.Linear(3, 3), "weight", amount=0.3)(x * 2), 1),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_changed_module(name: str) -> None:
    fn, most = CHANGES[name]
    fxjit.reset()
    results = []
    for call in (fn, fxjit.compile(fn, backend="eager")):
        torch.manual_seed(0)
        results.append(call(torch.ones(2, 3)))
    assert_same(results[1], results[0])
    assert number_of_breaks() <= most


def test_a_module_that_is_called_with_other_parameters_breaks_inside() -> None:
    class Breaks(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            y = x * self.scale
            fxjit.graph_break()
            return y + 1

    module = Breaks()
    module.scale = nn.Parameter(torch.tensor(2.0))

    def fn(x: Tensor) -> Tensor:
        return functional_call(module, {"scale": x.sum()}, (x * 2,)) - 1

    fxjit.reset()
    x = torch.ones(3)
    assert_same(fxjit.compile(fn, backend="eager")(x), fn(x))
    assert number_of_breaks() <= 2 and fxjit.counters["stats"]["unique_graphs"] >= 3
