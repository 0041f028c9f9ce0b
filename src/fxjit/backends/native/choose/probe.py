"""The probe that measures the machine's numbers (machine.py), once, and keeps them on the disk.

It runs in a thread of its own, in pieces of milliseconds, beginning `DELAY` seconds after a process compiled its first graph:
shorter programs are not worth it. The process that measures goes on with the numbers that it began with, so that all it
compiles is decided alike; the next ones take what was measured. `python -m fxjit doctor` measures at once where nothing is
known. Loops are compiled as kernels are. What counts is the least of several turns, and where no threads are involved one
thread's own time, since others may be at work beside it.
"""

from __future__ import annotations

import atexit
import ctypes
import dataclasses
import functools
import hashlib
import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fxjit import _C, config, logs
from fxjit.backends.store.artifacts import get_facts, put_facts
from fxjit.counters import counters
from fxjit.errors import CppCompileError

from ..runtime import cc
from ..runtime.measured import may_decide
from .machine import FAR, REFERENCE, Machine, from_facts, graded

log = logs.artifact("autotuning")

#: Counts up when the probe measures otherwise: what was kept before is no longer what it would be.
VERSION: Final = 1
#: Seconds from a process's first compile until it measures, and of the pauses between pieces of the work.
DELAY, PAUSE = 10.0, 0.01
#: How often each number is measured; the least counts. And seconds of processor time after which what was found has to do.
TURNS, BUDGET = 25, 1.5
#: Calls of ATen, numbers of a small loop, and additions and multiplications of each, in a turn.
_CALLS, _NUMBERS, _OPERATIONS = 200, 1024, 16
#: Teams of threads in a turn, and nanoseconds between them: what a graph's kernels may leave between each other.
_TEAMS, _BETWEEN = 20, 20_000
#: Passes over what is in neither cache, after one that is not counted: others' data was where it is kept.
_PASSES = 3
#: The side of square matrices: those of a megabyte have the speed of larger ones.
_SIDE = 320

_SOURCE = f"""#include <cstdint>
#include <ctime>
static int64_t now(clockid_t clock) {{ timespec t; clock_gettime(clock, &t); return t.tv_sec * 1000000000LL + t.tv_nsec; }}
extern "C" int64_t fx_pass(const float *__restrict__ x, float *__restrict__ y, int64_t n, int64_t repeats) {{
  int64_t start = 0;
  for (int64_t r = -1; r < repeats; ++r) {{
    const float c = (float)r;
    if (r == 0) start = now(CLOCK_THREAD_CPUTIME_ID);
    #pragma omp simd
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] + c;
    asm volatile("" ::: "memory");
  }}
  return now(CLOCK_THREAD_CPUTIME_ID) - start;
}}
extern "C" int64_t fx_shared(const float *__restrict__ x, float *__restrict__ y, int64_t n, int64_t repeats, int threads) {{
  int64_t start = 0;
  for (int64_t r = -1; r < repeats; ++r) {{
    const float c = (float)r;
    if (r == 0) start = now(CLOCK_MONOTONIC);
    #pragma omp parallel for simd schedule(static) num_threads(threads)
    for (int64_t i = 0; i < n; ++i) y[i] = x[i] + c;
  }}
  return now(CLOCK_MONOTONIC) - start;
}}
extern "C" int64_t fx_additions(const float *__restrict__ x, float *__restrict__ y, int64_t n, int64_t repeats) {{
  const int64_t start = now(CLOCK_THREAD_CPUTIME_ID);
  for (int64_t r = 0; r < repeats; ++r) {{
    const float a = 1 + (float)r, b = 0.5f;
    #pragma omp simd
    for (int64_t i = 0; i < n; ++i) {{
      float v = x[i];
      {"v = v * a; v = v + b; " * (_OPERATIONS // 2)}
      y[i] = v;
    }}
    asm volatile("" ::: "memory");
  }}
  return now(CLOCK_THREAD_CPUTIME_ID) - start;
}}
extern "C" int64_t fx_team(int64_t between, int64_t repeats, int threads) {{
  int64_t least = INT64_MAX;
  for (int64_t r = 0; r < repeats; ++r) {{
    for (const int64_t until = now(CLOCK_MONOTONIC) + between; now(CLOCK_MONOTONIC) < until;) {{}}
    const int64_t start = now(CLOCK_MONOTONIC);
    #pragma omp parallel num_threads(threads)
    {{ asm volatile("" ::: "memory"); }}
    const int64_t spent = now(CLOCK_MONOTONIC) - start;
    least = spent < least ? spent : least;
  }}
  return least;
}}
"""


