"""Derivatives of attention of half types over short sequences (passes/half_attention.py)."""

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import config
from fxjit.backends.native.passes import half_attention

LAYOUTS = ["heads first", "heads second"]


@pytest.fixture(autouse=True)
def compiled_however_small():
    fxjit.reset()
    with config.patch(small_graphs_as_captured=False, cache_graphs=False):
        yield


@pytest.fixture
def widened(monkeypatch):
    """The types of attention's derivatives that were taken in float32."""
    seen = []
    plain = half_attention._widen

    def noted(graph, node, half):
        seen.append(half)
        plain(graph, node, half)

    monkeypatch.setattr(half_attention, "_widen", noted)
    return seen


def operands(dtype: torch.dtype, queries: int, keys: int, layout: str) -> list[torch.Tensor]:
    made = []
    for length in (queries, keys, keys):
        x = torch.randn(2, 3, length, 16, dtype=dtype)
        made.append(x if layout == LAYOUTS[0] else x.transpose(1, 2).contiguous().transpose(1, 2))
    return made


def gradients(call, given):
    leaves = [each.detach().requires_grad_() for each in given]
    out = call(*leaves)
    out.backward(torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype))
    return [out.detach(), *(each.grad for each in leaves)]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["plain", "causal", "mask", "scale"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_gradients_are_as_near_to_the_true_ones_as_eagers(widened, dtype: torch.dtype, how: str, layout: str):
    given = operands(dtype, 24, 24 if how == "causal" else 33, layout)
    mask = torch.randn(24, 33, dtype=dtype)
    options = {"plain": {}, "causal": {"is_causal": True}, "mask": {"attn_mask": mask}, "scale": {"scale": 0.3}}[how]

    def attend(q, k, v, options=options):
        return F.scaled_dot_product_attention(q, k, v, **options)

    exact = {name: value.double() if name == "attn_mask" else value for name, value in options.items()}
    true = gradients(lambda q, k, v: attend(q, k, v, exact), [each.double() for each in given])
    eager, ours = gradients(attend, given), gradients(fxjit.compile(attend, fullgraph=True), given)
    assert widened == [dtype]
    for found, theirs, wanted in zip(ours, eager, true, strict=True):
        assert found.dtype is theirs.dtype and found.stride() == theirs.stride()
        assert (found - wanted).square().mean().sqrt() <= 1.02 * (theirs - wanted).square().mean().sqrt()


@pytest.mark.parametrize(("dtype", "length"), [(torch.float32, 24), (torch.bfloat16, 256)])
def test_what_stays_atens(widened, dtype: torch.dtype, length: int):
    given = operands(dtype, length, length, LAYOUTS[0])
    for found, eager in zip(gradients(fxjit.compile(F.scaled_dot_product_attention), given),
                            gradients(F.scaled_dot_product_attention, given), strict=True):
        torch.testing.assert_close(found, eager, rtol=2e-2, atol=2e-2)
    assert not widened


def test_lengths_that_vary_stay_atens(widened):
    compiled = fxjit.compile(F.scaled_dot_product_attention, dynamic=True)
    for length in (16, 25):
        given = operands(torch.bfloat16, length, length, LAYOUTS[0])
        for found, eager in zip(gradients(compiled, given), gradients(F.scaled_dot_product_attention, given), strict=True):
            torch.testing.assert_close(found, eager, rtol=2e-2, atol=2e-2)
    assert not widened
