"""Managers of torch that a generator makes, as decorators: each call makes another one of the same arguments."""

from __future__ import annotations

import contextlib

import pytest
import torch
from tests.differential import assert_same_as_eager
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

import fxjit


@sdpa_kernel(backends=[SDPBackend.MATH])
def by_name(x):
    return scaled_dot_product_attention(x, x, x)


@sdpa_kernel(SDPBackend.FLASH_ATTENTION)
def one_kernel(x):
    return scaled_dot_product_attention(x, x, x)


@torch.random.fork_rng()
def own_numbers(x):
    torch.manual_seed(3)
    return x + torch.rand(16)


@torch.autograd.graph.disable_saved_tensors_hooks("not here")
def without_hooks(x):
    return x * 2


@contextlib.contextmanager
def without_grad(label):
    before = torch.is_grad_enabled()
    torch._C._set_grad_enabled(False)
    try:
        yield label
    finally:
        torch._C._set_grad_enabled(before)


@without_grad("label")
def of_the_programs(x):
    return x * 2


def made_inside(x):
    @contextlib.contextmanager
    def scaling(factor):
        yield factor * 2

    @scaling(3)
    def decorated(y):
        return y + 1

    with scaling(2) as factor:
        return decorated(x) * factor


class Attention(torch.nn.Module):
    @sdpa_kernel([SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION], set_priority=True)
    def forward(self, x):
        return scaled_dot_product_attention(x, x, x)


@pytest.mark.parametrize("fn", [by_name, one_kernel, own_numbers, without_hooks, of_the_programs, made_inside, Attention(),
                                lambda x: by_name(x) + one_kernel(x), lambda x: own_numbers(x) + without_hooks(x)])
def test_in_the_graph(fn):
    assert_same_as_eager(fn, torch.randn(2, 4, 8, 16, requires_grad=True), breaks=0)


@sdpa_kernel(backends=[SDPBackend.MATH])
def broken(x):
    y = x + 1
    fxjit.graph_break()
    return scaled_dot_product_attention(y, y, y)


@pytest.mark.parametrize("fn", [broken, lambda x: by_name(broken(x))])
def test_across_a_break(fn):
    before = torch.nn.attention._cur_sdpa_kernel_backends()
    assert_same_as_eager(fn, torch.randn(2, 4, 8, 16, requires_grad=True), breaks=1, fullgraph=False)
    assert torch.nn.attention._cur_sdpa_kernel_backends() == before
