"""Processors with narrower vectors than this one's: kernels compiled for them give eager's results too.

A kernel is compiled for the processor that it runs on, so on one with AVX-512 the forms for SSE, AVX and AVX2 (the width of
vectors, libm's vector functions, conversions of half types, reductions by rows) would be tried by nobody."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

import fxjit
from fxjit import config
from fxjit.backends.native.ops import MATH
from fxjit.backends.native.runtime import cc
from fxjit.counters import counters

#: An architecture's name for the compiler, the macro of the widest vectors that it has, the one that it lacks, and what
#: /proc/cpuinfo calls what it needs.
ARCHITECTURES = {
    "x86-64": ("__SSE2__", "__AVX__", "sse2"),
    "sandybridge": ("__AVX__", "__AVX2__", "avx"),
    "haswell": ("__AVX2__", "__AVX512F__", "avx2"),
}


@pytest.fixture(params=ARCHITECTURES)
def architecture(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    has, lacks, flag = ARCHITECTURES[request.param]
    if f" {flag} " not in Path("/proc/cpuinfo").read_text().replace("\n", " "):
        pytest.skip(f"this processor has no {flag}")
    with config.patch({"cpp.extra_flags": f"-march={request.param}", "cache_dir": str(tmp_path)}):
        command = [*cc.require_compiler(), *cc.flags(), "-dM", "-E", "-x", "c++", "/dev/null"]
        macros = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
        assert has in macros and lacks not in macros
        fxjit.reset()
        yield request.param
    fxjit.reset()


def elementary(dtype: torch.dtype) -> Callable[..., Any]:
    """Each function that kernels take from libm or have a formula of their own for, over a length that no vector divides."""
    names = [name for name in MATH if hasattr(torch, name) and name not in ("pow", "atan2", "hypot", "fmod")]
    assert len(names) >= 12

    def function(x: torch.Tensor) -> list[torch.Tensor]:
        return [getattr(torch, name)(x) for name in names] + [torch.atan2(x, x + 1), torch.pow(x.abs(), 1.5), F.silu(x)]

    return function


def rows(x: torch.Tensor) -> list[torch.Tensor]:
    return [
        F.softmax(x, -1), x.sum(0), x.sum(-1), x.mean(), x.std(-1), x.amax(0), x.argmin(-1), x.logsumexp(-1), x.cumsum(-1),
        F.layer_norm(x, x.shape[-1:]), (x > 0).sum(), x.prod(-1),
    ]  # fmt: skip


def halves(x: torch.Tensor) -> list[torch.Tensor]:
    # one operator each: of a chain the kernel keeps float32 between its operators
    found = [x.to(dtype) for dtype in (torch.bfloat16, torch.float16)]
    return [*found, *(each.float() - x for each in found), *(each * each for each in found), found[0].sum(-1)]


def integers(x: torch.Tensor) -> list[torch.Tensor]:
    index = (x * 10).to(torch.int64) % x.shape[0]
    table = torch.zeros_like(x)
    return [x[index[:, 0]], table.index_add(0, index[:, 1].abs(), x), (x * 9).to(torch.int16) // 7, x.to(torch.int8) ^ 3]


@pytest.mark.sweep(2)
@pytest.mark.parametrize(
    "function, dtype",
    [
        (elementary(torch.float32), torch.float32),
        (elementary(torch.float64), torch.float64),
        (rows, torch.float32),
        (rows, torch.float64),
        (rows, torch.bfloat16),
        (halves, torch.float32),
        (integers, torch.float32),
    ],
    ids=["float-math", "double-math", "float-rows", "double-rows", "bfloat-rows", "halves", "integers"],
)
def test_kernels_for_narrower_vectors_give_eagers_results(architecture, function, dtype):
    torch.manual_seed(0)
    x = torch.randn(37, 131, dtype=dtype)
    x[0, :5] = torch.tensor([0.0, -0.0, float("inf"), -float("inf"), float("nan")])
    if function in (rows, integers):
        x[0, :5] = 1.0
    expected = function(x)
    compiled = fxjit.compile(function, backend="native", fullgraph=True)
    before = counters["native"]["kernels"]
    for given, wanted in zip(compiled(x), expected, strict=True):
        torch.testing.assert_close(given, wanted, equal_nan=True)
    assert counters["native"]["kernels"] > before


def test_a_training_step_for_narrower_vectors(architecture):
    def losses(compile: Callable[[Any], Any]) -> list[torch.Tensor]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Conv2d(3, 8, 3, bias=False), torch.nn.BatchNorm2d(8), torch.nn.GELU(), torch.nn.MaxPool2d(2),
            torch.nn.Flatten(), torch.nn.Linear(8 * 49, 33), torch.nn.LayerNorm(33), torch.nn.SiLU(), torch.nn.Linear(33, 10),
        )  # fmt: skip
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        x, y = torch.randn(9, 3, 16, 16), torch.arange(9)
        step = compile(lambda x, y: F.cross_entropy(model(x), y))
        found = []
        for _ in range(3):
            optimizer.zero_grad()
            loss = step(x, y)
            loss.backward()
            optimizer.step()
            found.append(loss.detach())
        return [*found, *(p.detach() for p in model.parameters())]

    for given, wanted in zip(losses(lambda f: fxjit.compile(f, backend="native")), losses(lambda f: f), strict=True):
        torch.testing.assert_close(given, wanted, rtol=2e-4, atol=2e-5)
