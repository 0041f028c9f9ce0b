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


@pytest.mark.sweep(4)
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


def view_of_a_leaf_that_is_a_view():
    """The base of both requires no gradient, and what is a view of a leaf here is no leaf."""
    leaf = torch.arange(8.0)[:4].requires_grad_()
    return leaf, leaf.view(2, 2)[0]


def asks_whether_it_is_a_leaf(leaf, view):
    with torch.no_grad():
        view.mul_(0.5)
    return view * 2, view.is_leaf, leaf.is_leaf


def asks_for_its_history(leaf, view):
    with torch.no_grad():
        view.mul_(0.5)
    return view * 2, view.grad_fn is None


def gives_views_of_it(leaf, view):
    with torch.no_grad():
        view.mul_(0.5)
    return view * 2 + leaf[0], view.view(-1), view.requires_grad


def writes_while_recorded(leaf, view):
    changed = view * 1
    changed.mul_(view)
    return changed, changed.is_leaf


@pytest.mark.parametrize("fn", [asks_whether_it_is_a_leaf, asks_for_its_history, gives_views_of_it, writes_while_recorded])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_views_of_a_leaf_that_is_a_view_itself(backend, fn):
    def story(fn):
        leaf, view = view_of_a_leaf_that_is_a_view()
        found = fn(leaf, view)
        told = [(each.tolist(), each.requires_grad, each.is_leaf) if isinstance(each, torch.Tensor) else each for each in found]
        try:
            found[0].sum().backward()
        except RuntimeError as error:
            return told, str(error)
        return told, None if leaf.grad is None else leaf.grad.tolist()

    compiled = fxjit.compile(fn, backend=backend)
    for _ in range(2):
        assert story(compiled) == story(fn)
