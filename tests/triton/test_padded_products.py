"""Products on a GPU whose rows are no multiple of 16 bytes: padded where that pays, and what they are stays the same."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fxjit.backends.native.passes import padded_products
from fxjit.backends.native.passes.padded_products import pad_products

aten = torch.ops.aten


def traced(function, shapes, dtype=torch.bfloat16):
    with FakeTensorMode():
        gm = make_fx(function)(*(torch.empty(shape, device="cuda", dtype=dtype) for shape in shapes))
    pad_products(gm.graph)
    gm.graph.lint()
    return gm


def padded(gm):
    return [node for node in gm.graph.nodes if node.target is aten.constant_pad_nd.default]


def products(gm):
    targets = aten.mm.default, aten.addmm.default, aten.bmm.default
    return [tuple(node.meta["val"].shape) for node in gm.graph.nodes if node.target in targets]


def test_the_last_layer_of_a_language_model_and_its_gradients():
    def layer(x, weight, grad):
        return x @ weight.t(), grad @ weight, grad.t() @ x

    gm = traced(layer, [(2048, 768), (50257, 768), (2048, 50257)])
    assert products(gm) == [(2048, 50264), (2048, 768), (50264, 768)]
    # The weight and the gradient, each once.
    assert sorted(node.meta["val"].shape for node in padded(gm)) == [(2048, 50264), (50264, 768)]
    values = [each.meta["val"] for each in gm.graph.output_node().all_input_nodes]
    assert [each.shape for each in values] == [(2048, 50257), (2048, 768), (50257, 768)]
    assert all(each.is_contiguous() for each in values)


@pytest.mark.parametrize("shapes,dtype", [
    ([(2048, 768), (768, 50264)], torch.bfloat16), ([(8, 768), (768, 50257)], torch.bfloat16),
    ([(7, 9), (9, 11)], torch.float16), ([(2048, 768), (768, 50257)], torch.float32),
], ids=["multiples", "few rows", "small", "float32"])  # fmt: skip
def test_what_does_not_gain_is_left_alone(shapes, dtype):
    assert not padded(traced(torch.matmul, shapes, dtype))


def test_sizes_that_vary_and_processors_are_left_alone():
    gm = make_fx(torch.matmul, tracing_mode="symbolic")(torch.empty(2048, 768), torch.empty(768, 50257))
    pad_products(gm.graph)
    assert not padded(gm)


@pytest.mark.parametrize("turned", list(itertools.product((False, True), repeat=2)), ids=str)
@pytest.mark.parametrize("shapes", [((5, 3), (3, 7)), ((8, 5), (5, 9)), ((3, 16), (16, 8)), ((3, 4, 5), (3, 5, 6))], ids=str)
def test_numbers_and_layouts(monkeypatch, shapes, turned):
    """Over every layout of both operands, and every shape of an addend; numbers are whole, and so exact."""
    monkeypatch.setattr(padded_products, "_is_half_matrix", lambda node: True)
    monkeypatch.setattr(padded_products, "_gain", lambda *facts: 1.0)
    operands = [torch.arange(float(torch.Size(shape).numel())).reshape(shape) % 7 - 3 for shape in shapes]
    a, b = (each.mT.contiguous().mT if is_turned else each for each, is_turned in zip(operands, turned, strict=True))
    rows, columns = a.shape[-2], b.shape[-1]

    def function(a, b):
        if a.dim() == 3:
            return a @ b, torch.baddbmm(torch.ones(1, 1, columns), a, b)
        addends = [torch.ones(columns), torch.ones(rows, 1), torch.ones(1, columns), torch.ones(rows, columns), torch.ones(())]
        return a @ b, *(torch.addmm(each, a, b) for each in addends)

    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        gm = make_fx(function)(mode.from_tensor(a), mode.from_tensor(b))
    pad_products(gm.graph)
    gm.recompile()
    assert bool(padded(gm)) is (shapes != ((3, 16), (16, 8)) or turned[0])
    for one, other in zip(gm(a, b), function(a, b), strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=0, check_stride=True)
