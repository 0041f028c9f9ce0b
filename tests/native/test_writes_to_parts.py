"""Writes to parts of tensors that the graph made go to their own memory (`Lowering.memory_to_change`), where nothing that was
there is read later: solvers and generators that fill a tensor step by step make no copy of the whole for each step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.differential import outcome

import fxjit
from fxjit.backends.native import pipeline
from fxjit.backends.native.index import prod
from fxjit.backends.native.lower.table import used_after

SIDE = 6


def solver(a, b):
    """Thomas's algorithm: both sweeps write one column from the one beside it."""
    b, d, out = a + 4, b * 1.0, torch.empty_like(a)
    for i in range(1, SIDE):
        w = a[:, i] / b[:, i - 1]
        b[:, i] += -w * a[:, i - 1]
        d[:, i] += -w * d[:, i - 1]
    out[:, -1] = d[:, -1] / b[:, -1]
    for i in range(SIDE - 2, -1, -1):
        out[:, i] = (d[:, i] - a[:, i] * out[:, i + 1]) / b[:, i]
    return out


def recurrence(a, b):
    out = torch.zeros(SIDE, SIDE)
    out[0] = a[0]
    for i in range(1, SIDE):
        out[i] = out[i - 1] * b[i] + a[i]
    return out


def pasted(a, b):
    canvas = torch.zeros(SIDE, SIDE)
    canvas[1:4, 1:4] = a[:3, :3]
    canvas[2:5, 2:5] += b[:3, :3]
    canvas[:, 0] = 1
    return canvas


def shifted_onto_itself(a, b):
    a = a * 2
    a[1:] = a[:-1].clone()
    a[:, :-1] = a[:, 1:] + b[:, 1:]
    a[1:4] += a[0:3].clone()
    return a


def computed_places(a, b):
    a = a + 1
    at = (b[0] * 3).long().clamp(0, SIDE - 1)
    a[at] = b
    a[:, at] += 1.0
    a = a.scatter(0, at[None], b[:1])
    return a.index_add(0, at, b)


IN_PLACE = [solver, recurrence, pasted, shifted_onto_itself, computed_places]


def old_values_later(a, b):
    a = a * 2
    old = a[1]
    kept = a.clone()
    a[1] = b[0]
    return a, old + 1, kept


def both_returned(a, b):
    a = a * 2
    c = a.select_scatter(b[0], 0, 1)
    d = c.slice_scatter(b[:2], 0, 2, 4)
    return a, c, d


def a_part_returned(a, b):
    a = a * 2
    part = a[2:]
    a[3] = b[0]
    return part, a


def windows_before(a, b):
    a = a.flatten() * 2
    windows = a.unfold(0, 3, 2)
    before = windows.sum(1)
    c = a.slice_scatter(b[0], 0, 3, 3 + SIDE)
    return before, windows * 1, c, c.as_strided((3, 3), (5, 2), 1)


def other_layouts(a, b):
    a = (a * 2).t()
    a[1:3] = b[:2]
    wide = b.repeat(2, 1)[::2]
    wide[1] = a[0]
    spread = a[:1].expand(SIDE, SIDE)
    return a, wide, spread.select_scatter(b[0], 0, 2)


def of_an_input(a, b):
    c = a.select_scatter(b[0], 0, 1)
    return c.select_scatter(b[1], 1, 1), a * 1


def of_a_sort(a, b):
    values, places = a.sort(1)
    values[:, 0] = b[0]
    places[:, 1] = 0
    return values, places


KEPT = [old_values_later, both_returned, a_part_returned, windows_before, other_layouts, of_an_input, of_a_sort]


@pytest.fixture(autouse=True)
def compiled_anew():
    fxjit.reset()
    with fxjit.config.patch(small_graphs_as_captured=False, cache_graphs=False):
        yield


