"""Leaf tensors that a trace made: `requires_grad_()`, `requires_grad=True`.

A graph cannot make a leaf of the autograd graph that anybody could get hold of. The gradient of one that stays
inside it is never read, so that the graph goes on with the tensor as it is: `Leaves` has the fake tensors that were set to
require one, and finds out at the end whether the program could see the difference.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
import torch.fx


class Leaves:
    """The leaves that one trace made."""

    def __init__(self) -> None:
        self._made: dict[int, torch.Tensor] = {}

    def set(self, fake: torch.Tensor, wanted: bool) -> bool:
        """`fake.requires_grad_(wanted)`; False where that would raise, or is about a tensor that is no leaf of this trace."""
        if not wanted and id(fake) not in self._made:
            return False
        try:
            fake.requires_grad_(wanted)
        except RuntimeError:  # of integers, or no leaf any more
            return False
        self._made[id(fake)] = fake
        return True

    def stay_inside(self, seen: Iterable[object]) -> bool:
        """Whether of the tensors among `seen`, those that outlive the graph, none is such a leaf, and none requires a gradient
        for the sake of such leaves alone."""
        return not self._made or all(self._requires_grad_anyway(each) for each in seen if isinstance(each, torch.Tensor))

    def _requires_grad_anyway(self, fake: torch.Tensor) -> bool:
        if not fake.requires_grad:
            return True
        if fake.grad_fn is None:
            return id(fake) not in self._made
        known: set[Any] = set()
        waiting: list[Any] = [fake.grad_fn]
        while waiting:
            node = waiting.pop()
            leaf = getattr(node, "variable", None)
            if leaf is not None and id(leaf) not in self._made:
                return True
            following = [each for each, _ in node.next_functions if each is not None and each not in known]
            known.update(following)
            waiting += following
        return False
