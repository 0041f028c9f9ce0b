"""`torch.autograd.grad` is part of the graph, without a setting: a pass that gives gradients leaves none in any leaf.

A leaf that the function makes of a tensor of its own (`requires_grad_()`) is one in the graph as well. Where a gradient would
have to go on to what was computed before the graph, or others take part in the pass, the graph breaks.
"""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from tests.differential import KERNELS, assert_same, assert_same_as_eager
from torch import nn

import fxjit

BACKENDS = ("eager", "aot_eager", "native")


def leaf(*shape):
    return torch.arange(1.0, 1 + torch.Size(shape).numel()).reshape(shape).div(7).requires_grad_()


def model(inputs=3):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(inputs, 8), nn.Tanh(), nn.Linear(8, 1))


def same(fn, *args, **options):
    """In one graph, and as eager, with each backend."""
    for backend in BACKENDS:
        assert_same_as_eager(fn, *args, backend=backend, rtol=None if backend == "eager" else KERNELS, **options)


# -- leaves --------------------------------------------------------------------------------------------------------


def of_an_argument(x):
    return torch.autograd.grad((x.sin() * x).sum(), x)


def of_a_leaf_of_its_own(x):
    x = x.detach().clone().requires_grad_()
    (gradient,) = torch.autograd.grad((x.sin() * x).sum(), x)
    return gradient * 2


def of_one_that_is_set_by_name(x):
    x = x.detach() * 2
    x.requires_grad = True
    return torch.autograd.grad(x.exp().sum(), [x])[0]


def of_an_intermediate(x):
    h = x.sin()
    return torch.autograd.grad((h * h).sum(), [h, x])


def under_no_grad(x):
    with torch.no_grad():
        y = x * 2
        with torch.enable_grad():
            inside = y.detach().requires_grad_()
            (gradient,) = torch.autograd.grad((inside ** 3).sum(), inside)
        return y + gradient


def step_by_step(x):
    """Attacks by projected gradients."""
    start, now = x.detach().clone(), x.detach() + 0.1
    for _ in range(3):
        now.requires_grad = True
        (gradient,) = torch.autograd.grad((now.sin() * now).sum(), now)
        now = (start + (now.detach() + 0.1 * gradient.sign() - start).clamp(-0.2, 0.2)).detach()
    return now


def retained_at_a_leaf(x):
    x.retain_grad()
    inside = x.detach().clone().requires_grad_()
    inside.retain_grad()
    return torch.autograd.grad(inside.square().sum(), inside)[0], x * 2


@pytest.mark.parametrize("fn", [of_an_argument, of_a_leaf_of_its_own, of_one_that_is_set_by_name, of_an_intermediate,
                                under_no_grad, step_by_step, retained_at_a_leaf])
def test_a_gradient_is_in_the_graph(fn):
    same(fn, leaf(4))


def test_only_gradients_are():
    """`backward()`, which leaves gradients in leaves, stays outside without `trace_autograd_ops`."""
    def fn(x):
        (gradient,) = torch.autograd.grad((x ** 3).sum(), x, create_graph=True)
        gradient.sum().backward()
        return gradient.detach() + 1

    assert_same_as_eager(fn, leaf(3), fullgraph=False, breaks=1, graphs=2)
    for backend in BACKENDS:
        assert_same_as_eager(fn, leaf(3), fullgraph=False, backend=backend, rtol=KERNELS)


# -- second derivatives --------------------------------------------------------------------------------------------


class Energy(nn.Module):
    """A potential and the forces that are its derivative, which a loss differentiates again."""

    def __init__(self):
        super().__init__()
        self.net = model()

    def forward(self, positions):
        positions.requires_grad_(True)
        energy = self.net(positions).sum()
        forces = -torch.autograd.grad(energy, positions, create_graph=True, retain_graph=True)[0]
        return energy, forces


def test_forces():
    same(Energy(), torch.randn(4, 3))


def test_forces_of_positions_that_are_released():
    class Released(Energy):
        def forward(self, positions):
            results = super().forward(positions)
            positions.requires_grad_(False)
            return results

    same(Released(), torch.randn(4, 3))


def gradient_penalty(critic, real, made):
    weights = torch.rand(real.size(0), 1).expand_as(real)
    between = (weights * real + (1 - weights) * made).requires_grad_(True)
    score = critic(between)
    gradient = torch.autograd.grad(score, between, torch.ones_like(score), create_graph=True, retain_graph=True)[0]
    return ((gradient.norm(2, dim=1) - 1) ** 2).mean()


