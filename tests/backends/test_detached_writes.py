"""Writes to what is detached from an input, or from a value of the graph: it gets a history, what it is detached from none."""

from __future__ import annotations

import pytest
import torch
from tests.differential import KERNELS, assert_same_as_eager

import fxjit


def column(x, w):
    v = x.data
    v[:, 1] = x[:, 0]
    return v


def row_of_another(x, w):
    v = x.detach()
    v[0] = w[0]
    return v


def computed_with(x, w):
    v = x.data
    v[:, 1] = x[:, 0] * 2
    return v * 3


def seen_only_in_a_sum(x, w):
    v = x.detach()
    v.mul_(x.sin())
    return v.sum() + w.sum()


def view_of_detached(x, w):
    v = x.data.t()
    v.add_(w.t())
    return v


def of_a_result(x, w):
    y = x * 2
    v = y.detach()
    v[:, 1] = x[:, 0]
    return v, y


def without_history(x, w):
    v = x.detach()
    v.mul_(2)
    return v, x * 2


def whole(x, w):
    x.data.copy_(w * 2)
    return x.sin()


@pytest.mark.parametrize("fn", [column, row_of_another, computed_with, seen_only_in_a_sum, view_of_detached, of_a_result,
                                without_history, whole])
@pytest.mark.parametrize("required", [(True, True), (True, False), (False, True)])
def test_writes_to_detached_tensors(fn, required):
    def make():
        torch.manual_seed(0)
        return [torch.randn(3, 3).requires_grad_(each) for each in required]

    with fxjit.config.patch(small_graphs_as_captured=False):
        for backend in ("eager", "aot_eager", "native"):
            assert_same_as_eager(fn, backend=backend, make=make, fullgraph=False, rtol=None if backend == "eager" else KERNELS)


@pytest.mark.parametrize("written", [0, 1])
@pytest.mark.parametrize("backend", ["eager", "aot_eager", "native"])
def test_a_write_past_autograd_to_one_of_several_views_of_a_leaf(written, backend):
    def fn(*given):
        given[written].detach().mul_(1.25)
        return given[0].sin() + given[1]

    def make():
        leaf = torch.arange(1.0, 5.0).requires_grad_()
        return [leaf[:3], leaf[1:]]

    assert_same_as_eager(fn, backend=backend, make=make, rtol=None if backend == "eager" else KERNELS)
