"""Attention of one query a head (lower/attention.py)."""

import pytest
import torch
import torch.nn.functional as F
from torch.testing import assert_close

import fxjit
from fxjit import config
from fxjit.backends.native import pipeline

TYPES = [torch.float32, torch.bfloat16, torch.float16]


@pytest.fixture(autouse=True)
def compiled_however_small():
    fxjit.reset()
    with config.patch(small_graphs_as_captured=False):
        yield


@pytest.fixture
def left(monkeypatch):
    """What attention was left to ATen for, or None, for each that is lowered."""
    seen = []
    lower = pipeline.lower_graph

    def noted(gm, by_aten):
        low = lower(gm, by_aten)
        seen.extend(low.reasons.get(node) for node in gm.graph.nodes if "flash_attention" in str(node.target))
        return low

    monkeypatch.setattr(pipeline, "lower_graph", noted)
    return seen


def plain(q, k, v, mask):
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])


def scaled(q, k, v, mask):
    return F.scaled_dot_product_attention(q * 2, k, v.sin(), attn_mask=mask, scale=0.3, enable_gqa=q.shape[1] != k.shape[1]) + 1


def turned(q, k, v, mask):
    out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
    return out.transpose(1, 2).reshape(q.shape[0], 1, -1)


def inputs(dtype, batch, heads, sets, count, width, mask=None):
    torch.manual_seed(count)
    # Caches as programs hold them, and as a projection gives them.
    k = torch.randn(batch, count, sets, width).to(dtype).transpose(1, 2)
    return torch.randn(batch, heads, 1, width).to(dtype), k, torch.randn(batch, sets, count, width).to(dtype), mask


def masks(dtype, batch, heads, count):
    some = torch.rand(batch, 1, 1, count) > 0.4
    return {
        "none": None, "some": some, "rows": some[0, 0], "heads": torch.rand(1, heads, 1, count) > 0.4,
        "added": torch.randn(batch, 1, 1, count).to(dtype), "nothing": torch.zeros(1, 1, 1, count, dtype=torch.bool),
        "infinite": torch.where(some, 0.0, float("-inf")).to(dtype),
    }  # fmt: skip


SHAPES = [(1, 4, 4, 16, 8), (2, 4, 2, 37, 16), (1, 6, 1, 64, 64), (3, 2, 2, 1, 5)]
CASES = [(program, dtype, shape, mask) for k, shape in enumerate(SHAPES) for j, mask in enumerate(masks(torch.float32, 1, 1, 1))
         for program, dtype in [((plain, scaled, turned)[(j + k) % 3], TYPES[(j + 2 * k) % 3])]]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("program,dtype,shape,mask", CASES,
                         ids=lambda value: getattr(value, "__name__", str(value)).replace("torch.", ""))
def test_values_are_eagers(program, dtype, shape, mask, left):
    q, k, v, _ = inputs(dtype, *shape)
    given = masks(dtype, *shape[:2], shape[3])[mask]
    wide = given.double() if given is not None and given.dtype is not torch.bool else given
    with torch.no_grad():
        exact = program(q.double(), k.double(), v.double(), wide)
        eager, ours = program(q, k, v, given), fxjit.compile(program, dynamic=False)(q, k, v, given)
    assert left == [None] or dtype is torch.float32 and shape[1] != shape[2] or mask == "heads"
    assert ours.dtype is eager.dtype and ours.stride() == eager.stride()
    if mask == "nothing":
        assert_close(ours, eager)
    else:
        unit = torch.finfo(dtype).eps * exact.abs().max()
        assert (ours - exact).abs().max() <= 1.5 * (eager - exact).abs().max() + unit


def test_sizes_that_vary():
    compiled = fxjit.compile(plain, dynamic=True)
    with torch.no_grad():
        for count, batch in ((16, 2), (33, 3), (70, 5)):
            given = inputs(torch.bfloat16, batch, 4, 4, count, 16, torch.rand(batch, 1, 1, count) > 0.3)
            assert_close(compiled(*given), plain(*given), rtol=2e-2, atol=2e-2)


def test_infinite_and_nan_numbers():
    q, k, v, _ = inputs(torch.bfloat16, 1, 4, 4, 16, 8)
    q[0, 0, 0, 0], v[0, 1, 3] = float("nan"), float("inf")
    v[0, 2, 5] = float("nan")
    with torch.no_grad():
        assert_close(fxjit.compile(plain)(q, k, v, None), plain(q, k, v, None), rtol=2e-2, atol=2e-2, equal_nan=True)


@pytest.mark.parametrize("dtype", TYPES, ids=str)
def test_gradients_are_eagers(dtype):
    *given, _ = inputs(dtype, 2, 4, 4, 24, 16)
    weights = torch.randn(2, 4, 1, 16)

    def gradients(function):
        leaves = [each.detach().clone().requires_grad_() for each in given]
        return torch.autograd.grad((function(*leaves, None) * weights.to(dtype)).float().sum(), leaves)

    tolerance = 1e-5 if dtype is torch.float32 else 3e-2
    assert_close(gradients(fxjit.compile(plain)), gradients(plain), rtol=tolerance, atol=tolerance)


@pytest.mark.parametrize("case", ["causal", "several", "float64"])
def test_the_rest_is_atens(case, left):
    q, k, v, _ = inputs(torch.float64 if case == "float64" else torch.bfloat16, 1, 4, 4, 16, 8)
    q = q.expand(-1, -1, 3, -1) if case == "several" else q

    def function(q, k, v):
        return F.scaled_dot_product_attention(q, k, v, is_causal=case == "causal")

    with torch.no_grad():
        assert_close(fxjit.compile(function)(q, k, v), function(q, k, v), rtol=1.6e-2, atol=1e-2 if case == "several" else 1e-5)
    assert left != [None]
