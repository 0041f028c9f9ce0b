"""Gradients of a leaf that `leaf.data = ...` has given other numbers while tracing."""

from __future__ import annotations

from typing import Any, Final

import torch

#: Memories of new data that the graph gives to operators whose gradients go to the leaf.
TAKEN_DATA: Final = "memories of data given to leaves"


class _GivenData(torch.autograd.Function):
    """The new numbers, over their own memory. What goes back arrives at the leaf, as where the leaf itself holds them."""

    @staticmethod
    def forward(leaf: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
        return data.data

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[torch.Tensor, torch.Tensor], output: torch.Tensor) -> None:
        """The backward pass needs nothing of the forward pass."""

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> Any:
        return gradients[0], None


def with_given_data(leaf: torch.Tensor, data: torch.Tensor) -> torch.Tensor:
    """Called by a node of the graph: the leaf as it is after `leaf.data = data`, which happens when the graph has run."""
    return _GivenData.apply(leaf, data)  # type: ignore[no-any-return, no-untyped-call]


with_given_data.gives_data = True  # type: ignore[attr-defined]  # for the backends
