"""`torch.Generator`s of the program's own: what they give without looking at a tensor is drawn before the graph, as eager draws
it, and leaves them as eager does."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_call

import fxjit

OWN = torch.Generator()


def given(x: torch.Tensor, g: torch.Generator) -> Any:
    noise = torch.randn(3, generator=g)
    noise.mul_(2)
    places = torch.randint(0, 9, (2,), generator=g), torch.randperm(5, generator=g, dtype=torch.int32)
    scale = torch.rand((3,), generator=g, dtype=torch.float64)
    return x + noise * scale, noise, places, torch.normal(0.5, 2.0, (2,), generator=g)


def of_the_module(x: torch.Tensor, g: torch.Generator) -> Any:
    return x * torch.rand(3, generator=OWN) - torch.rand(3) + torch.rand(3, generator=g), OWN.initial_seed()


def made_inside(x: torch.Tensor, g: torch.Generator) -> Any:
    mine = torch.Generator("cpu").manual_seed(7)
    drawn = torch.rand(3, generator=mine)
    return x + drawn + torch.rand(3, generator=torch.Generator().manual_seed(1)), mine, mine.device


def seeded_again(x: torch.Tensor, g: torch.Generator) -> Any:
    first = torch.rand(2, generator=g)
    g.manual_seed(5)
    again = torch.rand(2, generator=g)
    return first, again, g.manual_seed(6) is g, torch.rand(3, generator=g) * x


def call_both(fn: Callable[..., Any], compiled: Callable[..., Any], seed: int, make: Callable[[], Any]) -> None:
    def fresh() -> Any:
        OWN.manual_seed(seed)
        return torch.arange(3.0), make()

    def call(run: Callable[..., Any]) -> Callable[..., Any]:
        def called(x: torch.Tensor, g: torch.Generator) -> Any:
            return run(x, g), OWN.get_state()
        return called

    assert_same_call(call(fn), call(compiled), seed=seed, make=fresh)


@pytest.mark.parametrize("fn", [given, of_the_module, made_inside, seeded_again])
def test_drawn_before_the_graph(fn: Callable[..., Any]) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(fn, fullgraph=True, backend="eager")
    for seed in range(3):
        call_both(fn, compiled, seed, lambda seed=seed: torch.Generator().manual_seed(seed))
    assert fxjit.counters["frames"]["ok"] == 1, "another generator is drawn from alike"


def by_the_numbers(x: torch.Tensor, g: torch.Generator) -> Any:
    weights = torch.rand(3, generator=g)
    return torch.multinomial(weights, 2, generator=g), x.clone().normal_(generator=g), torch.rand(x.shape, generator=g)


def with_gradients(x: torch.Tensor, g: torch.Generator) -> Any:
    with torch.inference_mode():
        inside = torch.rand(2, generator=g)
    return torch.rand(2, generator=g, requires_grad=True), inside, torch.rand(2, generator=g, out=torch.empty(2))


def in_another_default_dtype(x: torch.Tensor, g: torch.Generator) -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    drawn = torch.rand(3, generator=g)
    torch.set_default_dtype(before)
    return drawn, torch.rand(3, generator=g) * x


@pytest.mark.parametrize("fn", [given, by_the_numbers, with_gradients, in_another_default_dtype])
@pytest.mark.parametrize("default", [False, True], ids=["own", "torchs"])
def test_as_eager_where_it_breaks(fn: Callable[..., Any], default: bool) -> None:
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager")
    for seed in (0, 1):
        def make(seed: int = seed) -> torch.Generator:
            return torch.default_generator if default else torch.Generator().manual_seed(seed)

        call_both(fn, compiled, seed, make)


def test_a_seed_that_varies_is_no_constant() -> None:
    def noise(x: torch.Tensor, seed: int) -> Any:
        return x + torch.rand(3, generator=torch.Generator().manual_seed(seed))

    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(noise, fullgraph=True, backend="eager")
    for seed in range(1, 5):
        assert_same_call(noise, compiled, torch.ones(3), seed)
    assert fxjit.counters["frames"]["ok"] == 2
