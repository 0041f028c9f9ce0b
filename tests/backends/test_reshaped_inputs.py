"""Inputs that the graph writes to and gives another shape, by an operator in place (`x.zero_(); x.unsqueeze_(0)`): the memory
that is written is theirs, wherever in their storage it begins."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit


def written_then_shaped(t: torch.Tensor) -> torch.Tensor:
    t.zero_()
    t.unsqueeze_(0)
    return t


def shaped_then_written(t: torch.Tensor) -> torch.Tensor:
    t.unsqueeze_(0)
    t.add_(1)
    return t * 2


def only_shaped(t: torch.Tensor) -> torch.Tensor:
    t.unsqueeze_(-1)
    return t + 1


def turned(t: torch.Tensor) -> torch.Tensor:
    t.mul_(2)
    t.t_()
    return t * 1


def resized(t: torch.Tensor) -> torch.Tensor:
    t.resize_(2).zero_()
    return t.unsqueeze_(0)


MAKE: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "row": lambda base: base[-1],
    "detached": lambda base: base[-1].detach(),
    "as_strided": lambda base: torch.as_strided(base, (4,), (1,), 8),
    "split": lambda base: base.split(1)[2][0],
    "of a storage": lambda base: torch.tensor([]).set_(base.untyped_storage(), 8, (4,)),
    "of an array": lambda base: torch.from_numpy(base.numpy()[2]),
    "whole": lambda base: base[0].clone(),
}


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("fn", [written_then_shaped, shaped_then_written, only_shaped, turned, resized])
@pytest.mark.parametrize("name", MAKE)
def test_an_input_is_written_where_it_lies(name: str, fn: Callable[..., Any], backend: str) -> None:
    def told(call: Callable[..., Any]) -> Any:
        base = torch.arange(12.0).view(3, 4)
        t = MAKE[name](base)
        result = call(t)
        return base.tolist(), t.tolist(), result.tolist(), t.storage_offset(), t.stride(), t._base is None

    compiled = fxjit.compile(fn, backend=backend)
    for _ in range(2):
        assert told(compiled) == told(fn)
