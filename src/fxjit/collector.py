"""Deferred garbage collection: while frames are compiled, the collector's first threshold is out of reach.

A compile makes objects by the hundred thousand, and keeps them: searching the whole process for garbage each time there are
many more takes a sixth of it, and finds none. The collector is not switched off for that. Whether it is on belongs to the
program, other threads of which read and set it meanwhile; and in a child that another thread forks, the compile never ends.
For the same reason a fork waits until the compiles of other threads import nothing.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

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
    others = [each for each in _compiling if each != threading.get_ident()]
    for thread in others:
        del _compiling[thread]
    if others:
        _renew_progress_lock()
    _restore_if_last()


def _renew_progress_lock() -> None:
    """torch.fx makes a progress bar for each graph that it runs, under a lock that the compile of a thread may hold."""
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)
    if tqdm is not None:
        tqdm.set_lock(threading.RLock())


#: Seconds that a fork waits for the imports of compiles, at most: one of them may wait for this thread.
PATIENCE = 20.0


def _await_imports() -> None:
    """Waits until no compile of another thread imports anything: the child would find half a module, locked for good by a
    thread that it has not. An import that begins between this and the fork is not seen; holding imports back until then could
    wait for a lock of another hook."""
    until = time.monotonic() + PATIENCE
    while _others_import() and time.monotonic() < until:
        time.sleep(0.001)


def _others_import() -> bool:
    threads = {*_compiling} - {threading.get_ident()}
    if not threads:
        return False
    locks: dict[str, Any] = getattr(importlib._bootstrap, "_module_locks", {})  # type: ignore[attr-defined]  # not in the stubs
    return any(getattr(lock(), "owner", None) in threads for lock in [*locks.values()])


os.register_at_fork(before=_await_imports, after_in_child=_forget_other_threads)
