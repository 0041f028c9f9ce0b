"""Attention that a program writes out becomes one call of attention, and its results and gradients are eager's."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import _C, tensor_shim
from fxjit.backends.aot import attention_by_hand
from fxjit.backends.native.choose import attention as choice

pytestmark = [
    pytest.mark.compiles,
    pytest.mark.skipif(not tensor_shim.ensure() or not _C.program_can("attention"), reason="this processor has no AVX2"),
]

BATCH, HEADS, ROWS, WIDTH = 2, 3, 6, 8
INFINITY = float("inf")
LOWEST = torch.finfo(torch.float32).min
ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default


@pytest.fixture(autouse=True)
def graphs(monkeypatch):
    """What AOTAutograd traces."""
    fxjit.reset()
    monkeypatch.setattr(fxjit.config, "small_graphs_as_captured", False)
    found = []
    plain = attention_by_hand.with_attention

    def seen(gm, is_preferred):
        found.append(plain(gm, lambda dtype: fxjit.config.cpp.own_attention))  # on every processor
        return found[-1]

    monkeypatch.setattr(attention_by_hand, "with_attention", seen)
    return found


def attentions(graphs):
    return [node for gm in graphs for node in gm.graph.find_nodes(op="call_function", target=ATTENTION)]


def heads(dtype=torch.float32, requires_grad=False, keys=ROWS):
    """Queries, keys and values, of (batch, heads, length, width)."""
    return [torch.randn(BATCH, HEADS, rows, WIDTH).to(dtype).requires_grad_(requires_grad) for rows in (ROWS, keys, keys)]


def assert_as_eager(function, given, rtol=1e-5, atol=1e-5):
    """Results and gradients of two calls; where a result requires one."""
    compiled = fxjit.compile(function, fullgraph=True)
    for _ in range(2):
        wanted, result = function(*given), compiled(*given)
        torch.testing.assert_close(result, wanted, check_stride=True, equal_nan=True, rtol=rtol, atol=atol)
        assert result.requires_grad is wanted.requires_grad
        if wanted.requires_grad:
            upstream = torch.randn_like(wanted)
            leaves = [each for each in given if each.requires_grad]
            gradients = [torch.autograd.grad(each, leaves, upstream) for each in (wanted, result)]
            for one, other in zip(*gradients, strict=True):
                torch.testing.assert_close(other, one, equal_nan=True, rtol=rtol, atol=atol)


# -- forms ----------------------------------------------------------------------------------------------------------


def by_operators(q, k, v):
    return torch.softmax(q @ k.transpose(-2, -1) / math.sqrt(WIDTH), -1) @ v


def by_functions(q, k, v):
    scores = torch.matmul(q * 0.3, k.mT)
    return torch.matmul(F.dropout(F.softmax(scores, dim=3), 0.1, False), v).transpose(1, 2).reshape(BATCH, ROWS, -1) * 2


def by_methods(q, k, v):
    return q.matmul(k.permute(0, 1, 3, 2)).mul(0.2).softmax(dim=-1).matmul(v).transpose(1, 2).contiguous().view(BATCH, ROWS, -1)


def in_float32(q, k, v):
    shares = F.softmax(0.2 * (q @ k.mT), dim=-1, dtype=torch.float32).to(q.dtype)
    return shares @ v + 1


def of_batches(q, k, v):
    q, k, v = (each.reshape(BATCH * HEADS, -1, WIDTH) for each in (q, k, v))
    return torch.bmm(torch.bmm(q, k.transpose(1, 2)).softmax(-1), v).view(BATCH, HEADS, ROWS, WIDTH)


def with_a_factor_of_the_product(q, k, v):
    q, k, v = (each.flatten(0, 1) for each in (q, k, v))
    nothing = torch.empty(BATCH * HEADS, q.shape[1], k.shape[1], dtype=q.dtype)
    return torch.bmm(torch.baddbmm(nothing, q, k.transpose(1, 2), beta=0, alpha=0.25).softmax(-1), v)


def by_equations(q, k, v):
    shares = torch.einsum("b h i d, b h j d -> b h i j", q, k).softmax(-1)
    return torch.einsum("b h i j, b h j d -> b i h d", shares, v)


def of_rows_of_heads(q, k, v):
    q, k, v = (each.transpose(1, 2) for each in (q, k, v))
    shares = torch.einsum("bqhd,bkhd->bhqk", q, k).div(2).softmax(-1)
    return torch.einsum("bkhd,bhqk->bqhd", v, shares).flatten(2)


def with_a_module(q, k, v):
    return torch.nn.Dropout(0.0)(torch.nn.Softmax(-1)(q @ k.mT)) @ v


FORMS = [by_operators, by_functions, by_methods, in_float32, of_batches, with_a_factor_of_the_product, by_equations,
         of_rows_of_heads, with_a_module]  # fmt: skip


@pytest.mark.parametrize("keys", [ROWS, 9])
@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
def test_attention_written_out(form, requires_grad, keys, graphs):
    assert_as_eager(form, heads(requires_grad=requires_grad, keys=keys))
    assert len(attentions(graphs)) == 1
    assert not any("softmax" in str(node.target) for gm in graphs for node in gm.graph.nodes)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("form", [by_operators, in_float32, by_equations], ids=lambda form: form.__name__)
def test_half_types_are_not_further_from_the_truth_than_eager(form, dtype, graphs):
    compiled, errors = fxjit.compile(form), [0.0, 0.0]
    for _ in range(8):  # what one draw makes of a rounding is luck
        given = heads(dtype)
        truth = form(*(each.double() for each in given))
        for at, function in enumerate((compiled, form)):
            errors[at] += (function(*given).double() - truth).abs().max().item()
    assert errors[0] <= 1.5 * errors[1]
    assert len(attentions(graphs)) == 1


def test_several_attentions_one_behind_the_other(graphs):
    def blocks(q, k, v):
        for _ in range(5):
            q = q + by_operators(q, k, v)
        return q

    assert_as_eager(blocks, heads(requires_grad=True))
    assert len(attentions(graphs)) >= 3  # equal blocks are traced once


def test_attention_of_what_another_gives(graphs):
    def attention(q, k, v):
        return by_operators(q, by_operators(k, q, v), by_equations(v, k, v).transpose(1, 2)) + 1

    assert_as_eager(attention, heads())
    assert_as_eager(attention, heads(requires_grad=True))
    assert len(attentions(graphs)) == 6 and not any("softmax" in str(node.target) for gm in graphs for node in gm.graph.nodes)


def test_sizes_that_vary(graphs):
    compiled = fxjit.compile(by_operators, dynamic=True)
    for length in (5, 11, 4):
        q, k, v = (torch.randn(length, HEADS, length + 2, WIDTH) for _ in range(3))
        torch.testing.assert_close(compiled(q, k, v), by_operators(q, k, v))
    assert len(attentions(graphs)) == 1


def test_the_second_derivative(graphs):
    given = heads(requires_grad=True)
    results = []
    for function in (by_operators, fxjit.compile(by_operators)):
        first = torch.autograd.grad(function(*given).square().sum(), given, create_graph=True)
        results.append(torch.autograd.grad(sum(each.square().sum() for each in first), given))
    assert attentions(graphs)
    for one, other in zip(*results, strict=True):  # eager itself is up to 2e-6 of the largest off the truth, in 300 draws
        torch.testing.assert_close(other, one, rtol=0.0, atol=1e-5 * one.abs().max().item())


# -- masks ----------------------------------------------------------------------------------------------------------


def filled(number, scale=0.3):
    def attention(q, k, v, mask):
        return ((q @ k.mT) * scale).masked_fill(mask == 0, number).softmax(-1) @ v + 1

    return attention


def added(q, k, v, mask):
    return ((q @ k.mT) / 2 + mask).softmax(-1) @ v + 1


def mask_with_empty_rows():
    """Causal, but for the first head's first row, and one in the middle, which look at nothing."""
    mask = torch.ones(BATCH, 1, ROWS, ROWS).tril()
    mask[1, 0, 2] = 0
    mask[0, 0, 0] = 0
    return mask


