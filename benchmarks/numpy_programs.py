"""`python -m benchmarks.numpy_programs`: loops over arrays of NumPy, compiled, beside NumPy itself.

Each turn runs both; medians, one thread. Results are compared before anything is measured.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

import fxjit
from benchmarks.timing import case_arguments, interleaved, markdown, measured_beside


def mandelbrot(points: np.ndarray) -> np.ndarray:
    """Steps until each point has left; what has left is computed on with."""
    z = np.zeros_like(points)
    steps = np.zeros(points.shape, dtype=np.int64)
    for _ in range(20):
        z = np.where(np.abs(z) <= 2.0, z * z + points, z)
        steps += np.abs(z) <= 2.0
    return steps


def masked(points: np.ndarray) -> np.ndarray:
    """The same, computed only where points have not left: the sizes in the loop depend on data."""
    z = np.zeros_like(points)
    steps = np.zeros(points.shape, dtype=np.int64)
    for _ in range(20):
        inside = np.abs(z) <= 2.0
        z[inside] = z[inside] * z[inside] + points[inside]
        steps[inside] += 1
    return steps


def tutorial(points: np.ndarray) -> np.ndarray:
    """That of NumPy's tutorial: complex numbers are ordered, and what has left is written to through masks."""
    z, steps = points, np.full(points.shape, 20)
    for i in range(20):
        z = z**2 + points
        diverges = z * np.conj(z) > 2**2
        steps[diverges & (steps == 20)] = i
        z[diverges] = 2
    return steps


def kmeans(points: np.ndarray, centres: np.ndarray) -> Any:
    """Three rounds of Lloyd's algorithm."""
    for _ in range(3):
        distance = ((points[:, None, :] - centres[None, :, :]) ** 2).sum(-1)
        nearest = np.argmin(distance, axis=1)
        members = (nearest[:, None] == np.arange(centres.shape[0])[None, :]).astype(points.dtype)
        counts = np.maximum(members.sum(0), 1.0)
        centres = (members.T @ points) / counts[:, None]
    return centres, nearest, distance.min(axis=1).mean()


def _plane(count: int) -> tuple[np.ndarray]:
    real, imaginary = np.meshgrid(np.linspace(-2, 0.5, count), np.linspace(-1.25, 1.25, count))
    return ((real + 1j * imaginary).astype(np.complex64),)


def _points(count: int) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    return random.standard_normal((count, 8)).astype(np.float32), random.standard_normal((4, 8)).astype(np.float32)


CASES: dict[str, tuple[Callable[..., Any], tuple[np.ndarray, ...]]] = {
    "Mandelbrot, 64 x 64 complex64": (mandelbrot, _plane(64)),
    "Mandelbrot, 256 x 256 complex64": (mandelbrot, _plane(256)),
    "Mandelbrot with a mask, 256 x 256 complex64": (masked, _plane(256)),
    "Mandelbrot of NumPy's tutorial, 64 x 64 complex64": (tutorial, _plane(64)),
    "Mandelbrot of NumPy's tutorial, 256 x 256 complex64": (tutorial, _plane(256)),
    "k-means, 512 x 8 float32": (kmeans, _points(512)),
    "k-means, 16384 x 8 float32": (kmeans, _points(16384)),
}


def main(argv: list[str] | None = None) -> None:
    options = case_arguments(__doc__).parse_args(argv)
    torch.set_num_threads(1)
    rows = []
    for name, (fn, given) in CASES.items():
        if options.only not in name:
            continue
        fxjit.reset()
        fxjit.counters.clear()
        compiled = fxjit.compile(fn)
        expected, actual = fn(*given), compiled(*given)
        fxjit.wait_for_compiles()
        pairs = zip(expected, actual, strict=True) if isinstance(expected, tuple) else [(expected, actual)]
        for one, other in pairs:
            assert type(one) is type(other) and one.dtype == other.dtype
            np.testing.assert_allclose(other, one, rtol=1e-4, atol=1e-4)
        graphs, breaks = fxjit.counters["stats"]["unique_graphs"], sum(fxjit.counters["graph_break"].values())
        found = interleaved({"numpy": lambda: fn(*given), "fxjit": lambda: compiled(*given)}, options.seconds)
        rows.append((name, f"{graphs} / {breaks}", f"{found['numpy'] * 1e3:.3f}", f"{found['fxjit'] * 1e3:.3f}",
                     f"{found['numpy'] / found['fxjit']:.2f}x"))
    print(markdown(("program", "graphs / breaks", "NumPy, ms", "fxjit, ms", "times as fast"), rows))
    print(f"\nNumPy {np.__version__}. {measured_beside()}")


if __name__ == "__main__":
    main()
