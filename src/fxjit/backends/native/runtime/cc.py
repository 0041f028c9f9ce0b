"""Finds the C++ compiler, runs it, loads what it makes.

`start(source)` begins a compilation and returns at once; `Compilation.library()` waits for it. A compiler that is missing,
vanishes, fails or hangs becomes CppCompileError, which names the cause; the source of a failure is kept in the cache.
What is begun under `compiling()` ends with it.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import hashlib
import os
import platform
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fxjit import config, logs
from fxjit.backends.store import folder as folders
from fxjit.backends.store.artifacts import LIBRARY, Cache, KernelCache, count, forget, lookup, open_cache
from fxjit.backends.store.folder import Folder, Scratch, hold, sweep
from fxjit.errors import CppCompileError

from ..target import has_libmvec
from . import child as children
from .child import Child
from .library import load

log = logs.artifact("cache")
#: Seconds for a compilation, and for a compiler to say what it is.
TIMEOUT, QUICK_TIMEOUT = 300.0, 20.0
CANDIDATES = ("g++", "c++", "clang++")
#: What compilers and linkers say where another place may have room.
DISK_FULL = ("No space left on device", "Disk quota exceeded", "File too large", "File size limit exceeded",
             "Read-only file system")
#: Names in the folder of one compilation.
_SOURCE, _OUTPUT = "kernel.cpp", "kernel.so"


@functools.cache
def find_compiler(asked: str, environment: str) -> tuple[str, ...] | None:
    """The command of the compiler to use: of the setting, $CXX, or the first of the usual names that is there."""
    for name in [asked] if asked else [environment, *CANDIDATES]:
        if found := config.command(name):
            return found
    return None


def compiler() -> tuple[str, ...] | None:
    return find_compiler(config.cpp.compiler, config.environment("CXX"))


def require_compiler() -> tuple[str, ...]:
    found = compiler()
    if found is None:
        asked = config.cpp.compiler
        raise CppCompileError(
            f"There is no C++ compiler called {asked!r} (config.cpp.compiler)." if asked else
            "No C++ compiler was found. Install g++ (Debian, Ubuntu: apt install g++), or name one: $CXX, config.cpp.compiler."
        )  # fmt: skip
    return found


#: How often each compiler did not end in time; after this many this process does not wait for it again.
_hung: Counter[str] = Counter()
MOST_HANGS = 2


@functools.cache
def version_of(command: tuple[str, ...]) -> str:
    """The compiler's version text, with the processor it compiles for: part of every key."""
    _, said = run(command[0], start_child([*command, "--version"]), QUICK_TIMEOUT)
    return said.split("\n", 1)[0].strip() or "unknown"


def start_child(command: list[str], **environment: str) -> Child:
    if _hung[command[0]] >= MOST_HANGS:
        raise CppCompileError(f"The C++ compiler {command[0]} does not finish: it is not tried again.")
    try:
        return Child(command, **environment)
    except OSError as error:
        find_compiler.cache_clear()  # it was there, and is gone
        raise CppCompileError(f"The C++ compiler {command[0]} cannot be started: {error}") from error


def run(compiler: str, child: Child, seconds: float) -> tuple[str, str]:
    """(how the compiler failed, or nothing; what it said)"""
    try:
        return child.wait(seconds)
    except TimeoutError:
        _hung[compiler] += 1
        raise CppCompileError(f"The C++ compiler {compiler} does not finish: it was stopped after {seconds:g} s.") from None


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


#: What -O3 adds to this, complete unrolling of loops that grow by it above all, takes 1.5 to 1.7 times as long to compile.
#: Measured with GCC 12 and AVX-512: fifty small functions and six models (ResNet-50, U-Net, ViT...) run at 0.98 to 1.03 of the
#: speed that -O3 gives them.
_OPTIMISATION: Final = ("-O2", "-ftree-vectorize", "-fvect-cost-model=dynamic")


