"""`torch.autograd.Function` in traced code: eager's values, eager's gradients, and guards on what both passes read."""

from __future__ import annotations

import pytest
import torch

import fxjit
from fxjit.counters import counters

SCALE = 2.0


class Cube(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x ** 3 * factor

    @staticmethod
    def backward(ctx, grad):
        (x,) = ctx.saved_tensors
        return grad * 30 * x ** 2 * ctx.factor, None


class Pair(torch.autograd.Function):
    @staticmethod
    def forward(x, y):
        return x * y, x + y

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, product_grad, sum_grad):
        x, y = ctx.saved_tensors
        return product_grad * y + sum_grad, product_grad * x * 5 + sum_grad if ctx.needs_input_grad[1] else None


class Through(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad.sign() * SCALE


class Loud(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 2 if x.sum() > 0 else x

    @staticmethod
    def backward(ctx, grad):
        return grad


class ScaledTwice(torch.autograd.Function):
    """Takes a number, and reads it, too."""

    @staticmethod
    def forward(ctx, x, scale):
        ctx.scale = scale
        return x * scale

    @staticmethod
    def backward(ctx, grad):
        return grad * ctx.scale * SCALE, None


def leaf(*shape):
    return torch.randn(*shape, requires_grad=True)


def test_the_users_backward_gives_the_gradient(assert_same_as_eager):
    assert_same_as_eager(lambda x: Cube.apply(x * 2, 3.0).sin(), leaf(3))


def test_several_results_and_setup_context(assert_same_as_eager):
    assert_same_as_eager(lambda x, y: Pair.apply(x, y), leaf(3), leaf(3))
    assert_same_as_eager(lambda x, y: Pair.apply(x, y), leaf(3), torch.randn(3))


class Scaled(torch.autograd.Function):
    """Its `forward` has defaults, of which `setup_context` is told, and `backward` gives a gradient for each."""

    @staticmethod
    def forward(x, factor=3.0, places=(0, 2)):
        return x[list(places)] * factor

    @staticmethod
    def setup_context(ctx, inputs, output):
        x, ctx.factor, ctx.places = inputs
        ctx.shape = x.shape

    @staticmethod
    def backward(ctx, grad):
        made = grad.new_zeros(ctx.shape)
        made[list(ctx.places)] = grad * ctx.factor * 10
        return made, None, None


@pytest.mark.parametrize("given", [(), (2.0,), (2.0, (1,))])
def test_setup_context_is_told_of_defaults(assert_same_as_eager, given):
    assert_same_as_eager(lambda x: Scaled.apply(x * 2, *given).sin(), leaf(3), fullgraph=True)
    assert_same_as_eager(lambda x: Scaled.apply(x * 2, *given).sin(), torch.randn(3), fullgraph=True)


def test_defaults_that_have_changed_since(assert_same_as_eager, monkeypatch):
    fxjit.reset()
    compiled = fxjit.compile(lambda x: Scaled.apply(x * 2), backend="eager", fullgraph=True)
    for defaults in ((3.0, (0, 2)), (5.0, (1, 2))):
        monkeypatch.setattr(Scaled.forward, "__defaults__", defaults)
        x = leaf(3)
        compiled(x).sum().backward()
        expected = torch.zeros(3)
        expected[list(defaults[1])] = defaults[0] * 20
        torch.testing.assert_close(x.grad, expected)


def test_an_argument_that_is_given_back(assert_same_as_eager):
    assert_same_as_eager(lambda x: Through.apply(x * 2) + 1, leaf(3))
    assert_same_as_eager(lambda x: Through.apply(x) is x, torch.randn(3))


def test_without_gradients_it_is_its_forward(assert_same_as_eager, graphs_of):
    assert_same_as_eager(lambda x: Cube.apply(x, 3.0), torch.randn(3))
    with torch.no_grad():
        _, graphs = graphs_of(lambda x: Cube.apply(x, 3.0), leaf(3))
    assert "Cube" not in graphs[0].code


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_what_backward_reads_is_guarded(monkeypatch, backend):
    fxjit.reset()
    compiled = fxjit.compile(lambda x: Through.apply(x * 1), backend=backend, fullgraph=True)
    for scale in (2.0, 7.0):
        monkeypatch.setitem(globals(), "SCALE", scale)
        x = leaf(3)
        compiled(x).sum().backward()
        torch.testing.assert_close(x.grad, torch.full((3,), scale))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fn", [lambda x: Through.apply(x * 1), lambda x: Through.apply(x * 1) * SCALE,
                                lambda x: Cube.apply(x * SCALE, SCALE), lambda x: ScaledTwice.apply(x * 2, SCALE)])
