"""The rest of a frame behind a graph break raises what the whole would raise, where it would."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same_as_eager, outcome_with_tracebacks

import fxjit


def cut(value=None):
    fxjit.graph_break()
    return value


# -- variables of closures that have no value -----------------------------------------------------------------------


def deleted_by_a_closure(x, way):
    held = x + 1

    def drop():
        nonlocal held
        if way:
            del held
        return x

    cut()
    y = drop()
    return y + held


def deleted_here(x, way):
    held = x + 1
    read = lambda: held  # noqa: E731, F821
    y = cut(read())
    if way:
        del held
    del held
    return y


def assigned_on_one_way_only(x, way):
    if not way:
        held = x
    y = cut(x + 1)
    z = [held for _ in range(2)][0] if way > 1 else held
    return y + z, (lambda: held)()


def caught(x, way):
    held = x

    def drop():
        nonlocal held
        del held

    cut(x)
    drop()
    try:
        return held
    except UnboundLocalError as error:
        return str(error), error.name


@pytest.mark.parametrize("way", [0, 1, 2])
@pytest.mark.parametrize("fn", [deleted_by_a_closure, deleted_here, assigned_on_one_way_only, caught])
@pytest.mark.parametrize("setting", [{}, {"resume_in_try": True}, {"nested_graph_breaks": False}])
def test_an_unbound_variable_of_a_closure_is_told_of_as_the_frames_own(fn, way, setting):
    with fxjit.config.patch(setting):
        result = assert_same_as_eager(fn, torch.ones(2), way, fullgraph=False, tracebacks=True)
    if way and fn is not caught and not (fn is assigned_on_one_way_only and way > 1):
        assert result[1][0][0] is UnboundLocalError


# -- comprehensions that run inline, whose names share slots with cells -----------------------------------------------


def first_plain_then_in_a_closure(x, items):
    items = [v for v in items if cut(v) != 4]
    return [(lambda: x + v)() for v in items]


def around_a_closures_variable(x, items):
    v = x * 2
    read = lambda: v  # noqa: E731
    items = [cut(v) + 1 for v in items]
    return items, read(), [[cut(v) * w for w in items] for v in items]


def raises_in_the_middle(x, items):
    v = x * 2
    try:
        items = [cut(v)[7] for v in items]
    except TypeError:
        items = [1]
    return [(lambda: x + v)() for v in items], v


def functions_with_a_free_variable_of_that_name():
    """A comprehension's variable may have the name of a free variable of its function, and be a cell itself."""
    v = 5

    def plain(x, items):
        items = [cut(v) + 1 for v in items]
        return [v * 2 for v in cut(items)], x + v

    def in_a_closure(x, items):
        makers = [lambda: v for v in items]
        cut()
        others = [lambda: v + x for v in items]
        return [make() for make in makers], [make() for make in others], cut(v) + x

    return plain, in_a_closure


@pytest.mark.parametrize("fn", [first_plain_then_in_a_closure, around_a_closures_variable, raises_in_the_middle,
                                *functions_with_a_free_variable_of_that_name()])
@pytest.mark.parametrize("in_try", [False, True])
@pytest.mark.parametrize("nested", [False, True])
def test_a_break_in_a_comprehension_keeps_its_names_apart_from_those_around_it(fn, in_try, nested):
    with fxjit.config.patch(resume_in_try=in_try, resume_in_loops=True, nested_graph_breaks=nested):
        assert_same_as_eager(fn, torch.ones(2), [1, 5], fullgraph=False, tracebacks=True)


# -- constructors, which CPython may run inside the evaluator of their caller ------------------------------------------


class Held:
    def __init__(self, value, fails):
        fxjit.graph_break()
        self.value = value * 2
        if fails:
            refuse(fails)


@fxjit.disable
def refuse(fails):
    raise ValueError(fails)


def made_in_a_try(x, fails):
    with torch.no_grad():
        try:
            held = Held(x, fails)
            x = x + held.value
        except ValueError as error:
            x = x * len(error.args)
    return x + 1


def made_of_what_breaks(x, fails):
    try:
        held = Held(x, cut(fails))
    except ValueError:
        return x
    return held.value


@pytest.mark.parametrize("program", [made_in_a_try, made_of_what_breaks])
@pytest.mark.parametrize("limit", [8, 1])
def test_what_a_constructor_raises_reaches_the_handler_around_the_call(program, limit):
    x = torch.ones(2)
    for options in ({}, {"resume_in_try": True}, {"resume_in_try": True, "nested_graph_breaks": False}):
        fxjit.reset()
        compiled = fxjit.compile(program, backend="eager")
        with fxjit.config.patch(**options, recompile_limit=limit):
            for fails in (1, 1, 0, 2, 2, 3, 0, 1, 1):
                expected = outcome_with_tracebacks(program, x, fails)
                assert repr(outcome_with_tracebacks(compiled, x, fails)) == repr(expected), (options, fails)


def test_a_constructor_that_runs_as_it_stands_is_compiled_at_every_call():
    def made(x):
        return Held(x, 0).value

    ran = []

    def backend(gm, inputs):
        return lambda *args: ran.append(1) or gm(*args)

    fxjit.reset()
    compiled = fxjit.compile(made, backend=backend)
    with fxjit.config.patch(nested_graph_breaks=False):
        for _ in range(5):
            ran.clear()
            compiled(torch.ones(2))
            assert ran == [1]
