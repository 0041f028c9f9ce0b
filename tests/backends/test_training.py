"""What a training loop may do with a compiled graph's backward."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxjit
from fxjit.backends.aot.backend import BackendConfig
from fxjit.backends.aot.driver import compile_with_aot
from fxjit.backends.native import joint_passes
from fxjit.backends.native.decompositions import table

BACKENDS = ["aot_eager", "native"]


def gradients(module, loss):
    module.zero_grad()
    loss.backward(retain_graph=True)
    return [parameter.grad.clone() for parameter in module.parameters()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kept_graph_is_walked_twice(backend):
    """Batch norm writes to its buffers, so that AOTAutograd's own wrappers run the graphs."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU())
    module = copy.deepcopy(plain)
    compiled = fxjit.compile(module, backend=backend)
    x = torch.randn(2, 3, 8, 8)
    wanted, got = plain(x).sin().sum(), compiled(x).sin().sum()
    for _ in range(2):
        torch.testing.assert_close(gradients(module, got), gradients(plain, wanted))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_an_lstm_has_eagers_gradients(backend, needs_grad):
    """oneDNN's kernel keeps what its backward needs only where grad mode is on."""
    torch.manual_seed(0)
    plain = nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)
    module = copy.deepcopy(plain)
    compiled = fxjit.compile(module, backend=backend, fullgraph=True)
    x = torch.randn(3, 7, 8, requires_grad=needs_grad)
    for _ in range(2):
        (wanted, _), (got, _) = plain(x), compiled(x)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(gradients(module, got.sum()), gradients(plain, wanted.sum()))


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad"])
def test_a_fused_optimizer_step_is_eagers(name):
    """Functionalization refuses some of these operators; their graph then runs as it was captured."""

    def train(compiled):
        torch.manual_seed(0)
        module = nn.Linear(4, 3)
        optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.1, fused=True)

        def step(x):
            optimizer.zero_grad()
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = fxjit.compile(step) if compiled else step
        return [step(torch.full((2, 4), float(n))) for n in range(1, 4)], list(module.parameters())

    torch.testing.assert_close(train(compiled=True), train(compiled=False))


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk, self.first, self.second = nn.Linear(4, 4), nn.Linear(4, 2), nn.Linear(4, 3)

    def forward(self, x):
        hidden = self.trunk(x).tanh()
        return self.first(hidden), self.second(hidden)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_result_that_nobody_uses_gives_no_gradient(backend):
    """None, not zeros: an optimizer with weight decay tells them apart."""
    torch.manual_seed(0)
    plain = TwoHeads()
    module = copy.deepcopy(plain)
    compiled = fxjit.compile(module, backend=backend, fullgraph=True)
    x = torch.randn(2, 4)
    for use in ([0], [1], [0, 1]):
        for run in (plain, compiled):
            run.zero_grad()
            results = run(x)
            sum(results[n].sum() for n in use).backward()
        for wanted, got in zip(plain.parameters(), module.parameters(), strict=True):
            assert (wanted.grad is None) == (got.grad is None)
            if wanted.grad is not None:
                torch.testing.assert_close(got.grad, wanted.grad)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("used", [[0], [1], [2], [0, 1, 2]])
def test_a_derivative_that_is_zero_everywhere_is_that_of_the_results_it_is_in(backend, used):
    """`round` gives zeros to its operand; what it is not in gives nothing."""

    def function(x, y, z):
        return x.round() + z, y.sin() * z, torch.copysign(y, x)

    def grads(run):
        leaves = [torch.linspace(-1, 1, 5).add(k).requires_grad_() for k in range(3)]
        results = run(*leaves)
        return torch.autograd.grad([results[k].sum() for k in used], leaves, allow_unused=True)

    for mine, theirs in zip(grads(fxjit.compile(function, backend=backend)), grads(function)):
        assert (mine is None) == (theirs is None)
        assert mine is None or torch.allclose(mine, theirs)


