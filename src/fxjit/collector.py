"""Deferred garbage collection: while frames are compiled, the collector's first threshold is out of reach.

A compile makes objects by the hundred thousand, and keeps them: searching the whole process for garbage each time there are
many more takes a sixth of it, and finds none. The collector is not switched off for that. Whether it is on belongs to the
program, other threads of which read and set it meanwhile; and in a child that another thread forks, the compile never ends
(forks.py).
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
from collections.abc import Iterator

from . import forks

#: Objects until the next search, while frames are compiled. A number that no program sets, by which it is known as ours.
OUT_OF_REACH = 2_147_310_719

# What the threshold was before the first thread compiled.
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
        if not forks.compiling and first not in (0, OUT_OF_REACH):
            _before = first
            gc.set_threshold(OUT_OF_REACH, *others)
        forks.begin(thread)


def _end(thread: int) -> None:
    with _lock:
        forks.end(thread)
        _restore_if_last()


def _restore_if_last() -> None:
    first, *others = gc.get_threshold()
    if not forks.compiling and first == OUT_OF_REACH:
        gc.set_threshold(_before, *others)


def _after_fork() -> None:
    """In a forked child, after forks.py forgot the threads that it has not."""
    global _lock
    _lock = threading.RLock()
    _restore_if_last()


os.register_at_fork(after_in_child=_after_fork)
