"""Products, convolutions and attention of half types that are taken in float32 (choose/upcast.py): as near to the true
results as eager's, in eager's types and layouts, where what was measured says so."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx.experimental.proxy_tensor import make_fx

import fxjit
from fxjit import _C, config, tensor_shim
from fxjit.backends.native.choose import upcast
from fxjit.backends.native.runtime import low_precision
from fxjit.counters import counters

LOW_PRECISION = [torch.bfloat16, torch.float16]
LAST = torch.channels_last
LAYOUTS = ["heads first", "heads second"]


@pytest.fixture(autouse=True)
def compiled_however_small():
    fxjit.reset()
    with config.patch({"small_graphs_as_captured": False, "cache_graphs": False, "cpp.own_attention": False}):
        yield


@pytest.fixture
def upcast_targets(monkeypatch):
    """The targets that were taken in float32."""
    seen = []
    plain = upcast._upcast

    def noted(graph, node, half):
        seen.append(node.target)
        plain(graph, node, half)

    monkeypatch.setattr(upcast, "_upcast", noted)
    return seen


@pytest.fixture(params=[True, False], ids=["slow", "fast"])
def slow(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> bool:
    """What is said to have been measured."""
    monkeypatch.setattr(upcast, "is_slow", lambda trial: request.param)
    return request.param


@pytest.fixture(autouse=True)
def seeded() -> None:
    """How far rounding takes a result from the true one differs from draw to draw."""
    torch.manual_seed(0)


@pytest.fixture
def all_slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upcast, "is_slow", lambda trial: True)


def everything(call: Callable[..., Any], given: list[Any]) -> list[torch.Tensor]:
    """Results and gradients."""
    leaves = [each.detach().requires_grad_() if isinstance(each, torch.Tensor) else each for each in given]
    out = call(*leaves)
    out.backward(torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view(out.shape).to(out.dtype))
    return [out.detach(), *(each.grad for each in leaves if isinstance(each, torch.Tensor))]


def assert_as_near(call: Callable[..., Any], given: list[Any], **how: Any) -> None:
    """To the true results, in forward and in training."""
    compiled = fxjit.compile(call, fullgraph=True, **how)
    wide = [each.double() if isinstance(each, torch.Tensor) else each for each in given]
    with torch.no_grad():
        results = [(compiled(*given), call(*given), call(*wide))]
    results += zip(everything(compiled, given), everything(call, given), everything(call, wide), strict=True)
    for found, theirs, true in results:
        assert found.dtype is theirs.dtype and found.shape == theirs.shape and found.stride() == theirs.stride()
        mine, eagers = ((each - true).square().mean().sqrt() for each in (found, theirs))
        assert mine <= 1.02 * eagers + 1e-6


MATRICES = {
    "mm": (torch.mm, [(5, 33), (33, 20)]),
    "addmm": (torch.addmm, [(20,), (5, 33), (33, 20)]),
    "bmm": (torch.bmm, [(3, 5, 33), (3, 33, 20)]),
    "baddbmm": (torch.baddbmm, [(3, 5, 20), (3, 5, 33), (3, 33, 20)]),
    "linear": (F.linear, [(2, 5, 33), (20, 33), (20,)]),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("turned", [False, True], ids=["", "turned"])
@pytest.mark.parametrize("name", MATRICES)
@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_products(upcast_targets, all_slow, dtype: torch.dtype, name: str, turned: bool):
    call, sizes = MATRICES[name]
    given = [torch.randn(*each[::-1], dtype=dtype).t() if turned and len(each) == 2 else torch.randn(*each, dtype=dtype)
             for each in sizes]
    assert_as_near(call, given)
    assert len(upcast_targets) >= 3  # forward, in training once more, and two gradients


CONVOLUTIONS = {
    "windows": lambda x, w, b: F.conv2d(x, w, b, padding=1),
    "steps": lambda x, w, b: F.conv2d(x, w, b, stride=2, dilation=2),
    "groups": lambda x, w, b: F.conv2d(x, w[:, :4], b, groups=4),
    "depthwise": lambda x, w, b: F.conv2d(x, w[:, :1], b, groups=16),
    "transposed": lambda x, w, b: F.conv_transpose2d(x, w, b, stride=2, padding=1),
    "one pixel": lambda x, w, b: F.conv2d(x, w[:, :, :1, :1], b),
    "rows": lambda x, w, b: F.conv1d(x[:, :, 0], w[:, :, 0], b),
}


@pytest.mark.sweep(2)
@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST], ids=["plain", "channels last"])
@pytest.mark.parametrize("name", CONVOLUTIONS)
@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_convolutions(upcast_targets, all_slow, dtype: torch.dtype, name: str, layout: torch.memory_format):
    given = [torch.randn(2, 16, 9, 8, dtype=dtype).to(memory_format=layout),
             torch.randn(16, 16, 3, 3, dtype=dtype).to(memory_format=layout), torch.randn(16, dtype=dtype)]
    assert_as_near(CONVOLUTIONS[name], given)
    assert len(upcast_targets) >= 3


@pytest.mark.parametrize("layout", [torch.contiguous_format, LAST], ids=["plain", "channels last"])
def test_derivatives_of_a_depthwise_convolution_are_measured_by_themselves(monkeypatch, upcast_targets, layout):
    """In each layout that its images may have: in bfloat16 they may be slow where the convolution is not."""
    seen = []

    def is_slow(trial: low_precision.Trial) -> bool:
        seen.append(trial)
        return trial.operator is low_precision._depthwise_back and trial.orders[0] == (0, 2, 3, 1)

    monkeypatch.setattr(upcast, "is_slow", is_slow)
    given = [torch.randn(2, 16, 9, 8).to(memory_format=layout), torch.randn(16, 1, 3, 3), torch.randn(16)]
    given = [each.bfloat16() for each in given]
    assert_as_near(lambda x, w, b: F.conv2d(x, w, b, stride=2, padding=1, groups=16), given)
    assert upcast_targets == [torch.ops.aten.convolution_backward.default]
    assert ((1, 16, 5, 4), (1, 16, 9, 8), (16, 1, 3, 3)) in {trial.sizes for trial in seen}


def operands(dtype: torch.dtype, queries: int, keys: int, layout: str) -> list[torch.Tensor]:
    made = []
    for length in (queries, keys, keys):
        x = torch.randn(2, 3, length, 16, dtype=dtype)
        made.append(x if layout == LAYOUTS[0] else x.transpose(1, 2).contiguous().transpose(1, 2))
    return made


ATTENTION = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
DERIVATIVE = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward.default


@pytest.mark.sweep(2)
@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("how", ["plain", "causal", "mask", "scale"])
@pytest.mark.parametrize("dtype", LOW_PRECISION)
def test_attention(upcast_targets, slow: bool, dtype: torch.dtype, how: str, layout: str):
    given = operands(dtype, 24, 24 if how == "causal" else 33, layout)
    mask = torch.randn(24, 33, dtype=dtype)

    def attend(q, k, v):
        options = {"plain": {}, "causal": {"is_causal": True}, "mask": {"attn_mask": mask.to(q.dtype)}, "scale": {"scale": 0.3}}
        return F.scaled_dot_product_attention(q, k, v, **options[how])

    assert_as_near(attend, given)
    assert upcast_targets.count(DERIVATIVE) == 1 and upcast_targets.count(ATTENTION) == (2 if slow else 0)


@pytest.mark.parametrize(("dtype", "length"), [(torch.float32, 24), (torch.bfloat16, 256)])
def test_what_stays_atens(upcast_targets, monkeypatch, dtype: torch.dtype, length: int):
    monkeypatch.setattr(upcast, "is_slow", lambda trial: False)
    given = operands(dtype, length, length, LAYOUTS[0])
    for found, eager in zip(everything(fxjit.compile(F.scaled_dot_product_attention), given),
                            everything(F.scaled_dot_product_attention, given), strict=True):
        torch.testing.assert_close(found, eager, rtol=2e-2, atol=2e-2)
    assert not upcast_targets


def test_few_rows_and_one_query_are_not_widened(upcast_targets, all_slow):
    """The first are as fast as the other operand is read; attention of one query has a kernel."""
    weight, x = torch.randn(64, 48).bfloat16(), torch.randn(2, 48).bfloat16()
    q, k = torch.randn(1, 2, 1, 16).bfloat16(), torch.randn(1, 2, 9, 16).bfloat16()
    with torch.no_grad():
        fxjit.compile(F.linear, dynamic=False)(x, weight)
        fxjit.compile(F.scaled_dot_product_attention, dynamic=False)(q, k, k)
    assert not upcast_targets


@pytest.mark.compiles
def test_sizes_that_vary(upcast_targets, all_slow):
    compiled = fxjit.compile(lambda x, w: F.linear(x, w).relu(), dynamic=True)
    for length in (16, 25, 1, 40):
        x, w = torch.randn(length, 12).bfloat16(), torch.randn(20, 12).bfloat16()
        torch.testing.assert_close(compiled(x, w), F.linear(x, w).relu(), rtol=2e-2, atol=2e-2)
    for length in (16, 25):
        given = operands(torch.float16, length, length, LAYOUTS[0])
        attend = fxjit.compile(F.scaled_dot_product_attention, dynamic=True)
        for found, eager in zip(everything(attend, given), everything(F.scaled_dot_product_attention, given), strict=True):
            torch.testing.assert_close(found, eager, rtol=2e-2, atol=2e-2)
    assert upcast_targets


def test_autocast(upcast_targets, all_slow):
    model = torch.nn.Sequential(torch.nn.Conv2d(3, 16, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(16 * 36, 10))
    x = torch.randn(4, 3, 8, 8)
    compiled = fxjit.compile(model, fullgraph=True)
    found = []
    for each in (model, compiled):
        model.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            out = each(x)
            loss = F.cross_entropy(out, torch.arange(4))
        loss.backward()
        found.append([out.detach(), loss.detach(), *(p.grad.clone() for p in model.parameters())])
    for mine, eagers in zip(*reversed(found), strict=True):
        assert mine.dtype is eagers.dtype
        torch.testing.assert_close(mine, eagers, rtol=5e-2, atol=2e-2)
    assert {str(each) for each in upcast_targets} >= {"aten.convolution.default", "aten.convolution_backward.default"}


# -- what is measured --------------------------------------------------------------------------------------------------


def trials():
    a, b = torch.empty(700, 30, dtype=torch.bfloat16), torch.empty(50, 30, dtype=torch.bfloat16).t()
    yield low_precision.of_product(torch.ops.aten.mm.default, (a, b))
    yield low_precision.of_product(torch.ops.aten.bmm.default, (a.expand(6, 700, 30), b.expand(6, 30, 50)))
    for dims, transposed, groups in itertools.product((1, 2, 3), (False, True), (1, 4, 24)):
        x = torch.empty(3, 24, *[90] * dims, dtype=torch.float16)
        weight = torch.empty(24, 24 // groups, *[5] * dims, dtype=torch.float16)
        ways = ([2] * dims, [1] * dims, [3] * dims, [0] * dims)
        yield low_precision.of_convolution(x, weight, ways, transposed, groups)
    for dims in (1, 2, 3):
        x = torch.empty(3, 96, *[90] * dims, dtype=torch.bfloat16)
        ways = [2] * dims, [2] * dims, [1] * dims
        yield from low_precision.of_depthwise_derivatives(x, x.new_empty(96, 1, *[5] * dims), ways)
    for derivative in (False, True):
        q, k = (torch.empty(2, 8, length, 64, dtype=torch.bfloat16) for length in (1000, 70))
        yield low_precision.of_attention(q, k, derivative)


@pytest.mark.parametrize("trial", list(trials()), ids=lambda trial: trial.name()[:60])
def test_a_call_like_it_is_measured_in_both_types(trial):
    half, wide = low_precision.measure(trial)
    assert half > 0 and wide > 0
    assert all(size <= 256 for sizes in trial.sizes for size in sizes)


def test_calls_are_compared_once_and_what_was_found_is_kept(tmp_path, monkeypatch):
    trial = next(trials())
    monkeypatch.setattr(low_precision, "_measured", {})
    with config.patch(cache_dir=str(tmp_path), measure_machine=True):
        before = counters["native"]["calls of half types compared"]
        first = low_precision.is_slow(trial)
        monkeypatch.setattr(low_precision, "_measured", {})
        assert low_precision.is_slow(trial) is first
        assert counters["native"]["calls of half types compared"] == before + 1


@pytest.mark.skipif(not tensor_shim.ensure() or not _C.program_can("few rows"), reason="neither AVX2 nor AVX-512")
@pytest.mark.parametrize("rows", [4, 12, 13])
def test_products_of_few_rows_that_have_a_kernel_are_no_calls_of_float32(monkeypatch, rows: int):
    monkeypatch.setattr(upcast, "is_slow", lambda _: True)
    gm = make_fx(lambda x, weight: torch.mm(x, weight.t()), tracing_mode="fake")(
        torch.randn(rows, 256).bfloat16(), torch.randn(64, 256).bfloat16())
    upcast.upcast_slow_calls(gm.graph)
    types = {node.meta["val"].dtype for node in gm.graph.find_nodes(op="call_function", target=torch.ops.aten.mm.default)}
    assert types == {torch.bfloat16 if rows <= 12 else torch.float32}


@pytest.mark.parametrize(("times", "slow"), [((100, 100), False), ((140, 100), False), ((160, 100), True)])
def test_what_decides_is_how_much_longer_the_half_type_takes(monkeypatch, times: tuple[int, int], slow: bool):
    trial = next(trials())
    monkeypatch.setattr(low_precision, "_measured", {trial: times})
    with config.patch(measure_machine=True):
        assert low_precision.is_slow(trial) is slow
        torch.use_deterministic_algorithms(True)
        try:
            assert not low_precision.is_slow(trial)
        finally:
            torch.use_deterministic_algorithms(False)
    assert not low_precision.is_slow(trial)
