"""Locks of the program that a compiled frame holds: taken, without waiting, before its graph; let go where the program does.

Guards are checked before, so they are checked once more when all locks are held: another thread may have changed, under the
lock, what they are about. Where a lock is not free, or they hold no longer, the frame starts over in the user's own code, which
waits for the lock. values/locks.py traces them; the steps that take them are among those of random generators (rng_steps.py).
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Mapping
from typing import Any, Protocol


class Lock(Protocol):
    """`threading.Lock` or `threading.RLock`."""

    def acquire(self, blocking: bool = ..., timeout: float = ...) -> bool: ...
    def release(self) -> None: ...


class LockIsBusy(Exception):
    """A lock is held by somebody else, or by this thread, which will wait for itself as it does in eager code."""


class Held:
    """A lock that was taken, until it is let go: at the latest when this object goes."""

    __slots__ = ("_lock",)

    def __init__(self, lock: Lock) -> None:
        self._lock: Lock | None = lock

    def release(self) -> None:
        lock, self._lock = self._lock, None
        if lock is not None:
            lock.release()

    __del__ = release


def take(lock: Lock) -> Held:
    """A step: takes a lock. Raises LockIsBusy."""
    if not lock.acquire(blocking=False):
        raise LockIsBusy
    return Held(lock)


def release(held: Held) -> None:
    """Run-time helper of new code: lets go of a lock."""
    held.release()


class HoldingGraph:
    """Run-time helper of new code: calls a graph with its arguments, behind the locks that are held; they are let go where it
    fails."""

    def __init__(self, locks: int) -> None:
        self.locks = locks

    def __call__(self, *args: Any) -> Any:
        held, (graph, *inputs) = args[:self.locks], args[self.locks:]
        try:
            return graph(*inputs)
        except BaseException:
            for each in held:
                each.release()
            raise


class Recheck:
    """The guards of an entry, checked once more by its own code."""

    def __init__(self) -> None:
        #: Of the guard tree, once there is one; before, nothing can have changed.
        self.check: Callable[..., bool] | None = None

    def __call__(self, args: tuple[Any, ...], closure: tuple[Any, ...], names: Mapping[str, Any]) -> bool:
        if self.check is None:
            return True
        found = names.get("__builtins__", builtins)
        return self.check(args, closure, names, found if isinstance(found, dict) else vars(found))
