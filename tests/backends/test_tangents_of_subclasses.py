"""Tangents may be tensors of a subclass: that of a result is one where the program makes it of the result (`ones_like`), and a
parameter is one, too. Compiled backward graphs take the tensor that it is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

import fxjit


class Plain(torch.Tensor):
    pass


class Silent(torch.Tensor):
    __torch_function__ = torch._C._disabled_torch_function_impl


PROGRAMS: dict[str, Callable[[torch.Tensor], Any]] = {
    "one result": lambda x: (x * 2).sin().exp() * x,
    "a view and another": lambda x: (x.t(), (x * 2).sin().exp()),
    "a product and a sum": lambda x: ((x @ x.t()).relu(), x.sum()),
}


def of_class(cls: type, x: torch.Tensor) -> Any:
    return torch.nn.Parameter(x) if cls is torch.nn.Parameter else x.as_subclass(cls)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("create_graph", [False, True])
@pytest.mark.parametrize("given", ["tangent", "input"])
@pytest.mark.parametrize("cls", [Plain, Silent, torch.nn.Parameter])
@pytest.mark.parametrize("name", PROGRAMS)
def test_gradients(name: str, cls: type, given: str, create_graph: bool, backend: str) -> None:
    def gradients(call: Callable[[torch.Tensor], Any]) -> list[object]:
        x = torch.arange(6.0).reshape(2, 3) / 5
        x = (of_class(cls, x) if given == "input" else x).requires_grad_()
        results = call(x)
        results = results if isinstance(results, tuple) else (results,)
        ones = [torch.ones_like(each) if given == "input" else of_class(cls, torch.ones(each.shape)) for each in results]
        (gradient,) = torch.autograd.grad(results, x, ones, create_graph=create_graph)
        told: list[object] = [type(gradient), gradient.requires_grad, gradient.detach().as_subclass(torch.Tensor)]
        if create_graph:
            told.append(torch.autograd.grad(gradient.sum(), x)[0].as_subclass(torch.Tensor))
        return told

    fxjit.reset()
    expected, found = gradients(PROGRAMS[name]), gradients(fxjit.compile(PROGRAMS[name], backend=backend))
    assert expected[:2] == found[:2]
    torch.testing.assert_close(found[2:], expected[2:])


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
@fxjit.config.patch(small_graphs_as_captured=False)
def test_tangents_of_a_class_that_runs_operators(name: str, backend: str) -> None:
    """Autograd then runs operator by operator, as where it is asked for a second derivative."""
    fxjit.reset()
    compiled, found = fxjit.compile(PROGRAMS[name], backend=backend), []
    for call in (PROGRAMS[name], compiled, compiled):
        x = (torch.arange(6.0).reshape(2, 3) / 5).requires_grad_()
        results = call(x)
        results = results if isinstance(results, tuple) else (results,)
        twos = [TwoTensor(torch.ones(each.shape), torch.full(each.shape, 2.0)) for each in results]
        torch.autograd.backward(results, twos)
        assert type(x.grad) is TwoTensor
        found.append((x.grad.a, x.grad.b))
    torch.testing.assert_close(found[1:], [found[0]] * 2)
