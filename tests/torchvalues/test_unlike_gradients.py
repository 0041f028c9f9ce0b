"""Parameters with a gradient of another type or size than their own: a module was cast, or given other data, between forward
and backward."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

import fxjit


def cast(net: torch.nn.Linear) -> None:
    loss = net(torch.ones(2, 4)).sum()
    net.to(torch.bfloat16)
    loss.backward()


def resized(net: torch.nn.Linear) -> None:
    net(torch.ones(2, 4)).sum().backward()
    net.weight.data = torch.ones(6, 4)
    net.bias.data = torch.ones(6)


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("change", [cast, resized])
def test_a_module_whose_gradients_are_not_like_its_parameters(change: Callable[[torch.nn.Linear], None], backend: str) -> None:
    def run(compiles: bool) -> list[object]:
        torch.manual_seed(0)
        net = torch.nn.Linear(4, 4)
        module = fxjit.compile(net, backend=backend) if compiles else net
        module(torch.ones(2, 4))
        change(net)
        told: list[object] = []
        for _ in range(2):
            result = module(torch.ones(2, 4, dtype=net.weight.dtype))
            told += [result.tolist(), result.dtype, net.weight.grad is None]
            net.zero_grad()
        result.sum().backward()
        assert net.weight.grad is not None
        return [*told, net.weight.grad.tolist()]

    assert run(True) == run(False)