def flags() -> list[str]:
    chosen = [
        "-std=c++17",
        *_OPTIMISATION,
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
    """A library on its way: one from the cache, or one that a compiler is making."""

    def __init__(self, key: str, source: str, compiler: list[str], cache: Cache, ready: bytes | None) -> None:
        self.key, self.source, self.compiler, self.cache = key, source, compiler, cache
        self.ready = ready
        self.loaded: ctypes.CDLL | None = None
        self.child: Child | None = None
        self.scratch: Scratch | None = None
        self.command: list[str] = []
        #: Where it was tried in vain, and why.
        self.problems: list[str] = []
        self.rooms = rooms(cache)

    def begin(self) -> None:
        """Starts the compiler in the next place that takes the source."""
        for name, opened in self.rooms:
            try:
                self.scratch = Scratch(opened())
                self.scratch.write(_SOURCE, self.source.encode())
            except OSError as problem:
                self.problems.append(f"{name}: {problem}")
                self.discard()
                continue
            where = self.scratch.path
            self.command = [*self.compiler, str(where / _SOURCE), "-o", str(where / _OUTPUT), *libraries()]
            try:
                self.child = start_child(self.command, TMPDIR=str(where))
            except BaseException:
                self.discard()
                raise
            begun = getattr(_scope, "begun", None)
            if begun is not None:
                begun.append(self)
            return
        raise CppCompileError("There is no place to compile a kernel in. " + "; ".join(self.problems))

    def discard(self) -> None:
        """Stops the compiler, if it runs, and removes all that it wrote."""
        child, self.child = self.child, None
        if child is not None:
            child.stop()
        scratch, self.scratch = self.scratch, None
        if scratch is not None:
            scratch.discard()

    def library(self) -> ctypes.CDLL:
        """The loaded library; waits for the compiler."""
        if self.loaded is None and self.ready is not None:
            try:
                self.loaded = load(self.key, self.ready)
            except OSError as error:
                log.info("%s cannot be loaded and is made again: %s", self.key, error)
                forget(self.key)
        if self.loaded is None:
            try:
                self.loaded = self.finish()
            finally:
                self.discard()
        return self.loaded

    def finish(self) -> ctypes.CDLL:
        if self.child is None or self.child.pid != os.getpid():
            self.discard()  # nothing runs: it was stopped, or it is the child of the process that this one was forked from
            self.rooms, self.problems = rooms(self.cache), []
            self.begin()
        while True:
            assert self.child is not None and self.scratch is not None
            try:
                failure, said = run(self.command[0], self.child, TIMEOUT)
            except CppCompileError as error:
                raise CppCompileError(self.report(str(error))) from None
            if not failure:
                break
            full = next((each for each in DISK_FULL if each in said or each in failure), None)
            if full is None:
                raise CppCompileError(self.report(f"The C++ compiler failed ({failure}):\n{said[:4000]}"))
            self.problems.append(f"{self.scratch.path.parent}: {full}")
            self.discard()
            self.begin()
        try:
            content = self.scratch.read(_OUTPUT)
            loaded = load(self.key, content)
        except OSError as error:
            raise CppCompileError(self.report(f"A compiled kernel cannot be loaded: {error}")) from error
        self.cache.put(self.key, LIBRARY, content)
        self.cache.put_source(self.key, self.source)
        return loaded

    def report(self, problem: str) -> str:
        assert self.scratch is not None
        kept = self.cache.put_source(self.key, self.source)
        where = f"The source is {kept}; the command was:" if kept is not None else "The command was:"
        command = " ".join(self.command).replace(str(self.scratch.path / _SOURCE), str(kept or _SOURCE))
        return f"{problem}\n{where}\n  {command.replace(str(self.scratch.path / _OUTPUT), os.devnull)}"


#: A place to compile in: its name, and what opens it.
Room = tuple[str, Callable[[], Folder]]


def rooms(cache: Cache) -> Iterator[Room]:
    """Where a compiler may write, in this order: the folder for temporary files, mostly the faster disk, and the cache."""
    yield "the folder for temporary files", _temporary_folder
    if isinstance(cache, KernelCache):
        yield str(cache.folder.path), lambda: cache.folder


@functools.cache
def _temporary_folder() -> Folder:
    folder = hold(Path(tempfile.gettempdir()), make=False)
    with contextlib.suppress(OSError):
        sweep(folder)
    return folder


_scope = threading.local()


@contextlib.contextmanager
def compiling() -> Iterator[None]:
    """Stops what this thread began to compile in it and did not wait for, however it ends."""
    outer, _scope.begun = getattr(_scope, "begun", None), []
    try:
        yield
    finally:
        begun, _scope.begun = _scope.begun, outer
        for each in begun:
            each.discard()


def abandon() -> None:
    """Stops the compilers of this process, which ends at once, and removes what they and it are making."""
    children.abandon()
    folders.abandon()


def identity() -> str:
    """The dependencies of a library besides its source: part of every key."""
    return "\0".join([which(), target()])


def which() -> str:
    """The compiler. Raises CppCompileError where there is none."""
    command = require_compiler()
    return "\0".join([*command, version_of(command)])


def target() -> str:
    """What a library runs on, whichever compiler made it."""
    return "\0".join([*flags(), *libraries(), processor()])


@dataclass(frozen=True, slots=True)
class Kept:
    """A library that an earlier compilation left in the cache."""

    key: str
    loaded: ctypes.CDLL

    def library(self) -> ctypes.CDLL:
        return self.loaded


def kept(key: str) -> Kept:
    """The library of this key; OSError if it is not there or cannot be loaded."""
    content = lookup(key, LIBRARY)
    if content is None:
        raise FileNotFoundError(f"there is no library {key}")
    return Kept(key, load(key, content))


def start(source: str, prelude: str = "") -> Compilation:
    """Begins to compile a translation unit, `source` after `prelude`, or finds it in the cache."""
    whole = prelude + source
    key = hashlib.sha256("\0".join([whole, identity()]).encode()).hexdigest()[:40]
    cache = open_cache()
    ready = lookup(key, LIBRARY)
    count(ready is not None)
    log.info("%s %s", "hit" if ready else "miss", key)
    compilation = Compilation(key, whole, [*require_compiler(), *flags()], cache, ready)
    if ready is None:
        compilation.begin()
    return compilation


def address(library: ctypes.CDLL, entry: str) -> int:
    """Where a function of the library is."""
    try:
        return ctypes.cast(getattr(library, entry), ctypes.c_void_p).value or 0
    except AttributeError as error:
        raise CppCompileError(f"The C++ compiler made a library without a kernel: it has no {entry}.") from error
