"""Tensors of traceable wrapper subclasses (`__torch_dispatch__`, `__tensor_flatten__`) compute in one graph what they compute
in eager: results with their classes, inner tensors and metadata, writes, aliases and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
from tests.differential import assert_same, assert_same_as_eager
from tests.torchvalues.wrapper_classes import Measured, Meshed, NoParts, Scaled, Slotted, Tagged, TaggedByKind, Told
from torch.testing._internal.two_tensor import TwoTensor

import fxjit
from fxjit.testing import CompileCounter

BACKENDS = ("eager", "aot_eager", "native")
RTOL = 1e-5


def numbers(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def two(*shape, requires_grad=False):
    return TwoTensor(numbers(*shape), numbers(*shape, seed=1), requires_grad=requires_grad)


def in_two(*shape):
    """Wrappers of wrappers."""
    return TwoTensor(two(*shape), two(*shape))


def check(fn, *args, backend="eager", fullgraph=True):
    """Eager's results, classes, gradients and writes, from a graph that AOTAutograd took apart."""
    result = assert_same_as_eager(fn, *args, backend=backend, fullgraph=fullgraph, rtol=0.0 if backend == "eager" else RTOL)
    assert not fxjit.counters["run_as_captured"]["wrapper-subclass"], "AOTAutograd refused the graph"
    return result


def pointwise(w, x):
    return w * 2 + 1, w + x, x - w, torch.sin(w), -w, w.float(), (w > 0).any()


def shapes(w):
    return w.t(), w.reshape(-1), w.shape, w.size(0), w.dim(), w.numel(), w.dtype, w.device, w.stride(), w.is_contiguous()


def reductions(w):
    return w.sum(), w.mean(0), torch.softmax(w, -1), w.max(), torch.cat([w, w]), torch.stack([w, w]).amax(0)


def products(w, x):
    return w @ w.t(), torch.nn.functional.linear(x, w), x @ w.t()


def write(w):
    w.add_(1)
    w *= 2
    w[0].mul_(3)
    return w + 0


def write_inner(w):
    w.a.add_(1)
    return w * 2


def views(w):
    first = w.view(-1)
    return first, first[1:], w.detach()


def attributes(w):
    return (w.a * 2, w.b.sum(), isinstance(w, TwoTensor), isinstance(w, torch.Tensor), type(w).__name__, w.get_elem_a() + 1,
            w.requires_grad)


def construct(x, y):
    made = TwoTensor(x, y)
    return made * 2, made.a + made.b, made


def construct_inside(x, y):
    made = TwoTensor(x * 2, y * 3) * 2
    return made.a + made.b


def loop(w, x):
    for _ in range(3):
        w = w * x
    return w


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("program", "args"), [
    (pointwise, (two(3, 4), numbers(4))),
    (pointwise, (two(3, 4, requires_grad=True), numbers(4))),
    (pointwise, (in_two(3, 4), numbers(4))),
    (shapes, (two(3, 4),)),
    (reductions, (two(3, 4, requires_grad=True),)),
    (products, (two(3, 4, requires_grad=True), numbers(2, 4))),
    (products, (in_two(3, 4), numbers(2, 4))),
    (write, (two(3, 4),)),
    (write, (in_two(3, 4),)),
    (write_inner, (two(3, 4),)),
    (views, (two(3, 4),)),
    (attributes, (two(3, 4),)),
    (attributes, (two(3, 4, requires_grad=True),)),
    (construct, (numbers(3), numbers(3, seed=1))),
    (construct_inside, (numbers(3), numbers(3, seed=1))),
    (loop, (two(3, 4, requires_grad=True), numbers(4))),
    (loop, (Told(numbers(3), 2), numbers(3))),
    (pointwise, (Tagged(numbers(3, 4), 3), numbers(4))),
    (pointwise, (Slotted(numbers(3, 4), "here"), numbers(4))),
    (shapes, (Slotted(numbers(3, 4), "here"),)),
], ids=lambda each: getattr(each, "__name__", ""))  # fmt: skip
def test_programs(program, args, backend):
    check(program, *args, backend=backend)


class Linear(torch.nn.Module):
    def __init__(self, weight):
        super().__init__()
        self.weight = torch.nn.Parameter(weight, requires_grad=weight.requires_grad)
        self.bias = torch.nn.Parameter(torch.ones(weight.shape[0]))

    def forward(self, x):
        return torch.nn.functional.linear(x, self.weight, self.bias).relu()


