"""`trace_autograd_ops`: backward passes in the graph leave what eager leaves, in leaves, results and exceptions."""

from __future__ import annotations

import copy
import inspect

import pytest
import torch
import torch.nn.functional as F
from tests.differential import KERNELS, assert_same, assert_same_as_eager, assert_same_call, scaled
from torch import nn
from torch.utils.checkpoint import checkpoint

import fxjit

BACKENDS = ("eager", "aot_eager", "native")


@pytest.fixture(autouse=True)
def _traced():
    with fxjit.config.patch(trace_autograd_ops=True):
        yield


def leaf(*shape, dtype=torch.float32):
    return torch.arange(1, 1 + torch.Size(shape).numel(), dtype=dtype).reshape(shape).div(7).requires_grad_()


def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.LayerNorm(8), nn.Dropout(0.3), nn.Linear(8, 2))


def same(fn, *args, **options):
    """In one graph, and as eager, with each backend."""
    for backend in BACKENDS:
        assert_same_as_eager(fn, *args, backend=backend, rtol=None if backend == "eager" else KERNELS, **options)


# -- backward() ----------------------------------------------------------------------------------------------------


def scalar(w):
    loss = (w * w).sum()
    loss.backward()
    return loss


def given_gradient(w, v):
    y = w.sin()
    y.backward(v)
    return y


def of_several(a, b):
    x, y = a * b, (a + b).sum()
    torch.autograd.backward([x, y], [torch.ones_like(x), None])
    return x, y


def twice(w):
    w.exp().sum().backward()
    (w * 3).sum().backward()
    return w.grad + 1


def kept_graph(w):
    loss = (w ** 3).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    return loss.detach()


def kept_for_the_caller(w):
    loss = (w ** 3).sum()
    loss.backward(retain_graph=True)
    return loss


def chosen_inputs(a, b):
    loss = (a * b).sum()
    loss.backward(inputs=[a])
    return b.grad is None, loss


def several_results(w):
    h = w.sin()
    k = h * 2
    loss = k.sum()
    loss.backward()
    return h, k, loss, w.detach() + 1


def nothing_saved(w):
    loss = w.sum()
    loss.backward()
    return loss


def read_afterwards(w):
    (w * w).sum().backward()
    g = w.grad
    w.grad = None
    return g * 2, g is w.grad


def under_no_grad(w):
    with torch.enable_grad():
        loss = (w * w).sum()
    with torch.no_grad():
        loss.backward()
        w -= w.grad
    return loss


def through_a_view(w):
    loss = w.t()[0].exp().sum() + w.view(-1)[:2].sum()
    loss.backward()
    return loss


