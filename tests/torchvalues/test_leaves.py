"""Tensors that the program makes and asks a gradient for: one graph where they stay inside it, a break where they are seen."""

from __future__ import annotations

import pytest
import torch

import fxjit


def a_view_of_the_input(x, weight):
    hidden = x[:, None]
    hidden.requires_grad = True
    return (hidden * weight).sum(1)


def by_its_method(x, weight):
    return torch.zeros_like(x).requires_grad_() + x * weight


def by_a_keyword(x, weight):
    made = torch.ones(3, requires_grad=True)
    return x + made * weight, made.requires_grad, made.is_leaf, made.grad


def not_any_more(x, weight):
    made = torch.ones(3).requires_grad_()
    before = made.requires_grad
    return made.requires_grad_(False), before, made * weight


def without_gradients(x, weight):
    with torch.no_grad():
        made = (x * 2).requires_grad_()
        half = made / 2
    return half.requires_grad, half, made * weight


def with_a_hook(x, weight):
    made = (x * 2).requires_grad_()
    made.register_hook(lambda gradient: gradient * 2)
    return made * weight


def detached_again(x, weight):
    made = (x * 2).requires_grad_()
    return made.detach(), (made * weight).sum()


def is_returned(x, weight):
    made = (x * 2).requires_grad_()
    return made, made * weight


def is_all_that_requires_one(x, weight):
    return (x * 2).requires_grad_() * 3


def is_kept(x, weight, kept=[]):  # noqa: B006 - where it is kept
    kept.append((x * 2).requires_grad_())
    return kept[-1] * weight


def is_written_to_an_input(x, weight):
    x.copy_((x * 2).requires_grad_())
    return x * 2


def is_refused(x, weight):
    try:
        return x.long().requires_grad_() * weight
    except RuntimeError as error:
        return str(error), weight * 2


def is_asked_for_its_gradient(x, weight):
    made = (x * 2).requires_grad_()
    (made * weight).sum().backward()
    return made.grad


INSIDE = (a_view_of_the_input, by_its_method, by_a_keyword, not_any_more, without_gradients, with_a_hook, detached_again)
SEEN = (is_returned, is_all_that_requires_one, is_kept, is_written_to_an_input, is_refused, is_asked_for_its_gradient)


def facts(result):
    is_tensor = isinstance(result, torch.Tensor)
    return (result.tolist(), result.requires_grad, result.is_leaf) if is_tensor else result


def outcome(fn):
    """What two calls give and leave behind: numbers and facts of tensors, and the weight's gradient."""
    found = []
    for turn in range(2):
        x, weight = torch.arange(6.0).view(2, 3) + turn, torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
        result = fn(x, weight)
        results = [*(result if isinstance(result, tuple) else (result,)), x]
        losses = [each.sum() for each in results if isinstance(each, torch.Tensor) and each.requires_grad]
        if losses:
            torch.stack(losses).sum().backward()
        found += [*map(facts, results), None if weight.grad is None else weight.grad.tolist()]
    return found


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("fn", INSIDE, ids=lambda fn: fn.__name__)
def test_a_leaf_that_stays_inside_breaks_nothing(fn, backend):
    expected = outcome(fn)
    fxjit.reset()
    assert outcome(fxjit.compile(fn, backend=backend, fullgraph=True)) == expected


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("fn", SEEN, ids=lambda fn: fn.__name__)
def test_a_leaf_that_is_seen_is_made_outside(fn, backend):
    expected = outcome(fn)
    fxjit.reset()
    assert outcome(fxjit.compile(fn, backend=backend)) == expected
    assert fxjit.counters["graph_break"] or fxjit.counters["skip_cause"]  # the second in a `try`


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_write_makes_an_argument_no_leaf(backend: str) -> None:
    def write(x, weight):
        before = x.is_leaf
        x.mul_(weight)
        return x.sin(), before, x.is_leaf, x.output_nr

    def write_nothing_of_gradients(x, weight):
        x.mul_(weight.detach())
        return x.is_leaf, weight.is_leaf, (weight * 2).is_leaf

    for function in (write, write_nothing_of_gradients):
        results = []
        for run in (function, fxjit.compile(function, backend=backend, fullgraph=True)):
            results.append(run(torch.ones(3), torch.ones(3, requires_grad=True)))
        torch.testing.assert_close(results[1], results[0])


def changed(x):
    y = x * 2
    before = y.grad_fn
    y.add_(1)
    return before is not None and type(before).__name__, type(y.grad_fn).__name__, before is y.grad_fn, y


GRAD_FN = {
    "whether there is one": lambda x: (x.grad_fn is None, (x * 2).grad_fn is not None, 1 if (x * 2).grad_fn else 0, x + 1),
    "its class": lambda x: (type((x * 2).grad_fn).__name__, isinstance((x * 2).grad_fn, torch.autograd.graph.Node), x + 1),
    "without gradients": lambda x: ((x * 2).detach().grad_fn, x + 1),
    "of one that is written to": changed,
}


@pytest.mark.parametrize("program", GRAD_FN.values(), ids=GRAD_FN)
def test_what_is_known_of_grad_fn(program):
    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    leaf = torch.arange(3.0, requires_grad=True)
    for x in (leaf, leaf * 2, torch.arange(3.0), leaf + 1, leaf):
        expected, actual = program(x), compiled(x)
        assert actual[:-1] == expected[:-1] and torch.equal(actual[-1], expected[-1])


def test_a_grad_fn_that_leaves_is_read_after_the_graph():
    def program(x):
        y = x * 2
        before = y.grad_fn
        y.add_(1)
        return before.name(), before, y

    fxjit.reset()
    x = torch.arange(3.0, requires_grad=True)
    expected, actual = program(x), fxjit.compile(program, backend="eager")(x)
    assert actual[0] == expected[0] and type(actual[1]) is type(expected[1])


def names_behind(x):
    """The way back by its nodes, as drawings of graphs and hooks on them go."""
    y = (x.sin() * 2).exp().sum()
    node, names = y.grad_fn, []
    while node is not None:
        names.append(type(node).__name__)
        node = node.next_functions[0][0] if node.next_functions else None
    return y, names


def hook_on_a_node(x):
    y = (x.sin() * 2).sum()
    seen = []
    handle = y.grad_fn.next_functions[0][0].register_hook(lambda inputs, outputs: seen.append(outputs[0].sum().item()))
    y.backward()
    handle.remove()
    return y.detach(), seen


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("program", [names_behind, hook_on_a_node])
def test_who_goes_back_by_nodes_finds_those_of_eager(program, backend):
    fxjit.reset()
    compiled = fxjit.compile(program, backend=backend)
    for _ in range(2):
        (y, expected), (found, actual) = [fn(torch.arange(3.0, requires_grad=True)) for fn in (program, compiled)]
        assert torch.equal(y, found) and actual == expected
