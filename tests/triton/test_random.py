"""Random numbers by Philox inside kernels: their distribution, their stream, and the same mask for the derivative."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit import config
from fxjit.backends.native.codegen.triton import TritonKernel
from fxjit.backends.native.ops import philox
from fxjit.backends.native.runtime.gpu import job_of
from fxjit.backends.native.runtime.triton_compile import compiler

from .conftest import for_gpu, run_interpreted
from .test_cubins import resources, usual


def run(function, *inputs, seed=0, mode="fake"):
    torch.manual_seed(seed)
    return run_interpreted(function, *inputs, mode=mode)


def test_philox_is_philox():
    """The published answers for Philox 4x32 with 7 rounds: all bits 0, and all bits 1."""
    zero, ones = torch.zeros((), dtype=torch.int64), torch.full((), -1)
    words = [int(philox(each, each, each)) & (1 << 64) - 1 for each in (zero, ones)]
    assert [(word & 0xFFFFFFFF, word >> 32) for word in words] == [(0x5F6FB709, 0x0D893F64), (0x5207DDC2, 0x45165E59)]


DRAWN = {
    "rand": lambda x: torch.rand_like(x),
    "randn": lambda x: torch.randn_like(x),
    "rand of sizes": lambda x: torch.rand(x.shape, dtype=x.dtype) + 0 * x,
    "bernoulli": lambda x: torch.bernoulli(x, 0.25),
    "dropout": lambda x: torch.ops.aten.native_dropout(x, 0.25, True)[0],
}


@pytest.mark.parametrize("name", list(DRAWN))
def test_numbers_are_drawn_in_kernels_and_from_the_seed(seen, name):
    """Two calls differ, and the same seed gives the same numbers, as eager's do."""
    x = torch.ones(40, 50)
    first, again, other = (run(DRAWN[name], x, seed=seed) for seed in (0, 0, 1))
    assert "fx_philox(" in seen.text
    assert torch.equal(first, again) and not torch.equal(first, other)
    assert first.shape == x.shape and first.dtype is x.dtype


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_uniform_numbers(dtype):
    found = run(lambda x: torch.rand_like(x), torch.empty(100, 100, dtype=dtype))
    assert found.dtype is dtype and float(found.min()) >= 0 and float(found.max()) < 1
    assert abs(float(found.double().mean()) - 0.5) < 0.02
    counts = torch.histc(found.double(), 10, 0, 1)
    assert ((counts - 1000).abs() < 200).all(), counts


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_normal_numbers(dtype):
    found = run(lambda x: torch.randn_like(x), torch.empty(100, 100, dtype=dtype)).double()
    assert found.isfinite().all() and abs(float(found.mean())) < 0.04 and abs(float(found.std()) - 1) < 0.04
    assert abs(float((found.abs() < 1).double().mean()) - 0.6827) < 0.02 and abs(float((found**4).mean()) - 3) < 0.4


def test_two_draws_of_one_graph_are_two(seen):
    a, b = run(lambda x: (torch.rand_like(x), torch.rand_like(x)), torch.empty(64, 64))
    correlation = torch.corrcoef(torch.stack([a.flatten(), b.flatten()]))[0, 1]
    assert not torch.equal(a, b) and abs(float(correlation)) < 0.05


def test_dropout_keeps_and_scales():
    x = torch.randn(60, 60)
    out, mask = run(lambda x: torch.ops.aten.native_dropout(x, 0.3, True), x)
    torch.testing.assert_close(out, x * mask / 0.7)
    assert abs(float(mask.double().mean()) - 0.7) < 0.04
    for p, train in ((0.0, True), (1.0, True), (0.5, False)):
        function = dropped(p, train)
        ours, eager = run(function, x), function(x)
        assert torch.equal(ours[0], eager[0]) and torch.equal(ours[1], eager[1])


def dropped(p, train):
    return lambda x: torch.ops.aten.native_dropout(x, p, train)


@pytest.mark.parametrize("turned", [False, True])
def test_the_derivative_has_the_same_mask(interpreter, turned):
    """A whole program, compiled: what was dropped has no gradient, what was kept has a scaled one."""
    layer = fxjit.compile(lambda x: F.dropout(x * 2, 0.5, True).sum())
    x = torch.randn(30, 40)
    x = (x.t() if turned else x).detach().requires_grad_()
    total = layer(x)
    total.backward()
    kept = x.grad != 0
    assert set(x.grad.unique().tolist()) == {0.0, 4.0} and 0.3 < float(kept.double().mean()) < 0.7
    torch.testing.assert_close(total, (x * 4)[kept].sum(), rtol=1e-4, atol=1e-4)


def test_sizes_that_vary():
    gm = make_fx(lambda x: torch.rand_like(x) + x, tracing_mode="symbolic")(torch.zeros(8, 9))
    from fxjit.backends.native import pipeline

    with config.patch(**{"triton.interpret": True}):
        compiled = pipeline.compile_graph(gm, (torch.zeros(8, 9),), "test", lone_kernels=True).finish()
    one, two = compiled([torch.zeros(5, 7)]), compiled([torch.zeros(50, 3)])
    assert len(one.unique()) == 35 and len(two.unique()) == 150


def test_eagers_stream_is_kept_where_asked_and_on_a_cpu(seen):
    x = torch.randn(40, 50)
    function = DRAWN["dropout"]
    torch.manual_seed(3)
    expected = function(x)
    with config.patch(fallback_random=True):
        assert torch.equal(run(function, x, seed=3), expected)
    torch.manual_seed(3)
    assert torch.equal(fxjit.compile(function)(x), expected)
    assert "philox" not in seen.text


def test_one_number_is_drawn_a_call_whatever_a_graph_draws(texts):
    """By ATen, so that a recorded CUDA graph moves the generator on as the program does."""
    gm = make_fx(lambda x: torch.rand_like(x) + DRAWN["dropout"](x) + torch.randn_like(x), tracing_mode="fake")(torch.ones(4))
    from fxjit.backends.native import pipeline

    with config.patch(**{"triton.interpret": True}):
        pipeline.compile_graph(gm, (torch.ones(4),), "test", lone_kernels=True)
    assert texts[0].count("randint") == 1


def test_a_kernel_with_dropout_compiles_and_spills_nothing(seen):
    for_gpu(lambda x: F.dropout(F.gelu(x), 0.1, True), (4096, 4096), dtype=torch.bfloat16)
    kernel: TritonKernel = seen.kernels[-1]
    assert "fx_philox(" in kernel.source
    used = resources(compiler.submit(job_of(kernel, usual(kernel), kernel.configs[0], 90)).result())
    assert used["STACK"] == used["LOCAL"] == 0 and used["REG"] <= 128
