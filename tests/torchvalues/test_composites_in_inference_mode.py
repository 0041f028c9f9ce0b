"""Views that composite operators make in inference mode of tensors from outside of it: they are noted as in eager."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fxjit

OPERATORS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "reshape": lambda x: x.reshape(-1),
    "flatten": lambda x: x.flatten(),
    "unflatten": lambda x: x.unflatten(0, (1, -1)),
    "movedim": lambda x: x.movedim(0, 1),
    "swapaxes": lambda x: x.swapaxes(0, 1),
    "chunk": lambda x: x.chunk(2)[1],
    "hsplit": lambda x: x.hsplit(2)[0],
    "narrow": lambda x: x.narrow(0, 0, 1),
    "adjoint": lambda x: x.adjoint(),
    "contiguous": lambda x: x.contiguous(),
    "broadcast_to": lambda x: torch.broadcast_to(x, (2, 2, 2)),
    "einsum of one": lambda x: torch.einsum("ij->ji", x),
    "einsum of two": lambda x: torch.einsum("ij,jk->ik", x, x),
    "meshgrid": lambda x: torch.meshgrid(x[0], x[1], indexing="ij")[0],
    "float": lambda x: x.float(),
    "double": lambda x: x.double(),
    "matmul": lambda x: x @ x,
    "view": lambda x: x.view(-1),
}
INPUTS: dict[str, Callable[[], torch.Tensor]] = {
    "leaf": lambda: torch.ones(2, 2, requires_grad=True),
    "plain": lambda: torch.ones(2, 2),
    "recorded": lambda: torch.ones(2, 2, requires_grad=True) * 1,
    "view": lambda: (torch.ones(2, 2, requires_grad=True) * 1)[:],
}


def facts(x: torch.Tensor) -> tuple[object, ...]:
    return x.requires_grad, x.is_inference(), x._is_view(), x.is_leaf, x.shape, x.stride(), x.dtype


@pytest.mark.sweep(2)
@pytest.mark.parametrize("inside", [True, False], ids=["block in the program", "program in a block"])
@pytest.mark.parametrize("make", INPUTS.values(), ids=INPUTS)
@pytest.mark.parametrize("name", OPERATORS)
def test_what_the_program_is_told_of_a_view(name: str, make: Callable[[], torch.Tensor], inside: bool) -> None:
    def program(x: torch.Tensor) -> tuple[object, ...]:
        with torch.inference_mode(inside or torch.is_inference_mode_enabled()):
            made = OPERATORS[name](x)
            return made.requires_grad, made.is_inference(), made._is_view(), made.is_leaf, made, made * 2

    def told(call: Callable[[torch.Tensor], tuple[object, ...]]) -> list[object]:
        with torch.inference_mode(not inside):
            result = call(make())
        return [each if not isinstance(each, torch.Tensor) else (facts(each), each.tolist()) for each in result]

    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager", fullgraph=True)
    assert told(compiled) == told(compiled) == told(program)
