"""Inputs that a collective is still making (`AsyncCollectiveTensor`), as `redistribute(async_op=True)` of a distributed tensor
gives them.

A graph is compiled for, and called with, what they are once they are waited for: plain tensors, which stand behind them in
autograd. AOTAutograd takes such a wrapper apart, and gives the gradient of one that is a view to nobody.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.fx

from fxjit import torch_private

from ..graph import recipe
from ..graph.edit import copied

Call = Callable[..., Any]


def places_of_unfinished(example_inputs: Sequence[Any]) -> list[int]:
    wrapped = any(type(each) is not torch.Tensor and isinstance(each, torch.Tensor) for each in example_inputs)
    unfinished = torch_private.optional("torch.distributed._functional_collectives.AsyncCollectiveTensor") if wrapped else None
    if unfinished is None or isinstance(unfinished, torch_private.Absent):
        return []
    return [place for place, each in enumerate(example_inputs) if isinstance(each, unfinished)]


def compile_finished(gm: torch.fx.GraphModule, example_inputs: Sequence[Any], places: Sequence[int],
                     compile_graph: Callable[[torch.fx.GraphModule, Sequence[Any]], Call]) -> Call:
    """The graph, compiled for finished inputs; its callable takes those that are given to it, finished or not."""
    finished = [_finished(each) if place in places else each for place, each in enumerate(example_inputs)]
    changed = copied(gm)
    placeholders = changed.graph.find_nodes(op="placeholder")
    for place in places:
        placeholders[place].meta["example_value"] = finished[place]
    with recipe.noted():
        compiled = compile_graph(changed, finished)
    recipe.note(None)

    def run(*args: Any) -> Any:
        given = list(args)
        for place in places:
            given[place] = _finished(given[place])
        return compiled(*given)

    return run


def _finished(unfinished: Any) -> torch.Tensor:
    if torch.is_grad_enabled() and unfinished.requires_grad:
        return _Finished.apply(unfinished)  # type: ignore[no-any-return]  # untyped in torch
    with torch.no_grad():
        return unfinished.trigger_wait()  # type: ignore[no-any-return]  # untyped in torch


class _Finished(torch.autograd.Function):
    """The result of the collective, differentiably: in the same memory."""

    @staticmethod
    def forward(ctx: Any, unfinished: Any) -> torch.Tensor:
        result: torch.Tensor = unfinished.trigger_wait()
        return result.view_as(result)  # the tensor itself is the wrapper's own, which autograd is not to mark

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> torch.Tensor:  # type: ignore[override]  # one gradient
        return gradient
