"""Kernels run by Triton's interpreter against eager: every shape of kernel, at the edges of its blocks."""

from __future__ import annotations

from operator import getitem

import pytest
import torch
import torch.fx
import torch.nn.functional as F
from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx

from fxjit import config
from fxjit.backends.native import pipeline

from .conftest import assert_same, for_gpu, run_interpreted


def square(x):
    return x[: min(x.shape), : min(x.shape)]


# What a kernel of each kind computes, with the kind its kernels are expected to be of.
PROGRAMS = {
    "arithmetic": (lambda x: (x * 2 + 1).relu() / 3 - x.abs().sqrt(), ["pointwise"]),
    "broadcasting": (lambda x: x + x[:1] * x[:, :1], ["pointwise"]),
    "transposed": (lambda x: x.t() * 2 + torch.ones(x.shape[1], x.shape[0]).exp(), ["pointwise", "tiled"]),
    "transposed sum": (lambda x: square(x) + square(x).t(), ["tiled", "pointwise"]),
    "sum of rows": (lambda x: x.sum(1), ["persistent"]),
    "sum of columns": (lambda x: x.sum(0), ["persistent", "looped", "split"]),
    "extremes": (lambda x: (x.amax(1), x.amin(0), x.max(), x.min()), None),
    "quantified": (lambda x: ((x > 1).any(1), (x > -3).all(0), (x > 0).any()), None),
    "product": (lambda x: (x / 2 + 1).prod(1), ["persistent"]),
    "softmax": (lambda x: torch.softmax(x, -1), ["persistent"]),
    "log softmax of columns": (lambda x: torch.log_softmax(x, 0), None),
    "layer norm": (lambda x: F.layer_norm(x, x.shape[1:]) * 2, ["persistent"]),
    "variance": (lambda x: torch.var_mean(x, 1), None),
    "everything of a matrix": (lambda x: (x.sum(), x.mean(), x.square().mean().sqrt()), None),
    "rows and then columns": (lambda x: (x - x.mean(1, keepdim=True)).amax(0), None),
    "gather": (lambda x: x.gather(1, x[:, :3].long().abs() % x.shape[1]) + 1, ["pointwise"]),
    "index": (lambda x: x[torch.arange(x.shape[0] - 1, -1, -2)] * 2, ["pointwise"]),
    "cat and pad": (lambda x: F.pad(torch.cat([x, x * 2], 1), (1, 2), value=3.0) + 1, ["pointwise"]),
    "scatter": (lambda x: x.scatter(0, torch.arange(x.shape[1] - 1, -1, -1)[None] * 0, x * 2) + 1, ["pointwise"]),
    "sums at computed places": (
        lambda x: (
            x.scatter_add(1, (x > 0).long() * (x.shape[1] - 1), x * 2),
            (x[0] * 2).index_add(0, torch.zeros_like(x[0]).long(), x[0]),
            torch.zeros_like(x).index_put((torch.arange(-x.shape[0], 0),), x.exp(), accumulate=True),
        ),
        ["pointwise"],
    ),
    "extremes at computed places": (
        lambda x: (x.long().scatter_reduce(1, (x > 0).long() * (x.shape[1] - 1), x.long() * 2, "amax"),), ["pointwise"],
    ),
    "scans of rows": (lambda x: ((x * 2).cumsum(1) + 1, x.exp().logcumsumexp(1), *x.cummax(1)), ["persistent", "pointwise"]),
    "scans of columns": (lambda x: (x.cumsum(0), x.sigmoid().cumprod(0) * 2, x.cummin(0)[1]), None),
    "a scan between reductions": (lambda x: (torch.softmax(x, -1).cumsum(-1) < 0.9).sum(-1), ["persistent"]),
    "mixed types": (lambda x: (x > 0) + x.to(torch.int64) * 2 + x.half().float(), ["pointwise"]),
    "not a number": (lambda x: ((x / 0).amax(1), torch.maximum(x.log(), x), (x / 0 * 0).sum()), None),
}  # fmt: skip
# Below, at and over what blocks hold; one of anything; nothing at all.
SHAPES = [(5, 7), (1, 1), (64, 32), (65, 33), (3, 130)]


@pytest.mark.sweep(2)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_kernels(seen, name, shape):
    function, kinds = PROGRAMS[name]
    torch.manual_seed(0)
    x = torch.randn(shape) * 3
    assert_same(run_interpreted(function, x), function(x), name)
    if kinds is not None and shape != (1, 1):
        assert set(seen.kinds) <= set(kinds) and seen.kinds


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64], ids=str)
@pytest.mark.parametrize("name", ["arithmetic", "softmax", "layer norm", "sum of columns", "transposed sum"])
def test_kernels_of_other_types(name, dtype):
    function, _ = PROGRAMS[name]
    torch.manual_seed(0)
    x = torch.randn(19, 37).to(dtype)
    assert_same(run_interpreted(function, x), function(x), name)


