"""Operators that take the number in an integer tensor which the frame was given for a size: no graph break."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit
from fxjit.testing import CompileCounter, same

PROGRAMS: dict[str, Callable[[torch.Tensor, torch.Tensor], Any]] = {
    "arange": lambda x, m: (torch.arange(m) + 1, torch.arange(0, m, 2)),
    "new_zeros": lambda x, m: x.new_zeros(2, m, 3) + 1,
    "new_zeros of a tuple": lambda x, m: (x.new_zeros((m, 2)) + 1, x.new_ones([2, m]) + 1),
    "by name": lambda x, m: x.narrow(dim=0, start=0, length=m) * 2,
    "view": lambda x, m: torch.stack([x[:5]] * 12).view(m, -1) * 2,
    "narrow": lambda x, m: x.narrow(0, 1, m) * 2,
    "narrow from a tensor": lambda x, m: x.narrow(0, m, 2) * 2,
    "of a sum": lambda x, m: x.narrow(0, 0, m + 1) * 2,
    "expand": lambda x, m: x[:1].expand(m) + 1,
    "full": lambda x, m: torch.full((m, 2), 1.5) + x[0],
    "ones": lambda x, m: torch.ones(m) * x[0],
    "repeat": lambda x, m: x.repeat(m),
    "tile": lambda x, m: torch.tile(x, (m,)),
    "split": lambda x, m: x.split(m),
    "chunk": lambda x, m: torch.chunk(x, m),
    "roll": lambda x, m: x.roll(m),
    "unfold": lambda x, m: x.unfold(0, m, 1).sum(1),
    "topk": lambda x, m: x.topk(m),
    "randn": lambda x, m: torch.randn(m, 2).shape,
    "tensor itself": lambda x, m: m.new_zeros(m),
    "written to": lambda x, m: x.new_zeros(m.add_(1)),
    "of data": lambda x, m: x.narrow(0, 0, (x > 0).sum() // 2),
}


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
@pytest.mark.parametrize("name", PROGRAMS)
def test_it_is_one_that_varies(name: str, dtype: torch.dtype) -> None:
    fxjit.reset()
    counter = CompileCounter()
    fn = PROGRAMS[name]
    compiled = fxjit.compile(fn, backend=counter)
    breaks = sum(fxjit.counters["graph_break"].values())
    for n in (5, 3, 4, 2, 5):
        x = torch.arange(20.0)
        assert same(_called(fn, x, torch.tensor(n, dtype=dtype)), _called(compiled, x, torch.tensor(n, dtype=dtype)))
    breaks = sum(fxjit.counters["graph_break"].values()) - breaks
    if name not in ("written to", "of data") and (dtype is torch.int64 or name != "of a sum"):
        assert not breaks
        assert counter.frame_count <= 2 or name in ("split", "chunk", "unfold")  # as many as for a number of Python's


def _called(fn: Callable[..., Any], x: torch.Tensor, m: torch.Tensor) -> Any:
    try:
        return fn(x, m), m
    except (TypeError, RuntimeError) as error:
        return type(error).__name__


@pytest.mark.parametrize("number", [0, 1, -1, 21, 2**40])
def test_numbers_that_do_not_fit_raise_as_in_eager(number: int) -> None:
    def program(x: torch.Tensor, m: torch.Tensor) -> torch.Tensor:
        return x.narrow(0, 0, m) + 1

    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager")
    for n in (3, number, 4):
        x, m = torch.arange(20.0), torch.tensor(n)
        try:
            expected = program(x, m)
        except RuntimeError:
            with pytest.raises(RuntimeError):
                compiled(x, m)
        else:
            assert torch.equal(compiled(x, m), expected)
