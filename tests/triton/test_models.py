"""Small models through the whole of fxjit, their kernels Triton's and interpreted, against eager: results and gradients."""

from __future__ import annotations

import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxjit
from fxjit import config
from fxjit.counters import counters

from .conftest import assert_same

pytestmark = pytest.mark.usefixtures("interpreter")


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(16)
        self.qkv, self.out = nn.Linear(16, 48), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = (each.unflatten(-1, (2, 8)).transpose(1, 2) for each in self.qkv(self.norm(x)).chunk(3, -1))
        scores = (q @ k.transpose(-1, -2)) / 8**0.5
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        weights = torch.softmax(scores.masked_fill(~mask, float("-inf")), -1)
        return x + self.out((weights @ v).transpose(1, 2).flatten(2))


class Convolution(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.Linear(8, 5)

    def forward(self, x):
        x = F.relu(self.norm(self.conv(x)))
        return self.head(F.max_pool2d(x, 2).mean((2, 3)))


class Embedding(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.norm, self.out = nn.Embedding(20, 16), nn.RMSNorm(16), nn.Linear(16, 20, bias=False)

    def forward(self, tokens):
        return F.log_softmax(self.out(self.norm(self.words(tokens)) * 2), -1)


MODELS = {
    "mlp": (
        lambda: nn.Sequential(nn.Linear(12, 40), nn.GELU(), nn.LayerNorm(40), nn.Linear(40, 7)),
        lambda: torch.randn(9, 12),
    ),
    "attention": (Attention, lambda: torch.randn(2, 11, 16)),
    "convolution": (Convolution, lambda: torch.randn(2, 3, 8, 8)),
    "embedding": (Embedding, lambda: torch.randint(20, (3, 7))),
}


@pytest.mark.parametrize("name", list(MODELS))
def test_inference(name):
    torch.manual_seed(0)
    make, example = MODELS[name]
    model = make().eval()
    compiled = fxjit.compile(model)
    before = counters["native"]["kernels"]
    with torch.no_grad():
        for _ in range(2):
            x = example()
            assert_same(compiled(x), model(x), name)
    assert counters["native"]["kernels"] > before


@pytest.mark.parametrize("name", list(MODELS))
def test_training(name):
    """Two steps of an optimizer, the second from what the first left."""
    torch.manual_seed(0)
    make, example = MODELS[name]
    model = make().train()
    other = copy.deepcopy(model)
    inputs = [example(), example()]
    seen = []
    for each, step in ((model, fxjit.compile(model)), (other, other)):
        optimizer = torch.optim.SGD(each.parameters(), lr=0.1, momentum=0.9)
        losses = []
        for x in inputs:
            optimizer.zero_grad()
            loss = step(x).square().mean()
            loss.backward()
            optimizer.step()
            losses.append(loss.detach())
        parameters = list(each.parameters())
        seen.append((losses, [p.grad for p in parameters], [p.detach() for p in parameters], list(each.buffers())))
    for ours, eager in zip(*seen):
        for a, b in zip(ours, eager):
            torch.testing.assert_close(a, b, rtol=2e-4, atol=2e-5)


def test_sizes_that_vary():
    torch.manual_seed(0)
    model = Attention().eval()
    compiled = fxjit.compile(model, dynamic=True)
    first = 0
    before = counters["native"]["kernels"]
    with torch.no_grad():
        for batch, length in ((2, 5), (3, 9), (1, 30)):
            x = torch.randn(batch, length, 16)
            assert_same(compiled(x), model(x))
            first = first or counters["native"]["kernels"]
    # One program of all these lengths; a batch of one may be another.
    assert counters["native"]["kernels"] - before <= 2 * (first - before)


def test_mutation_of_an_input():
    @fxjit.compile
    def step(x, state):
        state.mul_(0.9).add_(x.sum(0), alpha=0.1)
        return (x - state).relu()

    x, state, expected = torch.randn(5, 8), torch.zeros(8), torch.zeros(8)
    for _ in range(3):
        result = step(x, state)
        expected.mul_(0.9).add_(x.sum(0), alpha=0.1)
        assert_same(result, (x - expected).relu())
        assert_same(state, expected)


def test_random_numbers_are_eagers():
    dropout = fxjit.compile(lambda x: F.dropout(x, 0.3, training=True) * 2)
    x = torch.randn(64)
    torch.manual_seed(5)
    with config.patch(fallback_random=True):
        ours = dropout(x)
    torch.manual_seed(5)
    assert_same(ours, F.dropout(x, 0.3, training=True) * 2)
