"""Views made without recording a gradient (`no_grad`, `detach`) of what requires one: which results require a gradient,
which are leaves, and what backward gives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import fxjit

T = torch.Tensor
VIEWS: dict[str, Callable[[T], T]] = {
    "turned": lambda x: x.t(),
    "sliced": lambda x: x[:, :3],
    "whole slice": lambda x: x[..., :4],
    "flat": lambda x: x.view(-1),
    "detached": lambda x: x.detach(),
    "turned and detached": lambda x: x.t().detach(),
    "detached and turned": lambda x: x.detach().t(),
    "data": lambda x: x.data.t(),
    "itself": lambda x: x,
    "computed": lambda x: (x * 2).t(),
    "contiguous": lambda x: x.contiguous(),
    "expanded": lambda x: x[None].expand(2, 2, 4),
    "part": lambda x: x.split(1)[1],
}
USES: dict[str, Callable[[T, T], tuple[T, ...]]] = {
    "returned": lambda x, y: (y,),
    "recorded": lambda x, y: (y * 3,),
    "recorded and returned": lambda x, y: (y, y * 3, x + 1),
    "beside what records nothing": lambda x, y: (y, x.detach() * 2),
    "beside a comparison": lambda x, y: (x > 0, y),
}
MAKE: dict[str, Callable[[], T]] = {
    "result": lambda: torch.ones(2, 4, requires_grad=True) * 2,
    "leaf": lambda: torch.ones(2, 4, requires_grad=True),
    "view of a leaf": lambda: torch.ones(4, 4, requires_grad=True)[:2],
    "plain": lambda: torch.ones(2, 4),
}


def told(call: Callable[..., Any], x: T) -> list[Any]:
    results = call(x)
    facts: list[Any] = [(each.requires_grad, each.is_leaf, each.tolist()) for each in results]
    recorded = [each.sum() for each in results if each.requires_grad and not each.is_leaf]
    if recorded:
        if x.requires_grad and not x.is_leaf:
            x.retain_grad()
        torch.stack(recorded).sum().backward()
        facts.append(None if x.grad is None else x.grad.tolist())
    return facts


@pytest.mark.parametrize("backend", ["aot_eager", "native"])
@pytest.mark.parametrize("mode", [torch.no_grad, torch.enable_grad], ids=lambda mode: mode.__name__)
@pytest.mark.parametrize("use", USES)
@pytest.mark.parametrize("view", VIEWS)
def test_a_view_requires_what_eagers_does(view: str, use: str, mode: Callable[[], Any], backend: str) -> None:
    def fn(x: T) -> tuple[T, ...]:
        with mode():
            y = VIEWS[view](x)
        return USES[use](x, y)

    for make in MAKE.values():
        fxjit.reset()
        assert told(fxjit.compile(fn, backend=backend), make()) == told(fn, make())
