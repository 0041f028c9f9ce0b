"""The causal masks of `torch.nn.attention.bias`, made in the compiled function, before it, and given to it."""

import pytest
import torch
from torch.nn import functional as F
from torch.nn.attention.bias import causal_lower_right, causal_upper_left

import fxjit


@pytest.mark.parametrize("backend", ["eager", "native"])
@pytest.mark.parametrize("mask", [causal_lower_right, causal_upper_left])
def test_attention_under_a_causal_bias(mask, backend):
    outside = mask(4, 6)

    def made_inside(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=mask(4, 6)).relu()

    def made_outside(query, key, value):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=outside).relu()

    def given(query, key, value, bias):
        return F.scaled_dot_product_attention(query, key, value, attn_mask=bias).relu()

    query, key = torch.randn(2, 2, 4, 8), torch.randn(2, 2, 6, 8)
    for fn, more in ((made_inside, ()), (made_outside, ()), (given, (outside,))):
        expected = fn(query, key, key, *more)
        torch.testing.assert_close(fxjit.compile(fn, backend=backend)(query, key, key, *more), expected)
