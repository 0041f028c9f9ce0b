"""A fixed share of kernels compiled to binaries for two generations of GPU, with the resources they take held below limits.

The resources are read from the binaries with `cuobjdump`, which comes with Triton. `python -m tests.triton.test_cubins`
compiles all candidates of block sizes, in three types; `--part K/N` every N-th program from the K-th on, `--arch` for others.
"""

from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

import pytest
import torch
import torch.nn.functional as F

from fxjit import config
from fxjit.backends.native.codegen import graph_kernels
from fxjit.backends.native.codegen.triton import Config, TritonKernel
from fxjit.backends.native.runtime.gpu import Variant, job_of
from fxjit.backends.native.runtime.triton_compile import Binary, compiler

from .conftest import for_gpu

ARCHITECTURES = (80, 90)
NEWER = (100, 120)
# What one program may take: nothing spilled, half of the registers that a thread can have, and shared memory that leaves
# room for three programs on a multiprocessor of the smaller GPU.
MOST_SPILLED = 0
MOST_REGISTERS = 128
MOST_SHARED = 48 * 1024
# A product's tiles are in registers and what they are made of in shared memory: one program has all of both.
MOST_OF_PRODUCTS = {"REG": 255, "SHARED": 160 * 1024}

# (function, shapes): each kind of kernel, at sizes of real models.
PROGRAMS = {
    "pointwise": (lambda x, y: F.gelu(x * y + 1).tanh(), [(4096, 4096), (4096, 4096)]),
    "odd sizes": (lambda x: (x + 1).exp().log1p(), [(1001, 77)]),
    "transposed": (lambda x, y: x.t() * 2 + y, [(4096, 2048), (2048, 4096)]),
    "sum of rows": (lambda x: x.sum(-1), [(8192, 1024)]),
    "sum of long rows": (lambda x: x.sum(-1), [(512, 100_000)]),
    "sum of columns": (lambda x: x.sum(0), [(8192, 1024)]),
    "sum of all": (lambda x: x.sum(), [(1 << 28,)]),
    "softmax": (lambda x: torch.softmax(x, -1), [(8192, 1000)]),
    "long softmax": (lambda x: torch.softmax(x, -1), [(256, 50_257)]),
    "layer norm": (lambda x, w, b: F.layer_norm(x, (1024,), w, b), [(8192, 1024), (1024,), (1024,)]),
    "layer norm of long rows": (lambda x: F.layer_norm(x, (12_288,)), [(2048, 12_288)]),
    "rms norm": (lambda x, w: F.rms_norm(x, (4096,), w), [(2048, 4096), (4096,)]),
    "rms norm backward": (
        lambda g, x, r, w: torch.ops.aten._fused_rms_norm_backward(g, x, [4096], r.float(), w, [True, True]),
        [(2048, 4096), (2048, 4096), (2048, 1), (4096,)],
    ),
    "layer norm backward": (
        lambda g, x, m, r, w: torch.ops.aten.native_layer_norm_backward(g, x, [768], m, r, w, w, [True, True, True]),
        [(4096, 768), (4096, 768), (4096, 1), (4096, 1), (768,)],
    ),
    "batch norm": (
        lambda x, w, b: torch.ops.aten._native_batch_norm_legit_functional(x, w, b, w, b, True, 0.1, 1e-5),
        [(32, 64, 56, 56), (64,), (64,)],
    ),
    "cross entropy": (lambda x: torch.log_softmax(x, -1).amax(-1), [(2048, 32_000)]),
    "scan of rows": (lambda x: (x * 2).cumsum(-1) + 1, [(8192, 1024)]),
    "scan of long rows": (lambda x: x.cumsum(-1), [(512, 100_000)]),
    "scan of columns": (lambda x: x.sigmoid().cumprod(0), [(8192, 1024)]),
    "places of extremes so far": (lambda x: x.cummax(-1), [(4096, 1000)]),
    "logarithms of sums so far": (lambda x: x.logcumsumexp(-1), [(4096, 1000)]),
    "nucleus": (lambda x: (torch.softmax(x, -1).cumsum(-1) < 0.9).sum(-1), [(256, 4096)]),
    "scatter": (lambda x, y: x.scatter(1, (y * 100).long(), y), [(4096, 1024), (4096, 512)]),
    "index_add": (lambda x, i, y: x.index_add(0, i.long(), y * 2), [(50_000, 768), (8192,), (8192, 768)]),
    "index_put": (lambda x, i, y: x.index_put((i.long(),), y.exp()), [(50_000, 256), (4096,), (4096, 256)]),
    "embedding backward": (
        lambda i, g: torch.ops.aten.embedding_dense_backward(g, i.long(), 50_000, 1, False), [(8192,), (8192, 768)],
    ),
    "cat": (lambda x, y: torch.cat([x, y * 2], 1) + 1, [(512, 100), (512, 200)]),
}  # fmt: skip

PRODUCTS = (
    (lambda x, w, b: F.gelu(torch.addmm(b, (x * 2).relu(), w)), [(4096, 1024), (1024, 4096), (4096,)]),
    (lambda x, y: torch.bmm(x, y).relu(), [(64, 128, 64), (64, 64, 128)]),
)