@pytest.mark.parametrize("dtype", [torch.int8, torch.uint8, torch.int16, torch.int32, torch.int64, torch.bool], ids=str)
def test_reductions_of_integers(dtype):
    x = torch.arange(6 * 11).reshape(6, 11).to(dtype)

    def function(x):
        if dtype is torch.bool:
            return x.sum(1), x.any(0), x.all(1)
        return x.sum(1), x.amax(0), x.amin(1), (x + 1).prod(1), x // 3, x % 5

    assert_same(run_interpreted(function, x), function(x))


@pytest.mark.parametrize("shape", [(0,), (3, 0), (0, 3), ()], ids=str)
def test_nothing_and_one_number(shape):
    x = torch.randn(shape)

    def function(x):
        return x + 1, x.sum(), (x * 2).sum(-1) if x.ndim else x * 2

    assert_same(run_interpreted(function, x), function(x))


# Rows that are looped over


LOOPED = {
    "softmax": lambda x: torch.softmax(x, -1),
    "layer norm": lambda x: F.layer_norm(x, x.shape[-1:]),
    "softmax and its parts": lambda x: (torch.softmax(x, -1), (x - x.amax(-1, keepdim=True)).exp()),
    "normalized and summed": lambda x: (x / x.norm(dim=-1, keepdim=True)).sum(-1),
    "columns": lambda x: torch.softmax(x, 0),
    "scan": lambda x: (x.cumsum(-1) * 2, (x > 0).cumsum(-1), x.cummax(-1)[1], x.logcumsumexp(-1)),
    "scan of columns": lambda x: (x.sigmoid().cumsum(0).log(), x.cumprod(0)),
    "scan and its sum": lambda x: (x.exp().cumsum(-1) / x.exp().sum(-1, keepdim=True)).mean(-1),
}


@pytest.mark.parametrize("name", list(LOOPED))
def test_rows_too_long_to_hold(monkeypatch, seen, name):
    """Later loops compute again what an earlier one made."""
    monkeypatch.setattr("fxjit.backends.native.schedule.gpu.LONGEST_ROW", 16)
    monkeypatch.setattr("fxjit.backends.native.schedule.gpu.TALLEST_COLUMN", 16)
    x = torch.randn(37, 71)
    assert_same(run_interpreted(LOOPED[name], x), LOOPED[name](x), name)
    assert "looped" in seen.kinds and "persistent" not in seen.kinds
    assert any("for r0 in range" in kernel.source for kernel in seen.kernels)


def test_softmax_of_long_rows_is_one_kernel_that_stores_once(seen):
    x = torch.randn(3, 5000)
    assert_same(run_interpreted(LOOPED["softmax"], x), LOOPED["softmax"](x))
    (kernel,) = seen.kernels
    assert kernel.source.count("for r0 in range") == 3 and kernel.source.count("tl.store") == 1


def test_what_was_overwritten_is_not_computed_again(monkeypatch, seen):
    """A loop that needs a value made from memory that an earlier loop changed: the value goes through memory."""
    monkeypatch.setattr("fxjit.backends.native.schedule.gpu.LONGEST_ROW", 16)

    def function(x):
        y = x.exp()
        x.mul_(3)
        return torch.softmax(y, -1) + y

    x = torch.randn(4, 70)
    given, expected = x.clone(), x.clone()
    assert_same(run_interpreted(function, given), function(expected))
    assert_same(given, expected)


# Few long rows


@pytest.mark.parametrize("shape", [(1000,), (2, 700), (700, 3)], ids=str)
def test_few_long_rows_are_reduced_in_chunks(monkeypatch, seen, shape):
    monkeypatch.setattr("fxjit.backends.native.choose.fusion.LONG", 256)
    monkeypatch.setattr("fxjit.backends.native.schedule.gpu.CHUNK", 128)

    def function(x):
        return (x * 2).sum(-1), x.amax(0), x.mean() + 1, (x > 2).any()

    x = torch.randn(shape, dtype=torch.float64)
    assert_same(run_interpreted(function, x), function(x))
    assert "split" in seen.kinds


def test_chunks_of_a_long_row_are_as_many_as_programs_that_a_gpu_runs_at_once(seen):
    for_gpu(lambda x: x.sum(), (1 << 28,))
    first, second = seen.kernels
    assert first.rest == 1024 and first.axes == [(1, "XB")]
    assert seen.kinds == ["split", "persistent"]


