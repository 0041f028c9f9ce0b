"""Conditions computed once, before a loop: integers, since by a `bool` GCC 12 vectorises no loop of a parallel region."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch import Tensor

Program = Callable[[Tensor, Tensor, Tensor], Tensor]
PROGRAMS: dict[str, Program] = {
    "lerp": lambda x, y, w: torch.lerp(x, y, w),
    "choice": lambda x, y, w: torch.where(w > 0.5, x, y) * 2,
    "the other": lambda x, y, w: torch.where(~(w > 0.5), x, y) + x,
    "negated": lambda x, y, w: torch.where(torch.logical_not(w > 0.5), x, y) + x,
    "factor": lambda x, y, w: x * (w > 0.5) + y,
    "several": lambda x, y, w: torch.where((w > 0.5) & (w < 2) | (w == 3), x, y),
    "with one of the loop": lambda x, y, w: (x > y) & (w > 0.5),
    "unlike one of the loop": lambda x, y, w: (x > y) ^ (w > 0.5),
    "equal to one of the loop": lambda x, y, w: (x > y) == (w > 0.5),
    "converted": lambda x, y, w: x + (w > 0.5).to(x.dtype),
    "NaN": lambda x, y, w: torch.where(torch.isnan(w), x, y),
    "sum": lambda x, y, w: torch.where(w > 0.5, x, y).sum(-1),
    "maximum": lambda x, y, w: torch.where(w > 0.5, x, y).amax(0),
    "counted": lambda x, y, w: ((x > 0) & (w > 0.5)).sum(0),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", PROGRAMS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_results_are_eagers(name: str, dtype: torch.dtype) -> None:
    x, y = torch.randn(40, 37, dtype=dtype), torch.randn(40, 37, dtype=dtype)
    for number in (0.25, 0.75, 3.0, float("nan")):
        w = torch.tensor(number, dtype=dtype)
        assert_same_as_eager(PROGRAMS[name], x, y, w, calls=1, backend="native", rtol=1e-5)


@pytest.mark.parametrize("name", ["choice", "several", "lerp"])
def test_no_truth_value_goes_into_a_loop(name: str, caplog: pytest.LogCaptureFixture) -> None:
    x, y, w = torch.randn(40, 37), torch.randn(40, 37), torch.tensor(0.75)
    with caplog.at_level(logging.DEBUG, logger="fxjit.output_code"):
        assert_same_as_eager(PROGRAMS[name], x, y, w, calls=1, backend="native", rtol=1e-5)
    source = "\n".join(record.getMessage() for record in caplog.records)
    assert "for (" in source
    assert re.search(r"^  const int t\d+ =", source, re.MULTILINE), source
    assert not re.search(r"^  const bool t\d+ =", source, re.MULTILINE), source


def test_the_step_of_an_optimizer_over_several_weights() -> None:
    def weights() -> list[torch.nn.Parameter]:
        torch.manual_seed(0)
        made = [torch.nn.Parameter(torch.randn(64, 64)) for _ in range(12)]
        for weight in made:
            weight.grad = torch.randn(64, 64)
        return made

    def steps(compiled: bool) -> list[Tensor]:
        import fxjit

        made = weights()
        optimizer = torch.optim.AdamW(made)
        step = fxjit.compile(optimizer.step, backend="native") if compiled else optimizer.step
        for _ in range(3):
            step()
        return [weight.detach() for weight in made]

    for one, other in zip(steps(True), steps(False), strict=True):
        torch.testing.assert_close(one, other)
