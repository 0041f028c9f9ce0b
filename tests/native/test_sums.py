"""Reductions against float64: no sum of ours is further from it than eager's, by the root mean square over rows and columns."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from benchmarks.accuracy import compiled_all, errors_of_reductions
from benchmarks.exact_functions import L
from benchmarks.exact_reductions import matrices, reductions
from torch.nn import functional as F

import fxjit
from fxjit import config
from fxjit.backends.native.codegen.graph_kernels import GraphKernels

Reduction = Callable[[torch.Tensor, int], torch.Tensor]
aten = torch.ops.aten

REDUCTIONS: dict[str, Reduction] = {
    "sum": torch.sum,
    "mean": torch.mean,
    "std": torch.std,
    "var": torch.var,
    "var of all": lambda x, dim: torch.var_mean(x, dim, correction=0)[0],
    "mean beside var": lambda x, dim: torch.var_mean(x, dim)[1],
    "norm": lambda x, dim: torch.linalg.vector_norm(x, 2, dim),
    "norm of sizes": lambda x, dim: torch.linalg.vector_norm(x, 1, dim),
    "logsumexp": torch.logsumexp,
    "softmax": torch.softmax,
    "log_softmax": torch.log_softmax,
    "cumsum": torch.cumsum,
    "logcumsumexp": torch.logcumsumexp,
}


def normal(*size: int) -> torch.Tensor:
    return torch.randn(*size, generator=torch.Generator().manual_seed(0))


INPUTS: dict[str, torch.Tensor] = {
    "normal": normal(64, 1000),
    "positive": normal(64, 1000).abs(),
    "near to each other, far from zero": 1e4 + 1e-2 * normal(64, 1000),
    "large": 1e25 * normal(64, 1000),
    "small": 1e-25 * normal(64, 1000),
    "short": 100 + normal(300, 33),
    "long": 100 + normal(2, 60000),
}
#: What another order of additions excuses.
RATIO, HAIR = 1.1, 1e-9


def distance(result: torch.Tensor, exact: torch.Tensor) -> float:
    """The root mean square of differences, relative to the mean size; infinite where something is not finite by mistake."""
    if not result.isfinite().equal(exact.float().isfinite()):
        return float("inf")
    away = ((result.double() - exact) / (exact.abs().mean() + 1e-300))[exact.float().isfinite()]
    return float(away.square().mean().sqrt()) if away.numel() else 0.0


@pytest.mark.sweep(2)
@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("name", INPUTS)
def test_no_reduction_is_less_accurate_than_eager(name: str, dim: int) -> None:
    x = INPUTS[name] if dim == 1 else INPUTS[name].t().contiguous()
    ours = compiled_all([lambda x, reduce=reduce: reduce(x, dim) for reduce in REDUCTIONS.values()], x)(x)
    worse = {}
    for (which, reduce), result in zip(REDUCTIONS.items(), ours, strict=True):
        exact = reduce(x.double(), dim)
        mine, eager = distance(result, exact), distance(reduce(x, dim), exact)
        if mine > eager * RATIO + HAIR:
            worse[which] = (mine, eager)
    assert not worse


def layer_norm(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    return aten.native_layer_norm(x, x.shape[-1:], None, None, 1e-5)


def batch_norm(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    zeros, ones = x.new_zeros(x.shape[1]), x.new_ones(x.shape[1])
    return aten._native_batch_norm_legit_functional(x, None, None, zeros, ones, True, 0.1, 1e-5)


def group_norm(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    batch, channels, *rest = x.shape
    return aten.native_group_norm(x, None, None, batch, channels, torch.Size(rest).numel(), 4, 1e-5)


def batch_norm_backward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    weight = x.new_ones(x.shape[1])
    mean, invstd = x.mean((0, 2, 3)), (x.var((0, 2, 3), correction=0) + 1e-5).rsqrt()
    return aten.native_batch_norm_backward(x.roll(1, 0) + 0.5, x, weight, None, None, mean, invstd, True, 1e-5, [True] * 3)


def group_norm_backward(x: torch.Tensor) -> tuple[torch.Tensor, ...]:
    batch, channels, *rest = x.shape
    _, mean, rstd = aten.native_group_norm(x, None, None, batch, channels, torch.Size(rest).numel(), 4, 1e-5)
    count, weight = torch.Size(rest).numel(), x.new_ones(channels)
    return aten.native_group_norm_backward(x.roll(1, 0) + 0.5, x, mean, rstd, weight, batch, channels, count, 4, [True] * 3)


NORMS = [layer_norm, batch_norm, group_norm, batch_norm_backward, group_norm_backward]


@pytest.mark.parametrize("layout", [torch.contiguous_format, torch.channels_last], ids=["plain", "channels last"])
@pytest.mark.parametrize("offset", [0.0, 30.0], ids=str)
@pytest.mark.parametrize("norm", NORMS, ids=lambda norm: norm.__name__)
def test_no_statistics_are_less_accurate_than_eager(
    norm: Callable[..., tuple[torch.Tensor, ...]], offset: float, layout: torch.memory_format
) -> None:
    x = (normal(2, 8, 24, 24) + offset).to(memory_format=layout)
    ours = compiled_all([lambda x, place=place: norm(x)[place] for place in range(3)], x)(x)
    for place, (result, eager, exact) in enumerate(zip(ours, norm(x), norm(x.double()), strict=False)):
        assert distance(result, exact) <= distance(eager, exact) * 1.2 + 2e-8, place


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs 80-bit floating point")
def test_no_reduction_of_float64_is_less_accurate_than_eager() -> None:
    """Apart: with a scan in one loop nest all goes one by one."""
    inputs = {name: x for name, x in matrices(torch.float64).items() if name in ("normal", "far", "near one")}
    for scans in (False, True):
        chosen = [
            each for each in reductions() if each.name.startswith("cum") == scans or (scans and each.name in ("sum", "var"))
        ]
        found = errors_of_reductions(chosen, torch.float64, inputs)
        worse = {where: pair for where, pair in found.items() if pair[1] > pair[0] * 1.25 + 0.05}
        assert not worse


@pytest.mark.skipif(np.finfo(np.longdouble).nmant < 63, reason="needs 80-bit floating point")
@pytest.mark.parametrize("shape", [(3, 40, 5, 30), (2, 3, 70_000), (70_000, 3), (9, 500, 2)], ids=str)
def test_errors_of_sums_do_not_grow_with_the_number_of_elements(shape: tuple[int, ...]) -> None:
    """All dimensions, the last, the first, and all but one: loops over rows and columns, whole and in chunks."""
    x = normal(*shape).double() + 1
    every = [tuple(range(len(shape))), (len(shape) - 1,), (0,), tuple(k for k in range(len(shape)) if k != 1)]
    ours = compiled_all([lambda x, dims=dims: x.sum(dims) for dims in every], x)(x)
    wide = x.numpy().astype(L)
    for dims, result in zip(every, ours, strict=True):
        exact = wide.sum(dims)
        assert np.all(np.abs(result.numpy().astype(L) - exact) <= np.spacing(np.abs(exact).astype(np.float64)) * 2.5), dims


def test_infinite_sums_are_eagers() -> None:
    inf, nan = float("inf"), float("nan")
    x = torch.ones(6, 700, dtype=torch.float64)
    for row, numbers in enumerate(((inf,), (-inf,), (inf, -inf), (nan,), (1e308,) * 4, (1.7e308, -1.7e308, 1.7e308))):
        x[row, 100 : 100 + len(numbers)] = torch.tensor(numbers, dtype=torch.float64)
    for dim, given in ((1, x), (0, x.t().contiguous())):
        ours = compiled_all([lambda x, dim=dim: x.sum(dim)], given)(given)[0]
        torch.testing.assert_close(ours, given.sum(dim), equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("width", [100, 32])
def test_an_index_is_read_once_for_a_row_of_columns(monkeypatch, width, dtype):
    """What does not vary along columns is read before the loop over them."""
    sources, render = [], GraphKernels.render

    def rendered(kernels, *args):
        launches = render(kernels, *args)
        sources.append(kernels.source)
        return launches

    monkeypatch.setattr(GraphKernels, "render", rendered)
    index, table = torch.randint(50, (6, 9)), torch.randn(50, width).to(dtype)

    def call(index, table):
        return F.embedding(index, table).mean(1)

    fxjit.reset()
    with config.patch(cache_graphs=False):
        compiled = fxjit.compile(call, fullgraph=True, dynamic=False)
        torch.testing.assert_close(compiled(index, table), call(index, table))
        with pytest.raises(IndexError):
            compiled(index + 45, table)
    (source,) = sources
    (index_name,) = re.findall(r"const int64_t \*__restrict__ (p\d+)", source)
    loops = [part.split("}")[0] for part in source.split("#pragma omp simd")[1:]]
    assert f" = {index_name}[" in source and not any(f" = {index_name}[" in each for each in loops)


#: Operators that pass over their operand several times, which is a function of some work.
PASSES = {
    "layer norm": lambda x: F.layer_norm(F.gelu(x), (96,)),
    "rms norm": lambda x: F.rms_norm(F.gelu(x), (96,)),
    "group norm": lambda x: F.group_norm(F.gelu(x).view(4, 16, 96), 4),
    "batch norm": lambda x: F.batch_norm(F.gelu(x), None, None, training=True),
    "softmax": lambda x: F.softmax(F.gelu(x), -1),
    "logarithm of softmax": lambda x: F.log_softmax(F.gelu(x), 0),
    "logsumexp": lambda x: torch.logsumexp(F.gelu(x), -1),
    "variance": lambda x: torch.var(F.gelu(x), -1),
    "standard deviation": lambda x: torch.std(F.gelu(x), 0),
}


@pytest.mark.parametrize("name", PASSES)
def test_a_function_is_calculated_in_one_of_several_passes(sources, name):
    x = torch.randn(64, 96)
    with config.patch(small_graphs_as_captured=False, cache_graphs=False), torch.no_grad():
        torch.testing.assert_close(fxjit.compile(PASSES[name], dynamic=False)(x), PASSES[name](x), rtol=1e-5, atol=1e-5)
    assert sum(source.count("fx_gelu(") for source in sources) == 1
