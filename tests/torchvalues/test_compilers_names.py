"""Functions of torch that speak to compilers, or of which only the compiled form does something, are captured in one graph."""

from __future__ import annotations

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch._higher_order_ops import foreach_map
from torch.fx._symbolic_trace import is_fx_tracing

import fxjit

X = torch.linspace(-1, 1, 12).reshape(3, 4)
LINEAR = torch.nn.Linear(4, 4)


@torch.compiler.assume_constant_result
def rows_of(x):
    return x.shape[0] * int(x.sum() < 100)


@torch.compiler.assume_constant_result
def width_of(module, factor=1):
    return module.in_features * factor


@torch.compiler.nested_compile_region
def region(x):
    return x.sin() + 1


@torch.compiler.nested_compile_region()
def region_with_settings(x, by=2):
    return x * by


PROGRAMS = {
    "assume_constant_result of a tensor": lambda x: x * rows_of(x),
    "assume_constant_result of a module": lambda x: x * width_of(LINEAR, factor=3),
    "nested_compile_region": lambda x: region(x) + region_with_settings(x, by=3),
    "nested_compile_region, made here": lambda x: torch.compiler.nested_compile_region(lambda y: y.cos())(x),
    "torch.jit.annotate": lambda x: torch.jit.annotate(torch.Tensor, x) + 1,
    "is_fx_tracing": lambda x: x if is_fx_tracing() else x + 1,
    "_shape_as_tensor": lambda x: torch._shape_as_tensor(x) * 2,
    "_shape_as_tensor of a number": lambda x: torch._shape_as_tensor(x.sum()),
}


@pytest.mark.parametrize("program", PROGRAMS.values(), ids=PROGRAMS)
def test_it_is_one_graph(program):
    assert_same_as_eager(program, X)


def test_shapes_as_tensors_follow_sizes_that_vary():
    compiled = fxjit.compile(torch._shape_as_tensor, backend="eager", fullgraph=True)
    for rows in (3, 4, 5, 6):
        assert compiled(torch.ones(rows, 2)).tolist() == [rows, 2]


MAPPED = [
    (lambda xs, ys: foreach_map(torch.add, xs, ys), lambda xs, ys: [x + y for x, y in zip(xs, ys, strict=True)]),
    (lambda xs, ys: foreach_map(torch.mul, xs, 2), lambda xs, ys: [x * 2 for x in xs]),
    (lambda xs, ys: foreach_map(lambda x, y: (x * y).sin() + 1, xs, ys),
     lambda xs, ys: [(x * y).sin() + 1 for x, y in zip(xs, ys, strict=True)]),
    (lambda xs, ys: foreach_map(torch.sin, xs[0]), lambda xs, ys: xs[0].sin()),
]


@pytest.mark.parametrize(("mapped", "eager"), MAPPED)
def test_foreach_map_is_one_graph(mapped, eager):
    """Eagerly torch refuses it; compiled it is what a loop over the lists is."""
    xs, ys = [X, X + 1], [X * 2, X - 1]
    compiled = fxjit.compile(mapped, backend="eager", fullgraph=True)(xs, ys)
    torch.testing.assert_close(compiled, eager(xs, ys), rtol=0, atol=0)
