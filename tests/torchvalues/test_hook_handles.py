"""Handles of hooks on tensors that existed before: kept, returned, stored and removed, in the graph and behind it."""

from __future__ import annotations

import types

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch.utils.hooks import RemovableHandle

import fxjit

HANDLES = []


def tripled(gradient):
    return gradient * 3


def double(leaf):
    leaf.grad = leaf.grad * 2


def given_back(x, box):
    handle = x.register_hook(tripled)
    return x * x, [handle, handle]


def removed_at_once(x, box):
    handle = x.register_hook(tripled)
    y = x * x
    handle.remove()
    handle.remove()
    return y, [handle]


def removed_and_another(x, box):
    first, second = x.register_hook(tripled), x.register_hook(lambda gradient: gradient + 1)
    first.remove()
    return x * x, [second]


def stored(x, box):
    box.handle = x.register_hook(tripled)
    box.handles = {"hook": [box.handle]}
    return x * x, [box.handle]


def in_a_global(x, box):
    HANDLES.append(x.register_hook(tripled))
    return x * x, []


def in_a_block(x, box):
    with x.register_hook(tripled) as handle:
        y = x * x
    return y, [handle]


def after_accumulating(x, box):
    handle = x.register_post_accumulate_grad_hook(double)
    return x * x, [handle]


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
@pytest.mark.parametrize("fn", [given_back, removed_at_once, removed_and_another, stored, in_a_global, in_a_block,
                                after_accumulating])
def test_handles(fn, backend):
    compiled = fxjit.compile(fn, backend=backend, fullgraph=True)
    seen = []
    for called in (fn, compiled, compiled):
        HANDLES.clear()
        x, box, grads = torch.arange(3.0, requires_grad=True), types.SimpleNamespace(), []
        y, handles = called(x, box)
        assert all(type(handle) is RemovableHandle for handle in [*handles, *HANDLES])
        for result in (y, x * x):
            result.sum().backward()
            for handle in [*handles, *HANDLES]:
                handle.remove()
            grads.append(x.grad.clone())
            x.grad = None
        seen.append(([each.tolist() for each in grads], len(handles), len({*handles}), len(HANDLES), sorted(vars(box))))
    assert seen[1:] == [seen[0]] * 2


def asked(x):
    handle = x.register_hook(tripled)
    return x * x, handle.id == handle.id, handle.hooks_dict_ref() is None, "id" in vars(handle)


def across_a_break(x):
    handle = x.register_hook(tripled)
    y = x * 2
    fxjit.graph_break()
    handle.remove()
    return y


def removed_behind(x):
    y = x * 2
    handle = y.register_hook(tripled)
    z = y * y
    handle.remove()
    return z


@pytest.mark.parametrize("fn", [asked, across_a_break, removed_behind])
def test_what_only_the_handle_knows(fn):
    assert_same_as_eager(fn, torch.randn(3, requires_grad=True), fullgraph=False)


def test_an_unused_handle_of_a_tensor_made_in_the_graph():
    def unused(x):
        y = x * 2
        handle = y.register_hook(tripled)  # noqa: F841 - nobody reads it
        return y * y

    assert_same_as_eager(unused, torch.randn(3, requires_grad=True), breaks=0)