# Numbers


SPREAD = {
    "variance of rows": lambda x: torch.var(x, 1),
    "variance of columns": lambda x: torch.var(x, 0),
    "layer norm": lambda x: F.layer_norm(x, x.shape[1:]),
    "group norm": lambda x: F.group_norm(x[None], 4)[0],
    "batch norm": lambda x: torch.ops.aten._native_batch_norm_legit_functional(x, *[x.new_ones(64)] * 4, True, 0.1, 1e-5)[0],
}


@pytest.mark.parametrize("longest", [16, 4096])
@pytest.mark.parametrize("name", list(SPREAD))
def test_a_large_mean_does_not_hide_a_small_variance(monkeypatch, seen, name, longest):
    """The mean is taken off before squares are summed, in rows that are held and in rows that are looped over."""
    monkeypatch.setattr("fxjit.backends.native.schedule.gpu.LONGEST_ROW", longest)
    monkeypatch.setattr("fxjit.backends.native.schedule.gpu.TALLEST_COLUMN", longest)
    x = 1000 + 0.1 * torch.randn(40, 64, generator=torch.Generator().manual_seed(0))
    exact = SPREAD[name](x.double())
    actual = run_interpreted(SPREAD[name], x)
    assert seen.kernels
    # Within what rounding the mean to float32 does to a deviation of 0.1.
    torch.testing.assert_close(actual.double(), exact, rtol=2e-2, atol=2e-2)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_batch_norm_of_halves_has_statistics_in_float32(seen, dtype):
    """A GPU's do; the program around it is a training step's."""
    x, grad = torch.randn(6, 8, 5, 5).to(dtype), torch.randn(6, 8, 5, 5).to(dtype)
    weight, bias, mean, var = torch.rand(8) + 0.5, torch.randn(8), torch.randn(8), torch.rand(8)

    def step(x, grad, weight, bias, mean, var):
        normalize = torch.ops.aten._native_batch_norm_legit_functional
        y, save_mean, invstd, mean, var = normalize(x, weight, bias, mean, var, True, 0.1, 1e-5)
        backward = torch.ops.aten.native_batch_norm_backward
        masks = [True, True, True]
        gradients = backward(grad, x, weight, mean, var, save_mean.float(), invstd.float(), True, 1e-5, masks)
        return y.relu(), mean.float(), var.float(), *(each.float() for each in gradients)

    actual = run_interpreted(step, x, grad, weight, bias, mean, var)
    assert seen.kernels and actual[0].dtype is dtype
    exact = [each.double() for each in (x, grad, weight, bias, mean, var)]
    leaves = [each.requires_grad_() for each in (exact[0], exact[2], exact[3])]
    y = F.batch_norm(exact[0], exact[4], exact[5], exact[2], exact[3], training=True)
    gradients = torch.autograd.grad(y, leaves, exact[1])
    tolerance = dict(rtol=1e-4, atol=1e-4) if dtype is torch.float32 else dict(rtol=2e-2, atol=4e-2)
    for one, other in zip(actual, (y.relu(), exact[4], exact[5], *gradients), strict=True):
        torch.testing.assert_close(one.double(), other.detach(), **tolerance)


# Sizes that vary


def test_one_kernel_serves_several_sizes(seen):
    def function(x, y):
        return torch.softmax(x * y, -1), (x + y).t().contiguous(), x.sum(0), torch.cat([x, y]) * 2

    inputs = torch.randn(6, 10), torch.randn(6, 10)
    gm = make_fx(function, tracing_mode="symbolic")(*inputs)
    with config.patch(**{"triton.interpret": True}):
        compiled = pipeline.compile_graph(gm, inputs, "test", lone_kernels=True).finish()
        count = len(seen.kernels)
        for shape in ((6, 10), (65, 33), (2, 300)):
            x, y = torch.randn(shape), torch.randn(shape)
            assert_same(compiled([x, y]), function(x, y), str(shape))
    assert len(seen.kernels) == count


def test_wide_indices_give_the_same(seen):
    """The kernel for indices of 64 bits, on a small tensor."""

    def function(x):
        return torch.softmax(x.t() + 1, -1), x.sum(0)

    x = torch.randn(33, 20)
    gm = make_fx(function, tracing_mode="fake")(x)
    with config.patch(**{"triton.interpret": True}):
        compiled = pipeline.compile_graph(gm, (x,), "test", lone_kernels=True)
        for kernel in seen.kernels:
            kernel.span = 2**31
        assert_same(compiled.finish()([x]), function(x))