class Twice(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x * 2

    @staticmethod
    def backward(ctx, g):
        (x,) = ctx.saved_tensors
        return g * 2 + x


def own_function(w):
    loss = Twice.apply(w).sum()
    loss.backward()
    return loss


@pytest.mark.parametrize("fn", [scalar, twice, kept_graph, kept_for_the_caller, several_results, nothing_saved, read_afterwards,
                                under_no_grad, through_a_view, own_function])
def test_backward_of_a_leaf(fn):
    same(fn, leaf(3, 2))


@pytest.mark.parametrize("fn", [of_several, chosen_inputs])
def test_backward_to_two_leaves(fn):
    same(fn, leaf(3), leaf(3))


def test_a_given_gradient():
    same(given_gradient, leaf(3), torch.arange(3.0))


def test_a_gradient_that_is_there_already_is_added_to():
    w = leaf(4)
    w.grad = torch.ones(4)
    kept = w.grad

    for backend in BACKENDS:
        before = w.grad.clone()
        loss = fxjit.compile(scalar, backend=backend, fullgraph=True)(w)
        assert w.grad is kept
        torch.testing.assert_close(w.grad, before + 2 * w.detach())
        with pytest.raises(RuntimeError, match="backward through the graph a second time"):
            loss.backward()


def test_gradients_have_memory_of_their_own():
    """Eager keeps a gradient that nobody else holds, and copies others."""
    def fn(a, b, v):
        (a + b).backward(v)
        return v

    same(fn, leaf(3), leaf(3), torch.arange(3.0))

    for backend in BACKENDS:
        a, b, v = leaf(3), leaf(3), torch.arange(3.0)
        fxjit.compile(fn, backend=backend, fullgraph=True)(a, b, v)
        assert len({each.untyped_storage().data_ptr() for each in (a.grad, b.grad, v)}) == 3


@pytest.mark.parametrize("made", [
    lambda: leaf(4, 3).detach().t().requires_grad_(),
    lambda: leaf(2, 3, 4, 4).detach().to(memory_format=torch.channels_last).requires_grad_(),
    lambda: leaf(8).detach()[::2].requires_grad_(),
    lambda: leaf(1, 3).detach().expand(1, 3).requires_grad_(),
    lambda: torch.tensor([1 + 2j, 3j]).requires_grad_(),
    lambda: torch.ones((), requires_grad=True),
    lambda: torch.ones(0, 3, requires_grad=True),
], ids=["transposed", "channels_last", "strided", "row", "complex", "scalar", "empty"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_gradient_has_the_layout_of_its_leaf(made, backend):
    def fn(w):
        (w * w).sum().abs().backward()
        (w.flatten().abs() * 2).sum().backward()

    eager, ours = made(), made()
    fn(eager)
    fxjit.compile(fn, backend=backend, fullgraph=True)(ours)
    assert ours.grad.stride() == eager.grad.stride()
    torch.testing.assert_close(ours.grad, eager.grad)


# -- training steps ------------------------------------------------------------------------------------------------


class Training(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.model, self.optimizer = model(), None
        self.optimizer = make(self.model.parameters())


def step(training, x, y):
    training.optimizer.zero_grad()
    loss = F.cross_entropy(training.model(x), y)
    loss.backward()
    training.optimizer.step()
    return loss


def clipped(training, x, y):
    training.optimizer.zero_grad()
    loss = F.cross_entropy(training.model(x), y)
    loss.backward()
    norm = nn.utils.clip_grad_norm_(training.model.parameters(), 0.1)
    training.optimizer.step()
    return loss, norm


def accumulated(training, x, y):
    for part in (x, -x):
        (F.cross_entropy(training.model(part), y) / 2).backward()
    training.optimizer.step()
    training.optimizer.zero_grad(set_to_none=False)


def under_autocast(training, x, y):
    training.optimizer.zero_grad()
    with torch.autocast("cpu", torch.bfloat16):
        loss = F.cross_entropy(training.model(x), y)
    loss.backward()
    training.optimizer.step()


def with_checkpoint(training, x, y):
    training.optimizer.zero_grad()
    loss = F.cross_entropy(checkpoint(training.model, x, use_reentrant=False), y)
    loss.backward()
    training.optimizer.step()
    return loss


OPTIMIZERS = {
    "sgd": lambda parameters: torch.optim.SGD(parameters, 0.1),
    "momentum": lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9),
    "adamw": lambda parameters: torch.optim.AdamW(parameters, 0.01),
}


@pytest.mark.sweep(5)
@pytest.mark.parametrize("body", [step, clipped, accumulated, under_autocast, with_checkpoint])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_training_step_is_one_graph(backend, optimizer, body):
    eager, ours = Training(OPTIMIZERS[optimizer]), Training(OPTIMIZERS[optimizer])
    fxjit.counters.clear()
    compiled = fxjit.compile(body, backend=backend, fullgraph=True)
    for seed in range(4):
        torch.manual_seed(seed)
        x, y = torch.randn(6, 4), torch.arange(6) % 2
        torch.manual_seed(seed)
        expected = body(eager, x, y)
        torch.manual_seed(seed)
        assert_same(expected, compiled(ours, x, y), rtol=KERNELS)
        for mine, its in zip(ours.model.parameters(), eager.model.parameters(), strict=True):
            rtol = scaled(500) if body is under_autocast else KERNELS  # bfloat16 in other places
            assert_same(its.detach(), mine.detach(), rtol=rtol)
            assert_same(its.grad, mine.grad, rtol=rtol)
    assert not fxjit.counters["graph_break"] and not fxjit.counters["skip"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_running_statistics_and_convolutions(backend):
    def fn(net, x):
        loss = net(x).square().mean()
        loss.backward()
        return loss

    torch.manual_seed(0)
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(36, 2))
    eager, ours = net, copy.deepcopy(net)
    x = torch.randn(5, 3, 8, 8)
    compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
    for _ in range(2):
        assert_same(fn(eager, x), compiled(ours, x), rtol=KERNELS)
    assert_same([each.grad for each in eager.parameters()], [each.grad for each in ours.parameters()], rtol=KERNELS)
    assert_same(dict(eager.named_buffers()), dict(ours.named_buffers()), rtol=KERNELS)


def test_sizes_that_vary():
    def fn(net, x):
        loss = net(x).square().mean()
        loss.backward()
        return loss

    eager, ours = nn.Linear(4, 2), nn.Linear(4, 2)
    ours.load_state_dict(eager.state_dict())
    compiled = fxjit.compile(fn, backend="native", fullgraph=True, dynamic=True)
    for rows in (3, 5, 9):
        x = torch.randn(rows, 4)
        assert_same(fn(eager, x), compiled(ours, x), rtol=KERNELS)
        assert_same([each.grad for each in eager.parameters()], [each.grad for each in ours.parameters()], rtol=KERNELS)


# -- autograd.grad -------------------------------------------------------------------------------------------------


def of_a_leaf(w):
    return torch.autograd.grad((w ** 3).sum(), w)


def of_an_intermediate(w):
    h = w.sin()
    y = (h * h).sum()
    return torch.autograd.grad(y, [h, w], retain_graph=True), y


def unused(w):
    other = torch.ones(2, requires_grad=True)
    return torch.autograd.grad(w.exp().sum(), [w, other], allow_unused=True)


def zeros_for_unused(w):
    other = torch.ones(2, requires_grad=True)
    return torch.autograd.grad(w.exp().sum(), [w, other], materialize_grads=True)


def second_order(w):
    (first,) = torch.autograd.grad((w ** 3).sum(), w, create_graph=True)
    (second,) = torch.autograd.grad(first.sum(), w)
    return second


def penalty(w):
    x = (w.detach() * 2).requires_grad_()
    (g,) = torch.autograd.grad((x * w).sin().sum(), x, create_graph=True)
    loss = (g.norm() - 1) ** 2
    loss.backward()
    return loss


def penalty_left_open(w):
    (g,) = torch.autograd.grad(w.sin().sum(), w, create_graph=True)
    return (g.norm() - 1) ** 2


def adversarial(w):
    x = torch.ones(w.shape).requires_grad_()
    (x * w).exp().sum().backward()
    return x.grad.sign()


def inner_steps(w):
    """As in MAML: a gradient through two steps of gradient descent."""
    fast = w
    for _ in range(2):
        (g,) = torch.autograd.grad((fast ** 2).sum() + fast.sin().sum(), fast, create_graph=True)
        fast = fast - 0.1 * g
    loss = fast.square().sum()
    loss.backward()
    return loss


@pytest.mark.parametrize("fn", [of_a_leaf, of_an_intermediate, unused, zeros_for_unused, second_order, penalty,
                                penalty_left_open, adversarial, inner_steps])
def test_gradients_that_are_computed_with(fn):
    same(fn, leaf(3, 2))


# -- what stays outside --------------------------------------------------------------------------------------------


def unused_input(w):
    return torch.autograd.grad(w.sum(), torch.ones(2, requires_grad=True))


def no_scalar(w):
    (w * 2).backward()


def no_gradient(w):
    w.detach().sum().backward()


def second_time(w):
    loss = (w ** 3).sum()
    loss.backward()
    loss.backward()


def changed_in_between(w):
    h = w.exp()
    loss = h.sum()
    h.add_(1)
    loss.backward()


def no_inputs(w):
    (w * 2).sum().backward(inputs=[])


@pytest.mark.parametrize("fn", [unused_input, no_scalar, no_gradient, second_time, changed_in_between, no_inputs])
@pytest.mark.parametrize("backend", BACKENDS)
def test_errors_are_eagers(fn, backend):
    assert_same_as_eager(fn, leaf(3), backend=backend, fullgraph=False, calls=2)


def test_errors_reach_the_programs_handler():
    def fn(w):
        loss = (w ** 3).sum()
        loss.backward()
        try:
            loss.backward()
        except RuntimeError as error:
            return str(error), w.grad + 1
        return None

    for _ in range(2):
        assert_same_call(fn, fxjit.compile(fn, backend="native"), leaf(3), rtol=KERNELS)


def breaks_of(fn, *args):
    fxjit.reset()
    fxjit.counters.clear()
    fxjit.compile(fn, backend="eager")(*args)
    return dict(fxjit.counters["graph_break"])


def test_gradients_that_flow_on_break_the_graph():
    def fn(h):
        (h * 2).sum().backward()

    w = leaf(3)
    assert breaks_of(fn, w * 3)
    torch.testing.assert_close(w.grad, torch.full((3,), 6.0))


@pytest.mark.parametrize("register", [torch.Tensor.register_hook, torch.Tensor.register_post_accumulate_grad_hook])
def test_hooks_break_the_graph_also_where_they_come_later(register):
    seen = []
    w = leaf(3)
    compiled = fxjit.compile(scalar, backend="eager")
    compiled(w)
    register(w, lambda each: seen.append(1))
    compiled(w)
    assert seen == [1] and fxjit.counters["graph_break"]


def test_others_who_look_on_break_the_graph():
    packed = []
    w = leaf(3)
    compiled = fxjit.compile(scalar, backend="eager")
    compiled(w)
    with torch.autograd.graph.saved_tensors_hooks(lambda x: packed.append(1) or x, lambda x: x):
        compiled(w)
    assert packed

    def fn(w):
        (w.sqrt() * 0).sum().backward()

    w = torch.zeros(1, requires_grad=True)
    with torch.autograd.detect_anomaly(check_nan=True), pytest.raises(RuntimeError, match="nan"), pytest.warns(UserWarning):
        fxjit.compile(fn, backend="eager")(w)


def test_gradients_with_a_graph_break_it():
    def fn(w):
        (w ** 3).sum().backward(create_graph=True)
        return w.grad.requires_grad

    with pytest.warns(UserWarning, match="create_graph"):
        assert_same_call(fn, fxjit.compile(fn, backend="eager"), leaf(3))


def test_a_buffer_that_keeps_a_graph():
    """A write leaves the input with a graph that is used up: the backward pass runs outside."""
    def fn(w, kept):
        h = w.exp()
        kept.copy_(h)
        h.sum().backward()
        return kept * 2

    for backend in BACKENDS:
        assert_same_as_eager(fn, leaf(3), torch.zeros(3), backend=backend, fullgraph=False, rtol=KERNELS)


def test_off_it_is_a_break_that_says_how_to_put_it_on():
    how = "trace_autograd_ops = True"
    with fxjit.config.patch(trace_autograd_ops=False), pytest.raises(fxjit.errors.Unsupported, match=how):
        fxjit.compile(scalar, backend="eager", fullgraph=True)(leaf(3))


def test_arguments_by_name_are_bound_as_torch_binds_them():
    def fn(w):
        return torch.autograd.grad(inputs=(w,), outputs=w.exp(), grad_outputs=torch.ones_like(w))

    same(fn, leaf(3))
    assert "grad_outputs" in inspect.signature(torch.autograd.grad).parameters
