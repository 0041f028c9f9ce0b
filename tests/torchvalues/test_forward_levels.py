"""`torch.autograd.forward_ad` in compiled code: levels, dual tensors and their parts."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.autograd.forward_ad as fwd

import fxjit
from fxjit.testing import CompileCounter, same


def tangent(x: torch.Tensor, v: torch.Tensor) -> Any:
    with fwd.dual_level():
        dual = fwd.make_dual(x * 2, v)
        primal, pushed = fwd.unpack_dual(dual.sin() * dual)
    return primal + 1, pushed * 2


def of_a_model(x: torch.Tensor, v: torch.Tensor) -> Any:
    weight = torch.linspace(-1, 1, 12).reshape(4, 3)
    with fwd.dual_level():
        y = torch.nn.functional.linear(fwd.make_dual(x, v), weight.t()).softmax(-1)
        return fwd.unpack_dual(y).tangent, fwd.unpack_dual(weight).tangent, fwd.unpack_dual(y).primal


def twice(x: torch.Tensor, v: torch.Tensor) -> Any:
    pushed = []
    for _ in range(2):
        with fwd.dual_level():
            pushed.append(fwd.unpack_dual(fwd.make_dual(x, v).exp()).tangent)
    return pushed


PROGRAMS = {program.__name__: program for program in (tangent, of_a_model, twice)}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_one_graph(name: str, backend: str) -> None:
    fxjit.reset()
    fxjit.counters.clear()
    compiled = fxjit.compile(PROGRAMS[name], backend=backend, fullgraph=True)
    for rows in (3, 3, 5, 6):
        x, v = torch.randn(rows, 4), torch.randn(rows, 4)
        assert same(PROGRAMS[name](x, v), compiled(x, v))
        assert fwd._current_level == -1
    assert fxjit.counters["stats"]["unique_graphs"] == 2


def test_gradients_of_tangents() -> None:
    fxjit.reset()
    x = torch.randn(3, 4)
    grads = []
    for program in (tangent, fxjit.compile(tangent, fullgraph=True)):
        given = x.clone().requires_grad_()
        program(given, torch.ones(3, 4))[1].sum().backward()
        grads.append(given.grad)
    assert same(*grads)


def test_a_block_with_a_break_runs_eagerly() -> None:
    def program(x: torch.Tensor) -> Any:
        with fwd.dual_level():
            dual = fwd.make_dual(x, torch.ones_like(x))
            fxjit.graph_break()
            return fwd.unpack_dual(dual.sin()).tangent

    fxjit.reset()
    x = torch.randn(3)
    assert same(program(x), fxjit.compile(program, backend="eager")(x))
    assert fwd._current_level == -1


def test_nested_levels_are_refused_as_in_eager() -> None:
    def program(x: torch.Tensor) -> Any:
        with fwd.dual_level():
            try:
                with fwd.dual_level():
                    return x
            except RuntimeError as error:
                return x + 1, str(error)

    fxjit.reset()
    x = torch.randn(3)
    assert same(program(x), fxjit.compile(program, backend="eager")(x))


def test_an_operator_that_raises_leaves_the_level() -> None:
    def program(x: torch.Tensor, index: torch.Tensor) -> Any:
        with fwd.dual_level():
            return fwd.unpack_dual(fwd.make_dual(x, x)[index]).tangent

    fxjit.reset()
    compiled, counter = fxjit.compile(program, backend="eager"), CompileCounter()
    x = torch.randn(3)
    assert same(program(x, torch.tensor([2])), compiled(x, torch.tensor([2])))
    with pytest.raises(IndexError):
        compiled(x, torch.tensor([7]))
    assert fwd._current_level == -1
    assert same(program(x, torch.tensor([1])), fxjit.compile(program, backend=counter)(x, torch.tensor([1])))
    assert counter.frame_count == 1