# What is known


def present() -> Machine:
    """The machine by whose numbers this thread's compiles are decided now.

    Those of REFERENCE where nothing was measured, where the setting is off, and where decisions must be the same in each run
    (deterministic algorithms) or on each rank: a kernel and ATen differ in the last bits of a number.
    """
    if not may_decide() or _has_ranks():
        return REFERENCE
    return _at_start(str(config.cache_dir), config.disk_cache)


def text() -> str:
    """The same as part of a key of what was compiled."""
    return repr(present())


def _has_ranks() -> bool:
    return torch.distributed.is_available() and torch.distributed.is_initialized()


@functools.cache
def _at_start(folder: str, on_disk: bool) -> Machine:
    """What was known when this process first looked there: all that it compiles is decided alike."""
    found = known()
    return REFERENCE if found is None else graded(found)


def known() -> Machine | None:
    """What was measured on this machine, now or earlier; None where nothing was, or where it is damaged."""
    return from_facts(get_facts(_key()))


def _key() -> str:
    """Of a processor with these caches and so many threads, and of the libraries and flags that were measured with them. The
    compiler is not asked for its version: where entries are found on the disk none runs, and there need not be one."""
    facts = ("machine", VERSION, cc.target(), _caches(), _threads(), torch.__version__)
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:40]


def _threads() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@functools.cache
def _caches() -> tuple[int, int]:
    """Bytes of the first and the second cache of data; those of REFERENCE where the system does not say."""
    found = {1: REFERENCE.first_bytes, 2: REFERENCE.second_bytes}
    for path in sorted(Path("/sys/devices/system/cpu/cpu0/cache").glob("index*")):
        try:
            level, kind, size = ((path / name).read_text().strip() for name in ("level", "type", "size"))
            bytes_of = int(size.rstrip("KM")) << {"K": 10, "M": 20}.get(size[-1:], 0)
        except (OSError, ValueError):
            continue
        if kind in ("Data", "Unified") and bytes_of > 0 and level in ("1", "2"):
            found[int(level)] = bytes_of
    return found[1], found[2]


# Measuring


def measure(pause: Callable[[], bool] = lambda: False) -> Machine | None:
    """Measures the machine and keeps the numbers. None without a compiler, and once `pause`, which is called between pieces of
    a few milliseconds, returns True."""
    try:
        library = cc.start(_SOURCE).library()
    except CppCompileError as problem:
        log.info("the machine is not measured: %s", problem)
        return None
    least: dict[str, float] = {}
    spent = time.thread_time()
    with _disable_current_modes(), torch.no_grad():
        for name, number in _turns(library):
            least[name] = min(number, least.get(name, number))
            if pause():
                return None
            if time.thread_time() - spent > BUDGET and len(least) == len(_NAMES):
                break
    first_bytes, second_bytes = _caches()
    numbers = {"first_bytes": first_bytes, "second_bytes": second_bytes, **least}
    found = from_facts(numbers)
    if found is None:
        log.info("the machine is not measured: %s", numbers)
        return None
    counters["native"]["machines measured"] += 1
    log.info("the machine was measured in %.2f s: %s", time.thread_time() - spent, found)
    put_facts(_key(), numbers)
    return found


_NAMES: Final = [each.name for each in dataclasses.fields(Machine) if each.type == "float"]


