"""`while` loops that data end are compiled without a setting: between two decisions an iteration is one graph, whatever their
number.

Those in or around a `for` loop are in test_for_loops.py. Loops with other breaks in them need `config.resume_in_loops`
(test_loops.py).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import KERNELS, assert_same_as_eager

import fxjit
from fxjit.testing import EagerAndRecordGraphs

BACKENDS = ("eager", "aot_eager", "native")


def until_it_is_small(x):
    steps = 0
    while x.norm() > 1:
        x = x * 0.5
        steps += 1
    return x, steps


def fixed_point(x):
    z, steps = torch.zeros_like(x), 0
    while steps < 50:
        following = torch.tanh(z * 0.3 + x)
        steps += 1
        if (following - z).norm() < 1e-3:
            break
        z = following
    return z, steps


def line_search(x):
    gradient, step = 2 * x, 1.0
    start = (x ** 2).sum()
    while ((x - step * gradient) ** 2).sum() > start - 0.5 * step * (gradient ** 2).sum():
        step *= 0.5
    return x - step * gradient, step


def two_conditions(x):
    rest, steps = x @ x, 0
    while rest > 1e-2 and steps < 20:
        x = x - 0.3 * x
        rest = x @ x
        steps += 1
    else:
        x = x + 1
    return x, steps


def that_collects(x):
    found = []
    while x.norm() > 1:
        x = x * 0.7
        found.append(x)
    return found


def steps_of_its_own_size(x):
    time, step, count = 0.0, 0.1, 0
    while time < 1.0:
        one, two = x - step * x, x - step / 2 * (x + (x - step / 2 * x))
        if (one - two).abs().max() < 1e-2:
            x, time, count = two, time + step, count + 1
        else:
            step *= 0.5
    return x, count


def that_goes_on(x):
    while True:
        x = x * 0.5
        if x.sum() > 3:
            x = x - 1
            continue
        if x.norm() < 1:
            return x


def raises_in_the_middle(x):
    steps = 0
    while x.norm() > 1:
        x = x * 0.5
        steps += 1
        if steps > 3:
            raise ValueError(steps)
    return x


def loop_in_a_loop(x):
    rounds = 0
    while x.norm() > 1:
        x = x * 0.9
        while x.max() > 2:
            x = x * 0.8
            rounds += 1
    return x, rounds


def called(x):
    return until_it_is_small(x * 2)[0] + 1


PROGRAMS = [until_it_is_small, fixed_point, line_search, two_conditions, that_collects, steps_of_its_own_size, that_goes_on,
            raises_in_the_middle, loop_in_a_loop, called]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_as_in_eager(fn: Callable[..., Any], backend: str) -> None:
    for scale in (0.1, 1.0, 5.0, 40.0):
        x = torch.tensor([1.0, -0.5, 0.75, 2.0]) * scale
        assert_same_as_eager(fn, x, fullgraph=False, backend=backend, rtol=KERNELS if backend == "native" else None)


@pytest.mark.parametrize("fn", [until_it_is_small, fixed_point, two_conditions, loop_in_a_loop], ids=lambda fn: fn.__name__)
def test_no_frame_is_given_up_and_graphs_are_few(fn: Callable[..., Any]) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    backend = EagerAndRecordGraphs()
    compiled = fxjit.compile(fn, backend=backend)
    for scale in (1.0, 5.0, 40.0, 1e3):
        compiled(torch.tensor([1.0, -0.5, 0.75, 2.0]) * scale)
    graphs = len(backend.graphs)
    for scale in (900.0, 7.0, 1.0):
        compiled(torch.tensor([1.0, -0.5, 0.75, 2.0]) * scale)
    assert not fxjit.counters["skip"] and len(backend.graphs) == graphs <= 8


def test_one_with_another_break_in_it_is_given_up() -> None:
    def fn(x):
        while x.norm() > 1:
            x = x * 0.5
            fxjit.graph_break()
        return x

    assert_same_as_eager(fn, torch.ones(3) * 5, fullgraph=False)
    assert list(fxjit.counters["skip"]) == ["Graph break in a loop"]


def test_one_in_a_loop_over_functions_is_given_up() -> None:
    def fn(x):
        for _ in (torch.sin, torch.cos):
            while x.norm() > 1:
                x = x * 0.5
            x = x * 3
        return x

    fxjit.reset()
    fxjit.counters.clear()
    x = torch.ones(3)
    assert torch.equal(fxjit.compile(fn, backend="eager")(x), fn(x))
    assert list(fxjit.counters["skip"]) == ["Graph break in a loop"]


def test_gradients_through_the_iterations() -> None:
    def fn(x):
        y = x
        while y.norm() > 1:
            y = y.sin() * 0.5
        return y.sum()

    for backend in BACKENDS:
        assert_same_as_eager(fn, torch.tensor([3.0, 2.0], requires_grad=True), fullgraph=False, backend=backend, rtol=KERNELS)