# Memory


def test_an_input_changed_in_place(seen):
    def function(x, y):
        x.add_(y)
        y.copy_(x * 2)
        return x.sum(1)

    x, y = torch.randn(9, 40), torch.randn(9, 40)
    given, expected = (x.clone(), y.clone()), (x.clone(), y.clone())
    assert_same(run_interpreted(function, *given), function(*expected))
    assert_same(given, expected)


def test_kernels_equal_but_for_names_are_one(seen):
    def function(a, b):
        return (torch.mm((a * 2).exp(), b) * 2).exp()

    inputs = torch.randn(8, 8), torch.randn(8, 8)
    gm = make_fx(function, tracing_mode="fake")(*inputs)
    with config.patch(**{"triton.interpret": True}):
        compiled = pipeline.compile_graph(gm, inputs, "test", lone_kernels=True)
        assert len(seen.kernels) == 2
        assert len(compiled.encoded.others()) == 1
    assert_same(compiled.finish()(list(inputs)), function(*inputs))


def test_an_index_out_of_bounds_raises():
    table, bad = torch.randn(10, 6), torch.tensor([1, 10])
    with pytest.raises(IndexError, match="index out of range"):
        run_interpreted(lambda t, i: F.embedding(i, t) * 2, table, bad)


def graph_of_one_call(operator, given, results):
    """A graph of the call alone, as tracing on a GPU makes it; `results` are like what it gives."""
    graph, mode = torch.fx.Graph(), FakeTensorMode()
    tensors = [each for each in given if isinstance(each, torch.Tensor)]
    places = {id(each): graph.placeholder(f"a{k}") for k, each in enumerate(tensors)}
    for each in tensors:
        places[id(each)].meta["val"] = mode.from_tensor(each)
    call = graph.call_function(operator, tuple(places.get(id(each), each) for each in given))
    call.meta["val"] = tuple(None if each is None else mode.from_tensor(each) for each in results)
    parts = [graph.call_function(getitem, (call, k)) for k, each in enumerate(results) if each is not None]
    for part, meta in zip(parts, filter(lambda each: each is not None, call.meta["val"]), strict=True):
        part.meta["val"] = meta
    graph.output(tuple(parts))
    return pipeline.compile_graph(torch.fx.GraphModule({}, graph), tensors, "test", lone_kernels=True).finish()(tensors)


@pytest.mark.parametrize("weighted", [True, False])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64], ids=str)
def test_rms_norm_as_the_operator_that_it_is_on_a_gpu(seen, interpreter, dtype, weighted):
    """On the processor it is taken apart before it gets here. The numbers are so small that epsilon counts."""
    torch.manual_seed(0)
    wide = torch.promote_types(dtype, torch.float32)
    x, g, w = (torch.randn(5, 3, 32) * 1e-3).to(dtype), (torch.randn(5, 3, 32) * 1e-3).to(dtype), torch.randn(32).to(dtype)
    exact, scale = x.double().requires_grad_(), w.double().requires_grad_()
    rstd = (exact.square().mean(-1, keepdim=True) + torch.finfo(wide).eps).rsqrt()
    out = exact * rstd * scale if weighted else exact * rstd
    gradients = torch.autograd.grad(out, (exact, scale) if weighted else (exact,), g.double())

    forward = [out.detach().to(dtype), rstd.detach().to(wide)]
    given = (x, [32], w if weighted else None, None)
    assert_same(graph_of_one_call(torch.ops.aten._fused_rms_norm.default, given, forward), forward)
    backward = [each.to(dtype) for each in gradients]
    given = (g, x, [32], forward[1], w if weighted else None, [True, weighted])
    found = graph_of_one_call(torch.ops.aten._fused_rms_norm_backward.default, given, (*backward, None)[:2])
    assert_same(found[: len(backward)], backward)
    assert len(seen.kernels) >= 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_batch_norm_by_running_statistics_gives_them_as_on_a_gpu(seen, interpreter, dtype):
    x, w, b, mean = torch.randn(4, 6, 5).to(dtype), torch.randn(6), torch.randn(6), torch.randn(6)
    var = torch.rand(6) + 0.5
    out = F.batch_norm(x.float(), mean, var, w, b, False, 0.1, 1e-5).to(dtype)
    expected = [out, mean, (var + 1e-5).rsqrt()]
    given = (x, w, b, mean, var, 0.1, 1e-5)
    assert_same(graph_of_one_call(torch.ops.aten._native_batch_norm_legit_no_training.default, given, expected), expected)
    assert seen.kernels
