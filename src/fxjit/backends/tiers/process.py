"""A helper process: a copy of this one, made by fork, that runs one function and leaves what it returns.

It has the state of the thread that made it (grad mode, autocast, fake tensors, settings), takes no lock of the interpreter
from the program, and nothing that it changes is seen. It is no child of this process, so that no `wait` of the program's finds
it, and it ends with this process, whatever ends that: it reads from a pipe that this process alone holds open.
"""

from __future__ import annotations

import contextlib
import fcntl
import functools
import os
import select
import signal
import sys
import threading
import time
import traceback
import warnings
import weakref
from collections.abc import Callable, Mapping
from typing import NoReturn

from fxjit import _C

#: What helpers add to their niceness: the program goes first where it uses every processor.
NICENESS = 10
#: Seconds between two looks of a helper whether it is its turn.
PAUSE = 0.01
_RESULT, _ERROR = b"R", b"E"


class HelperFailed(Exception):
    """The helper's function raised, or its process ended without a result."""


class Helper:
    """A running helper process; OSError where the system gives none. It is stopped when this object is freed.

    `abandon` is called in its process where that has to end before `work` is done: it stops what `work` started.
    """

    def __init__(self, work: Callable[[], bytes], abandon: Callable[[], object]) -> None:
        self.owner = os.getpid()
        opened: list[int] = []
        try:
            opened.append(os.memfd_create("fxjit-helper"))
            opened += os.pipe()
            opened += os.pipe()
            turns = _turns()
            if _C.fork_helper():
                _help(work, abandon, opened[0], opened[2], opened[3], turns)
            self._result, self._ended, ended_by, life, self._life = opened
            os.close(ended_by)
            os.close(life)
        except BaseException:
            for each in opened:
                with contextlib.suppress(OSError):
                    os.close(each)
            raise
        self.held = {each: _identity(each) for each in (self._result, self._ended, self._life)}
        #: Ends its process, if that runs, with all that it started.
        self.stop = weakref.finalize(self, _close, self.held, self.owner)
        self.stop.atexit = False
        _helpers.add(self)

    def ended(self, seconds: float | None = 0.0) -> bool:
        """Whether its process has ended; waits so long (None: until then)."""
        if self.owner != os.getpid() or not self.stop.alive:
            return False
        waiting = select.poll()
        waiting.register(self._ended, select.POLLIN)
        return bool(waiting.poll(None if seconds is None else max(0.0, seconds) * 1000))

    def result(self) -> bytes:
        """The return value of its function, once it has ended. Raises HelperFailed."""
        try:
            said = os.pread(self._result, os.fstat(self._result).st_size, 0)
        except OSError as problem:
            raise HelperFailed(f"what it left cannot be read: {problem}") from problem
        finally:
            self.stop()
        if said[:1] == _RESULT:
            return said[1:]
        raise HelperFailed(said[1:].decode(errors="replace") or "the process that compiled it was killed")


_helpers: weakref.WeakSet[Helper] = weakref.WeakSet()


def _identity(descriptor: int) -> tuple[int, int]:
    found = os.fstat(descriptor)
    return found.st_dev, found.st_ino


def _close(held: Mapping[int, tuple[int, int]], owner: int | None = None) -> None:
    """Closes what still is what was opened: a program may close all that it has, and the numbers are given out again."""
    if owner in (None, os.getpid()):
        for each, identity in held.items():
            with contextlib.suppress(OSError):
                if _identity(each) == identity:
                    os.close(each)


def _forget() -> None:
    """Closes the parent's pipes in a forked child, which would keep the helpers alive."""
    for helper in list(_helpers):
        _close(helper.held)
    _helpers.clear()


os.register_at_fork(after_in_child=_forget)


@functools.cache
def _turns() -> int:
    """A file of which each helper that runs has locked a byte."""
    return os.memfd_create("fxjit-turns")


def at_once() -> int:
    """How many helpers compile at a time: one processor is the program's."""
    return max(1, min(8, len(os.sched_getaffinity(0)) - 1))


# In the helper's process


def _help(work: Callable[[], bytes], abandon: Callable[[], object], result: int, ended: int, life: int, turns: int) -> NoReturn:
    """All of the helper's life. Nothing of the program's runs in it, not even at the end."""
    try:
        try:
            _detach({result, ended, life, turns})
            _own_semaphores()
            threading.Thread(target=_end_with_program, args=(life, abandon), daemon=True).start()
            _take_turn(turns)
            said = _RESULT + work()
        except BaseException as error:  # whatever it is: the process that waits for the result gets it
            said = _ERROR + "\n".join([*traceback.format_exception_only(error), traceback.format_exc()]).encode()
        os.pwrite(result, said, 0)
        os.write(ended, b"x")
    finally:
        try:  # the other thread may be at it, which a compiler's end told this one: it ends the process then
            abandon()
        finally:
            os._exit(0)


def _detach(kept: set[int]) -> None:
    """Lets go of the terminal, of the program's files and sockets, and of its handlers of signals; shows no warnings."""
    os.setpgid(0, 0)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT):
        signal.signal(number, signal.SIG_DFL)
    null = os.open(os.devnull, os.O_RDWR)
    for standard in (0, 1, 2):
        os.dup2(null, standard)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) not in kept:
            with contextlib.suppress(OSError):
                os.close(int(name))
    warnings.simplefilter("ignore")
    with contextlib.suppress(OSError):
        os.nice(NICENESS)
    if "torch" in sys.modules:  # OpenMP's threads stayed in the other process, and it would wait for them
        sys.modules["torch"].set_num_threads(1)


def _own_semaphores() -> None:
    """Semaphores that processes share become this process's own: it may be stopped while it holds one, which nobody would ever
    release. torch.fx takes tqdm's for each graph that it runs."""
    synchronize = sys.modules.get("multiprocessing.synchronize")
    if synchronize is None:
        return
    for each in list(sys.modules["multiprocessing.util"]._afterfork_registry.values()):
        if isinstance(each, synchronize.SemLock):
            each._semlock = threading.RLock() if isinstance(each, synchronize.RLock) else threading.Semaphore()
            each._make_methods()


def _end_with_program(life: int, abandon: Callable[[], object]) -> None:
    """Ends the helper when nobody holds the other end of the pipe."""
    os.read(life, 1)
    try:
        abandon()
    finally:
        os._exit(1)


def _take_turn(turns: int) -> None:
    while True:
        for place in range(at_once()):
            try:
                fcntl.lockf(turns, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, place)  # until the process ends
                return
            except OSError:
                pass
        time.sleep(PAUSE)
