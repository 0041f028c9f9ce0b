"""What is compiled twice shares its entries, also where the frame of the call is one of ours."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import fxjit


def _optimizer() -> torch.optim.Optimizer:
    weight = nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    return torch.optim.SGD([weight])


class _Doubles:
    __slots__ = ("__weakref__",)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2


CALLABLES: dict[str, Callable[[], tuple[Any, tuple[Any, ...]]]] = {
    "torch's container": lambda: (nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval(), (torch.ones(2, 3),)),
    "torch's layer": lambda: (nn.Linear(3, 3), (torch.ones(2, 3),)),
    "method of torch's": lambda: (_optimizer().step, ()),
    "method in C": lambda: (torch.ones(3).add, (torch.ones(3),)),
    "function in C": lambda: (torch.sin, (torch.ones(3),)),
    "object with __call__": lambda: (_Doubles(), (torch.ones(3),)),
}


def _graphs() -> int:
    return fxjit.counters["stats"]["unique_graphs"]


@pytest.mark.parametrize("name", CALLABLES)
def test_the_second_wrapper_finds_the_entries_of_the_first(name: str) -> None:
    target, args = CALLABLES[name]()
    first = fxjit.compile(target, backend="eager")
    first(*args)
    before = _graphs()
    assert before
    second = fxjit.compile(target, backend="eager")
    second(*args)
    assert _graphs() == before
    assert fxjit.compile(target, backend="aot_eager")(*args) is None or _graphs() == before + 1  # other options are others


def test_a_module_that_changed_finds_what_was_compiled_for_it_since() -> None:
    model = nn.Sequential(nn.Linear(3, 8), nn.ReLU()).eval()
    x = torch.ones(2, 3)
    first = fxjit.compile(model, backend="eager")
    first(x)
    model[0] = nn.Linear(3, 4)
    first(x)
    before = _graphs()
    second = fxjit.compile(model, backend="eager")
    assert torch.equal(second(x), model(x))
    assert _graphs() == before


def test_compiling_again_after_each_change_compiles_as_often() -> None:
    """Entries of wrappers that are gone do not use up the limit of the next."""
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU()).eval()
    x = torch.ones(2, 3)
    for width in range(4, 4 + 3 * fxjit.config.recompile_limit):
        model[0] = nn.Linear(3, width)
        model.append(nn.Identity())
        compiled = fxjit.compile(model, backend="eager", dynamic=False)
        before = _graphs()
        assert torch.equal(compiled(x), model(x))
        assert _graphs() == before + 1


def test_others_of_one_class_have_entries_of_their_own() -> None:
    one, other = _Doubles(), _Doubles()
    for target in (one, other):
        assert torch.equal(fxjit.compile(target, backend="eager")(torch.ones(3)), torch.full((3,), 2.0))


def test_the_identity_of_what_is_gone_names_nothing() -> None:
    for factor in range(20):
        compiled = fxjit.compile(torch.full((3,), float(factor)).mul, backend="eager")
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), float(factor)))
        del compiled
