"""Lookups out of range in graphs that cannot start over, since they have an operator of the program's own: the kernel that
fails repeats the operators that it stands for, and what is raised is eager's."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from tests.differential import assert_same

import fxjit


@torch.library.custom_op("fxjit_lookups::own", mutates_args=())
def own(x: torch.Tensor) -> torch.Tensor:
    return x.clone()


@own.register_fake
def _(x):
    return torch.empty_like(x)


own.register_autograd(lambda ctx, grad: grad)


@torch.library.custom_op("fxjit_lookups::fill", mutates_args=("x",))
def fill(x: torch.Tensor) -> None:
    x.fill_(2)


def filled(x):
    x = x.clone()
    fill(x)
    return x


def increased(x, i):
    x = x.clone()
    x[i] += 1
    return x


LOOKUPS = {
    "index": lambda i, w: w[i],
    "index of several": lambda i, w: w[i, i - 1],
    "index along the last": lambda i, w: w.mT[:, i] * 2,
    "index of a view": lambda i, w: w[:, None, :][i, 0],
    "index of halves": lambda i, w: w.bfloat16()[i].float().exp(),
    "embedding": lambda i, w: F.embedding(i, w),
    "embedding_bag": lambda i, w: F.embedding_bag(i, w, torch.tensor([0])),
    "two lookups": lambda i, w: w[i].softmax(-1).sum() + F.embedding(i, w).sum(),
    "gather": lambda i, w: torch.gather(w.cumsum(0), 0, i[:, None]),
    "take_along_dim": lambda i, w: w.take_along_dim(i[:, None], 0),
    "take": lambda i, w: torch.take(w, i * 5),
    "index_select": lambda i, w: w.index_select(1, i),
    "index_copy": lambda i, w: w.index_copy(0, i, torch.ones(len(i), w.shape[1])),
    "index_add": lambda i, w: w.index_add(0, i, torch.ones(len(i), w.shape[1])),
    "index_put": lambda i, w: increased(w, i),
    "scatter": lambda i, w: w.scatter(0, i[:, None], 1.0),
    "scatter_add": lambda i, w: w.scatter_add(0, i[:, None], torch.ones(len(i), 1)).sum(),
    "scatter_reduce": lambda i, w: w.scatter_reduce(0, i[:, None], torch.ones(len(i), 1), "amax"),
    "cross_entropy": lambda i, w: F.cross_entropy(w @ w.T, (i * 2).expand(w.shape[0]) % 16),
    "nll_loss": lambda i, w: F.nll_loss(w.log_softmax(-1), i.expand(w.shape[0]), torch.ones(w.shape[1])),
    "what the operator gives": lambda i, w: (own(w) * 2).relu()[i + 1] + 1,
    "what an operator wrote": lambda i, w: filled(w)[i],
}


@pytest.fixture(autouse=True)
def fresh():
    fxjit.reset()


def outcome(fn, index: int, grad: bool):
    weight = torch.arange(6.0).reshape(3, 2).requires_grad_(grad)
    try:
        return fn(torch.ones(2), torch.tensor([index]), weight).detach()
    except Exception as error:
        return type(error), str(error)


SEVERAL_KERNELS = ("two lookups", "cross_entropy", "what the operator gives")


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    ("lookup", "dynamic"), [*((name, None) for name in LOOKUPS), *((name, True) for name in SEVERAL_KERNELS)])
def test_a_lookup_out_of_range_beside_an_operator_of_the_programs_own(lookup: str, dynamic: bool | None):
    def fn(x, i, w):
        return LOOKUPS[lookup](i, w) + own(x).sum()

    for grad in (False, True):
        compiled = fxjit.compile(fn, backend="native", fullgraph=True, dynamic=dynamic)
        for index in (1, 9, -9, 0, 9):
            assert_same(outcome(compiled, index, grad), outcome(fn, index, grad), rtol=1e-5)


def test_nothing_is_kept_or_repeated_where_the_call_succeeds():
    """What the repetition would read and make stays out of a call that goes on: inputs go with their last use."""
    def fn(x, i, w):
        y = (own(x) + 1)[i]
        return y.exp() @ w

    compiled = fxjit.compile(fn, backend="native")
    x, w = torch.randn(5, 4), torch.randn(4, 3)
    for index in ([0, 4], [1, 2], [3, 3]):
        assert_same(compiled(x, torch.tensor(index), w), fn(x, torch.tensor(index), w), rtol=1e-5)


CALLS: list[str] = []


@torch.library.custom_op("fxjit_lookups::counted", mutates_args=())
def counted(x: torch.Tensor) -> torch.Tensor:
    CALLS.append("counted")
    return x.clone()


@counted.register_fake
def _(x):
    return torch.empty_like(x)


counted.register_autograd(lambda ctx, grad: grad)


def set_places(w, i):
    w = w.clone().uniform_()
    w[i] = 1
    return w.normal_()


ORDERS = {
    "behind the lookup": lambda x, i, w: counted(x).sum() + w[i] + torch.rand(2),
    "before it": lambda x, i, w: counted(x) + torch.rand(2) * w[i],
    "around it": lambda x, i, w: torch.rand(2) * counted(x) + w.exp()[i] + torch.randn(2),
    "dropout": lambda x, i, w: F.dropout(F.dropout(w[i]) * counted(x)),
    "dropout before": lambda x, i, w: F.dropout(w)[i] + counted(x),
    "integers": lambda x, i, w: F.embedding(i, w) * torch.randn(2) + counted(x) + w[torch.randint(0, 3, (1,))],
    "permutation": lambda x, i, w: (F.embedding(i, w), w[torch.randperm(3)], counted(x))[0],
    "in place": lambda x, i, w: set_places(w, i) + counted(x),
    "an operator behind the lookup": lambda x, i, w: w.relu()[i] * 2 + counted(x),
    "operators around it": lambda x, i, w: counted(x) + w.relu()[i] * 2 + counted(x + 1),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_what_stands_behind_a_lookup_that_fails_was_not_done(backend: str, order: str):
    """Random numbers are drawn, and operators of the program's own called, as far as eager came."""
    fn = ORDERS[order]
    for grad in (False, True):
        compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
        for index in (1, 9, 0, -9):
            found = []
            for each in (fn, compiled):
                CALLS.clear()
                torch.manual_seed(3)
                found.append((outcome(each, index, grad), len(CALLS), torch.rand(2)))
            assert_same(found[1], found[0], rtol=1e-5)
