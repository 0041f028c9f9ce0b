"""Leaves that are given other data and then have a part in what is differentiated: the gradient arrives at the leaf."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxjit

BACKENDS = ("eager", "aot_eager", "native")


class Binarized(nn.Linear):
    """The numbers that training changes are kept beside their signs."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not hasattr(self.weight, "kept"):
            self.weight.kept = self.weight.data.clone()
        self.weight.data = self.weight.kept.sign()
        return F.linear(x, self.weight, self.bias)


class Normalized(nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.weight.data = self.weight.data / self.weight.data.norm(dim=1, keepdim=True)
        self.weight.data = self.weight.data.clamp(-0.9, 0.9)
        return F.linear(x, self.weight.t().t(), self.bias) * self.weight.pow(2).mean()


class SetByTheFirstBatch(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift, self.ready = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.zeros(4)), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            with torch.no_grad():
                self.scale.data, self.ready = -torch.log(x.std(0)), True
                self.shift.data = -x.mean(0)
        return torch.exp(self.scale) * (x + self.shift)


class OfAnother(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Parameter(torch.arange(4.0)), nn.Parameter(torch.ones(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.one.data = self.other.data
        return x * self.one * self.other


def ends(module: nn.Module, x: torch.Tensor) -> list[torch.Tensor | None]:
    """Results, gradients and parameters of three steps."""
    optimizer, seen = torch.optim.SGD(module.parameters(), lr=0.1), []
    for batch in (x, x, x[:3]):
        optimizer.zero_grad()
        given = batch.clone().requires_grad_()
        result = module(given)
        result.square().sum().backward()
        optimizer.step()
        seen += [result.detach(), given.grad]
        seen += [each.clone() for p in module.parameters() for each in (p.detach(), p.grad)]
    return seen


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("module", [lambda: Binarized(4, 3), lambda: Normalized(4, 3), SetByTheFirstBatch, OfAnother])
def test_gradients_of_a_leaf_with_other_data(module, backend):
    fxjit.reset()
    torch.manual_seed(0)
    plain = module()
    torch.manual_seed(0)
    compiled = module()
    x = torch.randn(5, 4)
    expected = ends(plain, x)
    found = ends(fxjit.compile(compiled, backend=backend), x)
    torch.testing.assert_close(found, expected)
    assert not fxjit.counters["graph_break"]


def test_data_of_another_shape_break_the_graph():
    def fn(w, x):
        w.data = x.new_ones(2, 3)
        return (w * x).sum()

    w, v = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    for tensor, called in ((w, fn), (v, fxjit.compile(fn, backend="eager"))):
        called(tensor, torch.arange(3.0)).backward()
    torch.testing.assert_close(v.grad, w.grad)


@pytest.mark.parametrize("backend", BACKENDS)
def test_data_that_are_written_to_behind_an_operator(backend):
    """The leaf counts the write: the backward pass raises, as it does without the compiler."""
    def views(w, x):
        w.data = w.data * 2
        rows = w.view(2, 2)
        with torch.no_grad():
            w[0] = 7
        return rows * x

    def saved(w, x):
        w.data = w.data * 2
        y = w.exp() * w * x
        with torch.no_grad():
            w.mul_(2)
        return y

    def recorded(w, x):
        w.data = w.data * 2
        y = w * x
        w.mul_(2)
        return y

    for fn in (views, saved, recorded):
        ends = []
        for called in (fn, fxjit.compile(fn, backend=backend)):
            w = torch.nn.Parameter(torch.arange(4.0))
            x = torch.ones(2, 2) if fn is views else torch.ones(4)
            try:
                y = called(w, x)
                y = y if isinstance(y, tuple) else (y,)
                sum(each.sum() for each in y).backward()
                ends.append((*(each.detach() for each in y), w.detach(), w.grad))
            except RuntimeError as error:
                ends.append((str(error).split(":")[0], w.detach()))
        assert type(ends[0][0]) is type(ends[1][0]), fn
        torch.testing.assert_close(ends[1][1:], ends[0][1:])
        assert not isinstance(ends[0][0], str) or ends[0][0] == ends[1][0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_views_of_given_data_leave_the_graph(backend):
    """A gradient of theirs goes to the leaf, and they see what is written to it afterwards."""
    def views(w, x):
        w.data = w.data * 2
        return w.view(2, 2), w.t()[:2] * x[:2]

    def part(w, x):
        w.data = x + 1
        half = w[:2]
        return half, half.unsqueeze(0), (half * x[:2]).sum()

    def inner(w, x):
        w.data = x + 1
        return (w.view(2, 2) @ x.view(2, 2)).sum(),

    for fn in (views, part, inner):
        ends = []
        for called in (fn, fxjit.compile(fn, backend=backend, fullgraph=True)):
            w, x = torch.nn.Parameter(torch.arange(4.0)), torch.arange(4.0) + 3
            made = called(w, x)
            (total := sum(each.sum() for each in made)).backward()
            with torch.no_grad():
                w.add_(1)
            ends.append((total.detach(), w.grad, *(each.detach() for each in made)))
        torch.testing.assert_close(ends[1], ends[0])


def test_second_derivatives_of_a_leaf_with_other_data():
    def fn(w, x):
        w.data = w.data * 2
        return (w ** 3 * x).sum()

    ends = []
    for called in (fn, fxjit.compile(fn, backend="eager")):
        w = torch.nn.Parameter(torch.arange(3.0))
        (first,) = torch.autograd.grad(called(w, torch.ones(3)), w, create_graph=True)
        first.sum().backward()
        ends.append((first.detach(), w.grad))
    torch.testing.assert_close(ends[1], ends[0])


def test_hooks_of_a_leaf_with_other_data_are_called():
    seen: list[torch.Tensor] = []

    def fn(w, x):
        w.data = w.data + 1
        return w * x

    w = torch.nn.Parameter(torch.arange(3.0))
    w.register_hook(lambda gradient: seen.append(gradient.clone()))
    fxjit.compile(fn, backend="eager")(w, torch.tensor([1.0, 2.0, 3.0])).sum().backward()
    torch.testing.assert_close(seen, [torch.tensor([1.0, 2.0, 3.0])])
