"""`threading.Lock` and `threading.RLock` in traced code: `with lock:`, `acquire()` and `release()`.

A lock is taken before the graph and the effects, without waiting, and let go where the program lets go of it for the last time
(frontend/held_locks.py). Nothing waits for anything meanwhile, so that holding it for longer than the program cannot block for
ever; what might, a call that is put off or an operator of the program's own, is not made under it.

One that the trace makes is taken by nobody else before the trace is over: it is made where it leaves the trace, as often taken
as it is then.
"""

from __future__ import annotations

import _thread
import threading
from collections.abc import Callable
from typing import Any, Final, NoReturn

from fxjit.frontend import held_locks
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Rebuilder, Value
from fxjit.frontend.values.calls import handles
from fxjit.frontend.values.contexts import ContextMethodValue, ContextValue
from fxjit.frontend.values.natives import BuiltinMethodValue
from fxjit.frontend.values.random_values import step
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import TypeIs
from fxjit.guards.source import RandomSource, Source

_LOCK: Final = type(threading.Lock())
_RLOCK: Final = type(threading.RLock())
_METHODS: Final = ("acquire", "release", "_is_owned")


class LockValue(ContextValue):
    """A lock that existed before the frame."""

    resumable = False

    def __init__(self, obj: Any, source: Source) -> None:
        super().__init__(type(obj), (), source)
        self.obj = obj
        #: How often the trace has taken it and not let go of it.
        self.depth = 0
        self._held: Value | None = None

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name in _METHODS and hasattr(self.cls, name):
            return BuiltinMethodValue(self, name)
        return super().tp_getattro(t, name)

    def refuse(self, t: Tracer, name: str) -> NoReturn:
        """The call is left to the running program."""
        t.break_("call-builtin", function=f"{self.cls.__name__}.{name}", args="")

    def enter(self, t: Tracer) -> Value:
        if self.depth and self.cls is not _RLOCK:
            self.refuse(t, "acquire")  # the program waits for itself
        if not self.depth:
            self._take(t)
        self.depth += 1
        return t.make(True)

    def leave(self, t: Tracer) -> None:
        self.depth -= 1
        if not self.depth:
            t.effects.call_later(held_locks.release, [self._held])

    def _take(self, t: Tracer) -> None:
        if not t.rng_steps.may_lock or not t.effects.puts_off_only(held_locks.release):
            self.refuse(t, "acquire")
        if self._held is not None:  # it is held until it is let go for the last time
            t.effects.forget_call(held_locks.release, self._held)
            return
        assert self.source is not None
        steps = t.rng_steps
        steps.found(self.obj, self.source, _like)
        at = step(t, held_locks.take, [self.source], {}, may_fail=True)
        steps.locks.append(at)
        self._held = UntraceableValue(steps.example(at), RandomSource(at), "data-random", value="lock")

    def meth_acquire(self, t: Tracer, blocking: Value | None = None, timeout: Value | None = None) -> Value:
        waits = blocking is None or protocol.truth(t, blocking)
        if timeout is not None and not (timeout.is_constant() and timeout.as_constant() == -1):
            self.refuse(t, "acquire")
        if not waits and self.depth and self.cls is not _RLOCK:
            return t.make(False)
        return ContextMethodValue(self, "__enter__").tp_call(t, [], {})

    def meth_release(self, t: Tracer) -> Value:
        return ContextMethodValue(self, "__exit__").tp_call(t, [], {})

    def meth__is_owned(self, t: Tracer) -> Value:
        if not self.depth:
            self.refuse(t, "_is_owned")
        return t.make(True)


#: What makes a lock of each type.
_MAKERS: Final[dict[type, Callable[[], Any]]] = {_LOCK: threading.Lock, _RLOCK: _thread.RLock}
#: What messages call them.
_NAMES: Final = {_LOCK: "_thread.lock", _RLOCK: "_thread.RLock"}


class MadeLockValue(ContextValue):
    """A lock that the trace made."""

    resumable = False

    def __init__(self, cls: type) -> None:
        super().__init__(cls)
        #: How often it is taken.
        self.depth = 0

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name in (*_METHODS, "locked") and hasattr(self.cls, name):
            return BuiltinMethodValue(self, name)
        if not hasattr(self.cls, name):
            t.raise_(AttributeError, f"'{_NAMES[self.cls]}' object has no attribute '{name}'")
        return super().tp_getattro(t, name)

    def enter(self, t: Tracer) -> Value:
        if self.depth and self.cls is not _RLOCK:
            t.break_("call-builtin", function=f"{self.cls.__name__}.acquire", args="")  # the program waits for itself
        self.depth += 1
        return t.make(True)

    def leave(self, t: Tracer) -> None:
        if not self.depth:
            t.raise_(RuntimeError, "cannot release un-acquired lock" if self.cls is _RLOCK else "release unlocked lock")
        self.depth -= 1

    def meth_acquire(self, t: Tracer, blocking: Value | None = None, timeout: Value | None = None) -> Value:
        if timeout is not None and not (timeout.is_constant() and timeout.as_constant() == -1):
            t.break_("call-builtin", function=f"{self.cls.__name__}.acquire", args=timeout.describe())
        waits = blocking is None or protocol.truth(t, blocking)
        if not waits and self.depth and self.cls is not _RLOCK:
            return t.make(False)
        return self.enter(t)

    def meth_release(self, t: Tracer) -> Value:
        self.leave(t)
        return t.make(None)

    def meth_locked(self, t: Tracer) -> Value:
        return t.make(self.depth > 0)

    def meth__is_owned(self, t: Tracer) -> Value:
        return t.make(self.depth > 0)

    def push_manager(self, cg: Rebuilder) -> None:
        cg.call(_taken, self.cls, self.depth)


def _taken(cls: type, times: int) -> Any:
    """A new lock, taken so many times."""
    lock = _MAKERS[cls]()
    for _ in range(times):
        lock.acquire()
    return lock


def _lock_of(cls: type, *makers: Any) -> None:
    @handles(*makers)
    def make(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if args or kwargs:
            t.break_("call-builtin", function=makers[0].__name__, args=", ".join(arg.describe() for arg in args))
        return MadeLockValue(cls)


_lock_of(_LOCK, threading.Lock)
_lock_of(_RLOCK, threading.RLock, _thread.RLock)


def _like(lock: Any) -> Any:
    """What examples of steps take in the place of a lock."""
    return threading.RLock()


@wraps(_LOCK, _RLOCK)
def _wrap_lock(t: Tracer, obj: Any, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    return LockValue(obj, source)
