"""The whole of the GPU's path on a machine without one: torch's CUDA build over a pretended driver and runtime (pretended/).

Memory, streams, devices, launches and recorded graphs are torch's own here; kernels are interpreted. torch's build for the
processor alone has none of that: there these tests are skipped.
"""

from __future__ import annotations

import ast
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch

from fxjit.backends.native.runtime import cc

pytestmark = pytest.mark.skipif(
    torch.version.cuda is None or torch.cuda.is_available(), reason="needs torch's CUDA build and no GPU"
)

FOLDER = pathlib.Path(__file__).parent / "pretended"
ROOT = FOLDER.parents[2]
PROGRAMS = [
    each.name for each in ast.parse((FOLDER / "programs.py").read_text()).body
    if isinstance(each, ast.FunctionDef) and any(isinstance(d, ast.Name) and d.id == "program" for d in each.decorator_list)
]  # fmt: skip


def headers() -> pathlib.Path:
    """CUDA's, which came with torch."""
    site = pathlib.Path(torch.__file__).parents[1]
    found = sorted(site.glob("nvidia/*/include/driver_types.h"))
    if not found:
        pytest.skip("CUDA's headers are not installed")
    return found[0].parent


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    """Each program's problem, from one process for all of them."""
    folder = tmp_path_factory.mktemp("pretended")
    # The wheel of the headers has all but this one, which says what CUDA's compiler makes of some words.
    (folder / "crt").mkdir()
    words = ("__device_builtin__", "__cudart_builtin__", "CUDARTAPI", "__host__", "__device__", "__specialization_static",
             "__device_builtin_texture_type__", "__device_builtin_surface_type__", "CUDART_CB")  # fmt: skip
    lines = ["#pragma once", *(f"#define {word}" for word in words)]
    lines += [f"#define {name}(n) __attribute__((aligned(n)))" for name in ("__builtin_align__", "__align__")]
    (folder / "crt/host_defines.h").write_text("\n".join(lines))
    library = folder / "libcuda.so.1"
    command = [*cc.require_compiler(), "-shared", "-fPIC", "-w", "-std=c++17", f"-I{folder}", f"-I{headers()}"]
    subprocess.run([*command, "-Wl,-soname,libcuda.so.1", str(FOLDER / "cuda.cpp"), "-o", str(library)], check=True)
    environment = {**os.environ, "LD_PRELOAD": str(library), "FXJIT_CACHE_DIR": str(folder / "cache"),
                   "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(FOLDER)])}  # fmt: skip
    command = [sys.executable, str(FOLDER / "programs.py")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=1200)
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"name"')]
    return {row["name"]: row["problem"] for row in rows}, done.stderr[-4000:]


@pytest.mark.parametrize("name", PROGRAMS)
def test_programs(found, name):
    problems, said = found
    assert name in problems, said
    assert not problems[name], problems[name] + said
