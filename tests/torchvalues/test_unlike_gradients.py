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


def leaf(size: int) -> torch.Tensor:
    return torch.arange(2.0 * size).reshape(2, size).clone().requires_grad_()


def leaf_that_is_a_view(size: int) -> torch.Tensor:
    return torch.arange(2.0 * size).reshape(2, size).requires_grad_()


def kept(size: int) -> torch.Tensor:
    x = leaf(size) * 2
    x.retain_grad()
    return x


RESHAPED: dict[str, Callable[[torch.Tensor], object]] = {
    "t_": lambda x: x.t_(),
    "squeeze_": lambda x: x.squeeze_(),
    "unsqueeze_": lambda x: x.unsqueeze_(0),
    "resize_": lambda x: x.resize_(x.numel()),
    "set_": lambda x: x.set_(x.new_ones(3, 2)),
    "data": lambda x: setattr(x, "data", x.new_ones(5, 2)),
}


@pytest.mark.parametrize("make", [leaf, leaf_that_is_a_view, kept])
@pytest.mark.parametrize("name", RESHAPED)
def test_gradients_of_tensors_that_got_another_shape(name: str, make: Callable[[int], torch.Tensor]) -> None:
    def program(x: torch.Tensor) -> torch.Tensor:
        RESHAPED[name](x)
        return x + 1

    fxjit.reset()
    compiled = fxjit.compile(program, backend="eager")
    for size in (3, 4, 5):
        seen: list[object] = []
        for call in (program, compiled):
            calls: list[object] = []
            x = make(size)
            (x * x).sum().backward()
            for _ in range(2):
                with torch.no_grad():
                    try:
                        calls.append(call(x).tolist())
                    except (RuntimeError, IndexError) as error:
                        calls.append((type(error), str(error)))
                calls.append((x.tolist(), x.stride(), x.grad.shape))
            seen.append(calls)
        assert seen[0] == seen[1]