@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
@pytest.mark.parametrize("hide", [torch.Tensor.detach, lambda x: x.data, None], ids=["detach", "data", "no_grad"])
def test_an_input_that_is_only_written_to_has_no_gradient(backend, hide):
    def function(x, y):
        if hide is None:
            with torch.no_grad():
                x.mul_(2)
        else:
            hide(x)[1:].mul_(2)
        return y.square() * x.detach()

    def outcome(run):
        x, y = (torch.linspace(-1, 1, 5).add(k).requires_grad_() for k in range(2))
        result = run(x, y)
        return [result, x, *torch.autograd.grad(result.sum(), [x, y], allow_unused=True)]

    mine, theirs = outcome(fxjit.compile(function, backend=backend)), outcome(function)
    assert mine[2] is theirs[2] is None
    torch.testing.assert_close(mine, theirs)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
@pytest.mark.parametrize("name", ["max", "min", "median", "nanmedian", "amax"])
@pytest.mark.parametrize("gradient", [1.0, float("nan"), float("inf")])
@pytest.mark.parametrize("last", [3.0, float("nan")])
def test_an_extremes_gradient_goes_to_the_numbers_that_equal_it(backend, name, gradient, last):
    """The others get zero, also where the gradient is NaN: not of `amax`, which multiplies."""

    def function(x):
        return getattr(x, name)() * 2

    def outcome(run):
        x = torch.tensor([1.0, 3.0, 2.0, 1.0, 3.0, last], requires_grad=True)
        result = run(x)
        return result, *torch.autograd.grad(result, x, torch.tensor(gradient))

    with fxjit.config.patch(small_graphs_as_captured=False):
        torch.testing.assert_close(outcome(fxjit.compile(function, backend=backend)), outcome(function), equal_nan=True)


def with_a_logarithm(x, w, state):
    h = x * w
    return h * 2, h.log()


def with_a_norm_and_a_root(x, w, state):
    h = (x * w).sin()
    return h.sum(), (h / h.norm()).sum(), h.abs().sqrt().mean() * h.shape[0], h.pow(-0.5)


def with_dropout_and_a_quotient(x, w, state):
    h = nn.functional.dropout(x * w, 0.5)
    return h.exp(), 1 / h


def with_a_write_and_a_logarithm(x, w, state):
    state.add_(1)
    h = x * state
    return h + 1, h.log2(), (h * 3).log10().sum()


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize(
    "function", [with_a_logarithm, with_a_norm_and_a_root, with_dropout_and_a_quotient, with_a_write_and_a_logarithm]
)
def test_a_result_that_nobody_uses_makes_no_gradient_nan(function, backend, dynamic):
    """Its zeros meet an infinite derivative: they are not there in eager."""

    def grads(run, used):
        torch.manual_seed(0)
        x, w = torch.tensor([1.0, 0.0, 2.0, 0.0]).requires_grad_(), torch.ones(4, requires_grad=True)
        results = run(x, w, torch.ones(4))
        return torch.autograd.grad([results[k].sum() for k in used], [x, w], allow_unused=True)

    fxjit.reset()
    count = len(function(*torch.ones(3, 4)))
    compiled = fxjit.compile(function, backend=backend, dynamic=dynamic)
    with fxjit.config.patch(fallback_random=True, small_graphs_as_captured=False):
        for used in [*([k] for k in range(count)), [0, 1], [*range(count)]]:
            for mine, theirs in zip(grads(compiled, used), grads(function, used)):
                assert (mine is None) == (theirs is None)
                assert mine is None or torch.allclose(mine, theirs, equal_nan=True), used


