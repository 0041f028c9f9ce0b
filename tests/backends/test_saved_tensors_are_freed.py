"""What forward saved, and the gradients that backward is given, are freed while it runs, each tensor after its last use."""

from __future__ import annotations

import weakref
from typing import Any

import pytest
import torch

import fxjit
from fxjit import config
from fxjit.backends.aot.runtime.autograd_node import AutogradNode


def test_nobody_holds_saved_tensors_but_the_backward_graph(monkeypatch: pytest.MonkeyPatch):
    fxjit.reset()
    alive: list[int] = []
    counts: list[int] = []
    init = AutogradNode.__init__

    def watched(self: Any, forward: Any, backward: Any, *others: Any) -> None:
        def run(args: list[Any]) -> Any:
            copies = [each.clone() for each in args]
            seen = [weakref.ref(each) for each in args if each.shape in ((7, 5), (7, 2))]
            args.clear()
            counts.append(len(seen))
            alive.extend(each() is not None for each in seen)
            return backward(copies)

        init(self, forward, run, *others)

    monkeypatch.setattr(AutogradNode, "__init__", watched)
    weight, other = torch.randn(3, 5, requires_grad=True), torch.randn(5, 2, requires_grad=True)

    def call(x: torch.Tensor) -> torch.Tensor:
        return (x @ weight).tanh() @ other

    with config.patch(cache_graphs=False, small_graphs_as_captured=False):
        y = fxjit.compile(call, fullgraph=True, dynamic=False)(torch.randn(7, 3))
        y.square().sum().backward()
    assert counts == [2]  # tanh's result, and y's gradient
    assert not any(alive)
    fxjit.reset()
