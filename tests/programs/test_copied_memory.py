"""`copy.deepcopy` copies a tensor's memory whole, and once: copies of views share their memory as the views do."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from tests.differential import assert_same_as_eager

import fxjit

NUMBERS = torch.arange(6.0)
GIVEN: dict[str, list[torch.Tensor]] = {
    "whole": [NUMBERS], "part": [NUMBERS[2:]], "twice": [NUMBERS, NUMBERS], "view": [NUMBERS, NUMBERS.view(2, 3)],
    "part first": [NUMBERS[1:], NUMBERS], "parts": [NUMBERS[1:], NUMBERS[:2]], "detached": [NUMBERS, NUMBERS.detach()],
    "parameter": [torch.nn.Parameter(NUMBERS), NUMBERS], "other type": [NUMBERS.view(torch.int32), NUMBERS],
    "apart": [NUMBERS, torch.ones(6)], "transposed": [NUMBERS.view(2, 3).t()], "overlapping": [NUMBERS.expand(2, 6)],
}  # fmt: skip


def copied(tensors):
    made = copy.deepcopy(tensors)
    with torch.no_grad():
        made[0].add_(1)
    return made


def made_inside(tensors):
    whole = tensors[0] + 1
    part = whole[1:]
    first, second = copy.deepcopy([whole, part])
    first.add_(5)
    return [first, second, part, whole]


def facts(tensors: list[torch.Tensor]) -> list[Any]:
    first = tensors[0].untyped_storage().data_ptr()
    return [(each.tolist(), each.dtype, each.stride(), each.storage_offset(), each.untyped_storage().nbytes(),
             each.untyped_storage().data_ptr() == first) for each in tensors]


@pytest.mark.parametrize("program", [copied, made_inside])
@pytest.mark.parametrize("first", ["whole", "part", "apart"])
def test_memory_of_copies(first: str, program: Any):
    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager")
    for name in (first, *GIVEN):
        found = []
        for run in (program, compiled):
            try:
                found.append(facts(run(GIVEN[name])))
            except RuntimeError as error:
                found.append([type(error).__name__])
        assert found[1] == found[0], name


def test_a_deep_copy_has_a_copy_of_the_gradient() -> None:
    def fn(x: torch.Tensor) -> Any:
        made = torch.zeros(3)
        made.grad = x.clone()
        copied = copy.deepcopy(made)
        return copied.grad, copied.grad is made.grad, copy.deepcopy(x).grad

    assert_same_as_eager(fn, torch.ones(3), fullgraph=False)