@pytest.mark.parametrize("number", [-INFINITY, -1e9, LOWEST])
@pytest.mark.parametrize("requires_grad", [False, True])
def test_scores_in_whose_place_a_number_stands(requires_grad, number, graphs):
    """In a row of infinities alone a softmax is NaN; one of low numbers looks at all of them alike."""
    given = [*heads(requires_grad=requires_grad), mask_with_empty_rows()]
    with torch.no_grad():
        assert filled(number)(*given).isnan().any() == (number == -INFINITY)
    assert_as_eager(filled(number), given)
    assert len(attentions(graphs)) == 1


@pytest.mark.parametrize("number", [-INFINITY, -1e4, LOWEST])
def test_masks_that_are_added(number, graphs):
    given = [*heads(), (1 - mask_with_empty_rows()).clamp(0, 1).masked_fill(mask_with_empty_rows() == 0, number)]
    assert_as_eager(added, given)
    assert len(attentions(graphs)) == 1


@pytest.mark.parametrize("shape", [(ROWS,), (ROWS, ROWS), (HEADS, ROWS, ROWS), (BATCH, 1, 1, ROWS), (1, HEADS, ROWS, 1)])
def test_shapes_of_masks(shape, graphs):
    assert_as_eager(added, [*heads(), torch.randn(shape)])
    assert len(attentions(graphs)) == 1


def test_masks_one_after_the_other(graphs):
    def attention(q, k, v, bias, mask):
        return ((q @ k.mT) + bias + mask).softmax(-1) @ v

    def twice(q, k, v, first, second):
        return (q @ k.mT).masked_fill(first, -INFINITY).masked_fill(second, -INFINITY).softmax(-1) @ v

    assert_as_eager(attention, [*heads(), torch.randn(HEADS, 1, ROWS), torch.randn(BATCH, 1, ROWS, ROWS)])
    assert_as_eager(twice, [*heads(requires_grad=True), torch.ones(ROWS, ROWS).triu(2) > 0, torch.randn(BATCH, 1, 1, ROWS) > 0])
    assert len(attentions(graphs)) == 2


