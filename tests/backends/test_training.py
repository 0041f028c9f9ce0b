"""What a training loop may do with a compiled graph's backward."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import fxjit

BACKENDS = ["aot_eager", "native"]


def gradients(module, loss):
    module.zero_grad()
    loss.backward(retain_graph=True)
    return [parameter.grad.clone() for parameter in module.parameters()]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_kept_graph_is_walked_twice(backend):
    """Batch norm writes to its buffers, so that AOTAutograd's own wrappers run the graphs."""
    torch.manual_seed(0)
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.SiLU())
    module = copy.deepcopy(plain)
    compiled = fxjit.compile(module, backend=backend)
    x = torch.randn(2, 3, 8, 8)
    wanted, got = plain(x).sin().sum(), compiled(x).sin().sum()
    for _ in range(2):
        torch.testing.assert_close(gradients(module, got), gradients(plain, wanted))


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("needs_grad", [False, True])
def test_an_lstm_has_eagers_gradients(backend, needs_grad):
    """oneDNN's kernel keeps what its backward needs only where grad mode is on."""
    torch.manual_seed(0)
    plain = nn.LSTM(8, 16, 2, batch_first=True, bidirectional=True)
    module = copy.deepcopy(plain)
    compiled = fxjit.compile(module, backend=backend, fullgraph=True)
    x = torch.randn(3, 7, 8, requires_grad=needs_grad)
    for _ in range(2):
        (wanted, _), (got, _) = plain(x), compiled(x)
        torch.testing.assert_close(got, wanted)
        torch.testing.assert_close(gradients(module, got.sum()), gradients(plain, wanted.sum()))


@pytest.mark.parametrize("name", ["AdamW", "SGD", "Adagrad"])
def test_a_fused_optimizer_step_is_eagers(name):
    """Functionalization refuses some of these operators; their graph then runs as it was captured."""

    def train(compiled):
        torch.manual_seed(0)
        module = nn.Linear(4, 3)
        optimizer = getattr(torch.optim, name)(module.parameters(), lr=0.1, fused=True)

        def step(x):
            optimizer.zero_grad()
            loss = module(x).square().mean()
            loss.backward()
            optimizer.step()
            return loss.detach()

        step = fxjit.compile(step) if compiled else step
        return [step(torch.full((2, 4), float(n))) for n in range(1, 4)], list(module.parameters())

    torch.testing.assert_close(train(compiled=True), train(compiled=False))
