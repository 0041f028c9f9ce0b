"""Operators that take functions: each function becomes a graph in the graph, with what it reads of the program around it."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch._higher_order_ops.scan import scan
from torch._higher_order_ops.while_loop import while_loop
from torch.nn.attention.flex_attention import create_block_mask, flex_attention

import fxjit

BIAS = torch.randn(3)
LINEAR = nn.Linear(3, 3).requires_grad_(False)


def nested(x):
    inner = lambda x: torch.cond(x.mean() > 0.5, lambda x: x + 1, lambda x: x - BIAS, (x,))  # noqa: E731
    return torch.cond(x.sum() > 0, inner, lambda x: x * 3, (x,))


def in_containers(x):
    return torch.cond(x.sum() > 0, lambda x, d: {"a": x.sin(), "b": [d["k"] + 1]},
                      lambda x, d: {"a": x.cos(), "b": [d["k"] * 2]}, (x, {"k": x * 2}))


def unrolled(x):
    for branch in (LINEAR, torch.sin, torch.tanh):
        x = torch.cond(x.sum() > 0, branch, lambda x: x.cos() - 1, (x,))
    return x


FUNCTIONS = {
    "cond": lambda x: torch.cond(x.sum() > 0, lambda x: x.sin(), lambda x: LINEAR(x) + BIAS, (x,)),
    "cond, nested": nested,
    "cond, containers": in_containers,
    "cond, in a loop": unrolled,
    "while_loop": lambda x: while_loop(lambda i, x: (i < 3) & (x.sum() < 100), lambda i, x: (i + 1, LINEAR(x) + BIAS),
                                       (torch.tensor(0), x)),
    "map": lambda x: torch._higher_order_ops.map(lambda row, y: LINEAR(row) + y, x, BIAS * 2),
    "scan": lambda x: scan(lambda carry, row: (carry * 0.5 + row, carry * row), torch.zeros(3), x),
    "scan, reverse": lambda x: scan(lambda c, row: ({"h": c["h"] + row[0]}, (c["h"] * row[1], row[0] + 1)),
                                    {"h": torch.zeros(3)}, (x, x * 2), reverse=True),
}


switch = getattr(torch._higher_order_ops, "switch", None)
BRANCHES = [lambda x: x.sin(), lambda x: LINEAR(x) + BIAS, lambda x: x * 3]


@pytest.mark.skipif(switch is None, reason="this torch has no switch")
@pytest.mark.parametrize("index", [-2, 0, 1, 2, 7])
def test_switch(assert_same_as_eager, index):
    assert_same_as_eager(lambda x, i: switch(i, BRANCHES, (x,)), torch.rand(2, 3, requires_grad=True), torch.tensor(index))
    assert_same_as_eager(lambda x: switch(index, BRANCHES, (x,)), torch.rand(2, 3, requires_grad=True))
    assert_same_as_eager(lambda x, i: switch(i, BRANCHES[:1], (x,)), torch.rand(2, 3), torch.tensor(index))


@pytest.mark.skipif(switch is None, reason="this torch has no switch")
def test_native_switch():
    compiled = fxjit.compile(lambda x, i: switch(i, BRANCHES, (x,)) + 1, fullgraph=True)
    x = torch.randn(2, 3)
    for index in (2, 0, 1):
        torch.testing.assert_close(compiled(x, torch.tensor(index)), BRANCHES[index](x) + 1)


@pytest.mark.parametrize("name", FUNCTIONS)
@pytest.mark.parametrize("sign", [1, -1])
def test_values(assert_same_as_eager, name, sign):
    assert_same_as_eager(FUNCTIONS[name], torch.rand(2, 3) * sign)


@pytest.mark.parametrize("name", ["cond", "map", "scan"])
def test_gradients(assert_same_as_eager, name):
    assert_same_as_eager(FUNCTIONS[name], torch.rand(2, 3, requires_grad=True))


def test_native():
    fn, x = FUNCTIONS["cond"], torch.randn(2, 3)
    compiled = fxjit.compile(fn, fullgraph=True)
    for given in (x.abs(), -x.abs()):
        torch.testing.assert_close(compiled(given), fn(given))


def appending(x):
    seen = []

    def branch(x):
        seen.append(1)
        return x.sin()
    return torch.cond(x.sum() > 0, branch, lambda x: x.cos(), (x,)), seen


def writing(x):
    y = x * 1

    def branch(x):
        y.add_(1)
        return x.sin()
    return torch.cond(x.sum() > 0, branch, lambda x: x.cos(), (x,)), y


def raising(x):
    def branch(x):
        raise ValueError
    return torch.cond(x.sum() > 0, branch, lambda x: x.cos(), (x,))


@pytest.mark.parametrize(("fn", "reason"), [
    (appending, "call-with-effects"), (writing, "call-with-effects"), (raising, "call-higher-order"),
    (lambda x: scan(lambda c, row: (c + row, c * row), x.sum(), x[None], dim=1), "call-higher-order"),
    (lambda x: torch.cond(x.sum() > 0, lambda x: x, lambda x: x.cos(), (x,)), "call-higher-order"),
])
def test_what_no_graph_can_do_breaks(breaks, fn, reason):
    assert breaks(fn, torch.ones(3)) == reason


QKV = [torch.randn(1, 2, 128, 16) for _ in range(3)]
SLOPES = torch.randn(2)


def test_flex_attention(assert_same_as_eager):
    assert_same_as_eager(flex_attention, *QKV)
    assert_same_as_eager(lambda q, k, v: flex_attention(q, k, v, score_mod=lambda s, b, h, i, j: s + (i - j) * SLOPES[h]), *QKV)


def test_flex_attention_with_a_block_mask(assert_same_as_eager):
    mask = create_block_mask(lambda b, h, i, j: i >= j, 1, None, 128, 128, device="cpu")
    assert_same_as_eager(lambda q, k, v: flex_attention(q, k, v, block_mask=mask), *QKV)


DOCUMENTS = torch.arange(128) // 32


def causal(batch, head, query, key):
    return query >= key


def same_document(batch, head, query, key):
    return (query >= key) & (DOCUMENTS[query] == DOCUMENTS[key])


def by_rows(batch, head, query, key):
    table = DOCUMENTS.view(1, 128)
    return table[0, query] >= table[batch, key]


@pytest.mark.parametrize("mask", [causal, same_document, by_rows])
def test_a_block_mask_made_inside(assert_same_as_eager, mask):
    def fn(x):
        made = create_block_mask(mask, 1, 2, 128, 128, device="cpu")
        return x + made.kv_num_blocks.sum(), made.kv_indices, made.to_dense()
    assert_same_as_eager(fn, torch.randn(3))


def test_attention_with_a_block_mask_made_inside():
    def fn(q):
        return flex_attention(q, q, q, block_mask=create_block_mask(same_document, None, None, 128, 128, device="cpu"))
    q = torch.randn(1, 1, 128, 8)
    compiled = fxjit.compile(fn, backend="eager", fullgraph=True)
    torch.testing.assert_close(compiled(q), fn(q))


def test_a_mask_that_breaks():
    def fn(x):
        seen = []

        def mask(batch, head, query, key):
            seen.append(query.shape)
            return DOCUMENTS[query] >= key
        return x + create_block_mask(mask, 1, 1, 128, 128, device="cpu").kv_num_blocks.sum(), seen
    torch.testing.assert_close(fxjit.compile(fn, backend="eager")(torch.ones(2)), fn(torch.ones(2)))


def _negated(x):
    return -x


def _copied(x):
    return x.clone()


CALLS = {
    "cond by names": lambda p, x: torch.cond(pred=p, true_fn=_negated, false_fn=_copied, operands=[x]),
    "cond in part by names": lambda p, x: torch.cond(p, _negated, false_fn=_copied, operands=(x,)),
    "the operator of cond": lambda p, x: torch.ops.higher_order.cond(p, _negated, _copied, (x,)),
    "the operator of cond by names": lambda p, x: torch.ops.higher_order.cond(pred=p, true_fn=_negated, false_fn=_copied,
                                                                             operands=(x,)),
    "map by names": lambda p, x: torch._higher_order_ops.map(f=_negated, xs=x),
    "wrap": lambda p, x: torch._higher_order_ops.wrap.wrap(lambda a, b=2: a * b + x, x, b=3),
}
MISFITS = {
    "cond without a branch": lambda p, x: torch.cond(p, _negated),
    "map without rows": lambda p, x: torch._higher_order_ops.map(_negated, x=x),
    "map without anything": lambda p, x: torch._higher_order_ops.map(),
    "scan without rows": lambda p, x: scan(_negated),
    "while_loop without values": lambda p, x: while_loop(_negated, _negated),
}


@pytest.mark.parametrize("call", CALLS)
def test_ways_to_pass_arguments(assert_same_as_eager, call):
    assert_same_as_eager(CALLS[call], torch.tensor(True), torch.randn(3, 2))


@pytest.mark.parametrize("call", MISFITS)
def test_arguments_that_torch_refuses(call):
    for fn in (MISFITS[call], fxjit.compile(MISFITS[call], backend="eager")):
        with pytest.raises(TypeError):
            fn(torch.tensor(True), torch.randn(3, 2))
