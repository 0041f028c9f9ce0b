"""A second `backward()` raises where eager's nodes have saved tensors that the first one freed, and is allowed where they have
saved none."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxjit

PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    # Nothing is saved.
    "sum": lambda x, w: (x + w,),
    "negative": lambda x, w: (-(x - w),),
    "reductions": lambda x, w: ((x + w).sum(), x.mean()),
    "views": lambda x, w: (x.view(2, 2).t().reshape(-1), torch.cat([x, w])),
    "several": lambda x, w: ((x + w).sum(), (x + w).expand(3, 4).sum(0), torch.stack([x + w, x]).sum(0)),
    "in place": lambda x, w: ((x + 1).add_(w),),
    "copies": lambda x, w: (x.clone(), x.to(torch.float64), w.detach() + x),
    "moved": lambda x, w: (x.cumsum(0), x.flip(0), x.roll(1), F.pad(x, (1, 1))[1:]),
    # Tensors are saved: operands, conditions, indices.
    "product": lambda x, w: (x * w,),
    "scaled": lambda x, w: (x * 2,),
    "divided": lambda x, w: (x / 2,),
    "positive": lambda x, w: (torch.relu(x),),
    "chosen": lambda x, w: (x.where(x > 2, w),),
    "indexed": lambda x, w: (x[torch.tensor([0, 1])],),
    "below": lambda x, w: (x * w + 1,),
    "above": lambda x, w: ((x + w) ** 2,),
}  # fmt: skip


class Linear(torch.autograd.Function):
    """Linear, but asks in its backward for what it saved."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x)
        return x + 1

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
        (x,) = ctx.saved_tensors
        return gradient + 0 * x


def outcome(program: Callable[..., Any], times: int = 3) -> Any:
    x = torch.arange(1.0, 5.0).requires_grad_()
    w = torch.full((4,), 2.0).requires_grad_()
    outputs, found = program(x, w), list[str]()
    for _ in range(times):
        for output in outputs:
            try:
                output.sum().backward()
                found.append("done")
            except RuntimeError as error:
                found.append(str(error)[:50])
    return found, x.grad, w.grad


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_second_backward(name: str, backend: str):
    compiled = fxjit.compile(PROGRAMS[name], backend=backend)
    for _ in range(2):
        assert str(outcome(compiled)) == str(outcome(PROGRAMS[name]))


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("name", ["sum", "several", "product"])
def test_retained_graphs_and_sizes_that_vary(name: str, backend: str):
    def run(program: Callable[..., Any]) -> Any:
        found = []
        for size in (4, 6, 8):
            x, w = torch.ones(size, requires_grad=True), torch.ones(size, requires_grad=True)
            total = sum(output.sum() for output in program(x, w))
            for retains in (True, False, False):
                try:
                    total.backward(retain_graph=retains)
                    found.append("done")
                except RuntimeError as error:
                    found.append(str(error)[:50])
            found += [x.grad, w.grad]
        return str(found)

    program = {"several": lambda x, w: ((x + w).sum(), torch.stack([x + w, x]).sum(0))}.get(name, PROGRAMS[name])
    assert run(fxjit.compile(program, backend=backend, dynamic=True)) == run(program)


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_a_function_of_the_programs_own_that_saves(backend: str):
    def program(x, w):
        return (Linear.apply(x),)

    assert str(outcome(fxjit.compile(program, backend=backend))) == str(outcome(program))
