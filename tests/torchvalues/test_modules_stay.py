"""Modules of local variables that are read no more live as long as in eager code: hooks and handles refer to them weakly."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch import nn

import fxjit

Hook = Callable[..., Any]


class Holder(dict[str, Any]):
    module: nn.Module


def doubled(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


def by_a_handle(x: torch.Tensor) -> Any:
    module = nn.Sigmoid()
    handle = module.register_forward_hook(doubled)
    y = module(x)
    fxjit.graph_break()
    return handle.hooks_dict_ref() is None, y


def by_a_handle_made_behind_a_break(x: torch.Tensor) -> Any:
    module = nn.Sigmoid()
    fxjit.graph_break()
    handle = module.register_forward_hook(doubled)
    y = module(x)
    fxjit.graph_break()
    return handle.hooks_dict_ref() is None, y


def in_a_function(x: torch.Tensor) -> Any:
    def inside(x: torch.Tensor) -> Any:
        module = nn.Sigmoid()
        handle = module.register_forward_hook(doubled)
        y = module(x)
        fxjit.graph_break()
        return handle.hooks_dict_ref() is None, y

    return inside(x)


def held_by_an_object(x: torch.Tensor) -> Any:
    holder = Holder()
    holder.module = nn.Linear(3, 3)
    reference = weakref.ref(holder.module)
    fxjit.graph_break()
    return reference() is None, x + 1


def in_a_list(x: torch.Tensor) -> Any:
    modules = [nn.Linear(3, 3)]
    reference = weakref.ref(modules[0])
    fxjit.graph_break()
    return reference() is None, x + 1


def in_a_list_behind_a_break(x: torch.Tensor) -> Any:
    modules = [nn.Linear(3, 3)]
    fxjit.graph_break()
    reference = weakref.ref(modules[0])
    fxjit.graph_break()
    return reference() is None, x + 1


@pytest.mark.parametrize("fn", [by_a_handle, by_a_handle_made_behind_a_break, in_a_function, held_by_an_object, in_a_list,
                                in_a_list_behind_a_break], ids=lambda fn: fn.__name__)
def test_that_is_referred_to_weakly(fn: Callable[..., Any]) -> None:
    assert_same_as_eager(fn, torch.ones(3), fullgraph=False)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("full", [True, False])
def test_whose_hooks_of_gradients_run_behind_the_call(full: bool) -> None:
    def fn(x: torch.Tensor, weight: torch.Tensor) -> Any:
        module = nn.Sigmoid()

        def hook(module: nn.Module, inputs: Any, outputs: Any) -> Any:
            assert isinstance(module, nn.Sigmoid)
            return tuple(each * 2 for each in inputs)

        (module.register_full_backward_hook if full else module.register_backward_hook)(hook)
        fxjit.graph_break()
        module(x).backward(weight)
        return x.grad

    assert_same_as_eager(fn, torch.ones(3, requires_grad=True), torch.ones(3), fullgraph=False)


@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize("register", ["register_module_backward_hook", "register_module_full_backward_hook"])
def test_with_hooks_of_all_modules(register: str) -> None:
    def fn(x: torch.Tensor, weight: torch.Tensor) -> Any:
        module = nn.Sigmoid()
        handle = getattr(nn.modules.module, register)(lambda module, inputs, outputs: tuple(each * 2 for each in inputs))
        try:
            y = module(x)
            fxjit.graph_break()
            y.backward(weight)
        finally:
            handle.remove()
        return x.grad

    assert_same_as_eager(fn, torch.ones(3, requires_grad=True), torch.ones(3), fullgraph=False)