@pytest.mark.parametrize("backend", BACKENDS)
def test_parameters_of_modules(backend):
    """Quantised weights: values are eager's, in inference and where the biases are trained."""
    weights = [Scaled.of(numbers(4, 4)), Scaled.of(numbers(3, 4), 4)]
    model = torch.nn.Sequential(*map(Linear, weights))
    compiled = fxjit.compile(copy.deepcopy(model), backend=backend, fullgraph=True)
    x = numbers(2, 4)
    with torch.no_grad():
        assert_same(model(x), compiled(x), rtol=RTOL)
    assert_same(model(x), compiled(x), rtol=RTOL)
    model(x).sum().backward()
    compiled(x).sum().backward()
    assert_same([each.bias.grad for each in model], [each.bias.grad for each in compiled._orig_mod], "gradients", RTOL)


@pytest.mark.parametrize("backend", BACKENDS)
def test_trained_parameters(backend):
    model = Linear(two(3, 4, requires_grad=True))
    other = copy.deepcopy(model)
    compiled = fxjit.compile(other, backend=backend, fullgraph=True)
    x = TwoTensor(numbers(2, 4), numbers(2, 4, seed=2))
    for _ in range(2):
        for each in (model, compiled):
            each(x).sum().backward()
        assert_same([p.grad for p in model.parameters()], [p.grad for p in other.parameters()], "gradients", RTOL)


def test_own_methods_and_properties():
    def program(w, x):
        doubled = Scaled.twice(x)
        return w.product() + doubled, w.largest, w.bits, Scaled.of(x).numbers, type(w).of(x, 4).product(), w.numbers, w.scale

    check(program, Scaled.of(numbers(3, 4)), numbers(3, 4), backend="aot_eager")


def test_torch_function_beside_torch_dispatch():
    """Functions go to `__torch_function__` once, while tracing; operators to `__torch_dispatch__`."""
    def program(w):
        return torch.cos(w), torch.sin(w), w * 2, w.sum()

    for backend in BACKENDS:
        check(program, Told(numbers(3), 2), backend=backend)


def compiled_once(fn, **options):
    counter = CompileCounter()
    return fxjit.compile(fn, backend=counter, fullgraph=True, **options), counter


def test_metadata_is_guarded():
    compiled, counter = compiled_once(lambda w: torch.sin(w))
    for tag, compiles in ((2, 1), (2, 1), (3, 2), (2, 2), (3, 2)):
        w = Tagged(numbers(3), tag)
        assert_same(torch.sin(w), compiled(w))
        assert counter.frame_count == compiles, "one compile for each tag"


def test_sizes_in_the_metadata_vary_with_the_tensors():
    """A second entry is for all sizes, of tensors whose metadata says what they are, and for one tag."""
    compiled, counter = compiled_once(lambda w: torch.sin(w) + w.shape[0])
    w = Measured(numbers(3, 2), 2)
    for given, compiles in ((w, 1), (Measured(numbers(5, 2), 2), 2), (Measured(numbers(7, 2), 2), 2),
                            (Measured(numbers(7, 2), 3), 3), (Measured(numbers(9, 2), 2, (8, 2)), 4), (w, 4)):
        found = compiled(given)
        assert_same(torch.sin(given) + given.shape[0], found)
        assert counter.frame_count == compiles


def test_metadata_guard_of_the_class():
    compiled, counter = compiled_once(lambda w: w.sin().held)
    for tag, compiles in (("a1", 1), ("a2", 1), ("b1", 2), ("b2", 2), ("a3", 2)):
        w = TaggedByKind(numbers(3), tag)
        assert_same(w.sin().held, compiled(w))
        assert counter.frame_count == compiles


@pytest.mark.parametrize("change", [
    lambda: two(3, 4, requires_grad=True),
    lambda: two(3, 4).double(),
    lambda: in_two(3, 4),
    lambda: TwoTensor(numbers(3, 4), in_two(3, 4)),
    lambda: TwoTensor(same := numbers(3, 4), same),
    lambda: numbers(3, 4),
    lambda: Tagged(numbers(3, 4), 1),
])  # fmt: skip
def test_what_inputs_are_made_of_is_guarded(change):
    compiled, counter = compiled_once(lambda w: w * 2)
    for w, compiles in ((two(3, 4), 1), (change(), 2), (two(3, 4), 2), (change(), 2)):
        assert_same(w * 2, compiled(w))
        assert counter.frame_count == compiles


