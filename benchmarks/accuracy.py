"""`python -m benchmarks.accuracy`: how far elementwise functions and reductions are from their values, ours beside eager's.

Elementwise: the largest error over samples of the whole range, in units in the last place (ulp) of the type, against 80-bit
floating point. Every value of the half types is tried; of float32 and float64 random bit patterns, numbers around roots and
bends, subnormals. A result that is infinite or no number where the true one is finite counts as infinitely far.
Of elementwise functions only kernels are measured: no operator is left to ATen. `--write` makes docs/accuracy.md.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.fx.experimental.proxy_tensor import make_fx

from benchmarks.exact_functions import Function, L, Wide, rows
from benchmarks.exact_reductions import Reduction, error, matrices, reductions
from benchmarks.timing import markdown

PAGE = Path(__file__).parent.parent / "docs" / "accuracy.md"
DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
#: Roots, bends and limits of the functions: samples are close to them, on both sides, and between their negatives.
POINTS = (0.0, 0.5, 1.0, 2.0, 3.0, 6.0, 17.3, 20.0, 88.7, 103.9, 709.7, math.pi / 2, math.pi, 100 * math.pi, 1e4 * math.pi)


def samples(dtype: torch.dtype, count: int, seed: int = 0) -> torch.Tensor:
    """About `count` finite numbers of the type, each third of another kind; of a half type at least all there are."""
    rng = np.random.default_rng(seed)
    third = count // 3
    if dtype in (torch.float16, torch.bfloat16):
        bits = torch.arange(-(2**15), 2**15, dtype=torch.int16)
        parts = [bits[torch.from_numpy(rng.permutation(2**16))].view(dtype)]
    else:
        integer, width = (np.int32, 32) if dtype is torch.float32 else (np.int64, 64)
        bits = torch.from_numpy(rng.integers(-(2 ** (width - 1)), 2 ** (width - 1), third, dtype=integer))
        near = np.array([sign * point for point in POINTS for sign in (-1, 1)])
        close = np.concatenate([
            rng.choice(near, third // 2) + 10 ** rng.uniform(-12, 0, third // 2) * rng.choice([-1, 1], third // 2),
            rng.choice(near, third // 4) * (1 + rng.uniform(-1, 1, third // 4) * torch.finfo(dtype).eps * 64),
            rng.uniform(-1, 1, third // 4),
            rng.uniform(-1, 1, third) * 10 ** rng.uniform(-1, 3, third),
        ])  # fmt: skip
        parts = [bits.view(dtype), torch.from_numpy(close).to(dtype)]
    found = torch.cat(parts)
    return found[found.isfinite()]


def errors(results: torch.Tensor, exact: Wide) -> Any:
    """How many units in the last place of the results' type each is away from the true value; NaN where that is none."""
    info = torch.finfo(results.dtype)
    largest, least = L(info.max), L(info.smallest_normal) * L(info.eps)
    got = results.double().numpy().astype(L) if results.dtype is not torch.float64 else results.numpy().astype(L)
    with np.errstate(all="ignore"):
        exponent = np.frexp(np.abs(exact))[1] - 1
        unit = np.maximum(np.ldexp(L(info.eps), exponent), least)
        # What rounds to infinity counts from the number after the largest.
        beyond = np.abs(exact) >= largest * (1 + L(info.eps) / 4)
        limit = np.where(beyond, np.copysign(largest * (1 + L(info.eps) / 2), exact), exact)
        got = np.where(np.isinf(got), np.copysign(largest * (1 + L(info.eps) / 2), got), got)
        unit = np.where(beyond, largest * L(info.eps) / 2, unit)
        away = np.abs(got - limit) / unit
    away = np.where(np.isnan(got) & np.isfinite(exact), np.inf, away)
    away = np.where(np.isinf(results.double().numpy()) & ~beyond & (away > 2), np.inf, away)
    return np.where(np.isnan(exact) | (np.isinf(exact)), np.nan, away).astype(np.float64)


