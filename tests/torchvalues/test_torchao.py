"""torchao's optimizers of few bits, whose step asks for one graph: eager's parameters and codes as far as rounding allows."""

from __future__ import annotations

import pytest
import torch
from torch.nn import Linear, ReLU, Sequential

import fxjit

optim = pytest.importorskip("torchao.optim")
#: What a product of floats may be off by: half of the last digit.
ROUNDING = 3e-8


@pytest.fixture(autouse=True)
def installed():
    fxjit.reset()
    fxjit.install()
    yield
    torch.compiler.set_default_backend(None)
    fxjit.uninstall()


def trained(kind, rounding=0.0, seed=0):
    """Parameters and the optimizer's codes after four steps, of parameters that a step leaves wrong by `rounding`."""
    torch.manual_seed(0)
    model, x = Sequential(Linear(64, 64), ReLU(), Linear(64, 64)), torch.randn(4, 64)
    optimizer, noise = getattr(optim, kind)(model.parameters(), lr=1e-3), torch.Generator().manual_seed(seed)
    for _ in range(4):
        model(x).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        for parameter in model.parameters():
            parameter.data.mul_(1 + rounding * torch.randn(parameter.shape, generator=noise))
    states = [state for parameter in model.parameters() for state in optimizer.state[parameter].values()]
    return [parameter.detach() for parameter in model.parameters()], [each.codes for each in states if hasattr(each, "codes")]


def distance(first, second):
    return max((a - b).abs().max().item() for a, b in zip(first[0], second[0], strict=True))


@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamW4bit"])
def test_a_step_is_eagers_to_the_last_bit(kind):
    with torch.compiler.set_stance("force_eager"):
        expected = trained(kind)
    torch.compiler.set_default_backend("eager")
    found = trained(kind)
    assert len(found[1]) == 4, "weights of 64 times 64 have states of few bits"
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    assert not fxjit.counters["graph_break"] and fxjit.counters["stats"]["unique_graphs"] == 2, "weights and biases"


@pytest.mark.parametrize("kind", ["AdamW8bit", "AdamW4bit"])
def test_kernels_are_off_by_no_more_than_eager_is_by_rounding(kind):
    """A value that lies in the middle between two codes takes the other one for the last digit of what it is computed of."""
    with torch.compiler.set_stance("force_eager"):
        expected = trained(kind)
        by_rounding = [distance(trained(kind, ROUNDING, seed), expected) for seed in range(6)]
    found = trained(kind)
    assert distance(found, expected) <= 2 * max(by_rounding)
    assert sum(int((a != b).sum()) for a, b in zip(found[1], expected[1], strict=True)) <= 8