@pytest.mark.parametrize("backend", BACKENDS)
def test_sizes_that_vary(backend):
    """The second size makes symbols of the wrapper's sizes and of those of what it is made of."""
    fxjit.reset()
    compiled = fxjit.compile(lambda w, x: (w * 2 + x).sum(0), backend=backend, fullgraph=True)
    for size in (3, 4, 5, 6):
        w, x = two(size, 4), numbers(size, 4)
        assert_same((w * 2 + x).sum(0), compiled(w, x), rtol=RTOL)
    assert fxjit.counters["frames"]["ok"] == 2, "one compile for all sizes but the first"


@pytest.mark.parametrize("backend", BACKENDS)
def test_writes_to_shared_inner_tensors(backend):
    """A graph that writes to an input holds for calls in which nothing shares memory with that."""
    def program(w, x):
        w.mul_(2)
        return w + 1, x + 1

    compiled = fxjit.compile(program, backend=backend, fullgraph=True)
    for shares in (False, True, False):
        results = []
        for run in (program, compiled):
            a, b = numbers(3), numbers(3, seed=1)
            w, x = TwoTensor(a, b), a[:] if shares else numbers(3)
            results.append((run(w, x), w, x))
        assert_same(*results, rtol=RTOL)
    whole = torch.zeros(4)
    w = TwoTensor(whole[:3], whole[:3].view(3))
    assert_same(TwoTensor(torch.zeros(3) * 4, torch.zeros(3) * 4) + 1, compiled(w, numbers(3))[0])


def test_what_cannot_be_taken_apart_breaks_with_its_name():
    with pytest.raises(fxjit.errors.Unsupported, match=r"NoParts.*__tensor_flatten__"):
        fxjit.compile(lambda w: w * 2, backend="eager", fullgraph=True)(NoParts(numbers(3)))
    compiled = fxjit.compile(lambda w, x: (w * 2, x.sin() + 1), backend="eager")
    w, x = NoParts(numbers(3)), numbers(3)
    assert_same((w * 2, x.sin() + 1), compiled(w, x))


def test_attributes_that_are_written_break():
    def program(w, x):
        w.bits = 4
        return w.product() * x, w.bits

    w, x = Scaled.of(numbers(3, 4)), numbers(3, 4)
    with pytest.raises(fxjit.errors.Unsupported, match="bits"):
        fxjit.compile(program, backend="eager", fullgraph=True)(copy.deepcopy(w), x)
    check(program, w, x, fullgraph=False)


def test_leaves_made_in_a_graph_break():
    """A wrapper that takes `requires_grad` from what it is made of is a leaf, which the program gets."""
    def program(x, y):
        return TwoTensor(x, y)

    x, y = numbers(3).requires_grad_(), numbers(3).requires_grad_()
    expected, actual = program(x, y), fxjit.compile(program, backend="eager")(x, y)
    assert_same(expected, actual)
    assert actual.is_leaf and actual.a is x


def test_allow_in_graph():
    @fxjit.allow_in_graph
    def scaled(x):
        return Scaled.of(x)

    def program(x):
        return scaled(x).t(), scaled(x) * 2

    check(program, numbers(3, 4), backend="eager")


def test_detach_and_requires_grad():
    def program(w):
        loose = w.detach()
        loose.requires_grad_()
        return (loose * 2).detach(), loose.requires_grad

    for backend in BACKENDS:
        check(program, two(3, 4, requires_grad=True), backend=backend)


def test_backends_see_the_wrappers():
    """A callable gets the graph over the wrappers, and what its calls are given."""
    given = []

    def backend(gm, examples):
        given.extend(map(type, examples))
        return gm.forward

    w, x = two(3, 4), numbers(4)
    assert_same(w + x, fxjit.compile(lambda w, x: w + x, backend=backend, fullgraph=True)(w, x))
    assert set(given) == {TwoTensor, torch.Tensor}


def test_wrappers_of_more_than_tensors_break_with_the_reason():
    with pytest.raises(fxjit.errors.Unsupported, match="Meshed.*more than tensors"):
        fxjit.compile(lambda w: w * 2, backend="eager", fullgraph=True)(Meshed(numbers(3), "here"))
    w = Meshed(numbers(3), "here")
    assert torch.equal(fxjit.compile(lambda w: w * 2, backend="eager")(w)._local, (w * 2)._local)
