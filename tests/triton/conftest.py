"""Fixtures of the Triton tests: kernels run by Triton's interpreter on CPU tensors, and kernels compiled for GPUs not here."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tests.differential import KERNELS

pytest.importorskip("triton")

from torch._subclasses import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from fxjit import config
from fxjit.backends.native import pipeline, spec
from fxjit.backends.native.codegen import graph_kernels
from fxjit.backends.native.codegen.triton import TritonKernel
from fxjit.backends.native.runtime import cc, gpu
from fxjit.backends.native.runtime.triton_compile import compiler


@pytest.fixture(scope="session", autouse=True)
def kernel_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with config.patch(cache_dir=str(tmp_path_factory.mktemp("cache"))):
        yield


@pytest.fixture(autouse=True)
def verified(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every program the tests compile is checked after each stage."""
    monkeypatch.setattr(pipeline, "verifier", spec.check)


@pytest.fixture(autouse=True)
def compiled_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """With FXJIT_TEST_CUBINS=80,90 every kernel that a test interprets is compiled for those GPUs as well."""
    architectures = [int(each) for each in os.environ.get("FXJIT_TEST_CUBINS", "").split(",") if each]
    plain = gpu.InterpretedKernel.__init__

    def also_compiled(self: Any, kernel: TritonKernel) -> None:
        for arch in architectures:
            compiler.submit(gpu.job_of(kernel, gpu.Variant(False, 0, False), kernel.configs[0], arch)).result()
        plain(self, kernel)

    if architectures:
        monkeypatch.setattr(gpu.InterpretedKernel, "__init__", also_compiled)


@pytest.fixture
def interpreter() -> Iterator[None]:
    """Kernels for the CPU are Triton's, interpreted."""
    with config.patch(**{"triton.interpret": True}):
        yield


class Seen:
    """The kernels that were generated."""

    def __init__(self) -> None:
        self.kernels: list[TritonKernel] = []
        self.kinds: list[str] = []

    @property
    def text(self) -> str:
        return "\n".join(kernel.source for kernel in self.kernels)


@pytest.fixture
def seen(monkeypatch: pytest.MonkeyPatch) -> Seen:
    record, plain = Seen(), graph_kernels.render_product

    def render(schedule: Any, hints: Any) -> TritonKernel:
        kernel = plain(schedule, hints)
        record.kernels.append(kernel)
        record.kinds.append(schedule.kind)
        return kernel

    monkeypatch.setattr(graph_kernels, "render_product", render)
    return record


def run_interpreted(function: Callable[..., Any], *inputs: Any, mode: str = "fake") -> Any:
    """The function's results with a Triton kernel for every operator that has a lowering."""
    gm = make_fx(function, tracing_mode=mode)(*inputs)
    with config.patch(**{"triton.interpret": True}):
        return pipeline.compile_graph(gm, inputs, "test", lone_kernels=True).finish()(list(inputs))


