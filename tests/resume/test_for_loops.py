"""`for` loops around a decision on data are compiled without a setting: between two decisions an iteration is one graph.

That is where the decision may end the loop, and where all loops around it are over numbers and tensors, so that iterations are
one program. So are `while` loops (test_while_loops.py). Other breaks in loops need `config.resume_in_loops` (test_loops.py).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from tests.differential import KERNELS, assert_same_as_eager

import fxjit
from fxjit.testing import EagerAndRecordGraphs

BACKENDS = ("eager", "aot_eager", "native")


def fixed_point(x):
    z = torch.zeros_like(x)
    for step in range(50):
        following = torch.tanh(z * 0.3 + x)
        if (following - z).norm() < 1e-3:
            break
        z = following
    return z, step


def that_returns(x):
    for _ in range(20):
        x = x * 0.5 + 0.1
        if x.norm() < 1.0:
            return x
    return x + 1


def with_an_else(x):
    for step in range(4):
        x = x * 0.5
        if x.norm() < 1.0:
            break
    else:
        x = x + step
    return x * 2


def two_conditions(x):
    best = x.sum()
    for step in range(30):
        x = x * 0.8
        if step > 2 and (best - x.sum()).abs() < 0.5:
            break
        best = x.sum()
    return x, best, step


def functions_of_a_list(x):
    for fn in [torch.sin, torch.cos, torch.tanh]:
        y = fn(x) * 2
        if y.max() < 0.5:
            return y + 1, fn.__name__
    return x * 2, "none"


def numbered(x):
    found = []
    for at, scale in enumerate((0.5, 0.25, 0.75, 0.1)):
        x = x * scale
        found.append(x + at)
        if x.abs().max() < 0.2:
            break
    return found, at


def pairs(x):
    total = x * 0
    for one, other in zip([x, x + 1, x + 2], [x.sin(), x.cos(), x], strict=True):
        total = total + one * other
        if total.sum() > 5:
            break
    return total


def counted(x):
    for step in count(1):
        x = x / 2
        if x.norm() < step * 0.1:
            return x, step
    raise AssertionError


def of_a_mapping(x):
    for name, each in {"one": x, "two": x * 2, "three": x * 3}.items():
        if each.sum() > 4:
            return name, each
    return "none", x


def conjugate_gradients(x):
    matrix = torch.eye(4) * 2 + 0.1
    solution, rest = torch.zeros_like(x), x
    direction, norm = rest, rest @ rest
    for _ in range(10):
        image = matrix @ direction
        step = norm / (direction @ image)
        solution, rest = solution + step * direction, rest - step * image
        following = rest @ rest
        if following < 1e-8:
            break
        direction = rest + following / norm * direction
        norm = following
    return solution


def and_another_loop(x):
    for _ in range(5):
        x = x * 0.5
        if x.norm() < 1.0:
            break
    for step in range(3):
        x = x + step
    return x


def called(x):
    return that_returns(x * 2) + 1


def that_chooses(x):
    for _ in range(12):
        x = x * 1.5
        if x.norm() > 10:
            x = x / 4
        x = x + 0.1
    return x.cos()


def that_collects(x):
    found, scale = [], 1.0
    for step in range(12):
        x = x * 1.1
        if x.sum() > step:
            x, scale = x / 3, scale * 0.9
        found.append(x * scale)
    return torch.stack(found), scale


def rows(x):
    state = torch.zeros(2)
    for at, row in enumerate(x.view(-1, 2).repeat(4, 1)):
        state = state * 0.5 + row
        if state.sum() > at:
            state = state / 2
    return state


def listed_numbers(x):
    for low, high in [(0.5, 1.0), (1.0, 2.0), (2.0, 4.0), (4.0, 8.0)]:
        if x.max() > low:
            x = x - high
    return x


def that_continues(x):
    for _ in range(6):
        if x.sum() > 10:
            x = x - 1
            continue
        x = x * 2
    else:
        x = x + 1
    return x


def loops_in_loops(x):
    for i in range(2):
        for j in range(3):
            for each in (x, x + 1):
                if (each * i).sum() > j:
                    x = x - each * 0.1
                elif x.max() > 50:
                    return x, i
    return x, j


def while_in_a_for(x):
    for step in range(4):
        while x.norm() < 20:
            x = x * 1.5 + 0.1
        x = x * 0.3 - step
    return x


def for_in_a_while(x):
    count = 0
    while x.norm() < 40:
        for at in range(3):
            if x.min() >= at:
                break
            x = x + 1
        count += 1
        x = x * 1.5
    return x, count


def under_no_grad(x):
    for step in range(5):
        with torch.no_grad():
            if x.norm() > 2:
                x = x * 0.5
        x = x + step
    return x


PROGRAMS = [that_chooses, that_collects, rows, listed_numbers, that_continues, loops_in_loops, while_in_a_for, for_in_a_while,
            under_no_grad, fixed_point,
            that_returns, with_an_else, two_conditions, functions_of_a_list, numbered, pairs, counted,
            of_a_mapping, conjugate_gradients, and_another_loop, called]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_as_in_eager(fn: Callable[..., Any], backend: str) -> None:
    for scale in (0.1, 1.0, 5.0, 40.0):
        x = torch.tensor([1.0, -0.5, 0.75, 2.0]) * scale
        assert_same_as_eager(fn, x, fullgraph=False, backend=backend, rtol=KERNELS if backend == "native" else None)


@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_no_frame_is_given_up_and_graphs_are_few(fn: Callable[..., Any]) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    backend = EagerAndRecordGraphs()
    compiled = fxjit.compile(fn, backend=backend)
    for scale in (1.0, 5.0, 40.0, 1e3, 0.1):
        compiled(torch.tensor([1.0, -0.5, 0.75, 2.0]) * scale)
    graphs = len(backend.graphs)
    for scale in (1e3, 5.0, 1.0):
        compiled(torch.tensor([1.0, -0.5, 0.75, 2.0]) * scale)
    assert not fxjit.counters["skip"] and len(backend.graphs) == graphs <= 12


LAYERS = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(4))


def of_modules(x):
    for layer in LAYERS:
        x = layer(x)
        if x.sum() > 0:
            x = x / 2
    return x


def of_numbers_of_modules(x):
    for at in range(len(LAYERS)):
        x = LAYERS[at](x)
        if x.sum() > 0:
            x = x / 2
    return x


def of_tensors_of_other_sizes(x):
    for each in [torch.ones(1), torch.ones(3), torch.ones(2, 3)]:
        x = x + each
        if x.sum() > 0:
            x = x / 2
    return x


@pytest.mark.parametrize("fn", [of_modules, of_numbers_of_modules, of_tensors_of_other_sizes], ids=lambda fn: fn.__name__)
def test_one_whose_iterations_are_programs_of_their_own_is_given_up(fn: Callable[..., Any]) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(fn, backend="eager")
    for scale in (1.0, -1.0, 1.0):
        assert torch.equal(compiled(torch.ones(3) * scale), fn(torch.ones(3) * scale))
    assert list(fxjit.counters["skip"]) == ["Graph break in a loop"] and not fxjit.counters["recompile_limit"]


def test_one_with_another_break_in_it_is_given_up() -> None:
    def fn(x):
        for _ in range(5):
            x = x * 0.5
            if x.norm() < 1:
                break
            fxjit.graph_break()
        return x

    assert_same_as_eager(fn, torch.ones(3) * 5, fullgraph=False)
    assert list(fxjit.counters["skip"]) == ["Graph break in a loop"]


def test_the_items_of_an_iterator_that_the_program_holds_are_taken_once() -> None:
    def fn(x, items):
        for item in items:
            x = x + item
            if x.sum() > 10:
                break
        return x, list(items)

    for scale in (0.0, 3.0, 20.0):
        fxjit.reset()
        compiled = fxjit.compile(fn, backend="eager")
        for _ in range(3):
            got, want = compiled(torch.ones(2) * scale, iter([1, 2, 3, 4])), fn(torch.ones(2) * scale, iter([1, 2, 3, 4]))
            assert torch.equal(got[0], want[0]) and got[1] == want[1]


def test_gradients_through_the_iterations() -> None:
    def fn(x):
        y = x
        for _ in range(10):
            y = y.sin() * 0.5
            if y.norm() < 0.3:
                break
        return y.sum()

    for backend in BACKENDS:
        assert_same_as_eager(fn, torch.tensor([3.0, 2.0], requires_grad=True), fullgraph=False, backend=backend, rtol=KERNELS)