def laplacian(net, x):
    x = x.detach().clone().requires_grad_(True)
    y = net(x)
    gradient = torch.autograd.grad(y, [x], torch.ones_like(y), create_graph=True)[0]
    return sum(torch.autograd.grad(gradient[..., i], x, torch.ones_like(gradient[..., i]), create_graph=True)[0][..., i:i + 1]
               for i in range(gradient.shape[-1]))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("loss", [lambda net, x: gradient_penalty(net, x, x.flip(0)),
                                  lambda net, x: laplacian(net, x).square().mean()], ids=["penalty", "laplacian"])
def test_a_step_on_what_a_gradient_is_part_of(loss, backend):
    def step(net, optimizer, x):
        value = loss(net, x)
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        return value.detach()

    eager, ours = model(), model()
    optimizers = [torch.optim.SGD(each.parameters(), 0.01) for each in (eager, ours)]
    fxjit.counters.clear()
    compiled = fxjit.compile(step, backend=backend)
    for seed in range(3):
        x = torch.randn(4, 3)
        torch.manual_seed(seed)
        expected = step(eager, optimizers[0], x)
        torch.manual_seed(seed)
        assert_same(expected, compiled(ours, optimizers[1], x), rtol=KERNELS)
        for mine, its in zip(ours.parameters(), eager.parameters(), strict=True):
            torch.testing.assert_close(mine.grad, its.grad, rtol=1e-4, atol=1e-6)
    assert list(fxjit.counters["graph_break"]) == ["Call that runs the autograd engine"]  # of `backward()`
    assert sum(fxjit.counters["graph_break"].values()) == 1


def test_a_product_of_a_hessian():
    def fn(net, x, v):
        loss = net(x).square().mean()
        parameters = list(net.parameters())
        first = torch.autograd.grad(loss, parameters, create_graph=True)
        return torch.autograd.grad(sum((each * v).sum() for each in first), parameters)

    same(fn, model(), torch.randn(4, 3), torch.tensor(0.7))


def test_adapted_parameters():
    """Meta-learning: a step of gradient descent that the loss goes through."""
    def fn(net, x, y):
        names = dict(net.named_parameters())
        loss = F.mse_loss(torch.func.functional_call(net, names, (x,)), y)
        gradients = torch.autograd.grad(loss, list(names.values()), create_graph=True)
        adapted = {name: each - 0.1 * gradient for (name, each), gradient in zip(names.items(), gradients, strict=True)}
        return F.mse_loss(torch.func.functional_call(net, adapted, (x,)), y)

    same(fn, model(), torch.randn(4, 3), torch.randn(4, 1))


# -- where the graph breaks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("traced", [False, True])
def test_gradients_that_come_to_an_input_by_what_was_computed_before(backend, traced):
    """`w` was computed of `x`: autograd knows that, and a graph of both does not."""
    def fn(x, w):
        return torch.autograd.grad((x * w).sum(), x, retain_graph=True)[0]

    start = leaf(3)
    x = start * 2
    w = x.sin()
    expected = fn(x, w)
    with fxjit.config.patch(trace_autograd_ops=traced):
        fxjit.reset()
        assert_same(expected, fxjit.compile(fn, backend=backend)(x, w), rtol=KERNELS)


def test_an_input_that_was_computed_before_is_one_to_differentiate_by():
    def fn(x, w):
        return torch.autograd.grad((x * w).sin().sum(), x)[0]

    for backend in BACKENDS:
        x, w = leaf(3) * 2, leaf(3)
        fxjit.reset()
        assert_same(fn(x, w), fxjit.compile(fn, backend=backend, fullgraph=True)(x, w), rtol=KERNELS)


def test_a_leaf_that_is_seen_outside():
    def fn(x):
        x = (x.detach() * 2).requires_grad_()
        (gradient,) = torch.autograd.grad((x ** 3).sum(), x)
        return x, gradient

    for backend in BACKENDS:
        assert_same_as_eager(fn, leaf(3), fullgraph=False, backend=backend, rtol=KERNELS)


def test_a_leaf_with_hooks():
    seen = []

    def fn(x):
        return torch.autograd.grad((x * x).sum(), x)[0]

    x = leaf(3)
    x.register_hook(lambda gradient: seen.append(gradient.clone()))
    expected = fn(x)
    assert_same(expected, fxjit.compile(fn, backend="eager")(x))
    assert len(seen) == 2


def test_graphs_that_are_used_up():
    def fn(x):
        loss = (x ** 3).sum()
        return loss, torch.autograd.grad(loss, x)[0]

    for backend in BACKENDS:
        loss, _ = fxjit.compile(fn, backend=backend, fullgraph=True)(leaf(3))
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


def unused(x, w):
    return torch.autograd.grad(x.sum(), w)


def not_required(x, w):
    return torch.autograd.grad(x.detach().sum(), x)