def for_gpu(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
    """The function over CUDA tensors that do not exist, compiled for the GPU that target.py assumes."""
    with FakeTensorMode(shape_env=ShapeEnv(), allow_non_fake_inputs=True):
        inputs = [torch.empty(shape, device="cuda", dtype=dtype) for shape in shapes]
        gm = make_fx(function)(*inputs)
    return pipeline.compile_graph(gm, inputs, "test", lone_kernels=True).finish()


def assert_same(actual: Any, expected: Any, what: str = "") -> None:
    """Values within the type's tolerance, and the same types, shapes and strides."""
    if isinstance(expected, (tuple, list)):
        assert len(actual) == len(expected)
        for one, other in zip(actual, expected):
            assert_same(one, other, what)
        return
    assert actual.dtype is expected.dtype, f"{what}: {actual.dtype}, eager {expected.dtype}"
    assert actual.shape == expected.shape, f"{what}: {tuple(actual.shape)}, eager {tuple(expected.shape)}"
    strides = [(a, b) for n, a, b in zip(expected.shape, actual.stride(), expected.stride()) if n > 1]
    assert expected.numel() == 0 or all(a == b for a, b in strides), f"{what}: {actual.stride()}, eager {expected.stride()}"
    rtol, atol = KERNELS.get(expected.dtype, (0.0, 0.0))
    torch.testing.assert_close(actual, expected, rtol=rtol, atol=atol, equal_nan=True, msg=lambda text: f"{what}: {text}")


# A driver that only writes down what it is asked.

DRIVER = r"""
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
static void *current; static int fail; static char text[1 << 16]; static int kinds[64], count;
extern "C" {
void fake_signature(int n, const int *sizes) { count = n; memcpy(kinds, sizes, n * sizeof(int)); }
void fake_fail(int code) { fail = code; }
void fake_context(void *c) { current = c; }
const char *fake_said(void) { static char copy[1 << 16]; strcpy(copy, text); text[0] = 0; return copy; }
static void say(const char *line) { strcat(text, line); strcat(text, "\n"); }
int cuInit(unsigned) { return 0; }
int cuDevicePrimaryCtxRetain(void **c, int d) { *c = (void *)(uintptr_t)(0x100 + d); return 0; }
int cuCtxGetCurrent(void **c) { *c = current; return 0; }
static void *below[8]; static int depth;
int cuCtxPushCurrent_v2(void *c) { below[depth++] = current; current = c; say("push"); return 0; }
int cuCtxPopCurrent_v2(void **c) { *c = current; current = below[--depth]; say("pop"); return 0; }
int cuThreadExchangeStreamCaptureMode(int *) { return 0; }
int cuModuleLoadData(void **m, const void *image) { *m = (void *)image; return fail; }
int cuModuleGetFunction(void **f, void *m, const char *name) { *f = (void *)0x77; say(name); return 0; }
int cuFuncGetAttribute(int *v, int a, void *f) { *v = a == 4 ? 40 : 0; return 0; }
int cuFuncSetAttribute(void *f, int a, int v) { char b[64]; sprintf(b, "shared %d", v); say(b); return 0; }
int cuGetErrorString(int e, const char **s) { *s = "a made-up error"; return 0; }
int cuLaunchKernel(void *f, unsigned gx, unsigned, unsigned, unsigned bx, unsigned, unsigned, unsigned shared, void *stream,
                   void **p, void **) {
  char b[512]; int n = sprintf(b, "launch %p grid %u threads %u shared %u stream %ld context %p:", f, gx, bx, shared,
                               (long)(intptr_t)stream, current);
  for (int i = 0; i < count; i++) {
    if (kinds[i] == 4) n += sprintf(b + n, " %d", *(int32_t *)p[i]);
    else n += sprintf(b + n, " %lld", (long long)*(int64_t *)p[i]);
  }
  say(b); return fail;
}
}
"""


class Driver:
    """The fake driver's library, and what it was asked."""

    def __init__(self, path: Path) -> None:
        import ctypes

        self.library = ctypes.CDLL(str(path))
        self.library.fake_said.restype = ctypes.c_char_p
        self.library.fake_context.argtypes = [ctypes.c_void_p]
        self.path = path

    def said(self) -> list[str]:
        return [line for line in self.library.fake_said().decode().split("\n") if line]

    def expects(self, *sizes: int) -> None:
        import ctypes

        self.library.fake_signature(len(sizes), (ctypes.c_int * len(sizes))(*sizes))


@pytest.fixture(scope="session")
def driver_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("driver")
    (folder / "driver.cpp").write_text(DRIVER)
    compiler = cc.require_compiler()
    subprocess.run([*compiler, "-shared", "-fPIC", "-w", "driver.cpp", "-o", "libcuda_fake.so"], cwd=folder, check=True)
    return folder / "libcuda_fake.so"


@pytest.fixture
def driver(driver_library: Path) -> Iterator[Driver]:
    from fxjit import _C

    made = Driver(driver_library)
    made.library.fake_fail(0)
    made.library.fake_context(None)
    made.said()
    _C.cuda_open(str(driver_library), lambda device: 5000 + device)
    yield made