def compiled_all(calls: Sequence[Callable[..., Any]], *inputs: Any) -> Callable[..., list[Any]]:
    """The calls, each of the same inputs, as kernels of ours: every operator that has a lowering."""
    from fxjit.backends.native import decompositions, pipeline

    decompositions.define_own_operators()
    table = decompositions.table()
    gm = make_fx(lambda *args: [call(*args) for call in calls], decomposition_table=table, tracing_mode="fake")(*inputs)
    program = pipeline.compile_graph(gm, inputs, "accuracy", lone_kernels=True).finish()
    return lambda *args: list(program(list(args)))


def compiled(call: Callable[..., Any], *inputs: Any) -> Callable[..., Any]:
    program = compiled_all([call], *inputs)
    return lambda *args: program(*args)[0]


def inputs_of(function: Function, dtype: torch.dtype, count: int) -> list[torch.Tensor]:
    found = [samples(dtype, count, seed) for seed in range(function.arity)]
    least = min(len(each) for each in found)
    found = [each[:least] for each in found]
    if function.slow and (dtype is torch.float64 or function.name.startswith("gelu")):
        found = [each[torch.linspace(0, least - 1, min(least, 6000)).long()] for each in found]
    return found


def largest_errors(function: Function, dtype: torch.dtype, count: int) -> tuple[float, float, list[Any]]:
    """(eager's, ours, the inputs of our largest error)"""
    inputs = inputs_of(function, dtype, count)
    wide = [each.double().numpy().astype(L) for each in inputs]
    with np.errstate(all="ignore"):
        exact = function.exact(*wide)
    both = [errors(each(*inputs), exact) for each in (function.call, compiled(function.call, *inputs))]
    eager, ours = (float(np.nanmax(each)) for each in both)
    worst = int(np.nanargmax(both[1]))
    return eager, ours, [each[worst].item() for each in inputs]


def elementwise(dtypes: Sequence[torch.dtype], only: str, count: int, verbose: bool = False) -> list[tuple[str, ...]]:
    table = []
    for function in rows():
        if only and only != function.name:
            continue
        cells = []
        for dtype in dtypes:
            eager, ours, where = largest_errors(function, dtype, count)
            worse = ours > eager * 1.01 + 0.005
            cells += [f"{eager:.3g}", f"{ours:.3g}"]
            if verbose and worse:
                print(f"{function.name} {dtype}: eager {eager:.4g}, ours {ours:.4g} at {where}", file=sys.stderr, flush=True)
        table.append((function.name, *cells))
    return table


def errors_of_reductions(
    chosen: Sequence[Reduction], dtype: torch.dtype, inputs: dict[str, torch.Tensor]
) -> dict[tuple[str, str, int], tuple[float, float]]:
    """(eager's, ours) of each reduction over each input and dimension."""
    found = {}
    for which, rows_ in inputs.items():
        for dim in (1, 0):
            x = rows_ if dim == 1 else rows_.t().contiguous()
            wide = rows_.double().numpy().astype(L)
            fit = [each for each in chosen if dim in each.dims and which in each.inputs]
            if not fit:
                continue
            ours = compiled_all([lambda x, each=each: each.call(x, dim) for each in fit], x)(x)
            for each, result in zip(fit, ours, strict=True):
                exact = each.exact(wide)
                both = [result if result.ndim < 2 or dim == 1 else result.t() for result in (each.call(x, dim), result)]
                found[each.name, which, dim] = error(both[0], exact), error(both[1], exact)
    return found


def reduction_table(dtypes: Sequence[torch.dtype], only: str) -> list[tuple[str, ...]]:
    chosen = [each for each in reductions() if only in ("", each.name)]
    cells: dict[str, list[str]] = {each.name: [] for each in chosen}
    for dtype in dtypes:
        found = errors_of_reductions(chosen, dtype, matrices(dtype))
        for name, row in cells.items():
            pairs = {tuple(where): pair for (reduction, *where), pair in found.items() if reduction == name}
            row += [f"{max(eager for eager, _ in pairs.values()):.3g}", f"{max(ours for _, ours in pairs.values()):.3g}"]
            for where, (eager, ours) in pairs.items():
                if ours > eager * 1.05 + 0.005:
                    print(f"{name} {dtype} {where}: eager {eager:.4g}, ours {ours:.4g}", file=sys.stderr, flush=True)
    return [(name, *row) for name, row in cells.items()]


