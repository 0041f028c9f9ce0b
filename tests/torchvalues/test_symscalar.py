"""Sizes that vary: one graph for all of them, decisions become guards."""

from __future__ import annotations

import math

import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter, CompileCounterWithBackend

FUNCTIONS = {
    "view": lambda x: x.view(x.shape[0] * x.shape[1], -1).view(x.shape[1], -1),
    "arithmetic": lambda x: x * (x.shape[0] + 1) / (x.size(0) - 1) ** 2,
    "zeros": lambda x: torch.zeros(x.shape[0] // 2 + 1, 3) + 1,
    "slice": lambda x: x[: x.shape[0] // 2],
    "whole part of a quotient": lambda x: x.new_zeros(int(x.shape[0] / (4 * 4 / 2 / 2)), math.floor(x.shape[0] / 2)),
    "ceiling of a quotient": lambda x: torch.zeros(math.ceil(x.shape[0] / 3), math.ceil(x.shape[0] / 2.5)),
    "branch": lambda x: x + 1 if x.shape[0] > 2 else x - 1,
    "size": lambda x: (x + 0, x.shape, x.shape[0]),
    "numel": lambda x: x.sum() / x.numel(),
    "float": lambda x: x * (x.shape[0] ** -0.5),
    "max": lambda x: x[: max(x.shape[0] - 1, 1)],
    "compare": lambda x: (x + 1, x.shape[0] == x.size(0), x.shape[0] != 3),
    "arange": lambda x: x[torch.arange(x.shape[0] - 1, -1, -1)],
    "length": lambda x: torch.full((len(x),), 1.0),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_one_graph_for_many_sizes(name):
    fn = FUNCTIONS[name]
    fxjit.reset()
    counter = CompileCounter()
    compiled = fxjit.compile(fn, backend=counter, fullgraph=True, dynamic=True)
    for size in (4, 6, 8, 10):
        x = torch.randn(size, 5)
        torch.testing.assert_close(compiled(x), fn(x))
    assert counter.frame_count == 1


def test_the_whole_part_of_a_quotient_of_sizes_is_an_integer_quotient():
    """So that kernels are made for it: no arithmetic with floats is left in the shapes."""
    backend = fxjit.testing.EagerAndRecordGraphs()

    def fn(x):
        return x.new_zeros(int(x.shape[0] / 4.0), math.ceil(x.shape[0] / 3))

    compiled = fxjit.compile(fn, backend=backend, dynamic=True)
    for size in (7, 8, 9):
        assert compiled(torch.ones(size)).shape == (size // 4, -(-size // 3))
    (graph,) = backend.graphs
    (made,) = graph.graph.find_nodes(op="call_method", target="new_zeros")
    assert "Float" not in str(made.meta["example_value"].shape)


def test_a_size_that_changes_becomes_a_symbol():
    fxjit.reset()
    counter = CompileCounter()
    compiled = fxjit.compile(lambda x: x * x.shape[0], backend=counter, fullgraph=True)
    for size in (4, 6, 8, 10):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), x * size)
    assert counter.frame_count == 2


def test_a_loop_over_a_size_holds_for_that_size():
    def fn(x):
        for i in range(x.shape[0]):
            x = x + i
        return x
    fxjit.reset()
    compiled = fxjit.compile(fn, backend="eager", fullgraph=True, dynamic=True)
    for size in (2, 3, 4):
        x = torch.randn(size)
        torch.testing.assert_close(compiled(x), fn(x))


KEYS = {
    "an int": lambda i: i,
    "two": lambda i: (i, 0, i),
    "a slice before": lambda i: (slice(None), i),
    "an ellipsis before": lambda i: (..., i),
    "new dimensions": lambda i: (None, i, slice(1), None),
    "a tensor before": lambda i: (torch.tensor([0, 2]), i),
    "a bool before": lambda i: (True, i),
}


@pytest.mark.parametrize("name", KEYS)
@pytest.mark.parametrize("written", [False, True], ids=["read", "written"])
def test_one_graph_for_many_subscripts(name, written):
    """Zero and one are numbers like others, once an int was seen to vary."""
    key = KEYS[name]
    fxjit.reset()
    counter = CompileCounter()
    x = torch.randn(3, 4, 5)

    def read(x, i):
        return x[key(i)] * 2

    def write(x, i):
        x = x.clone()
        x[key(i)] = 7.0
        return x

    fn = write if written else read
    compiled = fxjit.compile(fn, backend=counter)
    for i in (2, 1, 0, 2):
        torch.testing.assert_close(compiled(x, i), fn(x, i))
    assert counter.frame_count == 2
    with pytest.raises(IndexError):
        compiled(x, 7)


@pytest.mark.parametrize("backend", ["eager", "native"])
def test_strides_that_vary_alone_become_symbols(backend):
    """The last column of a matrix that grows, as a language model is given its last token."""

    def fn(x):
        x.mul_(2.0)
        return x.reshape(-1) + 1.0, x.stride(0)

    fxjit.reset()
    counter = CompileCounterWithBackend(backend)
    compiled = fxjit.compile(fn, backend=counter, fullgraph=True)
    for width in (5, 6, 7, 9):
        rows, again = (torch.arange(2.0 * width).reshape(2, width) for _ in range(2))
        got, wanted = compiled(rows[:, -1:]), fn(again[:, -1:])
        torch.testing.assert_close((got, rows), (wanted, again))
    assert counter.frame_count == 2
