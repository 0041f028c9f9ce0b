"""Functions that are traced into the graph and that eager code runs again, later: hooks on tensors, `backward` of an
`autograd.Function`, functions under `checkpoint`. They see what the program changed until then."""

from __future__ import annotations

import types

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch.utils.checkpoint import checkpoint

import fxjit


class State:
    number = 1.0


STATE = State()
MODULE = types.ModuleType("settings")
MODULE.number = 1.0
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


def with_checkpoint(x):
    return checkpoint(lambda x: (x * factor()).sin(), x, use_reentrant=False)


def with_reentrant_checkpoint(x):
    return checkpoint(lambda x: (x * factor()).sin(), x, use_reentrant=True)


def with_function(x):
    return ScaledByState.apply(x * 2)


LATE = [with_hook, with_checkpoint, with_reentrant_checkpoint, with_function]


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
        found.append((y.tolist(), x.grad.tolist(), vars(STATE).copy()))
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


@pytest.mark.parametrize("change", [changes_an_attribute, changes_a_list])
@pytest.mark.parametrize("late", LATE)
def test_what_is_changed_between_them_and_a_break_is_seen(late, change):
    def broken(y):
        torch._dynamo.graph_break()
        return y * 2

    def program(x):
        y = late(x)
        change()
        return broken(y) * 2

    def directly(x):
        y = late(x)
        change()
        torch._dynamo.graph_break()
        return y * 2

    for each in (program, directly):
        expected = results(each)
        torch.testing.assert_close(results(fxjit.compile(each, backend="eager")), expected)


@pytest.mark.parametrize("change", [changes_nothing, changes_what_nobody_reads])
@pytest.mark.parametrize("late", LATE)
def test_other_changes_leave_one_graph(late, change):
    def program(x):
        y = late(x)
        change()
        return y * 2

    expected = results(program)
    torch.testing.assert_close(results(fxjit.compile(program, backend="eager", fullgraph=True)), expected)


@pytest.mark.parametrize("late", LATE[:-1])  # a graph runs `apply` before they are made
def test_changes_before_them_leave_one_graph(late):
    def program(x):
        changes_a_global()
        changes_an_attribute()
        return late(x) * 2

    expected = results(program)
    torch.testing.assert_close(results(fxjit.compile(program, backend="eager", fullgraph=True)), expected)


def cell_behind_a_hook(x):
    y, scale = x * 2, 1.0
    y.register_hook(lambda gradient: gradient * scale)
    scale = 3.0
    return y * scale


def cell_behind_a_checkpoint(x):
    scale = 1.0
    y = checkpoint(lambda x: (x * scale).sin(), x, use_reentrant=False)
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


def dict_behind_a_checkpoint(x):
    scales = {"a": 1.0}
    y = checkpoint(lambda x: (x * sum(scales.values())).sin(), x, use_reentrant=False)
    scales["b"] = 3.0
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


def module_attribute_behind_a_hook(x):
    MODULE.number = 1.0
    y = x * 2
    y.register_hook(lambda gradient: gradient * MODULE.number)
    MODULE.number = 3.0
    return y


def class_attribute_behind_a_hook(x):
    y = x * 2
    y.register_hook(lambda gradient: gradient * STATE.number)
    del STATE.number
    State.number = 3.0
    return y


def counts_in_a_checkpoint(x):
    def layer(x):
        STATE.number += 1
        return (x * STATE.number).sin()
    return checkpoint(layer, x, use_reentrant=False)


def writes_in_a_checkpoint(x):
    def layer(x):
        STATE.more = 7
        return (x * 2).sin()
    y = checkpoint(layer, x, use_reentrant=False)
    STATE.more = 1
    return y


def notes_in_a_checkpoint(x):
    seen = []

    def layer(x):
        seen.append(1)
        return (x * len(seen)).sin()
    y = checkpoint(layer, x, use_reentrant=False)
    return y + len(seen)


def two_hooks_of_which_one_is_late(x):
    y, scale = x * 2, 1.0
    y.register_hook(lambda gradient: gradient * STATE.number)
    z = y * 2
    z.register_hook(lambda gradient: gradient + scale)
    scale = 3.0
    return z


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("program", [
    cell_behind_a_hook, cell_behind_a_checkpoint, loop_variable, list_behind_a_hook, dict_behind_a_checkpoint,
    object_behind_a_hook, object_dict_behind_a_hook, missing_attribute_behind_a_hook, class_attribute_behind_a_hook,
    module_attribute_behind_a_hook,
    counts_in_a_checkpoint, writes_in_a_checkpoint, notes_in_a_checkpoint, two_hooks_of_which_one_is_late,
])
def test_variables_and_what_the_frame_made(program, backend):
    def call(x):
        STATE.number = 1.0
        return program(x)

    expected = results(call)
    torch.testing.assert_close(results(fxjit.compile(call, backend=backend)), expected)


def test_a_module_counts_its_calls_under_a_checkpoint():
    class Counting(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.calls = torch.nn.Linear(3, 3), 0

        def forward(self, x):
            self.calls += 1
            return self.layer(x).sin()

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = Counting()

        def forward(self, x):
            return checkpoint(self.inner, x, use_reentrant=False) * 2

    theirs, ours = Model(), Model()
    ours.load_state_dict(theirs.state_dict())
    for model in (theirs, fxjit.compile(ours, backend="eager")):
        for _ in range(2):
            model(torch.ones(2, 3)).sum().backward()
    assert ours.inner.calls == theirs.inner.calls == 4
    torch.testing.assert_close(ours.inner.layer.weight.grad, theirs.inner.layer.weight.grad)


def test_layers_under_checkpoints_with_a_growing_list_are_one_graph():
    layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))

    def program(x):
        states = [x]
        for layer in layers:
            x = checkpoint(layer, x, use_reentrant=False)
            states.append(x)
        return x + len(states)

    assert_same_as_eager(program, torch.randn(2, 3, requires_grad=True))


def test_a_collector_that_is_there_for_the_forward_alone_leaves_one_graph():
    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = torch.nn.ModuleList(torch.nn.Linear(3, 3) for _ in range(3))
            self.seen = None
            for layer in self.layers:
                layer.register_forward_hook(self.collect)

        def collect(self, layer, given, result):
            if self.seen is not None:
                if len(self.seen) == 0:
                    self.seen.append(given[0])
                self.seen.append(result)

        def forward(self, x):
            self.seen = []
            for layer in self.layers:
                x = checkpoint(layer, x, use_reentrant=False).sin()
            seen, self.seen = self.seen, None
            return x, seen

    theirs, ours = Model(), Model()
    ours.load_state_dict(theirs.state_dict())
    x = torch.ones(2, 3, requires_grad=True)
    found = []
    for model in (theirs, fxjit.compile(ours, backend="eager", fullgraph=True)):
        result, seen = model(x)
        (result.sum() + sum(each.sum() for each in seen)).backward()
        found.append([result, *seen])
    torch.testing.assert_close(found[1], found[0])
    torch.testing.assert_close([each.grad for each in ours.parameters()], [each.grad for each in theirs.parameters()])
