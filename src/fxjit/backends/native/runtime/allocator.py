"""The C library's allocator, told to keep freed memory for the next call: no step of training pays for new pages again.

What a forward pass keeps for its backward, and what ATen makes, is no part of a program's arena. glibc returns such memory to
the system at the end of each backward, since the free end of its heap exceeds a limit that goes by the largest tensor so far
(up to 64 MB), and each of its pages is handed out, and cleared, anew in the next step: on a virtual machine up to half of the
time of a small network's step (docs/performance_kernels.md). torch allocates by malloc, so this is one setting of the
process. It holds as much as it held at its peak then, up to `config.kept_memory_mb` that are free.
"""

from __future__ import annotations

import ctypes
import functools

from fxjit import config, logs

log = logs.artifact("compile")
#: mallopt's numbers in <malloc.h>.
TRIM_THRESHOLD, MMAP_THRESHOLD = -1, -3
#: The greatest that glibc takes. Larger tensors have mappings of their own, which go back at once.
LARGEST_IN_HEAP = 32 << 20
#: A program whose user set glibc's allocator is left alone.
SET_BY_USER = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "MALLOC_TOP_PAD_", "MALLOC_MMAP_MAX_")


@functools.cache
def keep_freed_memory() -> bool:
    """Whether freed memory is kept from now on, by us. The first call in a process decides."""
    least = config.kept_memory_mb << 20
    chosen = any(map(config.environment, SET_BY_USER)) or "glibc.malloc." in config.environment("GLIBC_TUNABLES")
    library = _glibc()
    if not least or chosen or library is None:
        return False
    # Where one of the two is set, glibc no longer adapts the other. It refuses only the first, where that is above its limit.
    kept = bool(library.mallopt(MMAP_THRESHOLD, LARGEST_IN_HEAP)) and bool(library.mallopt(TRIM_THRESHOLD, least))
    log.info("freed memory is %s", f"kept up to {least >> 20} MB" if kept else "not kept: mallopt refused")
    return kept


def _glibc() -> ctypes.CDLL | None:
    """The process's C library, where it is glibc."""
    try:
        library = ctypes.CDLL(None)
    except (OSError, TypeError):
        return None
    return library if hasattr(library, "gnu_get_libc_version") and hasattr(library, "mallopt") else None