@pytest.fixture
def stored(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is stored."""
    sizes: list[int] = []

    def look(stage: str, low: Any, what: Any) -> None:
        if stage == "lower":
            sizes.extend(prod(statement.size) for statement in what if hasattr(statement, "size"))

    monkeypatch.setattr(pipeline, "verifier", look)
    return sizes


def operands() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.rand(SIDE, SIDE), torch.rand(SIDE, SIDE)


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("program", [*IN_PLACE, *KEPT], ids=lambda program: program.__name__)
def test_what_eager_does(program, dynamic):
    a, b = operands()
    compiled = fxjit.compile(program, dynamic=dynamic)
    for _ in range(2):
        torch.testing.assert_close(compiled(a, b), program(a, b))


@pytest.mark.parametrize("program", [*IN_PLACE, *KEPT], ids=lambda program: program.__name__)
def test_what_eager_does_in_triton(program):
    pytest.importorskip("triton")
    with fxjit.config.patch(**{"triton.interpret": True}):
        given = operands()
        torch.testing.assert_close(fxjit.compile(program)(*given), program(*given))


def filled_from_the_end(a, b):
    out = torch.zeros(SIDE, SIDE)
    for i in range(SIDE - 1, -1, -1):
        out[i] = (a[i] * b[i]).exp() + out.sum(0)
    return out


@pytest.mark.parametrize("program", [pasted, shifted_onto_itself, filled_from_the_end], ids=lambda program: program.__name__)
def test_gradients(program):
    """Of programs whose eager derivatives exist: others change what a derivative needs."""
    given, results = operands(), []
    for call in (program, fxjit.compile(program)):
        leaves = [each.clone().requires_grad_() for each in given]
        call(*leaves).square().sum().backward()
        results.append([each.grad for each in leaves])
    torch.testing.assert_close(*results[::-1])


@pytest.mark.parametrize("program,wholes", [(solver, 2), (recurrence, 1), (pasted, 1)], ids=lambda value: getattr(
    value, "__name__", value))
def test_no_copy_of_the_whole(program, wholes, stored):
    """As many tensors are stored whole as the program makes, `empty_like` aside."""
    fxjit.compile(program)(*operands())
    assert sum(size == SIDE * SIDE for size in stored) == wholes


# Programs drawn at random: a list of tensors, of which each step changes one, takes a part of one, or computes a further one.

PART = st.tuples(st.integers(0, SIDE - 3), st.integers(0, 1), st.booleans())


def part_of(x: torch.Tensor, part: tuple[int, int, bool]) -> torch.Tensor:
    start, dim, single = part
    return x.narrow(dim, start, 1 if single else 3)


def _set(tensors: list[torch.Tensor], target: int, source: int, where: Any, which: Any) -> None:
    to, by = part_of(tensors[target], where), part_of(tensors[source], which)
    to.copy_(by.clone() if by.shape == to.shape else by.mean())


def _add(tensors: list[torch.Tensor], target: int, source: int, where: Any, which: Any) -> None:
    part_of(tensors[target], where).add_(part_of(tensors[source], which).sum())


def _lookup(tensors: list[torch.Tensor], target: int, source: int, where: Any, which: Any) -> None:
    at = (tensors[source].flatten()[:3].abs() * 7).long() % SIDE
    tensors[target][at] = tensors[source][:3] + 1


def _keep(tensors: list[torch.Tensor], target: int, source: int, where: Any, which: Any) -> None:
    tensors.append(part_of(tensors[source], which).expand(SIDE, SIDE).contiguous() if which[2] else tensors[source].t())


def _compute(tensors: list[torch.Tensor], target: int, source: int, where: Any, which: Any) -> None:
    tensors.append(tensors[source] * 0.5 + tensors[target].t())


STEPS: list[Callable[..., None]] = [_set, _add, _lookup, _keep, _compute]
PROGRAM = st.lists(st.tuples(st.sampled_from(STEPS), st.integers(0, 9), st.integers(0, 9), PART, PART), min_size=2, max_size=9)


@settings(max_examples=25, deadline=None)
@given(PROGRAM)
def test_programs_drawn_at_random(steps):
    """`t()` and `narrow` are views: later writes show in what was kept, as in eager."""

    def program(a, b):
        tensors = [a + 1, b * 2]
        for step, target, source, where, which in steps:
            step(tensors, target % len(tensors), source % len(tensors), where, which)
        return tensors

    fxjit.reset()
    a, b = torch.arange(36.0).view(6, 6) / 36, torch.arange(36.0).flip(0).view(6, 6) / 18
    found, expected = (outcome(call, (a, b)) for call in (fxjit.compile(program), program))
    torch.testing.assert_close(found, expected)


def test_a_collective_reads_until_it_is_waited_for():
    """Its argument's memory may not be written to before."""
    graph, functional = torch.fx.Graph(), torch.ops._c10d_functional
    x = graph.placeholder("x")
    begun = graph.call_function(functional.all_gather_into_tensor.default, (x, 2, "0"))
    between = graph.call_function(torch.ops.aten.relu.default, (x,))
    graph.call_function(functional.wait_tensor.default, (begun,))
    behind = graph.call_function(torch.ops.aten.relu.default, (x,))
    assert used_after(begun, between) and not used_after(begun, behind)
