"""Random programs of pointwise operators, reductions, views and layouts, against eager: what fusion gets wrong shows here.

`FXJIT_FUZZ_KERNELS=100:200` runs others; a failure names its seed."""

from __future__ import annotations

import os
import random

import pytest
import torch
from tests.differential import assert_same_call, scaled
from torch.fx.experimental.proxy_tensor import make_fx

from fxjit.backends.native import pipeline

SEEDS = [*range(18), 924, 928]
if "FXJIT_FUZZ_KERNELS" in os.environ:
    SEEDS = [*range(*map(int, os.environ["FXJIT_FUZZ_KERNELS"].split(":")))]

UNARY = [
    torch.relu,
    torch.sigmoid,
    torch.tanh,
    torch.neg,
    torch.abs,
    lambda x: x * 0.5 + 1,
    lambda x: x.clamp(-1, 1),
    torch.sin,
]
BINARY = [
    torch.add,
    torch.sub,
    torch.mul,
    torch.maximum,
    lambda a, b: torch.where(a > b, a, b * 0.5),
    lambda a, b: a / (b.abs() + 1),
]
DIMS = [(0,), (1,), (-1,), (0, 1)]


def program(seed: int):
    """A function of two tensors that calls `steps` random operators; deterministic in the seed."""

    def function(x, y):
        choose = random.Random(seed)
        values = [x, y]
        for _ in range(choose.randint(4, 14)):
            values.append(step(choose, values))
        picked = choose.sample(values[2:], min(len(values) - 2, choose.randint(1, 5)))
        return [value.clone() if value._is_view() or value is x or value is y else value for value in picked]

    return function


def step(choose: random.Random, values: list[torch.Tensor]) -> torch.Tensor:
    a = choose.choice(values)
    kind = choose.choice(
        ["unary", "unary", "binary", "binary", "binary", "reduce", "norm", "view", "view", "layout", "cat", "matmul", "type"]
    )
    if kind == "binary":
        partners = [b for b in values if broadcasts(a, b)]
        return choose.choice(BINARY)(a, choose.choice(partners))
    if kind == "reduce" and a.dim() >= 2:
        dims = choose.choice(DIMS)
        return choose.choice([torch.sum, torch.mean, torch.amax, torch.amin])(a, dims, keepdim=choose.random() < 0.6)
    if kind == "norm" and a.dim() >= 1:
        dim = choose.randrange(a.dim())
        return choose.choice([torch.softmax, torch.log_softmax, lambda t, d: t - t.mean(d, keepdim=True)])(a, dim)
    if kind == "view" and a.dim() >= 2:
        return view(choose, a)
    if kind == "layout" and a.dim() >= 2:
        return a.transpose(0, -1).contiguous()
    if kind == "cat":
        assert_same = [b for b in values if b.shape == a.shape and a.dim() >= 1]
        if assert_same:
            return torch.cat([a, choose.choice(assert_same)], choose.randrange(a.dim()))
    if kind == "matmul" and a.dim() == 2:
        fits = [b for b in values if b.dim() == 2 and b.shape[0] == a.shape[1]]
        if fits:
            return (a @ choose.choice(fits)).tanh()
    if kind == "type":
        return a.double().exp().float() if choose.random() < 0.5 else (a.bfloat16().float() + 0)
    return choose.choice(UNARY)(a)


def view(choose: random.Random, a: torch.Tensor) -> torch.Tensor:
    made = [
        lambda: a.transpose(0, 1), lambda: a.reshape(-1), lambda: a[:1], lambda: a[..., ::2],
        lambda: a.unsqueeze(choose.randrange(a.dim() + 1)),
        lambda: a.flatten(0, 1), lambda: a.select(choose.randrange(a.dim()), 0), lambda: a.flip(0),
        lambda: a.reshape(a.shape[0], -1),
    ]  # fmt: skip
    return choose.choice(made)()


def broadcasts(a: torch.Tensor, b: torch.Tensor) -> bool:
    try:
        size = torch.broadcast_shapes(a.shape, b.shape)
    except RuntimeError:
        return False
    return size.numel() <= 20_000


def assert_random_program_same(seed, mode):
    torch.manual_seed(seed)
    shape = random.Random(seed).choice([(6, 8), (4, 4), (3, 5, 7), (2, 3, 4, 5), (17, 33), (1, 9)])
    x, y = torch.randn(shape), torch.randn(shape)
    if seed % 3 == 0:
        y = torch.randn(shape[::-1]).permute(*reversed(range(len(shape))))
    function = program(seed)
    gm = make_fx(function, tracing_mode=mode)(x, y)
    compiled = pipeline.compile_graph(gm, [x, y], lone_kernels=seed % 2 == 0)
    assert_same_call(
        lambda *args: list(function(*args)), lambda *args: list(compiled([*args])), x, y, rtol=scaled(10), strides=False
    )


@pytest.mark.parametrize("seed", SEEDS)
def test_a_random_program(seed):
    assert_random_program_same(seed, "fake")


@pytest.mark.parametrize("seed", SEEDS[1::3])
def test_a_random_program_with_symbolic_sizes(seed):
    assert_random_program_same(seed + 10_000, "symbolic")
