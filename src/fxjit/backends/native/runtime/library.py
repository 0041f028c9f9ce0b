"""Shared libraries loaded from bytes: what was hashed is what is loaded.

The bytes go to a file in memory that nobody else has, which the loader maps: no process can change them between check and load
or while the library is in use, and the file system they were kept on may forbid execution.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import os
import tempfile
from pathlib import Path

from fxjit import _C, events, logs
from fxjit.backends.store.folder import Scratch, hold

log = logs.artifact("cache")


def load(name: str, content: bytes) -> ctypes.CDLL:
    """The library of these bytes, connected; OSError where they are none. Debuggers show `name`, its key in the cache."""
    try:
        library = _from_memory(name, content)
    except (OSError, AttributeError) as problem:  # no /proc, no such files here, or none that may be executed: or no library
        log.info("%s is not loaded from memory: %s", name, problem)
        library = _from_copy(content)
    connect(library)
    events.record_event(events.LibraryLoaded(name, library._name))
    return library


def connect(library: ctypes.CDLL) -> None:
    """Gives a library the address of the BLAS that ATen calls, where its kernels call it too (codegen/product.py)."""
    with contextlib.suppress(ValueError):  # it has no such pointer
        ctypes.c_void_p.in_dll(library, "fx_sgemm").value = _C.blas_address()


def _from_memory(name: str, content: bytes) -> ctypes.CDLL:
    descriptor = os.memfd_create(f"fxjit-{name}", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        _write(descriptor, content)
        return ctypes.CDLL(f"/proc/self/fd/{_spelled(content)}{descriptor}")
    finally:
        os.close(descriptor)


def _write(descriptor: int, content: bytes) -> None:
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(descriptor, rest):]


def _spelled(content: bytes) -> str:
    """An equivalent spelling of a path, different for each content: the loader identifies libraries by path, and would
    return the library loaded before through the same descriptor."""
    number = int.from_bytes(hashlib.sha256(content).digest()[:16])
    return "".join("./" if number >> bit & 1 else "/" for bit in range(128))


def _from_copy(content: bytes) -> ctypes.CDLL:
    """Loaded from a directory of this process alone, under a name that no library had before."""
    scratch = Scratch(hold(Path(tempfile.gettempdir())))
    try:
        scratch.write("kernel.so", content)
        return ctypes.CDLL(str(scratch.path / "kernel.so"))
    finally:
        scratch.discard()
