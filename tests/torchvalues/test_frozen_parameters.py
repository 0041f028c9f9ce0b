"""Parameters that are frozen and released between uses: what operators take of them in between requires no gradient."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxjit
from fxjit.testing import CompileCounter

BACKENDS = ("eager", "aot_eager", "native")


def freeze(net: nn.Module, frozen: bool = True) -> None:
    for parameter in net.parameters():
        parameter.requires_grad = not frozen


def used_frozen_and_used(net, x):
    before = net(x)
    freeze(net)
    within = net(x * 2)
    facts = net.weight.requires_grad, net.weight.is_leaf, net.weight.grad_fn, within.requires_grad
    freeze(net, frozen=False)
    return before, within, net(x * 3), facts


def stays_frozen(net, x):
    before = net(x)
    net.weight.requires_grad_(False)
    return before, net(x * 2), net.weight


def frozen_twice(net, x):
    parts = [net(x)]
    for by in (2, 3):
        freeze(net)
        parts.append(net(x * by))
        freeze(net, frozen=False)
        parts.append(net(x * by))
    return tuple(parts)


def released_and_not_used(net, x):
    before = net(x)
    freeze(net)
    freeze(net, frozen=False)
    return before, net(x + 1)


def written_while_frozen(net, x):
    with torch.no_grad():
        before = net(x)
    freeze(net)
    net.weight.mul_(2)
    net.bias += 1
    within = net(x)
    freeze(net, frozen=False)
    return before, within, net(x)


def read_through_views(net, x):
    before = net(x)
    freeze(net)
    within = net.weight.t()[0] * 2, net.weight.data + 1, net.weight.detach()
    return before, *within


def handed_out(net, x):
    before = net(x)
    freeze(net)
    within = x @ net.weight
    return before, within, net.weight, [net.bias]


def steps_and_freezes(net, x):
    """An optimizer's step, after which the parameters are frozen for another's."""
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.sub_(parameter.sign())
    freeze(net)
    within = net(x.clone().requires_grad_())
    freeze(net, frozen=False)
    return within.detach(), net(x)


PROGRAMS = [used_frozen_and_used, stays_frozen, frozen_twice, released_and_not_used, written_while_frozen, read_through_views,
            handed_out, steps_and_freezes]


def made() -> nn.Linear:
    torch.manual_seed(0)
    net = nn.Linear(3, 3)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.mul_(8).round_()  # sums are exact in any order
    return net


def state(result: Any) -> Any:
    if isinstance(result, torch.Tensor):
        return type(result), result.tolist(), result.requires_grad, result.is_leaf, result.grad_fn is None
    return [state(each) for each in result] if isinstance(result, (tuple, list)) else result


def outcome(fn: Callable[..., Any], net: nn.Module, x: torch.Tensor) -> Any:
    """What a call comes to, and which gradients arrive where when its results are differentiated."""
    result = fn(net, x)
    found = state(result), [state(each) for each in net.parameters()]
    for each in result:
        if isinstance(each, torch.Tensor) and each.grad_fn is not None:
            each.sum().backward()
    return found, [None if each.grad is None else each.grad.tolist() for each in net.parameters()]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", PROGRAMS, ids=lambda fn: fn.__name__)
def test_as_in_eager(fn: Callable[..., Any], backend: str) -> None:
    fxjit.reset()
    compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
    net = made()
    for rows in (2, 2, 4):
        x = torch.arange(rows * 3.0).reshape(rows, 3)
        freeze(net, frozen=False)
        assert outcome(compiled, copy.deepcopy(net), x) == outcome(fn, copy.deepcopy(net), x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_frozen_before(backend: str) -> None:
    """One that required none at first is none that is detached."""
    def fn(net, x):
        before = net(x)
        freeze(net)
        return before, net(x * 2)

    compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
    for frozen in (True, False, True):
        one, other = made(), made()
        freeze(one, frozen)
        freeze(other, frozen)
        x = torch.ones(2, 3)
        assert outcome(compiled, one, x) == outcome(fn, other, x)


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_eager_refuses_is_refused(backend: str) -> None:
    """A derivative by a parameter that is frozen when it is asked for."""
    def fn(net, x):
        loss = net(x).sum()
        freeze(net)
        return torch.autograd.grad(loss, net.weight)

    with pytest.raises(RuntimeError, match="does not require grad"):
        fn(made(), torch.ones(2, 3))
    with pytest.raises(RuntimeError, match="does not require grad"):
        fxjit.compile(fn, backend=backend)(made(), torch.ones(2, 3))


def test_a_step_of_two_networks_breaks_at_their_backward_passes_alone() -> None:
    def step(critic, maker, optimizers, real, noise):
        freeze(maker)
        freeze(critic, frozen=False)
        loss = F.softplus(-critic(real)).mean() + F.softplus(critic(maker(noise))).mean()
        critic.zero_grad()
        loss.backward()
        optimizers[0].step()
        freeze(maker, frozen=False)
        freeze(critic)
        made_up = F.softplus(-critic(maker(noise))).mean()
        maker.zero_grad()
        made_up.backward()
        optimizers[1].step()
        return loss.detach(), made_up.detach()

    results = []
    counter = CompileCounter()
    fxjit.counters.clear()
    for call in (step, fxjit.compile(step, backend=counter)):
        torch.manual_seed(0)
        nets = nn.Linear(3, 1), nn.Linear(2, 3)
        optimizers = [torch.optim.SGD(net.parameters(), 0.1) for net in nets]
        results.append([call(*nets, optimizers, torch.randn(4, 3), torch.randn(4, 2)) for _ in range(3)])
    torch.testing.assert_close(*results, rtol=0, atol=0)
    assert list(fxjit.counters["graph_break"]) == ["Call that runs the autograd engine"]
