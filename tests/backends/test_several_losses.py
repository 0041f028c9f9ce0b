"""Several losses of one graph, each with a backward pass and a step of its own, as in reinforcement learning: in eager a pass
goes through the nodes of its own loss alone, and an optimizer may write to what others have saved of another loss."""

from __future__ import annotations

import pytest
import torch

import fxjit

BACKENDS = ["aot_eager", "native"]


class Counts:
    def __init__(self):
        self.steps, self.rate = 0, 0.5


def counter(x, a, b, counts):
    counts.steps += 1
    return (x @ a).sum(), (x @ b).square().sum()


def sizes(x, a, b, counts):
    rows = x.shape[0]
    h = (x @ a).reshape(rows * 3)
    g = (x @ b).reshape(rows * 3)
    return h.square().sum() / rows, (g * h.detach()).sum() / rows


def numbers_in_both(x, a, b, counts):
    counts.rate = counts.rate * 1.5 + 1
    counts.steps += 2
    return (x @ a).sum() * counts.rate, (x @ b).square().sum() * counts.steps


def numbers_alone(x, a, b, counts):
    first = (x @ a).sum()
    seen = first.detach()
    counts.steps += 1
    other = seen.detach()
    counts.rate *= counts.steps
    return first + other.detach(), (x @ b).sum() * counts.steps + other, counts.steps * 2


def sizes_of_intermediates(x, a, b, counts):
    h = x @ a
    elements = h.size(0) * h.size(1)
    return h.sum() / elements, ((x @ b).reshape(elements) / elements).sum() + elements


def computed_sizes(x, a, b, counts):
    rows = int(x.shape[0] * 1.5)
    return (x @ a).sum() * rows, (x @ b).new_ones(rows).sum() * (x @ b).sum()


def trained(fn):
    torch.manual_seed(0)
    a, b = (torch.randn(3, 3, requires_grad=True) for _ in range(2))
    counts, optimizer, seen = Counts(), torch.optim.SGD([a, b], lr=0.1), []
    for rows in (4, 5, 6, 4):
        results = fn(torch.randn(rows, 3), a, b, counts)
        optimizer.zero_grad()
        for loss in results[:2]:
            loss.backward()
            optimizer.step()
        seen.append([each.detach() if isinstance(each, torch.Tensor) else each for each in results])
    return seen, a.detach(), b.detach(), counts.steps, counts.rate


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [counter, sizes, numbers_in_both, numbers_alone, sizes_of_intermediates, computed_sizes])
def test_parts_that_share_numbers(fn, backend):
    torch.testing.assert_close(trained(fxjit.compile(fn, backend=backend, fullgraph=True)), trained(fn))


def exponential(x, scale, w):
    h = (x @ w).tanh()
    return (scale.exp() * h.detach().square()).mean(), (scale.exp() * h).mean()


def clamped(x, scale, w):
    scale = scale.exp().clamp(0.1, 10)
    h = x @ w
    return (scale.detach() * h).mean(), (scale * (h.square() - 2)).mean()


def softened(x, scale, w):
    return torch.nn.functional.softplus(scale).sum(), (torch.sigmoid(scale) * (x @ w)).mean()


def not_its_own(x, scale, w):
    h = (x @ w).tanh()
    return (scale * h).mean(), h.square().mean()


def of_other_terms(x, scale, w):
    h = x @ w
    g = h.sin()
    return (g * scale).sum(), (h * h.detach()).sum() + g.sum(), (scale.view(1, 1) * g.cos()).sum()


def steps(fn, order):
    torch.manual_seed(0)
    scale, w = torch.full((1,), 0.5, requires_grad=True), torch.randn(3, 3, requires_grad=True)
    optimizers, x = [torch.optim.SGD([each], lr=0.1) for each in (scale, w)], torch.randn(4, 3)
    raised = 0
    for _ in range(2):
        losses = fn(x, scale, w)
        for place in order:
            try:
                losses[place].backward(retain_graph=True)
            except RuntimeError:  # it saved what was written to
                raised += 1
                continue
            optimizers[0].step()
            optimizers[0].zero_grad()
        optimizers[1].step()
    return scale.detach(), w.detach(), raised


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [exponential, clamped, softened, not_its_own, of_other_terms])
def test_what_another_loss_saved_is_written_to(fn, backend):
    compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
    for order in ((0, 1), (1, 0)):
        torch.testing.assert_close(steps(compiled, order), steps(fn, order))


def test_what_the_loss_itself_saved_is_written_to():
    """Also where it returned it: autograd keeps another object of such."""
    def program(x, scale):
        y = (x * scale).exp()
        return y, y.sin().sum(), x.square().sum() + (y * 2).sum()

    for fn in (program, fxjit.compile(program, backend="native", fullgraph=True)):
        x, scale = torch.ones(3, requires_grad=True), torch.ones(1, requires_grad=True)
        y, first, second = fn(x, scale)
        first.backward(retain_graph=True)
        with torch.no_grad():
            y.add_(1)
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            second.backward()
        x.grad = None