def test_numbers_that_vary_and_are_read(monkeypatch, fn, backend):
    fxjit.reset()
    compiled = fxjit.compile(fn, backend=backend)
    for scale in (2.0, 7.0, 3.0, 0.5):
        monkeypatch.setitem(globals(), "SCALE", scale)
        results = []
        for call in (fn, compiled):
            x = torch.arange(1.0, 4.0, requires_grad=True)
            y = call(x)
            y.sum().backward()
            results.append((y.detach(), x.grad))
        torch.testing.assert_close(*results)


def test_a_forward_that_cannot_be_traced_breaks_the_graph(breaks):
    assert breaks(lambda x: Loud.apply(x), leaf(3)) == "data-branch"
    fxjit.reset()
    x = leaf(3)
    torch.testing.assert_close(fxjit.compile(Loud.apply, backend="eager")(x), Loud.apply(x))


class Rounded(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, steps):
        scale = x.abs().max().item() / steps
        rounded = (x / scale).round() * scale
        ctx.save_for_backward(x, weight, rounded)
        ctx.set_materialize_grads(False)
        ctx.steps = steps
        index = x.argmax(0)
        ctx.mark_non_differentiable(index)
        return rounded * weight, index

    @staticmethod
    def backward(ctx, gradient, nothing):
        x, weight, rounded = ctx.saved_tensors
        for_x = gradient * weight * (x > 0) * ctx.steps if ctx.needs_input_grad[0] else None
        for_weight = gradient * rounded if ctx.needs_input_grad[1] else None
        assert nothing is None
        return for_x, for_weight, None


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_forward_and_backward_behind_a_break_are_compiled_too(backend):
    def fn(x, weight):
        result, index = Rounded.apply(x * 2, weight, 8)
        return (result * result).sum(), index

    graphs = []
    inner = fxjit.lookup_backend(backend)

    def counting(gm, inputs):
        graphs.append(gm)
        return inner(gm, inputs)

    compiled = fxjit.compile(fn, backend=counting)
    for wanted in ((True, True), (True, False), (False, True)):
        theirs, mine = ([torch.arange(6.0).view(2, 3).add(at).requires_grad_(on) for at, on in enumerate(wanted)]
                        for _ in range(2))
        expected, found = fn(*theirs), compiled(*mine)
        torch.testing.assert_close(found, expected)
        assert not found[1].requires_grad
        expected[0].backward()
        found[0].backward()
        for one, other in zip(theirs, mine, strict=True):
            assert (one.grad is None and other.grad is None) or torch.allclose(one.grad, other.grad)
    forwards = [gm.code for gm in graphs if "round" in gm.code]
    assert forwards and all("argmax" in code for code in forwards), "what the context is told splits no graph"


def test_what_was_saved_is_unpacked_as_often_as_in_eager():
    def train(fn):
        unpacked = []
        x, weight = torch.arange(6.0).view(2, 3).requires_grad_(), torch.ones(2, 3, requires_grad=True)

        def unpack(tensor):
            unpacked.append(tuple(tensor.shape))
            return tensor
        with torch.autograd.graph.saved_tensors_hooks(torch.clone, unpack):
            result, _ = fn(Rounded.apply, x, weight, 8)
        fn(torch.Tensor.backward, result.sum())
        return unpacked, x.grad

    expected = train(lambda fn, *args: fn(*args))
    torch.testing.assert_close(train(fxjit.compile(lambda fn, *args: fn(*args), backend="eager")), expected)


class Doubled(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, y):
        x.mul_(2)
        ctx.mark_dirty(x)
        ctx.save_for_backward(y)
        return x, x + y

    @staticmethod
    def backward(ctx, first, second):
        return first * ctx.saved_tensors[0], second


def in_place(x, y):
    z = x * 1
    a, b = Doubled.apply(z, y)
    return a, b, a is z


@pytest.mark.parametrize("requires_grad", [True, False])
def test_what_forward_writes_to(assert_same_as_eager, requires_grad):
    assert_same_as_eager(in_place, *(torch.randn(3, requires_grad=requires_grad) for _ in range(2)))


def test_writing_to_an_input_breaks(breaks):
    assert breaks(Doubled.apply, torch.randn(3), torch.randn(3, requires_grad=True)) == "call-autograd-engine"


class Reversal(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, factor):
        ctx.factor = factor
        return x.view_as(x)

    @staticmethod
    def backward(ctx, grad):
        return -grad * ctx.factor, None