def second_time(x, w):
    loss = (x * w).sum()
    torch.autograd.grad(loss, x)
    return torch.autograd.grad(loss, w)


def second_time_by_another(x, w):
    loss = (x * x).sum()
    torch.autograd.grad(loss, x)
    return torch.autograd.grad(loss, w, allow_unused=True)


@pytest.mark.parametrize("fn", [unused, not_required, second_time, second_time_by_another])
def test_what_eager_raises_is_raised(fn):
    for backend in BACKENDS:
        assert_same_as_eager(fn, leaf(3), leaf(3), fullgraph=False, backend=backend)


def test_a_gradient_that_is_sparse():
    def fn(table, at):
        return torch.autograd.grad(F.embedding(at, table, sparse=True).square().sum(), table)[0].to_dense()

    for backend in BACKENDS:
        assert_same_as_eager(fn, leaf(5, 2), torch.tensor([1, 3, 1]), fullgraph=False, backend=backend, rtol=KERNELS)


def test_what_is_computed_behind_a_break():
    """The rest of a function that a `print` has parted: the gradient would have to go on to the first part."""
    def fn(net, x):
        h = net[0](x)
        print(end="")
        return torch.autograd.grad(net[2](net[1](h)).sum(), list(net.parameters()))

    for backend in BACKENDS:
        assert_same_as_eager(fn, model(), torch.randn(4, 3), fullgraph=False, backend=backend, rtol=KERNELS)


def test_copies_have_leaves_of_their_own():
    def fn(net, x):
        net = copy.deepcopy(net)
        return torch.autograd.grad(net(x).sum(), list(net.parameters()))

    for backend in BACKENDS:
        assert_same_as_eager(fn, model(), torch.randn(4, 3), fullgraph=False, backend=backend, rtol=KERNELS)


# -- inputs with histories that lead to each other -------------------------------------------------------------------

#: What the program computes of a leaf outside of the graph, and asks the gradients of in it.
INPUTS = {
    "a view of a leaf": lambda x: (x[1:], x, [x]),
    "a view of no leaf": lambda x: (lambda y: (y[1:], y, [y]))(x * 2),
    "a view, with itself": lambda x: (lambda v: (v, x, [v, x]))(x[1:]),
    "a result and its leaf": lambda x: (lambda h: (h, x, [h, x]))(x * x),
    "a result alone": lambda x: (lambda h: (h, x, [h]))(x * x),
    "two results": lambda x: (lambda h, k: (h, k, [h, k]))(x * x, x * 3),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("case", INPUTS)
def test_a_gradient_comes_by_way_of_an_input_that_was_computed_of_another(case, backend):
    def of_inputs(one, other, asked):
        return torch.autograd.grad((one * other[: len(one)]).square().sum(), asked)

    expected = of_inputs(*INPUTS[case](leaf(4)))
    actual = fxjit.compile(of_inputs, backend=backend)(*INPUTS[case](leaf(4)))
    for mine, eagers in zip(actual, expected, strict=True):
        torch.testing.assert_close(mine, eagers)


@pytest.mark.parametrize("trace_backward", [False, True])
@pytest.mark.parametrize("inputs", [None, "itself"])
def test_backward_comes_by_way_of_a_view_that_was_made_before_the_graph(trace_backward, inputs):
    def step(view, x):
        (view * x[:-1]).square().sum().backward(inputs=[x] if inputs else None)
        return x.grad

    expected, actual = leaf(4), leaf(4)
    step(expected[1:], expected)
    with fxjit.config.patch(trace_autograd_ops=trace_backward):
        fxjit.compile(step, backend="aot_eager")(actual[1:], actual)
    torch.testing.assert_close(actual.grad, expected.grad)


def test_a_tensor_that_was_a_leaf_gets_a_history():
    def of_both(h, x):
        return torch.autograd.grad((h * x).sum(), [h, x])

    compiled = fxjit.compile(of_both, backend="aot_eager")
    for history in (lambda x: x.detach().requires_grad_(), lambda x: x * x):
        x, y = leaf(3), leaf(3)
        for mine, eagers in zip(compiled(history(x), x), of_both(history(y), y), strict=True):
            torch.testing.assert_close(mine, eagers)


def test_gradients_of_what_the_graph_makes_are_in_it_with_views_of_its_inputs_behind():
    def of_its_own(v, x):
        h = v * x[:-1]
        return torch.autograd.grad(h.square().sum(), h)

    x = leaf(4)
    actual, expected = (fn(x[1:], x) for fn in (fxjit.compile(of_its_own, backend="aot_eager", fullgraph=True), of_its_own))
    torch.testing.assert_close(actual, expected)
