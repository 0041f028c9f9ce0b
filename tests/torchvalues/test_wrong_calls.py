"""Functions of torch that are given too few arguments, too many, or others: the error is eager's."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tests.differential import Failure, outcome

import fxjit

CALLS = [
    "torch.tensor()", "x.new_tensor()", "torch.is_tensor()", "torch.is_storage()", "torch.numel()", "torch.is_distributed()",
    "torch.is_nonzero()", "torch.set_grad_enabled()", "torch.set_grad_enabled(True, 2)", "torch.Generator('cpu', 1)",
    "torch.Generator(device=3, foo=2)", "torch.Generator('nowhere')", "torch.cond()", "torch.cond(x.sum() > 0, torch.sin)",
    "torch.while_loop()", "torch.as_tensor()", "torch.full((2,))",
    "torch.einsum()", "torch.no_grad(1, 2)", "torch.autocast()", "torch.device()", "torch.Size(3)", "torch.Tensor.add()",
    "torch.nn.functional.one_hot()", "torch.func.grad()", "torch.autograd.grad()", "torch.utils.checkpoint.checkpoint()",
]


@pytest.mark.parametrize("call", CALLS)
def test_raises_what_eager_raises(call: str) -> None:
    fn = eval(f"lambda x: {call}", {"torch": torch})
    fxjit.reset()
    x = (torch.ones(3),)
    wanted, found = outcome(fn, x), outcome(fxjit.compile(fn, backend="eager"), x)
    assert isinstance(wanted, Failure) and isinstance(found, Failure), (wanted, found)
    assert wanted.cls is found.cls and wanted.text == found.text


def test_the_first_argument_by_its_name() -> None:
    def fn(x: torch.Tensor) -> Any:
        return torch.numel(input=x), torch.is_nonzero(input=x[0]), torch.is_tensor(x), torch.tensor(data=[1.0])

    fxjit.reset()
    assert fxjit.compile(fn, backend="eager")(torch.ones(3)) == fn(torch.ones(3))