def resources(binary: Binary) -> dict[str, int]:
    """Registers, bytes of stack (where spilled registers go) and of shared memory."""
    import triton

    tool = pathlib.Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(binary.code)
        file.flush()
        said = subprocess.run([tool, "--dump-resource-usage", file.name], capture_output=True, text=True, check=True).stdout
    found = {key: int(value) for key, value in re.findall(r"(REG|STACK|SHARED|LOCAL):(\d+)", said)}
    return {**found, "SHARED": max(binary.shared, found["SHARED"])}


def problems(kernel: TritonKernel, chosen: Config, arch: int) -> list[str]:
    binary = compiler.submit(job_of(kernel, usual(kernel), chosen, arch)).result()
    assert binary.parameters >= len(kernel.buffers) + kernel.passed and binary.warps == chosen.warps
    used = resources(binary)
    limits = {"STACK": 0 if not kernel.asserts else 64, "LOCAL": MOST_SPILLED, "REG": MOST_REGISTERS, "SHARED": MOST_SHARED}
    limits |= MOST_OF_PRODUCTS if "tl.dot(" in kernel.source else {}
    return [f"sm_{arch} {chosen}: {used[key]} {key}\n{kernel.source}" for key, limit in limits.items() if used[key] > limit]


def usual(kernel: TritonKernel) -> Variant:
    span = kernel.span if isinstance(kernel.span, int) else 0
    return Variant(True, 0, span >= 2**31)


@pytest.mark.sweep(2)
@pytest.mark.parametrize("name", list(PROGRAMS))
def test_binaries(seen, name):
    """In float32 and in bfloat16, for the one GPU and for the other, by turns; the block sizes that are taken where nothing is
    measured."""
    function, shapes = PROGRAMS[name]
    number = list(PROGRAMS).index(name)
    dtype, arch = (torch.float32, torch.bfloat16)[number % 2], ARCHITECTURES[number // 2 % 2]
    for_gpu(function, *shapes, dtype=dtype)
    assert seen.kernels
    for kernel in seen.kernels:
        compiler.submit(job_of(kernel, usual(kernel), kernel.configs[0], arch))
    found = [each for kernel in seen.kernels for each in problems(kernel, kernel.configs[0], arch)]
    assert not found, "\n".join(found)


@pytest.mark.parametrize("arch", NEWER)
@pytest.mark.parametrize("name", ["pointwise", "softmax", "sum of long rows", "index_add"])
def test_binaries_for_newer_generations(seen, name, arch):
    function, shapes = PROGRAMS[name]
    for_gpu(function, *shapes)
    found = [each for kernel in seen.kernels for each in problems(kernel, kernel.configs[0], arch)]
    assert seen.kernels and not found, "\n".join(found)


def test_a_load_of_neighbours_is_one_of_16_bytes(seen):
    """What is aligned and contiguous is read and written in the widest words that there are."""
    for_gpu(lambda x: torch.softmax(x * 2, -1), (4096, 1024), dtype=torch.bfloat16)
    (kernel,) = seen.kernels
    job = {**job_of(kernel, usual(kernel), kernel.configs[0], 90), "wanted": ["ptx"]}
    text = compiler.answer(job)["ptx"]
    assert "ld.global.v4.b32" in text and "st.global.v4.b32" in text
    misaligned = {**job_of(kernel, Variant(False, 0, False), kernel.configs[0], 90), "wanted": ["ptx"]}
    assert "ld.global.v4.b32" not in compiler.answer(misaligned)["ptx"]


def test_an_assertion_is_in_kernels_with_an_index_alone(seen):
    for_gpu(lambda i, w: F.embedding(i.long(), w) + 1, (64,), (100, 32))
    (kernel,) = seen.kernels
    assert kernel.asserts
    job = {**job_of(kernel, usual(kernel), kernel.configs[0], 90), "wanted": ["ptx"]}
    assert "__assertfail" in compiler.answer(job)["ptx"]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--arch", type=int, nargs="*", default=ARCHITECTURES)
    parser.add_argument("--part", default="0/1")
    options = parser.parse_args()
    part, parts = map(int, options.part.split("/"))
    kernels: list[TritonKernel] = []
    plain = graph_kernels.render_product
    graph_kernels.render_product = lambda schedule, hints: kernels.append(plain(schedule, hints)) or kernels[-1]
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for function, shapes in list(PROGRAMS.values())[part::parts]:
            for_gpu(function, *shapes, dtype=dtype)
        if part == 0:
            with config.patch(**{"triton.max_autotune": True}):
                for function, shapes in PRODUCTS:
                    for_gpu(function, *shapes, dtype=dtype)
    cases = [(kernel, chosen, arch) for arch in options.arch for kernel in kernels for chosen in kernel.configs]
    found = [each for case in cases for each in problems(*case)]
    print("\n".join(found))
    print(f"{len(kernels)} kernels, {len(cases)} binaries, {len(found)} over a limit")
    return bool(found)


if __name__ == "__main__":
    sys.exit(main())
