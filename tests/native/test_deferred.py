"""Gradients of weights that are made after all else, where a backward pass holds less memory so."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import pytest
import torch
import torch.fx
from torch import nn

import fxjit
from fxjit import config
from fxjit.backends.native import pipeline
from fxjit.backends.native.ir import Extern
from fxjit.backends.native.schedule.deferred import able_to_wait
from fxjit.backends.native.schedule.fuse import Group, Step


class Narrowing(nn.Module):
    """Layers of many rows and few columns, then of few rows and many columns, as networks of images have them."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleList(nn.Linear(32, 32) for _ in range(4))
        self.wide = nn.Linear(32 * 64, 512)
        self.last = nn.ModuleList(nn.Linear(512, 512) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.first:
            x = layer(x).tanh()
        x = self.wide(x.reshape(-1, 32 * 64))
        for layer in self.last:
            x = layer(x).tanh()
        return x


class Alike(nn.Module):
    """Layers of which each is like the others."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(64, 64) for _ in range(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x).tanh()
        return x


@pytest.fixture
def schedules(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[list[Step]]]:
    """The steps of each graph that is compiled."""
    found: list[list[Step]] = []

    def look(stage: str, low: Any, what: Any) -> None:
        if stage == "schedule":
            found.append(list(what))

    monkeypatch.setattr(pipeline, "verifier", look)
    fxjit.reset()
    with config.patch(cache_graphs=False, small_graphs_as_captured=False):
        yield found


def gradients(fn: Any, module: nn.Module, x: torch.Tensor) -> list[torch.Tensor]:
    module.zero_grad()
    fn(x).square().sum().backward()
    return [each.grad.clone() for each in module.parameters() if each.grad is not None]


def places_of_weights(steps: Sequence[Step], shape: tuple[int, ...]) -> list[int]:
    """Where the products stand whose results are gradients of this shape."""
    return [place for place, step in enumerate(steps) if isinstance(step, Extern) and step.node.meta["val"].shape == shape]


def test_large_gradients_of_few_rows_are_made_last(schedules: list[list[Step]]):
    torch.manual_seed(0)
    module, x = Narrowing(), torch.randn(16 * 64, 32)
    wanted = gradients(module, module, x)
    torch.testing.assert_close(gradients(fxjit.compile(module, backend="native"), module, x), wanted)
    steps = schedules[-1]
    wide = sorted(places_of_weights(steps, (512, 512)) + places_of_weights(steps, (512, 2048)))
    assert len(wide) == 5
    assert wide == [*range(len(steps) - 5, len(steps))]
    assert len(places_of_weights(steps, (32, 32))) == 4


def test_layers_that_are_alike_stay_in_order(schedules: list[list[Step]]):
    torch.manual_seed(0)
    module, x = Alike(), torch.randn(60, 64)
    wanted = gradients(module, module, x)
    torch.testing.assert_close(gradients(fxjit.compile(module, backend="native"), module, x), wanted)
    steps = schedules[-1]
    weights = places_of_weights(steps, (64, 64))
    assert len(weights) == 6
    assert any(isinstance(step, Group) for step in steps[weights[0]:]), "a layer's gradient is made before the next layer's"


def call(reads: str, results: str, mutates: str = "", target: Any = torch.ops.aten.mm.default) -> Extern:
    graph = torch.fx.Graph()
    node = graph.call_function(target, (graph.placeholder("x"),) * 2)
    return Extern(node, frozenset(reads), frozenset(mutates), frozenset(results))


@pytest.mark.parametrize(("steps", "able", "why"), [
    ([call("a", "r"), call("b", "s")], [0, 1], "nobody but the caller reads r and s"),
    ([call("a", "t"), call("t", "r")], [1], "t is read, and not returned"),
    ([call("a", "r"), call("r", "s")], [1], "r is returned, and read as well"),
    ([call("a", "r"), call("b", "s", mutates="a")], [], "a is written to behind the first, and the second writes"),
    ([call("b", "t", mutates="a"), call("a", "r")], [1], "a was written to before"),
    ([call("a", "r"), call("b", "r")], [], "both write r"),
    ([call("a", "r", target=torch.ops.aten.bernoulli.p)], [], "random numbers keep their order"),
])
def test_which_calls_can_wait(steps: list[Step], able: list[int], why: str):
    assert able_to_wait(steps, {"r", "s"}) == able, why
