"""Writes that eager refuses raise what they raise in eager, and what the program did before them stays done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit

BACKENDS = ("eager", "aot_eager")


def outcome(fn: Callable[..., Any], x: torch.Tensor) -> Any:
    log: list[int] = []
    try:
        result = fn(x, log)
    except RuntimeError as error:
        return log, str(error), x.detach().tolist()
    return log, result.tolist(), x.detach().tolist()


def adds(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    log.append(len(log))
    x.add_(1)
    return x * 2


def writes_a_part(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    log.append(len(log))
    x[0].mul_(2)
    return x * 2


def in_a_block(x: torch.Tensor, log: list[int]) -> torch.Tensor:
    log.append(len(log))
    x = x * 2
    with torch.enable_grad():
        y = x.expand(2, *x.shape)
        y.copy_(x)
    return y


ONES: list[Callable[[], torch.Tensor]] = [
    lambda: torch.ones(2, 3), lambda: torch.ones(1, 3).expand(2, 3), lambda: torch.ones(2, 1).expand(2, 3)[:, 1:],
    lambda: torch.ones(2, 3, requires_grad=True) * 1, lambda: torch.ones(2, 3, requires_grad=True),
    lambda: torch.ones(2, 3, requires_grad=True)[:1], lambda: (torch.ones(2, 3, requires_grad=True) * 1)[:1],
    lambda: (torch.ones(2, 3, requires_grad=True) * 1).unbind()[0].view(1, 3),
    lambda: torch.ones(2, 3, requires_grad=True).detach(),
]  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("fn", [adds, writes_a_part, in_a_block])
def test_one_compiled_function_given_what_may_and_may_not_be_written_to(backend: str, fn: Callable[..., Any]) -> None:
    for first in (3, 6, 0):  # what it is compiled for
        fxjit.reset()
        compiled = fxjit.compile(fn, backend=backend)
        for make in (ONES[first], *ONES, *ONES):
            assert outcome(compiled, make()) == outcome(fn, make())
        with torch.no_grad():
            for make in ONES:
                assert outcome(compiled, make()) == outcome(fn, make())


def test_what_an_operator_raises_in_a_graph_of_aten_is_what_it_raises_alone() -> None:
    """Word for word, though the graph has written to a buffer before."""
    norm = torch.nn.BatchNorm1d(4)
    x = torch.ones(3, 4, dtype=torch.float64)
    with pytest.raises(RuntimeError) as expected:
        norm(x)
    with pytest.raises(RuntimeError) as caught:
        fxjit.compile(norm, backend="aot_eager")(x)
    assert str(caught.value) == str(expected.value)
