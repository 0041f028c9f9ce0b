"""Subscripts with tensors that have no dimensions, and tensors whose elements are known while tracing."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit


def store_number(x, i):
    x[i] = 0.0
    return x


def store_row(x, i):
    x[..., i] = x.sum(0)
    return x


def store_element(x, i):
    x[1, i] = x.sum()
    return x


def store_diagonal(x, i):
    x[i, i] = 2
    return x


def store_part(x, i):
    x[i, 1:3] = torch.ones(2, dtype=torch.float64)
    return x


def store_into_integers(x, i):
    y = x.to(torch.int64)
    y[1:, i] = True
    y[i] = x.sum(1)
    return y


def fill_where(x, i):
    x[x.sum() > i] = 5.0
    return x


def copy_where(x, i):
    x[x.sum() < i] = x.sum(0)
    return x


def write_element_where(x, i):
    y = x.sum()
    y[y > i] = 1.0
    return y


def store_an_overlap(x, i):
    x[i, 1:3] = x[3, :2]
    return x


def store_out_of_bounds(x, i):
    x[i + 10] = 1.0
    return x


IN_ONE_GRAPH = [store_number, store_row, store_element, store_diagonal, store_part, fill_where, copy_where,
                write_element_where]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("grad", [False, True])
@pytest.mark.parametrize("fn", [*IN_ONE_GRAPH, store_into_integers, store_an_overlap])
def test_stores_at_scalar_tensors(fn, grad, backend):
    fxjit.reset()  # `program` is one code object, whatever function it calls: more than the limit of its entries

    def program(x, i):
        return fn(x * 1, i)

    compiled = fxjit.compile(program, backend=backend, fullgraph=fn in IN_ONE_GRAPH)
    for number in (2, -2, 0):
        found = []
        for each in (program, compiled):
            torch.manual_seed(number + 1)
            x = torch.randn(4, 4, requires_grad=grad)
            result = each(x, torch.tensor(number))
            if grad and result.requires_grad:
                (result * result).sum().backward()
            found.append((result.detach(), x.grad))
        torch.testing.assert_close(found[1], found[0])


def test_a_store_out_of_bounds_raises_what_eager_raises():
    compiled = fxjit.compile(store_out_of_bounds, backend="eager")
    with pytest.raises(IndexError, match="index 12 is out of bounds"):
        compiled(torch.ones(4, 4), torch.tensor(2))


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_a_scalar_is_a_symbol_where_these_are_captured(backend):
    def program(x, i):
        return x[i] * 2 + x[:, i].sum()

    with fxjit.config.patch(capture_scalar_outputs=True):
        compiled = fxjit.compile(program, backend=backend, fullgraph=True)
        for number in (2, -1, 0):
            x = torch.randn(4, 4)
            torch.testing.assert_close(compiled(x, torch.tensor(number)), program(x, torch.tensor(number)))


def numbers(x):
    axes = torch.arange(2, x.dim() + 2).tolist()
    size = torch.tensor([2, 3]).prod().item()
    return axes, size, torch.linspace(0, 1, 3).tolist(), x + size


def rows(x):
    return x[torch.tensor(1)], x[:, torch.arange(3)[2]], [x[j] * 2 for j in torch.arange(2)]


def branch(x):
    return x + 1 if (torch.arange(4) > 2).any() else x


def branch_of_numpy(x):
    return x - 1 if (np.mod(np.array(x.shape), 3) != 0).any() else x + 1


@pytest.mark.parametrize("fn", [numbers, rows, branch, branch_of_numpy])
def test_what_follows_from_constants_is_known(fn):
    assert_same_as_eager(fn, torch.randn(4, 4))


def written(x):
    kept = torch.arange(3)
    kept[0] = 5
    return x + kept.tolist()[0]


def written_through_data(x):
    kept = torch.arange(3)
    kept.data[0] = 5
    return x + kept.tolist()[0]


def random(x):
    return x + torch.randint(0, 9, (3,)).tolist()[0]


def from_outside(x):
    return x + (torch.arange(4) * x.long()).tolist()[1]


@pytest.mark.parametrize("fn", [written, written_through_data, random, from_outside])
def test_what_was_written_or_drawn_or_given_is_not(fn):
    compiled = fxjit.compile(fn, backend="eager")
    for seed in range(3):
        x = torch.full((4,), float(seed))
        torch.manual_seed(seed)
        expected = fn(x)
        torch.manual_seed(seed)
        assert torch.equal(compiled(x), expected)


def test_what_a_transform_gives_is_not_known():
    def program(x):
        return torch.vmap(lambda row: row * (2 if (row > 1).all() else 3))(x)

    def level(x):
        return torch.vmap(lambda row: row * (2 if torch._C._functorch.maybe_current_level() else 3))(x)

    compiled = fxjit.compile(level, backend="eager")
    assert torch.equal(compiled(torch.ones(3)), level(torch.ones(3)))
    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        fxjit.compile(program, backend="eager")(torch.ones(3))


def dual(x):
    parts = torch.autograd.forward_ad.unpack_dual(x)
    return parts.primal * 2 if parts.tangent is None else parts.tangent


def dual_in_jvp(x):
    return torch.func.jvp(lambda a: dual(a) * a, (x,), (torch.ones_like(x),))


def test_no_tensor_is_dual_outside_of_a_level():
    assert_same_as_eager(dual, torch.randn(3))


def test_a_transform_makes_tensors_dual():
    x = torch.randn(3)
    torch.testing.assert_close(fxjit.compile(dual_in_jvp, backend="eager")(x), dual_in_jvp(x))


FILLED = {
    "full": lambda x, v: torch.full((2, 3), v) * 1,
    "full of doubles": lambda x, v: torch.full(size=(2,), fill_value=v, dtype=torch.float64),
    "full of integers": lambda x, v: torch.full((2,), v, dtype=torch.int32),
    "full_like": lambda x, v: torch.full_like(x, v),
    "new_full": lambda x, v: x.new_full((x.shape[0], 1), v),
    "new_full of halves": lambda x, v: x.new_full((2,), fill_value=v, dtype=torch.float16),
}


@pytest.mark.parametrize("value", [1.5, 3, True, 1j], ids=str)
@pytest.mark.parametrize("fn", FILLED.values(), ids=FILLED)
def test_full_of_what_a_tensor_holds(fn, value):
    compiled = fxjit.compile(fn, backend="eager")
    found = []
    for each in (fn, compiled):
        try:
            found.append(each(torch.ones(3, 3), torch.tensor(value)))
        except RuntimeError as error:
            found.append(torch.tensor(0.0))
            assert "without overflow" in str(error) or "complex" in str(error)
    assert found[0].dtype is found[1].dtype
    torch.testing.assert_close(found[1], found[0])


def test_full_of_a_number_is_one_graph():
    compiled = fxjit.compile(FILLED["new_full"], backend="eager", fullgraph=True)
    assert torch.equal(compiled(torch.ones(3, 3), torch.tensor(8.0)), torch.full((3, 1), 8.0))


@pytest.mark.parametrize("value", [torch.tensor([2.5]), torch.tensor(2.5, requires_grad=True)], ids=["dimension", "grad"])
def test_full_refuses_what_eager_refuses(value):
    with pytest.raises((TypeError, RuntimeError)):
        torch.full((2,), value)
    with pytest.raises((TypeError, RuntimeError)):
        fxjit.compile(FILLED["full"], backend="eager")(torch.ones(3, 3), value)
