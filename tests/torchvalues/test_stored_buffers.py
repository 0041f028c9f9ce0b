"""`nn.Buffer` and tensors that are marked as parameters or buffers, stored on modules in compiled code."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager, outcome
from torch import nn

import fxjit


def places(module: nn.Module, name: str) -> tuple[bool, ...]:
    return (name in module._parameters, name in module._buffers, name in vars(module), name in module.state_dict(),
            name in module._non_persistent_buffers_set)


def new_module(x: torch.Tensor) -> Any:
    module = nn.Linear(3, 3)
    module.table = nn.Buffer(torch.ones(3))
    return places(module, "table"), x + module.table


def of_a_parameters_name(x: torch.Tensor) -> Any:
    module = nn.Linear(3, 3)
    del module.bias
    module.bias = nn.Buffer(torch.zeros(3), persistent=False)
    return places(module, "bias"), x + module.bias


def in_place_of_an_attribute(x: torch.Tensor) -> Any:
    module = nn.Linear(3, 3)
    module.table = x
    module.table = nn.Buffer(x.detach() * 2)
    return places(module, "table"), x + module.table


def behind_a_break(x: torch.Tensor) -> Any:
    module = nn.Linear(3, 3)
    fxjit.graph_break()
    module.table = nn.Buffer(torch.ones(3))
    fxjit.graph_break()
    return places(module, "table"), x + module.table


def handed_over(x: torch.Tensor) -> Any:
    module, table = nn.Linear(3, 3), nn.Buffer(torch.ones(3))
    fxjit.graph_break()
    module.table = table
    return places(module, "table"), x + module.table


class Registers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.kept = nn.Buffer(torch.ones(3))
        self.gone = nn.Buffer(torch.ones(3), persistent=False)
        self.kept = nn.Buffer(torch.zeros(3), persistent=False)


def of_a_class(x: torch.Tensor) -> Any:
    module = Registers()
    return places(module, "kept"), places(module, "gone"), x + module.kept + module.gone


@pytest.mark.parametrize("fn", [new_module, of_a_parameters_name, in_place_of_an_attribute, behind_a_break, handed_over,
                                of_a_class], ids=lambda fn: fn.__name__)
def test_buffers_are_registered(fn: Callable[..., Any]) -> None:
    assert_same_as_eager(fn, torch.ones(3), fullgraph=False)


def test_an_argument_is_a_buffer_or_none() -> None:
    def fn(x: torch.Tensor) -> Any:
        module = nn.Linear(3, 3)
        module.table = x
        return places(module, "table"), x + 1

    compiled = fxjit.compile(fn, backend="eager")
    for x in (torch.ones(3), nn.Buffer(torch.ones(3)), torch.ones(3), nn.Parameter(torch.ones(3))):
        assert outcome(compiled, x) == outcome(fn, x)


class Plain(torch.Tensor):
    pass


def test_a_subclass_that_is_marked_as_a_parameter() -> None:
    def fn(x: torch.Tensor) -> Any:
        weight = x.as_subclass(Plain)
        weight._is_param = True  # type: ignore[attr-defined]  # what makes it an `nn.Parameter`
        module = nn.Module()
        module.weight = weight
        return places(module, "weight"), isinstance(weight, nn.Parameter), x + 1

    assert_same_as_eager(fn, torch.ones(3), fullgraph=False)
