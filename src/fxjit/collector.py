"""Deferred garbage collection: while frames are compiled, the collector's first threshold is out of reach.

A compile makes objects by the hundred thousand, and keeps them: searching the whole process for garbage each time there are
many more takes a sixth of it, and finds none. The collector is not switched off for that. Whether it is on belongs to the
program, other threads of which read and set it meanwhile; and in a child that another thread forks, the compile never ends.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

#: Objects until the next search, while frames are compiled. A number that no program sets, by which it is known as ours.
OUT_OF_REACH = 2_147_310_719

# Which threads compile, and in how many compiles of theirs each is; what the threshold was before the first.
_compiling: dict[int, int] = {}
_lock = threading.RLock()
_before = 0


@contextlib.contextmanager
def collection_deferred() -> Iterator[None]:
    """While any thread is within, the collector does not start by itself. What the program sets meanwhile (`gc.enable`,
    `gc.disable`, `gc.freeze`, `gc.set_threshold`) holds at once and stays; `gc.collect` collects."""
    thread = threading.get_ident()
    _begin(thread)
    try:
        yield
    finally:
        _end(thread)


def _begin(thread: int) -> None:
    global _before
    with _lock:
        first, *others = gc.get_threshold()
        if not _compiling and first not in (0, OUT_OF_REACH):
            _before = first
            gc.set_threshold(OUT_OF_REACH, *others)
        _compiling[thread] = _compiling.get(thread, 0) + 1


def _end(thread: int) -> None:
    with _lock:
        _compiling[thread] -= 1
        if not _compiling[thread]:
            del _compiling[thread]
        _restore_if_last()


def _restore_if_last() -> None:
    first, *others = gc.get_threshold()
    if not _compiling and first == OUT_OF_REACH:
        gc.set_threshold(_before, *others)


def _forget_other_threads() -> None:
    """In a forked child, which has no thread but its own: the compiles of the others will never end."""
    global _lock
    _lock = threading.RLock()
    for thread in [each for each in _compiling if each != threading.get_ident()]:
        del _compiling[thread]
    _restore_if_last()


os.register_at_fork(after_in_child=_forget_other_threads)
