"""Writes to parts of inputs: straight to their memory where nobody reads what was there, and always what eager does."""

from __future__ import annotations

import pytest
import torch

import fxjit
from fxjit.backends.native import lower, pipeline
from fxjit.backends.native.index import prod
from fxjit.backends.native.ir import Compute
from fxjit.backends.native.lower.table import NoLowering

CACHE = (3, 16, 4)


def prefix(cache, at, new):
    cache.index_copy_(1, at, new)
    return cache[:, :4].sum(1)


def several(cache, at, new):
    cache.index_add_(1, at, new)
    cache[:, at + 1] = new * 2
    cache[:, 5:7] = new.sin()
    cache[1].fill_(3.0)
    return cache * 2


def old_values_first(cache, at, new):
    before = cache.amax(1)
    lazily = cache[:, 2] * 2
    cache.index_copy_(1, at, new)
    return before, lazily + 1, cache.amin(1)


def from_itself(cache, at, new):
    cache[:, at] = cache[:, 4:6] * 2 + new
    cache[:, 2:4] = cache[:, 3:5]
    cache.index_add_(1, at, cache[:, :2])
    return cache.sum()


def old_values_later(cache, at, new):
    old = cache.clone()
    cache.scatter_(1, at.view(1, 2, 1).expand(3, 2, 4), new)
    return old - cache


def returned(cache, at, new):
    result = torch.index_copy(cache, 1, at, new)
    cache.copy_(result)
    return result


def a_view_returned(cache, at, new):
    cache.index_fill_(1, at, 2.0)
    return cache[:, at], cache[:, 1:]


def by_an_operator(cache, at, new):
    cache[:, at] = new
    return torch.sort(cache, 1)[0], cache.flatten() @ cache.flatten()


PROGRAMS = [prefix, several, old_values_first, from_itself, old_values_later, returned, a_view_returned, by_an_operator]


def outcome(function, layout):
    torch.manual_seed(0)
    cache = layout(torch.randn(CACHE))
    results = []
    for at in ([0, 3], [7, 2], [14, 9]):
        out = function(cache, torch.tensor(at), torch.randn(3, 2, 4))
        results.append([each.clone() for each in (out if isinstance(out, tuple) else (out,))])
    return results, cache


LAYOUTS = {
    "plain": lambda x: x, "transposed": lambda x: x.transpose(0, 2).contiguous().transpose(0, 2),
    "part": lambda x: torch.cat([x, x], 1)[:, 8:24],
}  # fmt: skip


# Each program with fixed sizes and with varying ones, in two of the layouts.
CASES = [(program, layout, dynamic) for k, program in enumerate(PROGRAMS)
         for layout, dynamic in ([("plain", None), ("part", True)], [("transposed", None), ("plain", True)])[k % 2]]


