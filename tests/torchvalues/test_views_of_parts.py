"""Inputs that are views of tensors of another dtype, which as a whole could not be viewed so."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter, same


def pairs(x: torch.Tensor) -> torch.Tensor:
    return torch.view_as_complex(x.view(*x.shape[:-1], -1, 2))


def apart(c: torch.Tensor) -> torch.Tensor:
    return torch.view_as_real(c * c + c.conj()).sum(-1)


GIVEN: dict[str, Callable[[int], torch.Tensor]] = {
    "data": lambda n: pairs(torch.arange(8.0 * n).view(n, 8)),
    "a leaf": lambda n: pairs(torch.arange(8.0 * n).view(n, 8)).requires_grad_(),
    "with a history": lambda n: pairs(torch.linspace(0, 1, 8 * n).view(n, 8).clone().requires_grad_()),
    "a conjugate": lambda n: pairs(torch.arange(8.0 * n).view(n, 8)).conj(),
    "a part": lambda n: pairs(torch.arange(8.0 * n).view(n, 8))[1:, ::2],
    "without dimensions": lambda n: pairs(torch.arange(8.0 * n).view(n, 8))[1, 1],
    "doubles in floats": lambda n: torch.arange(3.0 + 8 * n)[: 8 * n].view(n, 8).view(torch.float64),
}


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
@pytest.mark.parametrize("name", GIVEN)
def test_values_and_gradients_are_eagers(name: str, backend: str) -> None:
    function = apart if "doubles" not in name else lambda x: x * 2 + 1
    fxjit.reset()
    counter = CompileCounter()
    compiled = fxjit.compile(function, backend=counter if backend == "eager" else backend)
    for n in (3, 4, 5):
        theirs, ours = GIVEN[name](n), GIVEN[name](n)
        expected, actual = function(theirs), compiled(ours)
        assert same(expected, actual)
        if expected.requires_grad:
            roots = [each if each.is_leaf else each._base for each in (theirs, ours)]
            assert same(torch.autograd.grad(expected.sum(), roots[0]), torch.autograd.grad(actual.sum(), roots[1]))
    assert counter.frame_count <= (1 if name == "without dimensions" else 2)


@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_writes_are_seen_by_the_whole(backend: str) -> None:
    def program(c: torch.Tensor, x: torch.Tensor) -> Any:
        before = x + 1
        c.mul_(2)
        return before, x + 1, c.abs()

    fxjit.reset()
    compiled = fxjit.compile(program, backend=backend)
    for n in (3, 3, 4):
        x, y = torch.arange(8.0 * n).view(n, 8), torch.arange(8.0 * n).view(n, 8)
        assert same(program(pairs(x), x), compiled(pairs(y), y)) and torch.equal(x, y)


def test_a_view_that_a_break_leaves() -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        c = pairs(x * 2)
        print(end="")
        return torch.view_as_real(c.exp()).view(x.shape)

    fxjit.reset()
    x = torch.linspace(-1, 1, 24).view(3, 8)
    assert same(program(x), fxjit.compile(program, backend="eager")(x))