def adversarial_step(generator, discriminator, noise, real):
    fake = generator(noise)
    loss = discriminator(real).mean() - discriminator(fake.detach()).mean()
    return fake, loss


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("dynamic", [False, True])
def test_results_that_share_nothing_are_walked_back_one_by_one(backend, dynamic):
    """To autograd a compiled graph is one node; the two results here must not be of the same one."""
    compiled = fxjit.compile(adversarial_step, backend=backend, fullgraph=True, dynamic=dynamic)
    for rows in (3, 5):
        grads = []
        for run in (adversarial_step, compiled):
            torch.manual_seed(0)
            generator = nn.Sequential(nn.Linear(2, 8), nn.BatchNorm1d(8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 4))
            discriminator = nn.Sequential(nn.Linear(4, 8), nn.LeakyReLU(0.2, inplace=True), nn.Linear(8, 1))
            fake, loss = run(generator, discriminator, torch.randn(rows, 2), torch.randn(rows, 4))
            loss.backward()
            assert all(parameter.grad is None for parameter in generator.parameters())
            discriminator(fake).mean().backward()
            grads.append([each.grad for each in (*generator.parameters(), *discriminator.parameters())])
        torch.testing.assert_close(grads[1], grads[0])


def copied_into(x, y):
    out = x * 3
    apart = y + 2
    out[:1].copy_(x[1:2])
    return out, apart


def written_through_a_view(x, y):
    out = x * 3
    view = out[:2]
    apart = y + 2
    view.mul_(2)
    return out + 1, apart, view


def set_by_index(x, y):
    out = x * 3
    apart = y + 2
    out[0] = x[1] * 5
    return out, apart


