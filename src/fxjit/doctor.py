"""`python -m fxjit doctor` and `cache`: what was found on this machine, and what to do where something is missing.

Each check is a function that gives a `Finding`; none of them raises.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib.util
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from . import config, torch_compat, torch_private
from .errors import ConfigError
from .pythons import refusal_here

COMPILERS = ("g++", "c++", "clang++")
FLAGS = ("-O3", "-march=native", "-fno-math-errno", "-fno-trapping-math", "-fopenmp", "-shared", "-fPIC")
_TRY = """#include <cmath>
#include <omp.h>
extern "C" float f(float x) { return std::exp(x) + omp_get_max_threads(); }
"""


@dataclass(frozen=True, slots=True)
class Finding:
    """A line of the report: `state` is ok, warn or bad; `advice` says what to do when it is not ok."""

    what: str
    state: str
    text: str
    advice: str = ""


def examine() -> list[Finding]:
    checks: tuple[Callable[[], Finding], ...] = (
        _python,
        _torch,
        _torch_names,
        _libraries,
        _extension,
        _tensors,
        _compiler,
        _simd,
        _machine,
        _gpu,
        _triton,
        _cache,
        _settings,
        _trial,
    )
    return [check() for check in checks]


def doctor_main(as_json: bool = False) -> int:
    """Prints the report, or the findings as JSON; 1 when something that fxjit needs is missing or does not work."""
    findings = examine()
    if as_json:
        print(json.dumps([dataclasses.asdict(each) for each in findings], indent=2))
        return int(any(each.state == "bad" for each in findings))
    width = max(len(each.what) for each in findings)
    marks = {"ok": "ok  ", "warn": "note", "bad": "BAD "}
    for each in findings:
        print(f"{marks[each.state]} {each.what:<{width}}  {each.text}")
        for line in each.advice.splitlines():
            print(f"     {'':<{width}}  -> {line}")
    bad = sum(each.state == "bad" for each in findings)
    print("\nEverything that fxjit needs is here, and works." if not bad else f"\n{bad} of these need something done.")
    return 1 if bad else 0


def cache_main(action: str) -> int:
    """Shows how much fxjit keeps on the disk, or removes that, and nothing else that is there."""
    from .backends.store.artifacts import KernelCache, kernels_folder

    try:
        folder = kernels_folder()
        if not folder.exists():
            print(f"{folder}: 0 files, {_megabytes(0)}")
            return 0
        kept = KernelCache(folder, make=False)
        if action == "show":
            files, size = kept.size()
            print(f"{folder}: {files} files, {_megabytes(size)} (at most {config.cache_size_mb} MB)")
            return 0
        files, size = kept.clear()
        print(f"removed {files} files, {_megabytes(size)}, of {folder}")
        left = kept.size()[0]
    except (OSError, ConfigError) as problem:
        print(f"the cache cannot be used: {problem}", file=sys.stderr)
        return 1
    if left:
        print(f"{left} files could not be removed", file=sys.stderr)
    return 1 if left else 0


def find_compiler() -> str | None:
    """The C++ compiler that kernels would be compiled with: the setting, $CXX, or the first one there is."""
    for name in (config.cpp.compiler, config.environment("CXX"), *COMPILERS):
        if config.command(name):
            return name
    return None


def _python() -> Finding:
    text = f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})"
    if refused := refusal_here():
        return Finding("Python", "bad", text, refused)
    return Finding("Python", "ok", text)


def _torch() -> Finding:
    try:
        found = version("torch")
    except PackageNotFoundError:
        return Finding("torch", "bad", "not installed", f"pip install '{torch_compat.REQUIREMENT}'")
    if (said := torch_compat.untried(found)) is not None:
        return Finding("torch", "warn", found, said)
    return Finding("torch", "ok", f"{found}, {os.cpu_count()} processors")


def _torch_names() -> Finding:
    """Whether this torch has the private names that fxjit reads (torch_private.py)."""
    if importlib.util.find_spec("torch") is None:
        return Finding("torch's names", "warn", "unknown without torch")
    lacking = [(row, problem) for row, problem in torch_private.missing() if row.policy != torch_private.FALLBACK]
    needed = [problem for row, problem in lacking if row.policy == torch_private.CANNOT_RUN]
    if needed:
        said = f"{torch_compat.tried_with()}; torch {version('torch')} {needed[0]}"
        return Finding("torch's names", "bad", said, f"pip install '{torch_compat.REQUIREMENT}'")
    off = sorted({f"{row.feature} (torch {problem})" for row, problem in lacking if row.feature != "kernels on a GPU"})
    if off:
        return Finding("torch's names", "warn", "some features are off: " + "; ".join(off))
    return Finding("torch's names", "ok", f"all {len(torch_private.rows())} private names that fxjit reads are there")


def _libraries() -> Finding:
    """Which of the libraries that speed torch up on a CPU it was built with."""
    if importlib.util.find_spec("torch") is None:
        return Finding("torch's libraries", "warn", "unknown without torch")
    from torch.backends import mkl, mkldnn, openmp

    parts = {"MKL": mkl, "oneDNN": mkldnn, "OpenMP": openmp}
    lacking = [name for name, part in parts.items() if not part.is_available()]  # type: ignore[no-untyped-call]  # not in the stubs
    if not lacking:
        return Finding("torch's libraries", "ok", ", ".join(parts))
    advice = "Results are right without; products, convolutions or threads of torch itself are slower."
    return Finding("torch's libraries", "warn", f"torch was built without {' and '.join(lacking)}", advice)


def _extension() -> Finding:
    try:
        from . import _C
    except ImportError as error:
        advice = "Build it with `pip install .`; it needs a C compiler and CPython's headers (python3-dev)."
        return Finding("extension", "bad", f"fxjit._C cannot be imported: {error}", advice)
    return Finding("extension", "ok", f"{Path(_C.__file__).name}")


def _tensors() -> Finding:
    import warnings

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            from .tensor_shim import ensure

            in_c = ensure()
        except Exception as error:  # a report must not fail for what it reports
            return Finding("tensors", "warn", f"cannot be read in C: {error}")
    if in_c:
        return Finding("tensors", "ok", "are read in C, through torch's stable shim")
    why = str(caught[0].message) if caught else "unknown"
    return Finding("tensors", "warn", "are read through Python, which makes calls slower", why)


def _compiler() -> Finding:
    name = find_compiler()
    advice = "apt install g++ (Debian, Ubuntu), or name yours in CXX or FXJIT_CPP_COMPILER.\n"
    advice += "Until then backend 'native' calls ATen for every operator."
    found = config.command(name or "")
    if name is None or found is None:
        return Finding("C++ compiler", "bad", "none of " + ", ".join(COMPILERS) + " was found", advice)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder, "try.cpp")
        source.write_text(_TRY)
        command = [*found, *FLAGS, str(source), "-o", str(Path(folder, "try.so"))]
        try:
            done = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=60, check=False)
        except (OSError, subprocess.TimeoutExpired) as error:
            return Finding("C++ compiler", "bad", f"{name} does not run: {error}", advice)
    if done.returncode != 0:
        first = (done.stderr.strip().splitlines() or ["no message"])[0]
        return Finding("C++ compiler", "bad", f"{name} cannot compile a kernel: {first}", advice)
    return Finding("C++ compiler", "ok", f"{_first_line([*found, '--version'])}; {' '.join(FLAGS[:-2])}")


def _simd() -> Finding:
    flags: set[str] = set()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith(("flags", "Features")):
                flags = set(line.partition(":")[2].split())
                break
    except OSError:
        return Finding("SIMD", "warn", f"unknown on {platform.machine()}")
    for flag, width in (("avx512f", 512), ("avx2", 256), ("asimd", 128), ("sse4_2", 128)):
        if flag in flags:
            return Finding("SIMD", "ok", f"{flag}, {width} bits: {width // 32} floats at once")
    return Finding("SIMD", "warn", f"no vector instructions known for {platform.machine()}")


def _machine() -> Finding:
    """What the cost model decides by; it is measured here where it is not known."""
    if not config.measure_machine:
        return Finding("machine", "ok", "is not measured (config.measure_machine): constants decide what is fused")
    try:
        from .backends.native.choose import probe

        found = probe.known() or probe.measure()
    except Exception as error:  # a report must not fail for what it reports
        return Finding("machine", "warn", f"cannot be measured: {type(error).__name__}: {error}")
    if found is None:
        return Finding("machine", "warn", "is not measured: constants decide what is fused", "See the C++ compiler above.")
    return Finding("machine", "ok", probe.described(found))


def _gpu() -> Finding:
    if importlib.util.find_spec("torch") is None:
        return Finding("GPU", "warn", "unknown without torch")
    import torch

    if not torch.cuda.is_available():
        return Finding("GPU", "ok", "none; kernels run on the CPU")
    major, minor = torch.cuda.get_device_capability()
    names = {torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())}
    return Finding("GPU", "ok", f"{torch.cuda.device_count()} x {', '.join(sorted(names))} (sm_{major}{minor})")


def _triton() -> Finding:
    try:
        return Finding("Triton", "ok", version("triton"))
    except PackageNotFoundError:
        return Finding("Triton", "warn", "not installed", "pip install triton, to compile kernels for a GPU.")


def _cache() -> Finding:
    from .backends.store.artifacts import KernelCache, kernels_folder

    try:
        folder = kernels_folder()
        kept = KernelCache(folder)
        kept.probe()
        files, size = kept.size()
    except (OSError, ConfigError) as error:
        advice = "Set FXJIT_CACHE_DIR to a folder that only you can write to; until then kernels are compiled anew each time."
        return Finding("cache", "warn", f"it cannot be written: {error}", advice)
    return Finding("cache", "ok", f"{folder}: {files} files, {_megabytes(size)} (at most {config.cache_size_mb} MB)")


def _settings() -> Finding:
    changed = [
        f"{row.name}={config.to_dict()[row.name]!r}" for row in config.describe() if config.to_dict()[row.name] != row.default
    ]
    return Finding("settings", "ok", ", ".join(changed) if changed else "all at their defaults")


def _trial() -> Finding:
    """Traces, compiles and trains a small network, and compares it with eager."""
    advice = "Please report this, with the whole of this page and what `FXJIT_LOGS=compile` says."
    try:
        from .api import compile

        seconds, kernels, difference = _train_both(compile)
    except Exception as error:  # whatever fails is what the report is about
        said = " ".join(str(error).split("\n")[:2]).strip() or "no message"
        return Finding("trial", "bad", f"a small training step failed: {type(error).__name__}: {said}", advice)
    if difference > _TOLERANCE:
        return Finding("trial", "bad", f"a small training step is off by {difference:.1e} (relative)", advice)
    text = f"a small training step was compiled in {seconds:.1f} s and agrees with eager"
    if not kernels:
        return Finding("trial", "warn", f"{text}, but without kernels of its own", "See the C++ compiler above.")
    return Finding("trial", "ok", text)


#: The largest difference between eager's parameters and the compiled step's, relative to the largest parameter.
_TOLERANCE = 1e-4


def _train_both(compile: Callable[..., Any]) -> tuple[float, int, float]:
    """Two steps of a small network in eager and compiled: seconds of the compiled ones, how many kernels were generated, and
    the largest relative difference of parameters."""
    import torch

    from .counters import counters

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        layers = [torch.nn.Linear(16, 32), torch.nn.GELU(), torch.nn.LayerNorm(32), torch.nn.Linear(32, 4)]
        eager, x = torch.nn.Sequential(*layers), torch.randn(64, 16)
    compiled = copy.deepcopy(eager)
    start, before = time.perf_counter(), counters["native"]["kernels"]

    def step(model: Any, run: Callable[..., Any]) -> None:
        run(x).pow(2).mean().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
                parameter.grad = None

    with config.patch(small_graphs_as_captured=False, disk_cache=False, tiers=False):
        run = compile(compiled, fullgraph=True)
        for _ in range(2):
            step(compiled, run)
    seconds, kernels = time.perf_counter() - start, counters["native"]["kernels"] - before
    for _ in range(2):
        step(eager, eager)
    pairs = zip(eager.parameters(), compiled.parameters(), strict=True)
    return seconds, kernels, max(float(((a - b).abs().max() / a.abs().max()).detach()) for a, b in pairs)


def _first_line(command: list[str]) -> str:
    try:
        out = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=20, check=False).stdout
    except (OSError, subprocess.TimeoutExpired):
        return command[0]
    return out.partition("\n")[0] or command[0]


def _megabytes(size: int) -> str:
    return f"{size / 1e6:.1f} MB"
