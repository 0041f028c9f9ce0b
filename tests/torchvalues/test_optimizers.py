"""A training step: what torch.optim does is captured whole, with eager's parameters afterwards."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import fxjit

KINDS = {
    "sgd": (torch.optim.SGD, {"lr": 0.1}),
    "momentum": (torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "foreach": True}),
    "adamw": (torch.optim.AdamW, {"lr": 0.01}),
    "adamw_foreach": (torch.optim.AdamW, {"lr": 0.01, "foreach": True}),
    "adam": (torch.optim.Adam, {"lr": 0.01, "foreach": False, "amsgrad": True}),
    "rmsprop": (torch.optim.RMSprop, {"lr": 0.01}),
    "adagrad": (torch.optim.Adagrad, {"lr": 0.01}),
    "adadelta": (torch.optim.Adadelta, {}),
}


def train(kind, compiler):
    """Losses and parameters after four steps."""
    cls, options = KINDS[kind]
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
    optimizer = cls(model.parameters(), **options)

    def step(x, y):
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.detach()

    step = compiler(step)
    losses = [step(torch.randn(6, 4), torch.arange(6) % 2) for _ in range(4)]
    return losses, [each.detach() for each in model.parameters()]


@pytest.mark.parametrize(("kind", "backend"), [*((kind, "eager") for kind in KINDS), ("adamw", "aot_eager"),
                                               ("momentum", "aot_eager"), ("adamw_foreach", "native")])
def test_a_step_is_a_graph_before_and_a_graph_after_backward(kind, backend):
    expected = train(kind, lambda fn: fn)
    inner = fxjit.lookup_backend(backend)
    graphs = []

    def counting(gm, inputs):
        graphs.append(gm)
        return inner(gm, inputs)

    actual = train(kind, lambda fn: fxjit.compile(fn, backend=counting))
    torch.testing.assert_close(actual, expected)
    assert len(graphs) <= 4, "two, and two more once the optimizer has made its state"


HALF = [(torch.float32,) * 3, (torch.bfloat16,) * 3, (torch.float32, torch.bfloat16, torch.bfloat16)]


@pytest.mark.parametrize("dtypes", HALF, ids=["float32", "bfloat16", "mixed"])
@pytest.mark.parametrize("name", ["addcdiv", "addcdiv_", "addcmul", "addcmul_"])
def test_a_factor_that_is_a_tensor_stays_in_the_graph(name, dtypes):
    def fn(x, a, b, factor):
        return getattr(x + 1, name)(a, b, value=-factor)

    args = [(torch.rand(300) + 1).to(dtype) for dtype in dtypes] + [torch.tensor(0.3)]
    fxjit.reset()
    torch.testing.assert_close(fxjit.compile(fn, fullgraph=True, backend="eager")(*args), fn(*args))


@pytest.mark.parametrize("dtypes", HALF, ids=["float32", "bfloat16", "mixed"])
@pytest.mark.parametrize("name", ["add", "add_", "sub", "sub_"])
def test_a_step_size_that_is_a_tensor_stays_in_the_graph(name, dtypes):
    def fn(x, a, factor):
        return getattr(x + 1, name)(a, alpha=factor), getattr(x + 1, name)(2, alpha=factor)

    args = [(torch.rand(300) + 1).to(dtype) for dtype in dtypes[:2]] + [torch.tensor(0.3)]
    fxjit.reset()
    torch.testing.assert_close(fxjit.compile(fn, fullgraph=True, backend="eager")(*args), fn(*args))
