"""Functions that are traced into the graph and that eager code runs again, later: hooks on tensors, `backward` of an
`autograd.Function`, functions under `checkpoint`. They see what the program changed until then."""

from __future__ import annotations

import pytest
import torch

import fxjit


class State:
    number = 1.0


STATE = State()
OTHER = State()
NUMBERS = [1.0]
TABLE = {"a": {"b": [1.0]}}
COUNT = 1.0
UNRELATED = 1.0


def reset():
    global COUNT, UNRELATED
    STATE.number = OTHER.number = COUNT = UNRELATED = NUMBERS[0] = TABLE["a"]["b"][0] = State.number = 1.0
    STATE.__dict__.pop("more", None)
    del NUMBERS[1:]


def factor():
    return STATE.number * NUMBERS[0] * TABLE["a"]["b"][0] * COUNT


class ScaledByState(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, gradient):
        return gradient * factor()


def with_hook(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * factor())
    return y


def with_function(x):
    return ScaledByState.apply(x * 2)


LATE = [with_hook, with_function]


def changes_an_attribute():
    STATE.number += 1


def changes_an_attribute_by_its_dict():
    STATE.__dict__["number"] = 3.0


def changes_a_list():
    NUMBERS[0] += 1


def changes_what_is_deep_inside():
    TABLE["a"]["b"][0] += 1


def changes_a_dict():
    TABLE["a"] = {"b": [2.0]}
    TABLE["a"]["b"][0] += 1


def changes_a_global():
    global COUNT
    COUNT += 1


CHANGES = [changes_an_attribute, changes_an_attribute_by_its_dict, changes_a_list, changes_what_is_deep_inside, changes_a_dict,
           changes_a_global]


def changes_nothing():
    pass


def changes_what_nobody_reads():
    global UNRELATED
    UNRELATED += 1
    OTHER.number += 1
    STATE.more = 1


def results(call):
    reset()
    found = []
    for _ in range(3):
        x = torch.arange(1.0, 4.0, requires_grad=True)
        TABLE["a"] = {"b": [1.0]}
        y = call(x)
        y.sum().backward()
        found.append((y.tolist(), x.grad.tolist()))
    reset()
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("late", LATE)
def test_what_the_frame_changes_behind_them_is_seen(late, change, backend):
    def program(x):
        y = late(x)
        change()
        return y * 2

    expected = results(program)
    torch.testing.assert_close(results(fxjit.compile(program, backend=backend)), expected)


@pytest.mark.parametrize("change", [changes_nothing, changes_what_nobody_reads])
@pytest.mark.parametrize("late", LATE)
def test_other_changes_leave_one_graph(late, change):
    def program(x):
        y = late(x)
        change()
        return y * 2

    expected = results(program)
    torch.testing.assert_close(results(fxjit.compile(program, backend="eager", fullgraph=True)), expected)


def test_changes_before_a_hook_leave_one_graph():
    def program(x):
        changes_a_global()
        changes_an_attribute()
        return with_hook(x) * 2

    expected = results(program)
    torch.testing.assert_close(results(fxjit.compile(program, backend="eager", fullgraph=True)), expected)


def cell_behind_a_hook(x):
    y, scale = x * 2, 1.0
    y.register_hook(lambda gradient: gradient * scale)
    scale = 3.0
    return y * scale


def loop_variable(x):
    total = 0
    for scale in (1.0, 2.0, 3.0):
        y = x * scale
        y.register_hook(lambda gradient: gradient * scale)  # noqa: B023 - the last one, in all of them
        total = total + y
    return total


def list_behind_a_hook(x):
    y, scales = x * 2, [1.0]
    y.register_hook(lambda gradient: gradient * sum(scales))
    scales.append(3.0)
    return y


def object_behind_a_hook(x):
    y, state = x * 2, State()
    y.register_hook(lambda gradient: gradient * state.number)
    state.number = 3.0
    return y


def object_dict_behind_a_hook(x):
    y, state = x * 2, State()
    y.register_hook(lambda gradient: gradient * vars(state).get("number", 5.0))
    state.number = 3.0
    return y


def missing_attribute_behind_a_hook(x):
    y, state = x * 2, State()
    y.register_hook(lambda gradient: gradient * getattr(state, "more", 5.0))
    state.more = 3.0
    return y


def class_attribute_behind_a_hook(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * STATE.number)
    del STATE.number
    State.number = 3.0
    return y


def two_hooks_of_which_one_is_late(x):
    y, scale = x * 2, 1.0
    y.register_hook(lambda gradient: gradient * STATE.number)
    z = y * 2
    z.register_hook(lambda gradient: gradient + scale)
    scale = 3.0
    return z


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [
    cell_behind_a_hook, loop_variable, list_behind_a_hook, object_behind_a_hook, object_dict_behind_a_hook,
    missing_attribute_behind_a_hook, class_attribute_behind_a_hook, two_hooks_of_which_one_is_late,
])
def test_variables_and_what_the_frame_made(program, backend):
    def call(x):
        STATE.number = 1.0
        return program(x)

    expected = results(call)
    torch.testing.assert_close(results(fxjit.compile(call, backend=backend)), expected)