def _turns(library: ctypes.CDLL) -> Iterator[tuple[str, float]]:
    """Each number by its name, several times."""
    entries = {name: getattr(library, f"fx_{name}") for name in ("pass", "shared", "additions", "team")}
    for entry in entries.values():
        entry.restype = ctypes.c_int64
    first_bytes, second_bytes = _caches()
    count = FAR // 8
    x, y = (torch.ones(count, dtype=torch.float32, device="cpu") for _ in range(2))
    at = ctypes.c_void_p(x.data_ptr()), ctypes.c_void_p(y.data_ptr())
    threads = _threads()

    def one_pass(size: int) -> float:
        """Two arrays that take half of a cache together."""
        numbers = size // 16
        repeats = max(1, count // 2 // numbers)
        return float(entries["pass"](*at, ctypes.c_int64(numbers), ctypes.c_int64(repeats))) / numbers / repeats

    def additions() -> float:
        repeats = 500
        spent = entries["additions"](*at, ctypes.c_int64(_NUMBERS), ctypes.c_int64(repeats))
        return float(spent) / repeats / _NUMBERS / (_OPERATIONS + 1)

    ways: dict[str, Callable[[], float]] = {
        "call": _call,
        "team": lambda: float(entries["team"](ctypes.c_int64(_BETWEEN), ctypes.c_int64(_TEAMS), threads)) / 1e3,
        "addition": additions,
        "product": _product,
        "first": lambda: one_pass(first_bytes),
        "second": lambda: one_pass(second_bytes),
        "far": lambda: float(entries["pass"](*at, *map(ctypes.c_int64, (count, _PASSES)))) / count / _PASSES,
        "shared": lambda: float(entries["shared"](*at, *map(ctypes.c_int64, (count, _PASSES)), threads)) / count / _PASSES,
    }
    for _ in range(TURNS):
        for name, way in ways.items():
            yield name, way()


def _call() -> float:
    x, operator = torch.ones(16, dtype=torch.float32, device="cpu"), torch.ops.aten.sigmoid.default
    start = time.thread_time()
    for _ in range(_CALLS):
        operator(x)
    return (time.thread_time() - start) / _CALLS * 1e6


def _product() -> float:
    """A product by the faster of the libraries that there are."""
    if _C.program_can("gemm"):
        return min(map(float, _C.time_product(_SIDE, _SIDE, _SIDE, False, False, 3))) / _SIDE**3
    a = torch.ones(_SIDE, _SIDE, dtype=torch.float32, device="cpu")
    start = time.process_time()
    torch.mm(a, a)
    return (time.process_time() - start) / _SIDE**3 * 1e9


# In the background

_stop = threading.Event()
_begun = False


def measure_later() -> None:
    """Has a thread measure the machine in a while, if it is not known: called when this process has compiled a graph."""
    global _begun
    if _begun:
        return
    _begun = True
    if not (config.measure_machine and config.disk_cache) or cc.compiler() is None or known() is not None:
        return
    thread = threading.Thread(target=_measure_quietly, name="fxjit measures the machine", daemon=True)
    atexit.register(_end, thread)
    thread.start()


def _measure_quietly() -> None:
    if _stop.wait(DELAY) or known() is not None:
        return
    try:
        measure(lambda: _stop.wait(PAUSE))
    except Exception as problem:  # of torch or the system: what is measured is only good for speed
        log.info("the machine is not measured: %s: %s", type(problem).__name__, problem)


def _end(thread: threading.Thread) -> None:
    """At the program's end: the thread must not be in torch's code when that is torn down."""
    _stop.set()
    thread.join(timeout=1.0)


def described(machine: Machine) -> str:
    """What was measured, for people."""
    passes = ", ".join(f"{8 / number:.0f}" for number in (machine.first, machine.second, machine.far, machine.shared))
    return (f"a call of ATen {machine.call:.1f} us, a team of threads {machine.team:.1f} us; "
            f"{1 / machine.addition:.0f} additions and {1 / machine.product:.0f} multiplications of a product a ns; "
            f"{passes} GB/s in the first cache ({machine.first_bytes >> 10} KB), the second ({machine.second_bytes >> 10} KB), "
            "beyond, and there with all threads")