HEAD = """# Accuracy

<!-- made by python -m benchmarks.accuracy --write -->

No function of fxjit's kernels is less accurate than eager's. `config.cpp.fast_math = True` gives that up for speed: functions
are then libmvec's of the same type (up to 4 units in the last place), sums are reassociated, infinities and NaN not told apart.

* **float32**: elementary functions are calculated in double and rounded once, or in float with what their largest sum loses.
  Alone, a call of `exp`, `tanh`, `erf` or `log` is ATen's; fused, ours take 0.2 to 1.1 times the time of ATen's
  ([performance_kernels.md](performance_kernels.md#functions-by-element)), and save its passes. Of all numbers, not
  samples, eager's largest error of `exp` is 0.56 (ours the same), of `log` 0.97 (0.61), of `exp2` 0.85 (0.54), of
  `log1p` and `expm1` 1.0 (0.88 and 0.71), of `pow` 0.78 (0.53).
* `gelu` and its derivative are calculated in one, with the digits of the tail that eager's `1 + erf(x)` loses: at most 3.3
  units away between -1 and 1 (eager 9.3), 14 at -5 (eager 6.7e5). Where eager's is 0, ours is not.
* On processors with AVX-512 eager's `log` (MKL's) and its `gelu` around 0 (oneDNN's) are better than elsewhere, and so are
  ours: `log` in double, 0.51 (eager 0.55); `gelu` 2.0 between -1 and 1 (eager 2.4). Such a `log` takes 1.4 times the time of
  the other form, `gelu` none that was seen. oneDNN's makes NaN of infinity, and errs by 3.2e6 units at -5.
* **float64**: `exp`, and what is made of it, is as accurate as ATen's. All other functions of libm are calls of ATen, since no
  vector library is as accurate as what ATen calls.
* **bfloat16, float16**: kernels calculate in float32 and round what they store. Between fused operators nothing is rounded,
  where eager rounds each operator's result: a chain's result is nearer to the true one than eager's, and differs from it.
  Operators that jump (comparisons, `floor`, `sign`, extremes) see the number that eager's tensor would hold.
* **Sums** and products of float32 are gathered in double and rounded once; means and variances, and the statistics of
  normalizations, are calculated in double as a whole. Those of float64 are gathered in pieces, and the pieces' totals added up
  with what each addition rounds off (Knuth's two-sum): the error does not grow with the number of elements.
* **Optimizers**: torch's own keep their count of steps a tensor while they are compiled, and calculate what depends on it in
  float32, with torch.compile as here. RAdam's factors lose digits by it: after 12 steps of numbers around 1 a parameter is
  6.6e-6 from a run in float64, eager's 2.6e-7 (Adam 5.7e-7 and 5.0e-7, AdamW 8.1e-7 and 6.6e-7, NAdam 4.7e-7 and 3.7e-7, others
  none). `capturable=True` does the same in eager on a GPU.

Largest errors in units in the last place. `inf`: an overflow or NaN where the true value is finite. Large numbers are those of
results so small, or so near to a root, that all digits cancel, in eager as here.

"""

REDUCTIONS = """

## Reductions

Root mean squares of errors, in units in the last place of a number of the results' mean size, against 80-bit floating point:
the largest of several matrices (around zero, of one sign, far from zero, rows of 40 to 50,000 numbers), reduced along rows and
along columns. What a row has no lowering for in a type is ATen's, and as far off.

"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="one function")
    parser.add_argument("--dtype", default="", help="one type")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--write", action="store_true", help="make docs/accuracy.md")
    parser.add_argument("--reductions", action="store_true", help="these alone")
    given = parser.parse_args()
    dtypes = [getattr(torch, given.dtype)] if given.dtype else list(DTYPES)
    names = [str(dtype).removeprefix("torch.") for dtype in dtypes]
    header = ("function", *itertools.chain.from_iterable((f"{name}: eager", "ours") for name in names))
    sums = markdown(("reduction", *header[1:]), reduction_table(dtypes, given.only))
    if given.reductions:
        print(sums)
        return
    table = markdown(header, elementwise(dtypes, given.only, given.count, verbose=True))
    if given.write:
        PAGE.write_text(HEAD + table + REDUCTIONS + sums + "\n")
    else:
        print(table, sums, sep="\n\n")


if __name__ == "__main__":
    main()
