"""A program that is started and waited for, with all that it starts itself.

It gets a session of its own: whatever it started goes with it, when it ends, when it is stopped, or when its time is over.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import threading
import time
import weakref
from collections.abc import Callable, Sequence

from fxjit import _C, config, progress

#: Bytes of output that are kept.
MOST_OUTPUT = 1 << 20
#: Seconds between two looks whether a program has ended that says nothing, and one that closed its output.
PATIENCE, PAUSE = 0.1, 0.002


class Child:
    """A running program. OSError where it cannot be started."""

    def __init__(self, command: Sequence[str], **environment: str) -> None:
        self.pid = os.getpid()
        #: Stops the program: called when nobody waits for it any more, too, and when this process ends.
        self.stop: Callable[[], object] = _nothing
        problems: list[OSError] = []

        def begin() -> None:
            try:
                with _starting:
                    self._process = subprocess.Popen(
                        command,
                        stdin=subprocess.DEVNULL,
                        stdout=subprocess.PIPE,
                        stderr=subprocess.STDOUT,
                        env=config.child_environment(LC_ALL="C", **environment),
                        start_new_session=True,
                    )
                    self.stop = weakref.finalize(self, _stop, self._process, self.pid)
                    _running.add(self)
            except OSError as problem:
                problems.append(problem)

        # In a thread, where no handler of a signal runs: its exception would lose a program that has just been started.
        starter = threading.Thread(target=begin)
        try:
            starter.start()
            starter.join()
        except BaseException as error:
            if isinstance(error, RuntimeError) and starter.ident is None:
                begin()  # no thread can be started: the process has too many, or is ending
            else:
                if starter.ident is not None:
                    starter.join()
                self.stop()
                raise
        if problems:
            raise problems[0]

    def wait(self, seconds: float) -> tuple[str, str]:
        """(how it failed, or nothing; what it said), once it has ended. TimeoutError where it had to be stopped."""
        try:
            said = self._output(time.monotonic() + seconds)
        finally:
            self.stop()
        status = self._process.returncode
        failure = f"exit status {status}" if status else ""
        if status and status < 0:
            failure = signal.strsignal(-status) or f"signal {-status}"
        return failure, said.decode(errors="replace")

    def _output(self, deadline: float) -> bytes:
        assert self._process.stdout is not None
        pipe, said = self._process.stdout.fileno(), b""
        waiting = select.poll()
        waiting.register(pipe, select.POLLIN)
        while time.monotonic() < deadline:
            _C.safe_point()
            progress.tick()
            if waiting.poll(PATIENCE * 1000):
                more = os.read(pipe, 1 << 16)
                if not more:
                    break
                said = (said + more)[:MOST_OUTPUT]
            elif _has_ended(self._process.pid):
                break  # something that it started holds the pipe
        while not _has_ended(self._process.pid):
            if time.monotonic() > deadline:
                raise TimeoutError
            _C.safe_point()
            progress.tick()
            time.sleep(PAUSE)
        return said


_running: weakref.WeakSet[Child] = weakref.WeakSet()
_starting = threading.Lock()


def abandon() -> None:
    """Ends every program that this process, which ends at once, started here, whichever thread did; no more are started."""
    _starting.acquire()
    for child in list(_running):
        child.stop()


def _after_fork() -> None:
    """The lock may be held by a thread that is not here."""
    global _starting
    _starting = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)


def _nothing() -> None:
    pass


def _has_ended(pid: int) -> bool:
    """Whether it has, without taking its status: until that is taken, no other process group can have its number."""
    try:
        return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
    except ChildProcessError:  # the program takes the status of every child itself
        return True


def _stop(process: subprocess.Popen[bytes], parent: int) -> None:
    if os.getpid() != parent:
        return  # a fork: it is not this process's child
    if process.returncode is None:
        with contextlib.suppress(ChildProcessError, ProcessLookupError, PermissionError):
            os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)  # ChildProcessError: it is gone
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    if process.stdout is not None:
        process.stdout.close()
