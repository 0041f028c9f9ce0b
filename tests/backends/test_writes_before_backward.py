"""Writes to inputs and outputs between forward and backward: gradients are of the values that forward had, as eager's are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxjit
from fxjit import config
from fxjit.backends.aot import joint_passes

F = nn.functional
#: Of `x` and `p` (both with gradients) to several outputs. The partitioner computes some of what their derivatives read again.
PROGRAMS: dict[str, Callable[..., Any]] = {
    "an output that another is made of": lambda x, p: (x + p, (x + p).exp().mul(3).sin()),
    "a chain from an output": lambda x, p: ((y := x * 2 + p), torch.tanh(y * y.detach().cos()) * 3),
    "sums of parameters": lambda x, p: (F.gelu(x + p), (x - p).sigmoid() * 2),
    "a temperature": lambda x, p: (F.log_softmax(x * p.exp(), -1), (p.exp() * x.detach()).sum()),
    "a gate": lambda x, p: (x * torch.sigmoid(p + 1), F.softplus(p)),
    "a norm by hand": lambda x, p: ((x + p) * torch.rsqrt((x + p).square().mean(-1, keepdim=True) + 1e-5), x.sum(-1)),
    "a layer norm": lambda x, p: (F.layer_norm(x + p, (8,)), x + p),
    "a view of an output": lambda x, p: ((y := x + p).t(), y.exp().sin()),
    "a part of an output": lambda x, p: ((y := x + p)[1:], y.exp().sin(), y),
    "a larger dtype": lambda x, p: ((y := x.double() + p.double()).float(), (y * y).cos()),
    "powers": lambda x, p: ((x + p) ** 3, ((x + p) ** 2).sin().cos()),
    "choices": lambda x, p: (torch.where(x + p > 0, (x + p).exp(), p), torch.maximum(x + 1, p + 1).sin()),
    "a product": lambda x, p: ((x + p) @ (x - p), (x + p).relu()),
}


def outcome(program: Callable[..., Any], target: int, returned: int) -> tuple[torch.Tensor, ...] | str:
    """Gradients of one output, behind a write to an input or to another output; the exception's text where it is refused."""
    torch.manual_seed(0)
    x, p = torch.randn(8, 8).requires_grad_(), torch.randn(8).requires_grad_()
    outs = program(x, p)
    values = [x, p, *outs]
    if target >= len(values) or returned >= len(outs) or target - 2 == returned:
        return "no such value"
    with torch.no_grad():
        values[target].add_(1.5)
    try:
        outs[returned].sum().backward()
    except RuntimeError as error:
        return str(error)
    return tuple(torch.zeros(()) if each.grad is None else each.grad for each in (x, p))


@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients_are_of_the_values_that_forward_had(name: str):
    fxjit.reset()
    program = PROGRAMS[name]
    compared = 0
    with config.patch(small_graphs_as_captured=False):
        compiled = fxjit.compile(program, backend="native")
        for returned in range(3):
            for target in range(5):
                wanted = outcome(program, target, returned)
                if type(wanted) is str:  # eager saved what was written to, or there is no such value
                    continue
                found = outcome(compiled, target, returned)
                assert not fxjit.counters["run_as_captured"]
                assert type(found) is not str, (target, returned, found)
                torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
                compared += 1
    assert compared >= 2


def test_an_optimizer_steps_before_the_backward_of_a_loss_that_its_parameter_is_in():
    """As the temperature of soft actor-critic is trained: `alpha` in another loss is a result of the parameter."""
    class Temperature(nn.Module):
        def __init__(self):
            super().__init__()
            self.log_alpha = nn.Parameter(torch.tensor(0.3))

    def step(temperature, policy, optimizers, x):
        loss_of_alpha = -(temperature.log_alpha * (policy(x).detach() + 0.5)).mean()
        loss = (temperature.log_alpha.exp() * policy(x)).mean()
        optimizers[0].zero_grad()
        loss_of_alpha.backward()
        optimizers[0].step()
        optimizers[1].zero_grad()
        loss.backward()
        optimizers[1].step()
        return loss

    results = []
    with config.patch(small_graphs_as_captured=False):
        for run in (step, fxjit.compile(step, backend="native")):
            torch.manual_seed(0)
            temperature, policy = Temperature(), nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 1))
            optimizers = [torch.optim.SGD(each.parameters(), lr=0.1) for each in (temperature, policy)]
            losses = [run(temperature, policy, optimizers, torch.randn(16, 4)) for _ in range(3)]
            results.append([*losses, *temperature.parameters(), *policy.parameters()])
    torch.testing.assert_close(results[1], results[0], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("dynamic", [False, True], ids=["fixed", "sizes that vary"])
def test_a_large_output_is_saved_as_it_is(dynamic: bool):
    """A copy would be as much memory as is saved by computing from it again: logits beside their loss."""
    def program(x, p):
        y = x + p
        return y, y.exp().mul(3).sin()

    shared = []
    for rows in (1024, 8):
        fxjit.reset()
        x, p = torch.randn(rows, 1024).requires_grad_(), torch.randn(1024).requires_grad_()
        with config.patch(small_graphs_as_captured=False):
            y, waves = fxjit.compile(program, backend="native", dynamic=dynamic)(x, p)
        shared.append(y.data_ptr() in [each.data_ptr() for each in waves.grad_fn.saved_tensors])
    assert 1024 * 1024 * 4 >= joint_passes.LARGE
    assert shared == [True, False]