def reversed_beside_what_it_is_of(x):
    y = x * 2
    return y, Reversal.apply(y, 0.5)


def reversed_twice(x):
    once = Reversal.apply(x * 2, 0.5)
    return once, Reversal.apply(once, 0.25)


def rows_of_reversed(x):
    y = x * 2
    return Reversal.apply(y, 0.5)[0], y[1]


def view_of_a_reversed_input(x):
    return Reversal.apply(x, 0.5).view(-1)


def hook_on_a_view_beside_what_it_is_of(x):
    y = x * 2
    z = y.view(-1)
    z.register_hook(lambda grad: grad * 7)
    return y, z


def hook_on_a_view_of_an_input(x):
    z = x.view(-1)
    z.register_hook(lambda grad: grad * 7)
    return z


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", [reversed_beside_what_it_is_of, reversed_twice, rows_of_reversed, view_of_a_reversed_input,
                                hook_on_a_view_beside_what_it_is_of, hook_on_a_view_of_an_input])
def test_views_whose_gradients_the_program_makes_are_results(fn, backend):
    def run(call):
        x = torch.ones(2, 2, requires_grad=True)
        results = call(x)
        results = results if isinstance(results, tuple) else (results,)
        sum((at + 1) * result.sum() for at, result in enumerate(results)).backward()
        return x.grad, [result.untyped_storage().data_ptr() == results[0].untyped_storage().data_ptr() for result in results]

    (expected, shared), (grad, also_shared) = run(fn), run(fxjit.compile(fn, backend=backend, fullgraph=True))
    torch.testing.assert_close(grad, expected)
    assert shared == also_shared


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_reversed_gradient_of_what_stays_inside_is_compiled(backend):
    weight = torch.randn(64, 64) / 64

    def features(x):
        return torch.softmax(Reversal.apply((x @ weight).relu(), 0.5), -1) * 3

    counters["run_as_captured"].clear()
    x = torch.randn(64, 64, requires_grad=True)
    expected, = torch.autograd.grad(features(x).square().sum(), x)
    torch.testing.assert_close(torch.autograd.grad(fxjit.compile(features, backend=backend)(x).square().sum(), x)[0], expected)
    assert not counters["run_as_captured"]


class SavesSum(torch.autograd.Function):
    """Its `backward` is compiled by itself."""

    @staticmethod
    def forward(ctx, x, y):
        total = x + y
        ctx.save_for_backward(total, None, y)
        ctx.factor = 3
        return total

    @staticmethod
    def as_it_is(ctx, gradient):
        total, nothing, y = ctx.saved_tensors
        assert nothing is None and ctx.saved_tensors[2] is y
        if ctx.needs_input_grad[0]:
            return gradient * total.sin() * ctx.factor * y, None
        return None, gradient * y.cos()

    backward = as_it_is


class SavesSumCompiled(SavesSum):
    backward = staticmethod(fxjit.compile(SavesSum.as_it_is, backend="eager", fullgraph=True))


class SavesSumInParts(SavesSum):
    backward = staticmethod(fxjit.compile(SavesSum.as_it_is, backend="eager"))


@pytest.mark.parametrize("first", [True, False])
def test_a_compiled_backward_reads_what_was_saved(first):
    for size in (3, 4, 3):
        grads = []
        given = torch.randn(2, size)
        for function in (SavesSum, SavesSumCompiled):
            leaves = [each.clone().requires_grad_(first is not bool(n)) for n, each in enumerate(given)]
            function.apply(*leaves).sum().backward()
            grads.append([leaf.grad for leaf in leaves])
        torch.testing.assert_close(*grads)
    assert not fxjit.counters["graph_break"]


def test_hooks_see_each_read_of_what_was_saved():
    seen = []
    for function in (SavesSum, SavesSumInParts):
        unpacked = []
        x, y = torch.ones(3, requires_grad=True), torch.ones(3)
        with torch.autograd.graph.saved_tensors_hooks(lambda tensor: tensor, lambda tensor: unpacked.append(1) or tensor):
            result = function.apply(x, y)
        result.sum().backward()
        seen.append((len(unpacked), x.grad))
    torch.testing.assert_close(*seen)


def test_what_was_saved_and_is_gone():
    texts = []
    for function in (SavesSum, SavesSumInParts):
        result = function.apply(torch.ones(3, requires_grad=True), torch.ones(3)).sum()
        result.backward(retain_graph=True)
        result.backward()
        with pytest.raises(RuntimeError) as freed:
            result.backward()
        texts.append(str(freed.value))
    assert texts[0] == texts[1]
