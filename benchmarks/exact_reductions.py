"""Reductions of ATen beside their values in 80-bit floating point, for `benchmarks.accuracy` and tests.

Each row has the call that is measured, of a tensor and the dimension that is reduced, and the same function of a NumPy array of
`numpy.longdouble` along its last axis. 11 bits more than float64 has, and sums of pairs: what is left of their own error is
some hundredths of a unit in float64's last place.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from benchmarks.exact_functions import L, Wide

aten = torch.ops.aten
EPS = 1e-5


@dataclass(frozen=True)
class Reduction:
    """`call(x, dim)` on a matrix; `exact` along rows. `dims`: those that it reduces; `inputs`: those of `matrices`
    that suit it."""

    name: str
    call: Callable[[torch.Tensor, int], torch.Tensor]
    exact: Callable[[Wide], Wide]
    dims: tuple[int, ...] = (1, 0)
    inputs: tuple[str, ...] = ("normal", "positive", "far", "short", "long")


def variance(x: Wide, correction: int = 1) -> Wide:
    away = x - x.mean(-1, keepdims=True)
    return np.square(away).sum(-1) / (x.shape[-1] - correction)


def normalized(x: Wide) -> Wide:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(variance(x, 0)[..., None] + L(EPS))


def logsumexp(x: Wide) -> Wide:
    top = x.max(-1, keepdims=True)
    return np.log(np.exp(x - top).sum(-1)) + top[..., 0]


def group_norm(x: torch.Tensor, dim: int) -> torch.Tensor:
    return F.group_norm(x.unflatten(1, (1, -1)), 1).flatten(1)


def batch_norm(x: torch.Tensor, dim: int) -> torch.Tensor:
    """Of columns; of rows as channels whose numbers lie beside each other."""
    grid = x if dim == 0 else x.unsqueeze(0)
    return F.batch_norm(grid, None, None, training=True).view_as(x)


def reductions() -> list[Reduction]:
    return [
        Reduction("sum", torch.sum, lambda x: x.sum(-1)),
        Reduction("mean", torch.mean, lambda x: x.mean(-1)),
        Reduction("var", torch.var, variance),
        Reduction("std", torch.std, lambda x: np.sqrt(variance(x))),
        Reduction("mean of var_mean", lambda x, dim: torch.var_mean(x, dim)[1], lambda x: x.mean(-1)),
        Reduction("norm", lambda x, dim: torch.linalg.vector_norm(x, 2, dim), lambda x: np.sqrt(np.square(x).sum(-1))),
        Reduction("norm, 1", lambda x, dim: torch.linalg.vector_norm(x, 1, dim), lambda x: np.abs(x).sum(-1)),
        Reduction("prod", torch.prod, lambda x: x.prod(-1), inputs=("near one",)),
        Reduction("logsumexp", torch.logsumexp, logsumexp),
        Reduction("softmax", torch.softmax, lambda x: np.exp(x - logsumexp(x)[..., None])),
        Reduction("log_softmax", torch.log_softmax, lambda x: x - logsumexp(x)[..., None]),
        Reduction("cumsum", torch.cumsum, lambda x: x.cumsum(-1)),
        Reduction("cumprod", torch.cumprod, lambda x: x.cumprod(-1), inputs=("near one",)),
        Reduction("logcumsumexp", torch.logcumsumexp,
                  lambda x: np.log(np.exp(x - x.max(-1, keepdims=True)).cumsum(-1)) + x.max(-1, keepdims=True)),
        Reduction("layer_norm", lambda x, dim: F.layer_norm(x, x.shape[1:]), normalized, (1,)),
        Reduction("group_norm", group_norm, normalized, (1,)),
        Reduction("batch_norm", batch_norm, normalized),
        Reduction("rms_norm", lambda x, dim: F.rms_norm(x, x.shape[1:], eps=EPS),
                  lambda x: x / np.sqrt(np.square(x).mean(-1, keepdims=True) + L(EPS)), (1,)),
    ]  # fmt: skip


def matrices(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Rows to reduce: around zero, of one sign, far from zero and near to each other, and longer ones."""
    generator = torch.Generator().manual_seed(0)

    def normal(*size: int) -> torch.Tensor:
        return torch.randn(*size, generator=generator, dtype=torch.float64)

    chosen = {
        "normal": normal(128, 1000),
        "positive": normal(128, 1000).abs() + 0.1,
        "far": 100 + normal(128, 1000),
        "short": normal(256, 40),
        "long": normal(4, 50_000) + 1,
        "near one": 1 + 0.01 * normal(128, 1000),
    }
    return {name: x.to(dtype) for name, x in chosen.items()}


def error(result: torch.Tensor, exact: Wide) -> float:
    """The root mean square of the differences in units in the last place of a number of the results' mean size: single results
    near zero, where all digits cancel, count as others. Infinite where a result is not finite and should be."""
    got = result.double().numpy().astype(L)
    finite = np.abs(exact) <= L(torch.finfo(result.dtype).max)
    if not finite.any():
        return 0.0
    if not np.isfinite(got[finite]).all():
        return float("inf")
    size = np.sqrt(np.square(exact[finite]).mean())
    unit = np.ldexp(L(torch.finfo(result.dtype).eps), int(np.frexp(size)[1]) - 1)
    return float(np.sqrt(np.square((got - exact)[finite]).mean()) / unit)
