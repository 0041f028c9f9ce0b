"""Masks of attention that a graph makes of numbers alone: those that mask nothing, or what comes after, are left out."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit.backends.aot import known_masks

L = 6


def causal_by_comparison(x):
    return torch.arange(L)[None, :] <= torch.arange(L)[:, None]


def causal_as_libraries_make_it(x):
    batch, head, q, k = torch.arange(2)[:, None, None, None], None, torch.arange(L), torch.arange(L)
    places = torch.arange(L).unsqueeze(0).expand(2, -1)
    document = torch.diff(places, prepend=places[:, :1] - 1, dim=-1).ne(1).cumsum(-1)
    ok = k[None, None, None, :] <= q[None, None, :, None]
    same = document[batch, q[None, None, :, None]] == document[batch, k[None, None, None, :]]
    return (q.new_ones((), dtype=torch.bool) & ok & same).expand(2, -1, L, L)


def causal_sums(x):
    return torch.full((L, L), float("-inf")).triu(1)


def causal_sums_of_the_lowest(x):
    return torch.full((1, 1, L, L), torch.finfo(torch.float32).min).triu(1)


def all_of_them(x):
    return (torch.arange(L)[:, None] >= 0).expand(2, 1, L, L)


def zeros(x):
    return torch.zeros(L, L)


def a_window(x):
    apart = torch.arange(L)[:, None] - torch.arange(L)
    return (apart >= 0) & (apart < 3)


def of_an_input(x):
    return (torch.arange(L)[None, :] <= torch.arange(L)[:, None]) & (x[0, 0, :, 0] == x[0, 0, :, 0])


def written_to(x):
    mask = torch.ones(L, L, dtype=torch.bool)
    mask[2:, 1] = False
    return mask


def written_through_a_view(x):
    mask = torch.ones(L, L, dtype=torch.bool)
    whole = mask[:]
    mask.view(-1)[::7].logical_not_()
    return whole


def of_memory_that_nobody_filled(x):
    return (torch.empty(L, L) * 0).isnan() | True


@torch.library.custom_op("fxjit_tests::mask_of_state", mutates_args=())
def mask_of_state(size: int) -> torch.Tensor:
    return torch.ones(size, size, dtype=torch.bool)


@mask_of_state.register_fake
def _(size):
    return torch.empty(size, size, dtype=torch.bool)


def of_the_programs_own(x):
    return torch.ops.fxjit_tests.mask_of_state(L)


def drawn(x):
    return torch.rand(L, L) > -1


def mostly_weights(x):
    return torch.full((L, L), -3.0).triu(1)


def a_row_without_any(x):
    return torch.arange(1, L + 1)[None, :] <= torch.arange(L)[:, None]


KINDS = {
    causal_by_comparison: "causal", causal_as_libraries_make_it: "causal", causal_sums: "causal",
    causal_sums_of_the_lowest: "causal", all_of_them: "nothing", zeros: "nothing", a_window: None, of_an_input: None,
    written_to: None, written_through_a_view: None, of_memory_that_nobody_filled: None, of_the_programs_own: None, drawn: None,
    mostly_weights: None, a_row_without_any: None,
}  # fmt: skip


@pytest.fixture
def graphs(monkeypatch):
    """What native compiles, after the pass."""
    fxjit.reset()
    found = []
    plain = known_masks.with_known_masks

    def seen(gm):
        found.append(plain(gm))
        return found[-1]

    monkeypatch.setattr(known_masks, "with_known_masks", seen)
    return found


def calls(gm):
    return gm.graph.find_nodes(op="call_function", target=F.scaled_dot_product_attention)


@pytest.mark.parametrize("make", KINDS, ids=lambda make: make.__name__)
@pytest.mark.compiles
def test_what_a_mask_says(make, graphs):
    def attention(x, y):
        out = F.scaled_dot_product_attention(x, y, y * 2, attn_mask=make(x))
        return out, out.transpose(1, 2).reshape(2, L, -1) + 1

    torch.manual_seed(0)
    given = [torch.randn(2, 3, L, 8, requires_grad=True) for _ in range(2)]
    results = []
    for function in (attention, fxjit.compile(attention, fullgraph=True)):
        torch.manual_seed(1)
        out = function(*given)
        results.append((*out, *torch.autograd.grad(sum(each.square().sum() for each in out), given)))
    for one, other in zip(*results, strict=True):
        # gradients are sums of some ten numbers up to ten
        torch.testing.assert_close(one, other, check_stride=True, equal_nan=True, rtol=1e-5, atol=1e-4)
    (call,) = calls(graphs[-1])
    says = {None: None, "causal": True, "nothing": False}[KINDS[make]]
    assert call.kwargs.get("attn_mask") is None if says is not None else call.kwargs["attn_mask"] is not None
    assert says is None or call.kwargs["is_causal"] is says
    assert says is None or not any("arange" in str(node.target) for node in graphs[-1].graph.nodes)


@pytest.mark.compiles
def test_a_mask_of_other_rows_than_columns_is_kept(graphs):
    """`is_causal` would count from the first row, the mask counts from the last."""
    def attention(x, y):
        mask = torch.arange(L)[None, :] <= torch.arange(2)[:, None] + L - 2
        return F.scaled_dot_product_attention(x, y, y, attn_mask=mask)

    given = torch.randn(2, 3, 2, 8), torch.randn(2, 3, L, 8)
    torch.testing.assert_close(fxjit.compile(attention)(*given), attention(*given))
    assert calls(graphs[-1])[0].kwargs["attn_mask"] is not None


@pytest.mark.compiles
def test_sizes_that_vary_keep_their_mask(graphs):
    def attention(x):
        mask = torch.arange(x.shape[2])[None, :] <= torch.arange(x.shape[2])[:, None]
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask)

    compiled = fxjit.compile(attention, dynamic=True)
    for length in (5, 7):
        x = torch.randn(2, 3, length, 8)
        torch.testing.assert_close(compiled(x), attention(x))
    assert calls(graphs[-1])[0].kwargs["attn_mask"] is not None


@pytest.mark.compiles
def test_the_gradient_of_a_mask(graphs):
    def attention(x):
        mask = torch.zeros(L, L, requires_grad=True)
        return F.scaled_dot_product_attention(x, x, x, attn_mask=mask), mask

    x = torch.randn(2, 3, L, 8)
    gradients = [torch.autograd.grad(out.square().sum(), mask)[0] for out, mask in (attention(x), fxjit.compile(attention)(x))]
    torch.testing.assert_close(*gradients)


@pytest.mark.parametrize("lowest, is_dropped", [(torch.finfo(torch.float16).min, False), (float("-inf"), True)])
@pytest.mark.compiles
def test_the_lowest_number_of_float16_leaves_something(lowest, is_dropped, graphs):
    def attention(x, y):
        return F.scaled_dot_product_attention(x, y, y, attn_mask=torch.full((L, L), lowest, dtype=torch.float16).triu(1))

    given = [torch.full((1, 1, L, 8), value, dtype=torch.float16) for value in (100, 300)]
    given[1][:, :, 0] = -300
    torch.testing.assert_close(fxjit.compile(attention)(*given), attention(*given))
    assert (calls(graphs[-1])[0].kwargs.get("attn_mask") is None) is is_dropped
