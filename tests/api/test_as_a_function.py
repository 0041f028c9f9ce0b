"""A compiled function where libraries expect a function: what they read of it is what the function inside has."""

from __future__ import annotations

import inspect
from typing import Any

import pytest
import torch

import fxjit


def scaled(x: torch.Tensor, by: float = 2.0, *, shift: float = 1.0) -> torch.Tensor:
    """Scale and shift."""
    return x * by + shift


class Net(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(3, 3)

    def forward(self, x: torch.Tensor, by: float = 1.0) -> torch.Tensor:
        return self.linear(x) * by


@pytest.mark.parametrize("wrap", [lambda fn: fxjit.compile(fn, backend="eager"), fxjit.disable])
@pytest.mark.parametrize("name", ["__code__", "__defaults__", "__kwdefaults__", "__globals__", "__closure__"])
def test_attributes_of_a_function(wrap: Any, name: str) -> None:
    assert getattr(wrap(scaled), name) is getattr(scaled, name)


def test_inspect() -> None:
    compiled = fxjit.compile(scaled, backend="eager")
    assert inspect.signature(compiled) == inspect.signature(scaled)
    assert inspect.getfullargspec(compiled) == inspect.getfullargspec(scaled)
    assert inspect.getsource(compiled) == inspect.getsource(scaled)


def test_of_no_function() -> None:
    compiled = fxjit.disable(torch.sin)
    with pytest.raises(AttributeError):
        compiled.__code__  # noqa: B018 - reading it is what is tested


@pytest.mark.parametrize("called_before", [False, True])
def test_export_of_a_compiled_module(called_before: bool) -> None:
    net, x = Net(), torch.ones(2, 3)
    compiled: Any = fxjit.compile(net, backend="eager")
    if called_before:
        compiled(x)
    exported = torch.export.export(compiled, (x,))
    torch.testing.assert_close(exported.module()(x), net(x))


def test_export_of_a_module_that_calls_a_compiled_function() -> None:
    compiled = fxjit.compile(scaled, backend="eager")

    class Caller(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return compiled(x, shift=3.0)

    x = torch.ones(2, 3)
    torch.testing.assert_close(torch.export.export(Caller(), (x,)).module()(x), scaled(x, shift=3.0))
