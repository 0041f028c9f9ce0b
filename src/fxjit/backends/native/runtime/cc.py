"""Finds the C++ compiler, runs it, loads what it makes.

`start(source)` begins a compilation and returns at once; `Compilation.library()` waits for it. A compiler that is
missing, fails or hangs becomes CppCompileError, with the source and the command kept in the cache folder.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import shutil
import signal
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fxjit import config, logs
from fxjit.errors import CppCompileError

from ..target import has_libmvec
from .cache import KernelCache, count, open_cache, refuge

log = logs.artifact("cache")
TIMEOUT = 300.0
CANDIDATES = ("g++", "c++", "clang++")
# What compilers and linkers say of a disk that takes nothing more.
DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large")


@functools.cache
def find_compiler(asked: str, environment: str) -> str | None:
    """The compiler to use: the one asked for, $CXX, or the first of the usual names that is there."""
    for name in [asked] if asked else [environment, *CANDIDATES]:
        if name and (path := shutil.which(name)):
            return path
    return None


def compiler() -> str | None:
    return find_compiler(config.cpp.compiler, config.environment("CXX"))


def require_compiler() -> str:
    found = compiler()
    if found is None:
        asked = config.cpp.compiler
        raise CppCompileError(
            f"There is no C++ compiler called {asked!r} (config.cpp.compiler)." if asked else
            "No C++ compiler was found. Install g++ (Debian, Ubuntu: apt install g++), or name one: $CXX, config.cpp.compiler."
        )  # fmt: skip
    return found


@functools.cache
def version_of(path: str) -> str:
    """What the compiler says it is, with the processor it compiles for: part of every key."""
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, timeout=20, check=False)
        return done.stdout.split("\n", 1)[0].strip() or "unknown"
    except (OSError, subprocess.SubprocessError) as error:
        raise CppCompileError(f"{path} does not run: {error}") from error


@functools.cache
def has_avx512() -> bool:
    try:
        return " avx512f" in Path("/proc/cpuinfo").read_text()
    except OSError:
        return False


@functools.cache
def processor() -> str:
    """A hash of the processor's model and features: -march=native means a different thing on each."""
    try:
        text = Path("/proc/cpuinfo").read_text()
        found = sorted({line for line in text.splitlines() if line.startswith(("model name", "flags", "Features", "CPU part"))})
    except OSError:
        found = [platform.processor(), platform.machine()]
    return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16]


#: What `-ffast-math` stands for. Under that name GCC also links code that, when the library is loaded, makes the whole process
#: take denormal numbers for zero.
_FAST_MATH: Final = [
    "-fno-math-errno", "-fassociative-math", "-freciprocal-math", "-fno-signed-zeros", "-fno-trapping-math",
    "-ffinite-math-only",
]  # fmt: skip


def flags() -> list[str]:
    chosen = [
        "-std=c++17",
        "-O3",
        "-fPIC",
        "-shared",
        "-fno-math-errno",
        "-fno-trapping-math",
        "-fwrapv",
        "-fno-exceptions",
        "-fno-rtti",
    ]
    if config.cpp.simd:
        chosen.append("-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native")
        if has_avx512():
            # By itself GCC takes half the width: measured 1.3 to 2 times slower wherever exp or tanh is in the loop.
            chosen.append("-mprefer-vector-width=512")
    else:
        chosen.append("-fno-tree-vectorize")
    if config.cpp.openmp:
        chosen.append("-fopenmp")
    # Contraction would round differently from eager: a*a - b*b of equal a and b must be 0.
    chosen += _FAST_MATH if config.cpp.fast_math else ["-ffp-contract=off"]
    return chosen + config.cpp.extra_flags.split()


def libraries() -> list[str]:
    return [*(["-lmvec"] if has_libmvec(22) else []), "-lm"]


