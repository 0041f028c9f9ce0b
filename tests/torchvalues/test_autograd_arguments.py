"""`autograd.Function.apply` with objects of the program's, and with state that the program changed before the call: a graph
runs the function as it is, before those changes are replayed."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit
from fxjit.counters import counters


class Surrogate:
    def __init__(self, slope):
        self.slope = slope

    def gradient(self, x, threshold):
        return torch.exp(-self.slope * (x - threshold).abs())


class Spike(torch.autograd.Function):
    @staticmethod
    def forward(ctx, surrogate, x, threshold):
        ctx.save_for_backward(x)
        ctx.surrogate, ctx.threshold = surrogate, threshold
        return (x > threshold).float() * surrogate.slope

    @staticmethod
    def backward(ctx, grad):
        return None, grad * ctx.surrogate.gradient(ctx.saved_tensors[0], ctx.threshold), None


class Neuron(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.surrogate = Surrogate(2.0)

    def forward(self, x):
        return Spike.apply(self.surrogate, x * 2, 0.1)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_an_object_of_a_module_is_an_argument(backend):
    assert_same_as_eager(Neuron(), torch.randn(3, requires_grad=True), backend=backend)


def test_another_object_and_another_state_of_it_are_noticed():
    neuron = Neuron()
    compiled = fxjit.compile(neuron, fullgraph=True)
    x = torch.ones(3, requires_grad=True)
    for change in (lambda: None, lambda: setattr(neuron.surrogate, "slope", 3.0),
                   lambda: setattr(neuron, "surrogate", Surrogate(5.0))):
        change()
        for fn in (neuron, compiled):
            torch.testing.assert_close(fn(x), torch.full((3,), neuron.surrogate.slope))
        (expected,), (found,) = (torch.autograd.grad(fn(x).sum(), x) for fn in (neuron, compiled))
        torch.testing.assert_close(found, expected)


def test_an_object_that_is_handed_over_is_no_part_of_the_graph():
    def spikes(x, surrogate):
        return Spike.apply(surrogate, x * 2, 0.1)

    compiled = fxjit.compile(spikes, backend="eager", fullgraph=True)
    x = torch.randn(3, requires_grad=True)
    counters["recompiles"].clear()
    for _ in range(3):
        surrogate = Surrogate(2.0)
        torch.testing.assert_close(compiled(x, surrogate), spikes(x, surrogate))
    assert not counters["recompiles"]


class State:
    number = 1.0


STATE = State()
NUMBERS = [1.0]
NESTED = {"a": {"b": [1.0]}}
COUNT = 1.0


class ReadsState(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * STATE.number * NUMBERS[0] * NESTED["a"]["b"][0] * COUNT

    @staticmethod
    def backward(ctx, grad):
        return grad * STATE.number * NUMBERS[0] * NESTED["a"]["b"][0] * COUNT


def changes_an_attribute(x):
    STATE.number = STATE.number + 1
    return ReadsState.apply(x * 2)


def changes_a_list(x):
    NUMBERS[0] += 1
    return ReadsState.apply(x * 2)


def changes_a_list_deep_inside(x):
    NESTED["a"]["b"][0] += 1
    return ReadsState.apply(x * 2)


def changes_a_global(x):
    global COUNT
    COUNT += 1
    return ReadsState.apply(x * 2)


def with_a_cell():
    count = 1

    class ReadsCell(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x * count

        @staticmethod
        def backward(ctx, grad):
            return grad * count

    def changes_a_cell(x):
        nonlocal count
        count += 1
        return ReadsCell.apply(x * 2)

    return changes_a_cell


def reset():
    global COUNT
    STATE.number = COUNT = NUMBERS[0] = NESTED["a"]["b"][0] = 1.0


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", [changes_an_attribute, changes_a_list, changes_a_list_deep_inside, changes_a_global,
                                with_a_cell])
def test_what_was_changed_before_is_seen(fn, backend):
    def results(wrap):
        reset()
        call = wrap(fn() if fn is with_a_cell else fn)
        found = []
        for _ in range(3):
            x = torch.ones(2, requires_grad=True)
            y = call(x)
            found.append((y.tolist(), torch.autograd.grad(y.sum(), x)[0].tolist()))
        return found

    assert results(lambda each: fxjit.compile(each, backend=backend)) == results(lambda each: each)


def test_changes_that_the_function_does_not_read_leave_one_graph():
    steps = []

    def spikes(x):
        steps.append(len(steps))
        STATE.number += 1
        return Cubed.apply(x)

    assert_same_as_eager(spikes, torch.randn(3, requires_grad=True), calls=1)


class Cubed(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x ** 3

    @staticmethod
    def backward(ctx, grad):
        return grad * 3 * ctx.saved_tensors[0] ** 2
