"""Calls whose results nobody uses raise what they raise in eager, and the others are dropped."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit.backends.graph import facts

aten = torch.ops.aten


def written_at_places(x, i):
    x.clone()[i] = 2


def set_to_zero(x, i):
    return x[i].zero_()


def copied_to(x, i):
    return x[i].copy_(x[0])


def behind_a_write(x, i):
    x.exp_()
    x.cos()[i]
    return x.sin()


def before_a_write(x, i):
    y = x.sin()[i] * 2
    x.exp_()
    return torch.ones_like(y)


#: Each raises with an index of 9.
CALLS = {
    "item": lambda x, i: x[i], "items of items": lambda x, i: x[:, i.clamp(max=3)][i], "mask": lambda x, i: (x > 0)[i],
    "embedding": lambda x, i: F.embedding(i, x), "bag": lambda x, i: F.embedding_bag(i.view(1, -1), x),
    "gather": lambda x, i: x.gather(0, i.view(-1, 1)), "select": lambda x, i: x.index_select(0, i).sum() + 1,
    "take": lambda x, i: x.take(i * 2), "one_hot": lambda x, i: F.one_hot(i, 3),
    "add": lambda x, i: x.clone().index_add_(0, i, x[:1]), "put": lambda x, i: x.put(i * 2, x[0, :1]),
    "scatter": lambda x, i: torch.zeros_like(x).scatter_(0, i.view(1, 1), 1.0),
    "loss": lambda x, i: F.cross_entropy(x[:1], i).exp(), "margin": lambda x, i: F.multi_margin_loss(x[:1], i),
    "division": lambda x, i: 4 // (i - 9), "remainder": lambda x, i: i % (i - 9),
    "check": lambda x, i: torch._assert_async((i < 5).all()), "told": lambda x, i: torch._assert_async((i < 5).all(), "large"),
    "probability": lambda x, i: F.binary_cross_entropy(x * i, x), "range": lambda x, i: torch.histc(x / (9 - i)),
    "matrix": lambda x, i: torch.linalg.inv(x[:3, :3] * 0 + torch.eye(3) * (9 - i)),
    "masked": lambda x, i: x.masked_scatter(x * i > 1, x[0, :2]), "size": lambda x, i: x[i].shape,
    "shape": lambda x, i: torch.zeros_like(x[i]), "places": written_at_places, "zero": set_to_zero, "copied": copied_to,
    "unpooled": lambda x, i: F.max_unpool2d(x.view(1, 1, 4, 4)[:, :, :1, :1], i.view(1, 1, 1, 1), 2),
    "behind": behind_a_write, "before": before_a_write,
}  # fmt: skip


def outcome(call, index, grad):
    x = (torch.arange(1.0, 17.0).view(4, 4) / 16).requires_grad_(grad) * 1
    try:
        found = call(x, torch.tensor([index]))
    except (RuntimeError, IndexError) as error:
        found = f"{type(error).__name__}: {error}"
    return found, x.detach()


def skip_unchecked(name, backend):
    if name in ("one_hot", "classes") and backend != "eager" and torch.__version__.startswith("2.11."):
        pytest.skip("what this torch makes of it checks nothing")


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("backend", ["eager", "native"])
def test_what_nobody_uses_raises_as_in_eager(name, backend):
    skip_unchecked(name, backend)
    used = name in ("zero", "copied", "behind", "before", "shape")

    def program(x, i):
        made = CALLS[name](x, i)
        return (made if used else x) + 1

    fxjit.reset()
    compiled = fxjit.compile(program, backend=backend)
    for index in (0, 9):
        for grad in (False, True) if backend == "native" else (False,):
            (expected, left), (found, ours) = outcome(program, index, grad), outcome(compiled, index, grad)
            assert isinstance(expected, str) == (index == 9), expected
            if index == 9:
                assert found == expected
            else:
                torch.testing.assert_close(found, expected)
            torch.testing.assert_close(ours, left)


#: Each is refused by an operator whatever the numbers are, or for numbers that are known while compiling.
REFUSED = {
    "softmax": lambda x: F.softmax(x, 3), "softmin": lambda x: F.softmin(x, -4), "logarithm": lambda x: F.log_softmax(x, 3),
    "put at": lambda x: x.select_scatter(x[0], 5, 0), "slice put": lambda x: x.slice_scatter(x[:1], 4),
    "put beyond": lambda x: x.select_scatter(x[0], 0, 9), "too large": lambda x: x.slice_scatter(x, 0, 1),
    "sorted": lambda x: x.sort(3), "summed up": lambda x: x.cummax(2), "chosen": lambda x: x.index_select(2, torch.tensor([0])),
    "classes": lambda x: F.one_hot(torch.tensor([8]), 3) + x.sum(), "added": lambda x: x.scatter_add(1, torch.tensor([[8]]), x),
    "diagonal": lambda x: x.diagonal_scatter(x[0, :2]),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
@pytest.mark.parametrize("backend", ["aot_eager", "native"])
def test_what_operators_refuse_raises_as_in_eager(name, backend):
    skip_unchecked(name, backend)
    fxjit.reset()
    compiled = fxjit.compile(REFUSED[name], backend=backend)
    for grad in (False, True):
        expected, found = (outcome(lambda x, _: call(x), 0, grad)[0] for call in (REFUSED[name], compiled))
        assert isinstance(expected, str)
        assert found == expected


def marked(function, *inputs):
    graph = make_fx(torch.func.functionalize(function), tracing_mode="fake")(*inputs).graph
    facts.mark_checks(graph)
    graph.eliminate_dead_code(lambda node: facts.is_check(node) or node.is_impure())
    return {node.target for node in graph.nodes if node.op == "call_function"}


def test_what_cannot_raise_on_numbers_is_dropped():
    x, i = torch.rand(4, 4), torch.tensor([1, 2])

    def harmless(x, i):
        x.sin() @ x, x.softmax(0), torch.cat([i, i]), i * 2 + i, i.sum(), i.sort(), x[1:], i.float().exp(), x.view(-1), x.max(0)
        return x + 1

    def unwritten(x, i):
        F.nll_loss(x, i.new_empty(8).view(2, 4)[0]), x[torch.empty_like(i)]
        return x + 1

    def raising(x, i):
        i.cos(), x[i].exp(), i // i, x[torch.empty_like(i).fill_(9)]
        return x + 1

    assert marked(harmless, x, i) == marked(unwritten, x, i) == {aten.add.Tensor}
    assert marked(raising, x, i) >= {aten.add.Tensor, aten.index.Tensor, aten.floor_divide.default}
