"""`a and b` of data is one branch of the graph: as eager decides, with no test computed that a program could notice."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from tests.differential import assert_same_call

import fxjit

Program = Callable[..., Any]


def both(x, y):
    return x + 1 if x.sum() > 0 and y.sum() > 0 else x - 1


def either(x, y):
    if x.sum() > 0 or y.sum() > 0:
        return x + 1
    return x - 1


def mixed(x, y):
    if not (x.sum() > 0 or y.sum() > 0) and (x[0] < -1 or y.isnan().any()):
        return x + 1
    return x - 1


def as_bool(x, y):
    return bool(x.sum() > 0 or y.sum() > 0 or x[0] > 5), bool(x.sum() and y.sum()), x * 2


def negated(x, y):
    return not (x.sum() > 0 and y.sum() > 0), x * 2


def numbers(x, y):
    return (1 if x.sum() and y.max() and not x.min() else 2), x * 2


def known_on_one_side(x, y, limit=3, on=True):
    if x.sum() > 0 and limit > 2 and on:
        x = x + 1
    if y.sum() > 0 or not on:
        x = x * 3
    return x


def while_both(x, y):
    while x.sum() < 30 and y.max() < 100:
        x, y = x + 1, y * 2 + 3
    return x, y


def raised(x, y):
    if x.sum() > 0 and y.sum() > 0:
        raise ValueError("both")
    return x * 2


def of_another_shape(x, y):
    return (x.sum().reshape(1, 1) > 0) and (y[:1] > 0), x * 2


PROGRAMS = [both, either, mixed, as_bool, negated, numbers, known_on_one_side, while_both, raised, of_another_shape]


def inputs() -> list[tuple[torch.Tensor, torch.Tensor]]:
    each = [torch.tensor([1.0, 2.0, 3.0]), torch.tensor([-2.0, 0.0, 1.0]), torch.zeros(3), torch.tensor([torch.nan, 1.0, 0.0])]
    return list(itertools.product(each, each))


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", PROGRAMS)
def test_decides_as_eager(program: Program, backend: str) -> None:
    compiled = fxjit.compile(program, backend=backend)
    for x, y in inputs():
        if program is while_both and (x.isnan().any() or y.isnan().any()):
            continue
        assert_same_call(program, compiled, x, y)


@pytest.mark.parametrize("program", [both, either, negated])
def test_one_break_at_most_for_all_conditions(program: Program) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    fxjit.compile(program, backend="eager")(torch.ones(3), torch.ones(3))
    assert sum(fxjit.counters["graph_break"].values()) == (program is not negated)


def test_a_joint_condition_that_raises_is_a_check() -> None:
    compiled = fxjit.compile(raised, backend="eager", fullgraph=True)
    for x, y in inputs():
        assert_same_call(raised, compiled, x, y)


def test_bools_of_numpy_are_no_branch_at_all() -> None:
    def step(x, y):
        state, limit = x * 2, y[0]
        done = state[0] < -limit or state[1] > limit or state[2] != 1.0
        inside = np.all(state >= -3) and np.all(state <= 3)
        return state, done, inside

    compiled = fxjit.compile(step, backend="eager", fullgraph=True)
    for x, y in inputs():
        assert_same_call(step, compiled, x.numpy(), y.numpy())


def effects_in_between() -> list[Program]:
    def appended(x, y):
        seen = []
        if x.sum() > 0 and (seen.append(1) or y.sum() > 0):
            return x + len(seen)
        return x - len(seen)

    def looked_up(x, y):
        return x + 1 if x.abs().sum() < 3 and y[x.long()].sum() > 0 else x

    def divided(x, y):
        return x + 1 if x[0] != 0 and (7 // x.int()[0]) > 0 else x

    def drawn(x, y):
        return x + 1 if x.sum() > 0 and torch.rand(()) > 0.5 else x + torch.rand(3)

    def written(x, y):
        return x + 1 if x.sum() > 0 and y.add_(1).sum() > 0 else x

    def assigned(x, y):
        total = None
        if x.sum() > 0 and (total := y.sum()) > 0:
            return x + total
        return x, total

    def raising(x, y):
        return x + 1 if x.sum() > 0 and y.sum() > 0 and y.nothing else x

    def ambiguous(x, y):
        return x + 1 if x.sum() > 0 and y > 0 else x

    def as_it_is(x, y):
        found = x.sum() or y
        found.add_(1)
        return x, y, found

    def handled(x, y):
        try:
            return x + 1 if x.sum() > 0 and (7 % y.int()[1]) > 0 else x
        except (ZeroDivisionError, RuntimeError) as error:
            return x, type(error)

    return [appended, looked_up, divided, drawn, written, assigned, raising, ambiguous, as_it_is, handled]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("program", effects_in_between(), ids=lambda program: program.__name__)
def test_what_has_effects_is_left_to_eager(program: Program, backend: str) -> None:
    compiled = fxjit.compile(program, backend=backend)
    for nth, (x, y) in enumerate(inputs()):
        if x.isnan().any():
            x = x.nan_to_num(-3.0)
        assert_same_call(program, compiled, seed=nth, make=lambda x=x, y=y: (x.clone(), y.clone()))


TESTS = ["x.sum() > 0", "(y > 0).any()", "(x == y).all()", "y.max() >= x[0]", "k > 2", "x.mean()", "abs(y[1]) <= 1", "flag",
         "not x[2] < 0", "torch.isfinite(y).all()", "x.sum() - y.sum()", "len(x) == 3", "(x < y).sum() == 2", "s is None"]


@pytest.mark.parametrize("seed", range(12))
def test_random_conditions(seed: int) -> None:
    drawn = random.Random(seed)

    def condition(depth: int) -> str:
        if depth == 0 or drawn.random() < 0.2:
            return drawn.choice(TESTS)
        parts = [condition(depth - 1) for _ in range(drawn.randint(2, 3))]
        text = f"({drawn.choice([' and ', ' or ']).join(parts)})"
        return f"not {text}" if drawn.random() < 0.2 else text

    lines = ["def program(x, y, k, flag, s):", "    out = [x * 2]"]
    for nth in range(3):
        form = drawn.choice(["    if {}:\n        out.append(x + {})\n    else:\n        out.append(y - {})",
                             "    out.append(bool({}))\n    out.append(x + {} * {})",
                             "    out.append(y if {} else x * {} - {})",
                             "    out.append(not {})\n    out.append(y * {} + {})"])
        lines.append(form.format(condition(2), nth, nth))
    scope: dict[str, Any] = {"torch": torch}
    exec(compile("\n".join([*lines, "    return out"]), "<random conditions>", "exec"), scope)
    program = scope["program"]
    compiled = fxjit.compile(program, backend="eager")
    for at, (x, y) in enumerate(inputs()):
        assert_same_call(program, compiled, x, y, at % 4, at % 3 == 0, None if at % 2 else "s")