class Compilation:
    """A library on its way."""

    def __init__(self, key: str, source: str, compiler: list[str], cache: KernelCache, ready: Path | None) -> None:
        self.key, self.source, self.compiler, self.cache = key, source, compiler, cache
        self.ready = ready
        self.process: subprocess.Popen[bytes] | None = None
        self.command: list[str] = []
        self.loaded: ctypes.CDLL | None = None

    def begin(self) -> None:
        try:
            self.start_compiler()
        except OSError as error:
            if not self.moves(error):
                raise CppCompileError(f"The C++ compiler could not be started: {error}\n  {' '.join(self.compiler)}") from error

    def start_compiler(self) -> None:
        self.output, self.text = self.cache.scratch(".so"), self.cache.scratch(".cpp")
        self.text.write_text(self.source)
        self.command = [*self.compiler, str(self.text), "-o", str(self.output), *libraries()]
        self.process = subprocess.Popen(
            self.command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=config.child_environment(LC_ALL="C"),
            start_new_session=True,  # so that what it starts can be stopped with it
        )

    def moves(self, problem: object) -> bool:
        """Begins again in a folder for this process alone; False if it began in one."""
        cache = refuge(self.cache, problem)
        if cache is None:
            return False
        self.cache = cache
        self.begin()
        return True

    def library(self) -> ctypes.CDLL:
        """The loaded library; waits for the compiler."""
        if self.loaded is None and self.ready is not None:
            try:
                self.loaded = ctypes.CDLL(str(self.ready))
            except OSError as error:
                log.info("%s cannot be loaded and is made again: %s", self.ready, error)  # removed meanwhile, perhaps
                self.cache.remove(self.key)
                self.begin()
        if self.loaded is None:
            self.loaded = self.finish()
        return self.loaded

    def finish(self) -> ctypes.CDLL:
        assert self.process is not None
        try:
            said, _ = self.process.communicate(timeout=TIMEOUT)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            raise CppCompileError(self.report(f"The C++ compiler did not finish within {TIMEOUT:.0f} s.")) from None
        if self.process.returncode != 0:
            self.output.unlink(missing_ok=True)
            text = said.decode(errors="replace")[:4000]
            full = next((each for each in DISK_FULL if each in text), None)
            if full is not None and self.moves(full):
                return self.finish()
            raise CppCompileError(self.report(f"The C++ compiler failed ({self.process.returncode}):\n{text}"))
        try:
            os.chmod(self.output, 0o700)
            # Before it is in the cache, where other processes may remove or replace it.
            loaded = ctypes.CDLL(str(self.output))
        except OSError as error:
            raise CppCompileError(self.report(f"A compiled kernel cannot be loaded: {error}")) from error
        self.text.unlink(missing_ok=True)
        self.cache.put(self.key, self.output, self.source)
        return loaded

    def report(self, problem: str) -> str:
        return f"{problem}\nThe source is kept; the command was:\n  {' '.join(self.command)}"


def identity() -> str:
    """What a library depends on beside its source: part of every key."""
    path = require_compiler()
    return "\0".join([path, *flags(), *libraries(), version_of(path), processor()])


@dataclass(frozen=True, slots=True)
class Kept:
    """A library that an earlier compilation left in the cache."""

    key: str
    loaded: ctypes.CDLL

    def library(self) -> ctypes.CDLL:
        return self.loaded


def kept(key: str) -> Kept:
    """The library of this key; OSError if it is not there or cannot be loaded."""
    path = open_cache().get(key)
    if path is None:
        raise FileNotFoundError(f"there is no library {key}")
    return Kept(key, ctypes.CDLL(str(path)))


def start(source: str, prelude: str = "") -> Compilation:
    """Begins to compile a translation unit, `source` after `prelude`, or finds it in the cache."""
    whole = prelude + source
    key = hashlib.sha256("\0".join([whole, identity()]).encode()).hexdigest()[:40]
    cache = open_cache()
    ready = cache.get(key)
    count(ready is not None)
    log.info("%s %s", "hit" if ready else "miss", key)
    compilation = Compilation(key, whole, [require_compiler(), *flags()], cache, ready)
    if ready is None:
        compilation.begin()
    return compilation


def address(library: ctypes.CDLL, entry: str) -> int:
    """Where a function of the library is."""
    return ctypes.cast(getattr(library, entry), ctypes.c_void_p).value or 0
