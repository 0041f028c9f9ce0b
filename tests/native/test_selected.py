"""Gradients of what is read part by part are put together (passes/selected.py)."""

import pytest
import torch
from torch.testing import assert_close

import fxjit
from fxjit import config


@pytest.fixture(autouse=True)
def compiled_however_small():
    with config.patch(small_graphs_as_captured=False):
        yield


@pytest.fixture
def backward_operators(monkeypatch):
    """The names of the operators of each graph that is lowered, after the passes."""
    from fxjit.backends.native import pipeline

    seen = []
    lower = pipeline.lower_graph

    def noted(gm, by_aten):
        seen.append([str(node.target) for node in gm.graph.nodes if node.op == "call_function"])
        return lower(gm, by_aten)

    monkeypatch.setattr(pipeline, "lower_graph", noted)
    return seen


def scan(x, h):
    for t in range(x.shape[1]):
        h = x[:, t] * h.tanh()
    return h


def every_second(x, h):
    for t in range(0, x.shape[1], 2):
        h = x[:, t] * h.tanh()
    return h


def from_the_end(x, h):
    for t in range(1, x.shape[1] + 1):
        h = x[:, -t] * h.tanh() + x[:, 0]
    return h


def rows_and_columns(x, h):
    for t in range(x.shape[1]):
        h = x[:, t] * h
    for b in range(x.shape[0]):
        h = h + x[b].sum(0)
    return h


def halves(x, h):
    n = x.shape[-1] // 2
    return torch.cat([-x[..., n:], x[..., :n]], -1) * x + h[:, None]


def overlapping(x, h):
    return (x[:, :4].sin() + x[:, 1:5].cos() + x[:, 2:6]).sum(1) + h


def uneven(x, h):
    return x[:, :1].exp().sum(1) + x[:, 2:6].square().sum(1) * h


def columns(x, h):
    return sum(x[..., c].sin() * (c + 1) for c in range(x.shape[-1])).unsqueeze(-1) * h[:, None]


PROGRAMS = [scan, every_second, from_the_end, rows_and_columns, halves, overlapping, uneven, columns]


def gradients(function, x, h):
    x, h = x.detach().clone().requires_grad_(), h.detach().clone().requires_grad_()
    y = function(x, h)
    weights = torch.arange(y.numel(), dtype=torch.float64).cos().to(y.dtype).reshape(y.shape)
    grads = torch.autograd.grad((y * weights).sum(), (x, h))
    return [*grads, *(torch.tensor(each.stride()) for each in grads)]


# Each program with fixed sizes and with varying ones, in one type each, by turns.
CASES = [(program, (torch.float32, torch.float64)[(k + dynamic) % 2], dynamic)
         for k, program in enumerate(PROGRAMS) for dynamic in (False, True)]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("program,dtype,dynamic", CASES, ids=lambda value: getattr(value, "__name__", str(value)))
def test_gradients_are_eagers(program, dtype, dynamic):
    x, h = torch.randn(3, 7, 6, dtype=dtype), torch.randn(3, 6, dtype=dtype)
    compiled = fxjit.compile(program, dynamic=dynamic)
    assert_close(gradients(compiled, x, h), gradients(program, x, h))
    if dynamic:
        x, h = torch.randn(5, 7, 6, dtype=dtype), torch.randn(5, 6, dtype=dtype)
        assert_close(gradients(compiled, x, h), gradients(program, x, h))


def test_of_another_layout():
    x, h = torch.randn(6, 7, 3).permute(2, 1, 0), torch.randn(3, 6)
    assert_close(gradients(fxjit.compile(scan), x, h)[:3], gradients(scan, x, h)[:3])


def test_half_types():
    x, h = torch.randn(3, 7, 6, dtype=torch.bfloat16), torch.randn(3, 6, dtype=torch.bfloat16)
    assert_close(gradients(fxjit.compile(scan), x, h), gradients(scan, x, h), rtol=5e-2, atol=5e-2)


@pytest.mark.parametrize("program", [scan, halves, every_second], ids=lambda program: program.__name__)
def test_nothing_of_the_whole_size_is_made_for_a_part(program, backward_operators):
    gradients(fxjit.compile(program), torch.randn(3, 7, 6), torch.randn(3, 6))
    assert any("aten.cat.default" in operators for operators in backward_operators)
    assert not any("select_backward" in name or "slice_backward" in name for each in backward_operators for name in each)


def test_a_few_steps_of_many_are_written_where_they_belong(backward_operators):
    gradients(fxjit.compile(lambda x, h: x[:, 1] * h + x[:, 5].sin()), torch.randn(3, 50, 6), torch.randn(3, 6))
    assert sum("select_backward" in name for each in backward_operators for name in each) == 2


def test_a_sum_of_zeros_has_no_sign():
    def function(x, h):
        return -(x[:, 0] + x[:, 1]) * 0.0 + h

    def gradient(function):
        x = torch.ones(2, 2, requires_grad=True)
        return torch.autograd.grad(function(x, torch.ones(2)).sum(), x)[0]

    assert torch.equal(gradient(fxjit.compile(function)).signbit(), gradient(function).signbit())
