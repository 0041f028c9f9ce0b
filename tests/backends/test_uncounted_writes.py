"""Former inference tensors, which got another's `data`: they are none by their keys, and count no writes. Eager writes to them,
and then raises."""

from __future__ import annotations

import contextlib

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

PROGRAMS = {
    "write": lambda x, y: x.add_(1),
    "write what is read": lambda x, y: (x.mul_(y), x * 2),
    "write past autograd": lambda x, y: x.data.add_(1),
    "write to what is detached": lambda x, y: x.detach().add_(1),
    "write to a view": lambda x, y: x.view(-1).add_(1),
    "out": lambda x, y: torch.add(y, 1, out=x),
    "reshape": lambda x, y: x.unsqueeze_(0),
    "write to a list": lambda x, y: torch._foreach_add_([x], 1),
    "read": lambda x, y: (x.detach(), x + 1),
}


def former(y):
    with torch.inference_mode():
        x = torch.ones(3)
    x.data = y
    return x


def handled(x, y, events):
    z = y * 2
    try:
        x.add_(z)
    except RuntimeError:
        events.append("handled")
        return z + 1
    finally:
        events.append("ended")
    return z + 2


def suppressed(x, y, events):
    events.append("begun")
    with contextlib.suppress(RuntimeError):
        x.view(-1).copy_(y)
        events.append("behind it")
    return y + 1


def handled_by_a_caller(x, y, events):
    for _ in range(2):
        try:
            handled(x, y, events)
            x.zero_()
        except RuntimeError:
            events.append("again")
    return y


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("records", [False, True])
@pytest.mark.parametrize("program", [handled, suppressed, handled_by_a_caller])
def test_a_handler_in_the_program_is_reached(program, records, backend):
    compiled = fxjit.compile(program, backend=backend)
    for size in (3, 3, 4):
        seen = []
        for call in (program, compiled):
            x, events = former(torch.zeros(size)), []
            seen.append((call(x, torch.ones(size, requires_grad=records), events).tolist(), x.tolist(), events))
        assert seen[0] == seen[1]


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("inside", [False, True])
def test_a_write_to_an_inference_tensor_behind_another_write(inside, backend):
    def program(w, x, events):
        with torch.no_grad():
            w.add_(1)
        try:
            with torch.inference_mode(inside):
                x[0].mul_(2)
        except RuntimeError as error:
            events.append(str(error)[:20])
        return w * 2

    compiled = fxjit.compile(program, backend=backend)
    for infers in (False, True, True, False):
        seen = []
        for call in (program, compiled):
            with torch.inference_mode(infers):
                x = torch.ones(3)
            w, events = torch.ones(3, requires_grad=True), []
            seen.append((call(w, x, events).tolist(), w.tolist(), x.tolist(), events))
        assert seen[0] == seen[1]


def given_and_written(x, y):
    x.data = y
    x.add_(1)
    return x * 2


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_former_inference_tensor_raises_behind_the_write(name, backend):
    def make():
        y = torch.zeros(3)
        return former(y), y

    assert_same_as_eager(PROGRAMS[name], make=make, backend=backend, fullgraph=False)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("first", [True, False])
def test_data_given_in_the_program(first, backend):
    compiled = fxjit.compile(given_and_written, backend=backend)
    for is_former in (first, not first, first):
        seen = []
        for call in (given_and_written, compiled):
            x, y = former(torch.zeros(3)) if is_former else torch.zeros(3), torch.zeros(3)
            try:
                result = call(x, y).tolist()
            except RuntimeError as error:
                result = str(error)
            seen.append((result, x.tolist(), y.tolist()))
        assert seen[0] == seen[1]


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("of_input", [True, False], ids=["input", "view"])
def test_data_that_was_the_same_memory_in_one_call_may_be_another_in_the_next(of_input, backend):
    def program(x, y):
        to = x if of_input else x.view(-1)
        to.data = y
        to.add_(1)
        return to * 2

    compiled = fxjit.compile(program, backend=backend)
    for shared in (True, False, True):
        seen = []
        for call in (program, compiled):
            y = torch.zeros(3)
            x = y.detach() if shared else torch.zeros(3)
            seen.append((call(x, y).tolist(), x.tolist(), y.tolist()))
        assert seen[0] == seen[1]


def test_a_former_inference_tensor_that_is_differentiated_twice():
    def program(x, y):
        return (x * x * y).sum()

    def gradients(call):
        x = former(torch.arange(3.0)).requires_grad_()
        (first,) = torch.autograd.grad(call(x, torch.ones(3)), x, create_graph=True)
        return first.tolist(), torch.autograd.grad(first.sum(), x)[0].tolist()

    compiled = fxjit.compile(program, backend="native")
    for _ in range(2):
        try:
            expected = gradients(program)
        except RuntimeError as error:
            with pytest.raises(RuntimeError, match=str(error)[:30]):
                gradients(compiled)
        else:
            assert gradients(compiled) == expected