def negative_memory(x, y):
    """The imaginary part of a conjugate is a view of memory that holds its negative; no gradient goes through `sign`."""
    negative = torch.complex(x.sign(), x.sign() + 1).conj().imag
    apart = x * 3
    return apart, negative * 2 + y


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("step", [copied_into, written_through_a_view, set_by_index, negative_memory])
def test_what_is_written_to_later_stays_in_its_part(backend, step):
    """Between the value and the write lies another result, which nothing connects to them."""
    results = []
    for run in (step, fxjit.compile(step, backend=backend, fullgraph=True)):
        x, y = (torch.arange(4.0).requires_grad_() for _ in range(2))
        outputs = run(x, y)
        results.append((outputs, torch.autograd.grad(outputs, (x, y), [torch.ones_like(each) for each in outputs])))
    torch.testing.assert_close(results[1], results[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_optimizer_step_between_two_losses_joins_nothing(backend):
    """The step writes to parameters that the second loss reads; autograd records neither the step nor a way through it."""

    def between(module, optimizer, old, x):
        total = old + 1.0  # of a loss that was walked back before
        optimizer.step()
        optimizer.zero_grad()
        return total, module(x).square().mean()

    compiled = fxjit.compile(between, backend=backend, fullgraph=True)
    grads = []
    for run in (between, compiled):
        torch.manual_seed(0)
        module = nn.Linear(4, 2)
        optimizer = torch.optim.SGD(module.parameters(), 0.1)
        x = torch.randn(3, 4)
        old = module(x).square().sum()
        old.backward()
        total, loss = run(module, optimizer, old, x)
        loss.backward()
        grads.append([total.detach(), loss.detach(), *(each.grad for each in module.parameters())])
    torch.testing.assert_close(grads[1], grads[0])


@pytest.mark.parametrize("backend", BACKENDS)
def test_what_only_unused_results_of_another_graph_depend_on_gets_no_gradient(backend):
    """Autograd walks from one compiled graph into the next also where there is no gradient to bring along."""

    def heads(x, y):
        shared = x.tanh()  # so that it is one node
        return shared.sum(), (shared * y).sum()

    def steps(encode, heads):
        torch.manual_seed(0)
        left, right = nn.Linear(3, 3), nn.Linear(3, 3)
        hidden = encode(right, torch.randn(2, 3))
        hidden.sum().backward(retain_graph=True)
        right.zero_grad()
        first, _ = heads(left(torch.randn(2, 3)), hidden)
        first.backward()
        return [each.grad for each in (*left.parameters(), *right.parameters())]

    def encode(module, x):
        return module(x).tanh()

    plain = steps(encode, heads)
    assert plain[2] is None
    compiled = steps(fxjit.compile(encode, backend=backend), fxjit.compile(heads, backend=backend))
    assert [each is None for each in compiled] == [each is None for each in plain]
    torch.testing.assert_close(compiled[:2], plain[:2])


def test_what_only_unused_results_of_another_part_depend_on_gets_no_gradient():
    """The root has an infinite derivative at zero, which zero as its gradient makes NaN."""

    def program(x, y):
        twice = x * 2
        root = twice.sqrt()
        more, other = twice + 1, y * 2
        root + 1
        return more, other

    compiled = fxjit.compile(program, backend="native", fullgraph=True)
    for run in (program, compiled):
        x, y = (torch.zeros(3, requires_grad=True) for _ in range(2))
        more, other = run(x, y)
        more.sum().backward()
        other.sum().backward()
        assert (x.grad.tolist(), y.grad.tolist()) == ([2.0] * 3, [2.0] * 3)


def test_parts_that_meet_are_one():
    """Where the results share a value, one walk back frees it for the other, as in eager."""

    def heads(x, w):
        hidden = (x @ w).tanh()
        return hidden.sum(), hidden.square().sum()

    first, second = fxjit.compile(heads, backend="aot_eager")(torch.randn(2, 3), torch.randn(3, 3, requires_grad=True))
    first.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        second.backward()


def test_parameters_whose_names_differ_by_case_are_two_inputs():
    class Both(nn.Module):
        def __init__(self):
            super().__init__()
            self.w, self.W = nn.Parameter(torch.ones(2)), nn.Parameter(torch.full((2,), 3.0))

        def forward(self, x):
            return x * self.w + self.W

    assert fxjit.compile(Both(), backend="eager", fullgraph=True)(torch.ones(2)).tolist() == [4.0, 4.0]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_derivative_of_an_input_that_gets_a_new_shape(backend):
    """A new shape counts as a write, before the product saves the input."""

    def product(weight, x):
        x.t_()
        return (weight * x).sum()

    compiled = fxjit.compile(product, backend=backend, fullgraph=True)
    seen = []
    for run in (product, compiled):
        weight, x = torch.ones(3, 2, requires_grad=True), torch.arange(6.0).reshape(2, 3)
        run(weight, x).backward()
        seen.append((weight.grad.tolist(), x.stride(), x._version))
    assert seen[1] == seen[0]


def norm(module, x):
    return module(x)


def norm_of_chosen_rows(module, x):
    return module(x[x[:, 0] > -9]).sin()


def norm_that_is_looked_at(module, x):
    return module(x) + module[0].running_mean.sum()


#: Each function with each backend; sizes vary in every other one.
NORMS = [(fn, backend, (place + number) % 2 == 1) for number, backend in enumerate(BACKENDS)
         for place, fn in enumerate([norm, norm_of_chosen_rows, norm_that_is_looked_at])]  # fmt: skip


@pytest.mark.parametrize(("fn", "backend", "dynamic"), NORMS)
def test_a_batch_norms_statistics_do_not_count_their_writes(fn, backend, dynamic):
    """A batch norm outside of the graph saved them: its derivative is not refused for what the graph wrote."""
    torch.manual_seed(0)
    counting = nn.InstanceNorm1d(2, track_running_stats=True)
    original = nn.Sequential(nn.BatchNorm1d(4), nn.Linear(4, 6), nn.Unflatten(1, (2, 3)), counting)
    plain, module, x = copy.deepcopy(original), copy.deepcopy(original), torch.randn(5, 4)
    compiled = fxjit.compile(lambda module, x: fn(module, x).exp(), backend=backend, dynamic=dynamic)
    for run, each in ((lambda module, x: fn(module, x).exp(), plain), (compiled, module)):
        before = each[0](x)
        with torch.no_grad():
            run(each, x)
        (before.square().sum() + run(each, x).sum()).backward()
    for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-4)
    for mine, theirs in zip(module.buffers(), plain.buffers(), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine._version == theirs._version


@pytest.mark.parametrize("backend", BACKENDS)
def test_one_batch_norm_in_parts_of_a_graph_that_derive_on_their_own(backend):
    """Some of the parts may run as they were captured, where the batch norm saves its statistics."""
    torch.manual_seed(0)
    original = nn.ModuleList([nn.Sequential(nn.Linear(6, 8), nn.BatchNorm1d(8), nn.ReLU()), nn.Linear(8, 4)])
    plain, module, target, own_target = (copy.deepcopy(original) for _ in range(4))
    a, b = torch.randn(2, 5, 6)

    def views(module, target):
        first, second = module[1](module[0](a)), module[1](module[0](b))
        with torch.no_grad():
            wanted = target[0](a).view(-1, 4), target[0](b).view(-1, 4)
        return first, second, *wanted, module[0](a)

    for run, each, other in ((views, plain, target), (fxjit.compile(views, backend=backend), module, own_target)):
        sum(result.square().sum() for result in run(each, other)).backward()
    for mine, theirs in zip(module.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(mine.grad, theirs.grad, atol=1e-4, rtol=1e-4)
    for mine, theirs in zip((*module.buffers(), *own_target.buffers()), (*plain.buffers(), *target.buffers()), strict=True):
        torch.testing.assert_close(mine, theirs)
        assert mine._version == theirs._version or mine.dtype == torch.long, "a graph counts its writes to a number as one"


@pytest.mark.parametrize("backend", ["eager", *BACKENDS])
def test_a_write_through_data_is_not_seen_by_autograd(backend):
    """A view that was taken before is differentiated as in eager; a write that is not hidden still counts."""

    def fill(memory, value, hidden):
        (memory.data if hidden else memory.detach())[0] = value

    def run(fill, hidden):
        x = torch.ones(3, requires_grad=True)
        memory = x * 2
        result = (memory[:2] * x[:2]).sum()
        version = memory._version
        fill(memory, torch.tensor(5.0), hidden)
        if memory._version > version:
            return memory
        result.backward()
        return memory, x.grad

    compiled = fxjit.compile(fill, backend=backend)
    for hidden in (True, False):
        torch.testing.assert_close(run(compiled, hidden), run(fill, hidden))


@pytest.mark.parametrize("kind,options", [
    (nn.LSTM, {"batch_first": True}), (nn.GRU, {"bidirectional": True, "bias": False}),
    (nn.LSTM, {"proj_size": 3, "num_layers": 3}),
], ids=["lstm", "gru", "projected"])  # fmt: skip
def test_dropout_between_recurrent_layers(kind, options):
    """Torch's decompositions leave it out."""
    torch.manual_seed(0)
    plain = kind(4, 5, **{"num_layers": 2, "dropout": 0.5, **options})
    module = copy.deepcopy(plain)
    compiled = fxjit.compile(module, backend="aot_eager")
    for size in (2, 3):
        x = torch.randn(size, size, 4)
        found = []
        for call, of in ((plain, plain), (compiled, module)):
            torch.manual_seed(7)
            y, states = call(x)
            states = states if isinstance(states, tuple) else (states,)
            loss = y.sin().sum() + sum(state.sum() for state in states)
            found.append([y.detach(), *(state.detach() for state in states), *gradients(of, loss)])
        torch.testing.assert_close(found[1], found[0])
    assert not torch.equal(plain(x)[0], plain(x)[0])


UNUSED_DRAWS = {
    "a function": lambda x: also(torch.rand_like(x), torch.rand(3) * x),
    "what is made of it": lambda x: also(x * torch.randn(3), nn.functional.dropout(x, 0.5)),
    "in place": lambda x: also(torch.empty(3).uniform_(), torch.rand(3) * x),
    "between others": lambda x: (torch.rand(3) * x, also(nn.functional.dropout(x, 0.5), torch.randn(3) + x)),
}


def also(_unused, result):
    return result


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("name", list(UNUSED_DRAWS))
def test_random_numbers_that_nobody_uses_are_drawn_too(name, grad, backend):
    def run(function):
        x = torch.arange(1.0, 4.0).requires_grad_(grad)
        torch.manual_seed(0)
        found = torch.utils._pytree.tree_leaves(function(x))
        grads = torch.autograd.grad([each.sum() for each in found], [x]) if grad else ()
        return [each.detach() for each in (*found, *grads, torch.rand(3))]

    torch.testing.assert_close(run(fxjit.compile(UNUSED_DRAWS[name], backend=backend)), run(UNUSED_DRAWS[name]))


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_operator_without_a_derivative_is_refused_where_eager_refuses_it(backend):
    def function(x):
        steps = torch.heaviside(x * 2, torch.ones(()))
        return x.sin(), steps

    x = torch.randn(4, requires_grad=True)
    wave, steps = fxjit.compile(function, backend=backend)(x)
    torch.testing.assert_close((wave, steps), function(x))
    torch.testing.assert_close(torch.autograd.grad(wave.sum(), x)[0], x.cos())
    with pytest.raises(RuntimeError, match="derivative for aten::heaviside is not implemented"):
        torch.autograd.grad(steps.sum(), x)


def test_a_dropout_that_drops_nothing_leaves_nothing_behind():
    """Not in the captured graph, and no copy of what it was given among the results of the compiled one."""
    captured, compiled = [], []
    model = nn.Sequential(nn.Dropout(0.3), nn.Linear(4, 4), nn.AlphaDropout(0.3), nn.Dropout(0)).eval()

    def backend(gm, inputs):
        captured.append(gm)
        return compile_with_aot(gm, inputs, BackendConfig(noted, "noted", table, joint_passes))

    def noted(gm, inputs, name):
        compiled.append(gm)
        return lambda args: gm(*args)

    x = torch.randn(3, 4)
    with torch.no_grad():
        torch.testing.assert_close(fxjit.compile(model, backend=backend)(x), model(x))
    assert [node.target for node in captured[0].graph.nodes if node.op == "call_function"] == [torch._C._nn.linear]
    results = next(iter(compiled[0].graph.find_nodes(op="output"))).args[0]
    assert len(results) == 1


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("windows", [lambda x: (x.sin() * 2 + 1).unfold(0, 3, 1), lambda x: (x * 2).as_strided((3, 3), (1, 1))])
def test_the_gradient_of_windows_that_overlap(backend, windows):
    """It has as many elements as the windows show, more than there are in memory; sizes vary from the second call on."""
    fxjit.reset()
    compiled = fxjit.compile(windows, backend=backend)
    for length in (6, 9, 12):
        plain = torch.linspace(0, 1, length, requires_grad=True)
        ours = plain.detach().clone().requires_grad_()
        want, got = windows(plain), compiled(ours)
        assert got.stride() == want.stride()
        gradient = torch.arange(float(want.numel())).reshape(want.shape)
        want.backward(gradient)
        got.backward(gradient)
        torch.testing.assert_close(ours.grad, plain.grad)


@pytest.mark.parametrize("kind", [torch.nn.Embedding, torch.nn.EmbeddingBag])
@pytest.mark.parametrize("sparse", [False, True])
def test_gradients_of_embeddings_that_keep_their_norm(kind, sparse):
    """The weight is written to, without recording: zeros for its new value would make a sparse gradient dense."""
    layer = kind(8, 4, max_norm=1.0, sparse=sparse, **({"mode": "sum"} if kind is torch.nn.EmbeddingBag else {}))
    left = []
    for call in (layer, fxjit.compile(lambda words: layer(words).sin(), backend="aot_eager")):
        with torch.no_grad():
            layer.weight.copy_(torch.arange(32.0).view(8, 4) / 4)
        layer.weight.grad = None
        found = call(torch.tensor([[0, 2, 2]]))
        (found.sin() if call is layer else found).sum().backward()
        assert layer.weight.grad.is_sparse == sparse
        left += [layer.weight.detach().clone(), layer.weight.grad.to_dense()]
    torch.testing.assert_close(left[2:], left[:2])