@pytest.mark.parametrize("function,layout,dynamic", CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_what_eager_does(function, layout, dynamic):
    fxjit.reset()
    compiled = fxjit.compile(function, dynamic=dynamic)
    torch.testing.assert_close(outcome(compiled, LAYOUTS[layout]), outcome(function, LAYOUTS[layout]))


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_what_eager_does_in_triton(function):
    pytest.importorskip("triton")
    with fxjit.config.patch(**{"triton.interpret": True}):
        fxjit.reset()
        torch.testing.assert_close(outcome(fxjit.compile(function), LAYOUTS["plain"]), outcome(function, LAYOUTS["plain"]))


@pytest.mark.parametrize("function", [prefix, old_values_first], ids=lambda function: function.__name__)
def test_no_copy_of_the_whole(function, monkeypatch):
    stored = []

    def look(stage, low, what):
        if stage == "lower":
            stored.extend(prod(statement.size) for statement in what)

    monkeypatch.setattr(pipeline, "verifier", look)
    fxjit.reset()
    outcome(fxjit.compile(function), LAYOUTS["plain"])
    assert stored and max(stored) < prod(CACHE)


def test_gradients_see_the_values_they_were_computed_from():
    def function(cache, at, x):
        read = (cache.clone() * x).sum()
        cache[:, at] = 5.0
        return read + (cache * x.sin()).sum()

    results = []
    fxjit.reset()
    for each in (function, fxjit.compile(function)):
        torch.manual_seed(0)
        cache, x = torch.randn(CACHE), torch.randn(4, requires_grad=True)
        out = each(cache, torch.tensor([1, 4]), x)
        out.backward()
        results.append((out.detach(), x.grad, cache))
    torch.testing.assert_close(results[1], results[0])


def minus_itself_turned(x):
    x.sub_(x.flip(0))


def from_its_transpose(x):
    x.copy_(x.t() + 1)


def from_rows_of_itself(x):
    x.copy_(x[[1, 0, 2, 1, 2]] * 2)


def from_one_of_its_rows(x):
    x.mul_(x[2].clone())
    x.add_(x[1, 3].clone())


def from_its_neighbours(x):
    x.copy_(torch.cat([x[1:], x[:1]]) + x.roll(2, 1))


def through_a_view(x):
    turned = x.t()
    turned.sub_(turned.flip(1))
    return turned.flip(0)


@pytest.mark.parametrize("dynamic", [None, True])
@pytest.mark.parametrize(
    "function",
    [minus_itself_turned, from_its_transpose, from_rows_of_itself, from_one_of_its_rows, from_its_neighbours, through_a_view],
)
def test_an_element_that_needs_others_of_what_is_written(function, dynamic):
    """No element is computed from one that was written already."""
    mine, theirs = (torch.arange(25.0).view(5, 5) for _ in range(2))
    result = fxjit.compile(function, dynamic=dynamic)(mine)
    expected = function(theirs)
    assert torch.equal(mine, theirs)
    assert result is expected is None or torch.equal(result, expected)


@pytest.mark.parametrize("trained", [False, True])
def test_rows_of_an_embedding_that_are_too_long_are_written_in_place(trained, texts):
    """Eager writes to the rows that are looked up; no copy of the table is made."""
    fxjit.reset()
    torch.manual_seed(0)
    layers = [torch.nn.Embedding(7, 4, max_norm=0.5).requires_grad_(trained) for _ in range(2)]
    layers[1].load_state_dict(layers[0].state_dict())
    compiled, at = fxjit.compile(lambda at: (layers[0](at).sin(), layers[0].weight.sum())), torch.tensor([3, 1, 3])
    for _ in range(2):
        found, expected = compiled(at), (layers[1](at).sin(), layers[1].weight.sum())
        torch.testing.assert_close(found, expected)
        torch.testing.assert_close(layers[0].weight, layers[1].weight)
        if trained:
            for results, layer in zip((found, expected), layers, strict=True):
                layer.zero_grad()
                sum(each.sum() for each in results).backward()
            torch.testing.assert_close(layers[0].weight.grad, layers[1].weight.grad)
    assert trained or any("embedding_renorm_(" in each for each in texts)


def test_writes_to_what_lies_apart_in_an_overlapping_view():
    """Eager does them; what makes writes functional refuses them."""

    def function(x):
        y = x + 1
        y.unfold(0, 2, 1).diagonal().mul_(3)
        x.unfold(0, 2, 1)[:, 0].add_(2)
        return y, y * 2

    given, expected = torch.arange(3.0), torch.arange(3.0)
    compiled = fxjit.compile(function)
    for _ in range(2):
        assert all(map(torch.equal, compiled(given), function(expected)))
        assert torch.equal(given, expected)


@pytest.mark.parametrize("write", [lambda x: x[::2].fill_(2), lambda x: x.index_fill_(0, torch.tensor([0]), 2)])
@pytest.mark.parametrize(
    "view", [lambda y: y[0], lambda y: y[:2], lambda y: y.unbind(0)[0].unsqueeze(0), lambda y: y[1:][:1].view(1)]
)
def test_a_view_of_what_was_computed_before_its_operand_is_written(view, write):
    """The view is of values from before the write, though it is read after it."""

    def function(x):
        seen = view(x + 1)
        write(x)
        return seen * 2, seen.sum()

    given, expected = torch.full((5,), 1.25), torch.full((5,), 1.25)
    fxjit.reset()
    compiled = fxjit.compile(function, backend="native")
    for _ in range(2):
        assert all(map(torch.equal, compiled(given), function(expected)))
        assert torch.equal(given, expected)


DIAGONALS = {
    "part of rows": lambda: torch.zeros(6, 16)[:, :8],
    "every second row": lambda: torch.zeros(12, 5)[::2],
    "transposed": lambda: torch.zeros(8, 6).t(),
    "plain": lambda: torch.zeros(5, 5),
}


@pytest.mark.parametrize("dynamic", [False, True])
@pytest.mark.parametrize("layout", list(DIAGONALS))
def test_the_diagonal_of_an_input_in_any_layout(layout, dynamic):
    """AOTAutograd refuses those whose memory has gaps."""

    def fn(x):
        x.fill_diagonal_(2)
        return x + 1

    eager, compiled = DIAGONALS[layout](), DIAGONALS[layout]()
    torch.testing.assert_close(fxjit.compile(fn, dynamic=dynamic)(compiled), fn(eager))
    torch.testing.assert_close(compiled, eager)


def after_a_slice(out, p, a, b, c):
    out[0:1, :, 0:3, :] += 1
    out[0:1, :, a:b, :] += p[0, 0, 0, 0]


def selected(out, p, a, b, c):
    out[0:2, 1:4][:, a] += 1
    out[0:2][:, b, 1:] *= p[0, 0, 0, 0]


def in_temporaries(out, p, a, b, c):
    made = out * 2
    made[0:1, :, 0:3][..., a:b] += 1
    made[0:1].transpose(1, 2)[:, a:b] += out[0:1, :, c].unsqueeze(1)
    return made


def read_before_a_write(out, p, a, b, c):
    before = out[0:2][:, :, a:b] + 1
    out[0:2][:, :, a:b] = p[:, :, a:b] * 3
    return before, out[0:2][:, :, a:b] * 2


def windows(out, p, a, b, c):
    for start in (a, b, c):
        out[0:1, :, start : start + 2, 0:7][..., a:b] += p[1:, :, start : start + 2][..., a:b]


@pytest.mark.parametrize("fn", [after_a_slice, selected, in_temporaries, read_before_a_write, windows])
def test_symbolic_places_behind_other_views(fn):
    """A slice from a symbolic place, of a view, is index arithmetic over the memory of the root: its offset counts once."""
    compiled = fxjit.compile(fn, dynamic=True)
    for places in ((1, 3, 4), (0, 2, 1), (2, 5, 0)):
        out, p = torch.randn(2, 6, 7, 8), torch.randn(2, 6, 7, 8)
        mine = out.clone()
        expected, actual = fn(out, p, *places), compiled(mine, p, *places)
        torch.testing.assert_close(actual, expected)
        torch.testing.assert_close(mine, out)


def test_a_factor_between_two_statements_over_a_tensor_does_not_keep_them_apart():
    def step(x, moment, count):
        moment.lerp_(x, 0.1)
        count += 1
        return x.addcdiv_(moment, 1 - 0.9**count)

    given = [torch.randn(64, 64), torch.randn(64, 64), torch.tensor(1.0)]
    expected, actual = ([each.clone() for each in given] for _ in range(2))
    step(*expected)
    before = fxjit.counters["native"]["kernels"]
    fxjit.compile(step)(*actual)
    torch.testing.assert_close(actual, expected)
    assert fxjit.counters["native"]["kernels"] - before <= 2, "the factor, and all over the tensors"


@pytest.mark.parametrize("function", PROGRAMS, ids=lambda function: function.__name__)
def test_a_write_that_a_kernel_turns_out_not_to_do_is_done_once(function, monkeypatch):
    """A lowering may be refused when it has stored: ATen is called, and what was to be written to the input is not."""
    require = lower.require_functions

    def refuse_writes(low, value, first):
        require(low, value, first)
        if any(isinstance(each, Compute) and each.out.kind == "input" for each in low.statements[first:]):
            raise NoLowering("for this test")

    monkeypatch.setattr(lower, "require_functions", refuse_writes)
    fxjit.reset()
    torch.testing.assert_close(outcome(fxjit.compile(function), LAYOUTS["plain"]), outcome(function, LAYOUTS["plain"]))


def test_a_number_is_written_once_where_another_is_less_accurate_in_vectors():
    def step(count, rate):
        wide = count.double() + 1
        rate.copy_(0.01 / (1 + 1e-6 * wide) ** 0.75)
        count.copy_(wide)

    fxjit.reset()
    found = []
    for function in (step, fxjit.compile(step)):
        numbers = [torch.zeros(()), torch.ones(())]
        for _ in range(3):
            function(*numbers)
        found.append(numbers)
    torch.testing.assert_close(*found)
