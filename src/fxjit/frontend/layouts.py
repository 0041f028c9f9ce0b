"""Layouts of tensors in the graph: sparse inputs, and results that are not passed on from graph to graph."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.fx

from fxjit.homes import target_name
from fxjit.tensor_wrappers import is_sparse, is_wrapper

if TYPE_CHECKING:
    from fxjit.frontend.trace import Trace
    from fxjit.guards.source import Source


def sparse_input(t: Trace, tensor: torch.Tensor, source: Source) -> tuple[torch.fx.Node, torch.Tensor]:
    """The placeholder and the fake. Breaks the graph where sizes were seen to vary: one compile for each would be too many."""
    if None in t.policy.history.merge_sizes(source.name, tuple(tensor.shape)):
        t.break_("tensor-layout", layout=tensor.layout, why="its sizes vary")
    fake = t.policy.fake_mode.from_tensor(tensor, static_shapes=True)
    node = t.builder.placeholder(source, tensor, fake)
    t.speculation.met(node, fake)
    return node, fake


def check_layout(t: Trace, node: torch.fx.Node, result: torch.Tensor) -> None:
    """A result that could be no graph input is none of the graph's either: what works on it runs as it stands."""
    if is_wrapper(result):
        return
    what = ("a nested tensor" if result.is_nested else "a quantized tensor" if result.is_quantized
            else f"layout {result.layout}" if result.layout is not torch.strided and not is_sparse(result) else None)
    if what is not None:
        t.break_("tensor-layout", layout=what, why=f"the result of {target_name(node.target)}")  # type: ignore[arg-type]  # a call's target
