"""`config.guard_nn_modules = False`: what is inside of modules is taken to stay, but for tensors and `training`."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch import nn

import fxjit
from fxjit.counters import counters


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    fxjit.reset()
    yield
    fxjit.reset()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.dropout = nn.Dropout(0.5)
        self.factor = 2

    def forward(self, x: torch.Tensor, times: int = 1) -> torch.Tensor:
        return self.dropout(self.linear(x)) * self.factor * times


X = torch.arange(6.0).reshape(2, 3)


def compiles() -> int:
    return counters["frames"]["ok"]


def compiled(net: Net, guard: bool) -> Callable[..., torch.Tensor]:
    fast = fxjit.compile(net, backend="eager")
    with fxjit.config.patch(guard_nn_modules=guard):
        fast(X)
    return fast


@pytest.mark.parametrize("guard", [True, False])
def test_attributes_are_guarded_only_when_asked_for(guard: bool) -> None:
    net = Net().eval()
    fast = compiled(net, guard)
    before, old = compiles(), net(X)
    net.factor = 3
    assert torch.equal(fast(X), net(X) if guard else old)
    assert compiles() == before + guard


CHANGES: dict[str, Callable[[Net], object]] = {
    "training": lambda net: net.train(),
    "training of a child": lambda net: net.dropout.train(),
    "requires_grad": lambda net: net.linear.weight.requires_grad_(False),
    "size": lambda net: setattr(net, "linear", nn.Linear(3, 5)),
}


@pytest.mark.parametrize("change", CHANGES)
def test_tensors_and_training_are_always_guarded(change: str) -> None:
    net = Net().eval()
    fast = compiled(net, False)
    before = compiles()
    CHANGES[change](net)
    torch.manual_seed(0)
    expected = net(X)
    torch.manual_seed(0)
    assert torch.equal(fast(X), expected)
    assert compiles() == before + 1


def test_arguments_are_always_guarded() -> None:
    net = Net().eval()
    fast = compiled(net, False)
    assert torch.equal(fast(X, 2), net(X, 2)) and torch.equal(fast(X.double()[:1].float(), 3), net(X[:1], 3))
