"""Forks while threads compile: what a fork waits for, and what the child renews, which has no thread but its own.

collector.py says which threads compile; a fork waits until the compiles of other threads import nothing. The child, in which
their compiles never end, forgets them.
"""

from __future__ import annotations

import functools
import gc
import importlib
import os
import struct
import sys
import threading
import time
from typing import Any, Final

#: Which threads compile, and in how many compiles of theirs each is.
compiling: Final[dict[int, int]] = {}

#: Seconds that a fork waits for the imports of compiles, at most: one of them may wait for this thread.
PATIENCE = 20.0


#: Where a generator of torch's has its lock, and what of it glibc's has first: the state, a count, the thread, how many use it.
_LOCK_AT: Final = 16
_LOCK: Final = struct.Struct("4i")
_lost: bool = False


def generator_is_lost() -> bool:
    """Whether torch's generator of random numbers is locked for good in this process: another thread drew numbers at the moment
    of the fork. Whatever draws, or reads the generator's state, as a compile does, would wait for ever."""
    return _lost


def begin(thread: int) -> None:
    """The thread begins a compile."""
    compiling[thread] = compiling.get(thread, 0) + 1


def end(thread: int) -> None:
    """The thread ends a compile that it began in this process."""
    compiling[thread] -= 1
    if not compiling[thread]:
        del compiling[thread]


def _others() -> set[int]:
    return {*compiling} - {threading.get_ident()}


def _await_imports() -> None:
    """Waits until no compile of another thread imports anything: the child would find half a module, locked for good by a
    thread that it has not. An import that begins between this and the fork is not seen; holding imports back until then could
    wait for a lock of another hook."""
    until = time.monotonic() + PATIENCE
    while _others_import() and time.monotonic() < until:
        time.sleep(0.001)


def _others_import() -> bool:
    threads = _others()
    if not threads:
        return False
    locks: dict[str, Any] = getattr(importlib._bootstrap, "_module_locks", {})  # type: ignore[attr-defined]  # not in the stubs
    return any(getattr(lock(), "owner", None) in threads for lock in [*locks.values()])


def _forget_others() -> None:
    """In the child."""
    global _lost
    _lost = _is_generator_locked()
    others = _others()
    for thread in others:
        del compiling[thread]
    if others:
        _renew_locks()


def _is_generator_locked() -> bool:
    """By a thread that this process has not: torch offers no way to ask without waiting, so that its memory is looked at."""
    generator: Any = getattr(sys.modules.get("torch"), "default_generator", None)
    address = getattr(generator, "_cdata", 0)
    if not address or not os.path.isdir("/proc/self/task"):
        return False
    ctypes = importlib.import_module("ctypes")  # which torch has imported
    state, _, thread, users = _LOCK.unpack(ctypes.string_at(address + _LOCK_AT, _LOCK.size))
    return state in (1, 2) and users > 0 and thread > 1 and not os.path.exists(f"/proc/self/task/{thread}")


def _renew_locks() -> None:
    """Those of other packages that the compile of a thread may hold: for good, in the child."""
    tqdm = getattr(sys.modules.get("tqdm.std"), "tqdm", None)  # torch.fx makes a progress bar for each graph that it runs
    if tqdm is not None:
        tqdm.set_lock(threading.RLock())
    tempfile: Any = sys.modules.get("tempfile")  # which looks for the folder of temporary files under one
    if hasattr(tempfile, "_once_lock"):
        tempfile._once_lock = threading.Lock()
    # Before Python 3.12 a cached property is calculated under a lock that all objects of the class share; torch has many.
    for each in gc.get_objects():
        if issubclass(type(each), functools.cached_property) and "lock" in vars(each):
            each.lock = threading.RLock()


os.register_at_fork(before=_await_imports, after_in_child=_forget_others)
