"""The gradient of looked-up rows is added to the table's other gradient where that lies (passes/looked_up.py)."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import fxjit
from fxjit import config
from fxjit.backends.native import pipeline
from fxjit.backends.native.passes.in_place import MARK

INDEX_PUT = torch.ops.aten.index_put.default
ROWS, WIDTH = 23, 8


@pytest.fixture(autouse=True)
def compiled_however_small():
    with config.patch(small_graphs_as_captured=False):
        yield


@pytest.fixture
def added(monkeypatch):
    """(whether the rows were added in place, the buffers that the operator's statements write) of each such sum."""
    seen = []
    lower = pipeline.lower_graph

    def noted(gm, by_aten):
        low = lower(gm, by_aten)
        for node in gm.graph.find_nodes(op="call_function", target=INDEX_PUT):
            base = node.args[0]
            seen.append((bool(node.meta.get(MARK)), low.storage[base] == low.storage[node] if base in low.storage else None))
        return low

    monkeypatch.setattr(pipeline, "lower_graph", noted)
    return seen


def tied(x, w):
    return F.linear(F.embedding(x, w).tanh(), w)


def padded(x, w):
    return F.linear(F.embedding(x, w, padding_idx=3).tanh(), w)


def padded_from_the_end(x, w):
    return F.linear(F.embedding(x, w, padding_idx=-2).tanh(), w)


def by_frequency(x, w):
    return F.linear(F.embedding(x, w, scale_grad_by_freq=True).tanh(), w)


def twice(x, w):
    return F.linear(F.embedding(x, w).tanh() + F.embedding(x.flip(0), w, padding_idx=2), w)


def lookups_alone(x, w):
    return F.embedding(x, w).tanh() + F.embedding(x.flip(0), w)


def untied(x, w):
    return F.embedding(x, w).tanh()


def with_a_penalty(x, w):
    return F.linear(F.embedding(x, w).tanh(), w).sum() + w.square().sum()


def multiplied_twice(x, w):
    return F.linear(F.linear(F.embedding(x, w).tanh(), w).sin() @ w, w)


def one_index(x, w):
    return F.linear(F.embedding(x[0, 0], w).tanh(), w)


PROGRAMS = [tied, padded, padded_from_the_end, by_frequency, twice, lookups_alone, untied, with_a_penalty, multiplied_twice,
            one_index]  # fmt: skip


# Each program with fixed sizes and with varying ones, in one type each, by turns.
CASES = [(program, (torch.float32, torch.float64)[(k + dynamic) % 2], dynamic)
         for k, program in enumerate(PROGRAMS) for dynamic in (False, True)]


def gradient(function, x, w):
    w = w.detach().clone(memory_format=torch.preserve_format).requires_grad_()
    y = function(x, w)
    weights = torch.arange(y.numel(), dtype=torch.float64).cos().to(y.dtype).reshape(y.shape)
    (grad,) = torch.autograd.grad((y * weights).sum(), w)
    return grad, grad.stride()


def inputs(dtype, batch=3, length=7):
    # Rows that are looked up several times, and some never.
    return torch.randint(0, ROWS // 2, (batch, length)), torch.randn(ROWS, WIDTH, dtype=dtype)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("program,dtype,dynamic", CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_gradients_are_eagers(program, dtype, dynamic):
    compiled = fxjit.compile(program, dynamic=dynamic)
    for batch in (3, 5) if dynamic else (3,):
        x, w = inputs(dtype, batch)
        ours, eager, exact = gradient(compiled, x, w), gradient(program, x, w), gradient(program, x, w.double())[0]
        assert ours[1] == eager[1]
        if dtype is torch.bfloat16:
            assert_close(ours[0], eager[0], rtol=5e-2, atol=5e-2)
        else:
            assert (ours[0] - exact).abs().max() <= 4 * (eager[0] - exact).abs().max() + 1e-15 * exact.abs().max()


def test_of_another_layout():
    x, w = inputs(torch.float32)
    w = w.T.contiguous().T
    assert_close(gradient(fxjit.compile(tied), x, w), gradient(tied, x, w))


@pytest.mark.parametrize("program", [tied, padded, twice, lookups_alone], ids=lambda program: program.__name__)
def test_no_table_but_the_result(program, added):
    gradient(fxjit.compile(program), *inputs(torch.float32))
    assert added and all(in_place is not False for _, in_place in added)


@pytest.mark.parametrize("program", [by_frequency, untied], ids=lambda program: program.__name__)
def test_left_as_it_is(program, added):
    gradient(fxjit.compile(program), *inputs(torch.float32))
    assert not added


def test_half_types_begin_at_zero(added):
    gradient(fxjit.compile(tied), *inputs(torch.bfloat16))
    assert not added


def rows_of(g, x, padding=-1, scaled=False):
    return torch.ops.aten.embedding_dense_backward(g, x, ROWS, padding, scaled)


def base_returned(g, x, a, b):
    base = a @ b
    return base + rows_of(g, x), base


def base_used_later(g, x, a, b):
    base = a @ b
    total = rows_of(g, x) + base
    return total, (base * total).sum(0)


def view_used_later(g, x, a, b):
    base = a @ b
    part = base[2:5]
    total = base + rows_of(g, x)
    return total, part.sin()


def base_is_an_input(g, x, a, b):
    return a @ b, a[:, :WIDTH] + rows_of(g, x)


def base_is_a_view_of_an_input(g, x, a, b):
    return a @ b, a.t().reshape(-1)[: ROWS * WIDTH].view(ROWS, WIDTH) + rows_of(g, x)


def both_are_rows(g, x, a, b):
    return rows_of(g, x) + rows_of(g * 2, x, 3), a @ b


def twice_the_same(g, x, a, b):
    rows = rows_of(g, x)
    return rows + rows, a @ b


def rows_used_later(g, x, a, b):
    rows = rows_of(g, x)
    return a @ b + rows, rows.sum(0)


def gradient_from_the_base(g, x, a, b):
    base = a @ b
    return base + rows_of(base[:21].view(3, 7, WIDTH).sin(), x)


def view_as_gradient(g, x, a, b):
    base = a @ b
    return base + rows_of(base[:21].view(3, 7, WIDTH), x)


def times_alpha(g, x, a, b):
    return torch.add(a @ b, rows_of(g, x), alpha=2)


def broadcast(g, x, a, b):
    return (a @ b)[:1] + rows_of(g, x), (a @ b).sum() + rows_of(g, x)


def equal_bases(g, x, a, b):
    return a @ b + rows_of(g, x), a @ b + rows_of(g * 2, x)


def out_of_bounds(g, x, a, b):
    return a @ b + rows_of(g, torch.where(x > 5, x - 9, x + 16))


def changed_later(g, x, a, b):
    total = a @ b + rows_of(g, x)
    total.mul_(2)
    return total, total[2:4]


SUMS = [base_returned, base_used_later, view_used_later, base_is_an_input, base_is_a_view_of_an_input, both_are_rows,
        twice_the_same, rows_used_later, gradient_from_the_base, view_as_gradient, times_alpha, broadcast, equal_bases,
        out_of_bounds, changed_later]  # fmt: skip


@pytest.mark.parametrize("program,dynamic", [(program, k % 2 == 1) for k, program in enumerate(SUMS)],
                         ids=lambda value: getattr(value, "__name__", str(value)))
def test_who_else_looks(program, dynamic):
    compiled = fxjit.compile(program, dynamic=dynamic)
    for length in (7, 9) if dynamic and program is not view_as_gradient and program is not gradient_from_the_base else (7,):
        g, x = torch.randn(3, length, WIDTH), torch.randint(0, ROWS // 2, (3, length))
        a, b = torch.randn(ROWS, 16), torch.randn(16, WIDTH)
        kept = [each.clone() for each in (g, x, a, b)]
        for _ in range(2):
            assert_close(compiled(g, x, a, b), program(g, x, a, b))
            assert all(torch.equal(*pair) for pair in zip(kept, (g, x, a, b), strict=True))