@pytest.mark.parametrize("requires_grad", [False, True])
def test_a_causal_mask_made_of_numbers_is_no_mask(requires_grad, graphs):
    def attention(q, k, v):
        return (q @ k.mT + torch.full((ROWS, ROWS), -INFINITY).triu(1)).softmax(-1) @ v * 2

    def by_comparison(q, k, v):
        later = torch.arange(ROWS)[None, :] > torch.arange(ROWS)[:, None]
        return (q @ k.mT).masked_fill(later, -INFINITY).softmax(-1) @ v * 2

    for form in (attention, by_comparison):
        assert_as_eager(form, heads(requires_grad=requires_grad))
    for call in attentions(graphs):
        assert call.args[4] is True and call.kwargs["attn_mask"] is None


# -- what is not attention ------------------------------------------------------------------------------------------


def shows_its_scores(q, k, v):
    scores = q @ k.mT
    return scores.softmax(-1) @ v + scores.sum()


def shows_its_shares(q, k, v):
    shares = (q @ k.mT).softmax(-1)
    return torch.cat([shares @ v, shares], -1)


def over_queries(q, k, v):
    return (q @ k.mT).softmax(-2) @ v


def scaled_behind_its_mask(q, k, v):
    return (((q @ k.mT) + torch.arange(ROWS)) * 0.5).softmax(-1) @ v


def masked_by_little(q, k, v):
    return (q @ k.mT).masked_fill(torch.ones(ROWS, ROWS).triu(1) > 0, -5.0).softmax(-1) @ v


def of_shared_keys(q, k, v):
    return (q @ k[:, :1].mT).softmax(-1) @ v


def of_other_values(q, k, v):
    return (q @ k.mT).softmax(-1) @ v[..., :4]


def in_another_order(q, k, v):
    return torch.einsum("bhij,bhid->bhjd", (q @ k.mT).softmax(-1), v)


def changes_its_keys(q, k, v):
    k = k.clone()
    scores = q @ k.mT
    k.mul_(2)
    return scores.softmax(-1) @ (v + k)


NONE = [shows_its_scores, shows_its_shares, over_queries, scaled_behind_its_mask, masked_by_little, of_shared_keys,
        of_other_values, in_another_order]  # fmt: skip


@pytest.mark.parametrize("requires_grad", [False, True])
@pytest.mark.parametrize("form", NONE, ids=lambda form: form.__name__)
def test_what_is_left_as_it_is(form, requires_grad, graphs):
    assert_as_eager(form, heads(requires_grad=requires_grad))
    assert not attentions(graphs)


def test_keys_that_change_before_the_last_product(graphs):
    assert_as_eager(changes_its_keys, heads())
    assert not attentions(graphs)


def test_types_that_have_no_attention_here(graphs):
    assert_as_eager(by_operators, heads(torch.float64))
    assert not attentions(graphs)


def test_a_bias_that_learns_is_left(graphs):
    assert_as_eager(added, [*heads(requires_grad=True), torch.randn(ROWS, ROWS, requires_grad=True)])
    assert not attentions(graphs)


def test_masks_added_in_training_are_left_where_nobody_knows_them(graphs):
    """A row of low numbers alone has a gradient, which ATen's attention has not."""
    mask = torch.zeros(BATCH, 1, ROWS, ROWS)
    mask[0, 0, 1] = LOWEST
    assert_as_eager(added, [*heads(requires_grad=True), mask])
    assert not attentions(graphs)


def test_dropout_is_left(graphs):
    def attention(q, k, v):
        return F.dropout((q @ k.mT).softmax(-1), 0.5) @ v

    given, compiled = heads(), fxjit.compile(attention)
    results = []
    for function in (attention, compiled):
        torch.manual_seed(0)
        results.append(function(*given))
    torch.testing.assert_close(*results)
    assert not attentions(graphs)


def test_a_layout_that_later_calls_need(graphs):
    """ATen's attention has its result in the queries' layout, and a product has one of its own."""
    def attention(q, k, v):
        q, k, v = (each.transpose(1, 2) for each in (q, k, v))
        return by_operators(q, k, v).view(BATCH, -1).cos()

    given = [each.transpose(1, 2).contiguous() for each in heads()]
    assert_as_eager(attention, given)
    assert len(attentions(graphs)) == 1


def test_the_setting_turns_it_off(graphs, monkeypatch):
    monkeypatch.setattr(fxjit.config.cpp, "own_attention", False)
    assert_as_eager(by_operators, heads())
    assert graphs and not attentions(graphs)


@pytest.mark.parametrize("tiles", [False, True])
def test_half_types_are_left_to_tiles_of_bfloat16(tiles, monkeypatch):
    monkeypatch.setattr(choice._C, "program_can", lambda name: tiles or name != "tiles")
    assert choice.is_attention_preferred(torch.float32)
    assert choice.is_attention_preferred(torch.bfloat16) is not tiles
