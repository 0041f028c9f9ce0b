"""A graph between two tiers: it runs as it was captured, and a helper process compiles it; the next call after that process has
ended runs the compiled code.

The pipeline offers it (`offered`), the driver takes the offer for a graph that the store does not have (`Offer.defer`). What
happens to code that cannot be handed over, or that assumes more than the entry's guards say, is the pipeline's to decide
(`Offer.refused`): it compiles the frame again, in the foreground.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

import torch

from fxjit import _C, config, logs
from fxjit.counters import add_time, counters

from .process import Helper, HelperFailed

log = logs.artifact("tiers")
Call = Callable[..., Any]
#: Seconds between two looks of a call whether the helper has ended.
LOOK_EVERY = 0.002
#: Graphs on their way at one time; those beyond are compiled in the foreground.
MOST = 64


class Refused(Exception):
    """The compiled code of a graph cannot take the place of the captured graph under the guards that its entry has."""


class Offer:
    """The pipeline's offer for the graphs of one frame.

    `refused` has the frame compiled anew at its next call: with another offer, or, called with False, in the foreground.
    """

    def __init__(self, function: str, refused: Callable[[bool], None]) -> None:
        self.function, self.refused = function, refused
        self.deferred: list[Deferred] = []
        #: Told of each graph whose code is exchanged.
        self.exchanges = Exchanges()

    def once_exchanged(self, call: Callable[[], object]) -> None:
        """Calls `call` once compiled code is in place for all of the frame's graphs: not if one stays as it was captured."""
        self.exchanges.call_after(len(self.deferred), call)

    def defer(self, work: Callable[[], bytes], build: Callable[[bytes], Call], captured: Call, *, abandon: Callable[[], object],
              mends: bool) -> Call | None:
        """A callable that runs `captured` at first, and once a helper process has run `work` what `build` makes of its result.
        `build` raises Refused; `mends` says that a compile in the foreground can go on where `work` fails. None where no
        process can be had."""
        try:
            helper = Helper(work, abandon)
        except OSError as problem:
            log.info("%s is compiled in the foreground: %s", self.function, problem)
            return None
        deferred = Deferred(self, helper, build, captured, mends)
        self.deferred.append(deferred)
        return deferred.exchangeable()


class Exchanges:
    """How many graphs of an offer have compiled code, and what is called when all have."""

    def __init__(self) -> None:
        self._made, self._wanted = 0, 0
        self._call: Callable[[], object] | None = None
        self._lock = threading.Lock()

    def call_after(self, wanted: int, call: Callable[[], object]) -> None:
        self._wanted, self._call = wanted, call
        self._look(0)

    def count(self) -> None:
        self._look(1)

    def _look(self, more: int) -> None:
        with self._lock:
            self._made += more
            call = self._call if self._made >= self._wanted else None
            self._call = None if call is not None else self._call
        if call is not None:
            call()


_offer: ContextVar[Offer | None] = ContextVar("offer", default=None)


@contextlib.contextmanager
def offered(offer: Offer | None) -> Iterator[None]:
    """Around a backend: what it may defer its graphs by, if it may."""
    token = _offer.set(offer)
    try:
        yield
    finally:
        _offer.reset(token)


def deferrable() -> Offer | None:
    """The offer that a graph may take now; None: it is compiled in the foreground."""
    offer = _offer.get()
    if offer is None or config.triton.max_autotune or config.triton.cudagraphs or len(_pending) >= MOST:
        return None
    return None if torch.cuda.is_initialized() else offer  # CUDA does not work in forked processes


class Deferred:
    """One graph that a helper process compiles."""

    def __init__(self, offer: Offer, helper: Helper, build: Callable[[bytes], Call], captured: Call, mends: bool) -> None:
        self.function, self.captured = offer.function, captured
        self.refused, self.mends, self.exchanges = offer.refused, mends, offer.exchanges
        self.helper: Helper | None = helper
        self.build: Callable[[bytes], Call] | None = build
        #: What the entry's next call runs, but for the look whether there is something else to run.
        self.target = captured
        #: What became of it, in words.
        self.tier = "runs as it was captured; a helper process compiles it"
        self.began = self.next_look = time.monotonic()
        self.state = _state()
        self.lock = threading.Lock()
        self._exchangeable: weakref.ref[_C.Exchangeable] | None = None
        counters["tiers"]["deferred"] += 1
        log.info("%s: its graph runs as it was captured while a helper process compiles it", self.function)
        _pending.add(self)

    def exchangeable(self) -> Call:
        """What the entry calls. It holds this object for as long as there is anything to wait for, and not the other way round:
        the helper goes with the entry."""
        made = _C.Exchangeable(self.run)
        self._exchangeable = weakref.ref(made)
        return made

    def run(self, *args: Any) -> Any:
        """A call in the first tier."""
        if time.monotonic() < self.next_look:
            return self.captured(*args)
        self.look()
        return self.target(*args)

    def look(self) -> None:
        """Exchanges the code if the helper has ended; one thread at a time."""
        if not self.lock.acquire(blocking=False):
            return
        try:
            self.next_look = time.monotonic() + LOOK_EVERY
            helper = self.helper
            if helper is None:
                return
            if helper.owner != os.getpid():
                self._refuse("this process was forked while the other's helper compiled it", background=True)
            elif helper.ended():
                self._receive(helper)
            elif config.background_budget and time.monotonic() - self.began > config.background_budget:
                helper.stop()
                self._fail(f"it takes longer than config.background_budget, {config.background_budget:g} s", "over budget")
        finally:
            self.lock.release()

    def _receive(self, helper: Helper) -> None:
        build, self.helper = self.build, None
        assert build is not None, "it is built once"
        spent = time.monotonic() - self.began
        add_time("background", self.function, spent)
        try:
            compiled = build(helper.result())
        except Refused as why:
            self._refuse(str(why))
        except HelperFailed as error:
            if self.mends:
                self._refuse(str(error).partition("\n")[0])
            else:
                log.info("%s: %s", self.function, error)
                self._fail(str(error).partition("\n")[0], "failed")
        except Exception as error:  # whatever a backend's code raises while it is put together: the captured graph still runs
            self._fail(f"{type(error).__name__}: {error}", "failed")
        else:
            self._exchange(compiled, "runs compiled code")
            counters["tiers"]["exchanged"] += 1
            log.info("%s: its compiled code is in place, %.2f s after the first call", self.function, spent)
            self.exchanges.count()

    def _exchange(self, target: Call, tier: str) -> None:
        """From the next call on `target` is called; nothing is waited for any more."""
        self.tier, self.target, self.helper, self.build = tier, target, None, None
        _pending.discard(self)
        exchangeable = None if self._exchangeable is None else self._exchangeable()
        if exchangeable is not None:
            exchangeable.target = target

    def _stay(self, tier: str) -> None:
        self._exchange(self.captured, tier)

    def _fail(self, why: str, counted: str) -> None:
        self._stay(f"runs as it was captured: {why}")
        counters["tiers"][counted] += 1
        log.info("%s stays as it was captured: %s", self.function, why)
        warnings.warn(f"fxjit could not compile a graph of {self.function} in the background; it goes on running operator by "
                      f"operator: {why}", RuntimeWarning, stacklevel=2)

    def _refuse(self, why: str, background: bool = False) -> None:
        """The frame is compiled again: in the foreground, where guards can be added, or once more in the `background`."""
        self._stay(f"runs as it was captured until it is compiled again: {why}")
        counters["tiers"]["refused"] += 1
        log.info("%s is compiled again, in the %s: %s", self.function, "background" if background else "foreground", why)
        self.refused(background)


_pending: weakref.WeakSet[Deferred] = weakref.WeakSet()


def _state() -> tuple[Any, ...]:
    """The part of this thread's state that the assembled code may read."""
    get: Any = torch._C
    return (torch.is_grad_enabled(), torch.is_inference_mode_enabled(), torch.get_default_dtype(),
            get._len_torch_function_stack(), get._len_torch_dispatch_stack(), get._is_any_autocast_enabled())


def wait_for_compiles(timeout: float | None = None) -> bool:
    """Waits until no helper process compiles any more, and exchanges the code of graphs that this thread's state fits; that
    of others, their next call does. False when `timeout` seconds were not enough."""
    until = None if timeout is None else time.monotonic() + timeout
    ended = True
    for deferred in list(_pending):
        helper = deferred.helper
        if helper is not None and helper.owner == os.getpid():
            ended = _wait_for(deferred, helper, until) and ended
        if deferred.state == _state():
            deferred.look()
    return ended


def _wait_for(deferred: Deferred, helper: Helper, until: float | None) -> bool:
    """Whether the helper has ended, or its time is over, before `until`."""
    over = deferred.began + config.background_budget if config.background_budget else None
    soonest = min((each for each in (until, over) if each is not None), default=None)
    return helper.ended(None if soonest is None else soonest - time.monotonic()) or soonest == over


def tiers_of(deferred: list[Deferred]) -> list[str]:
    """The tier of each graph, in words."""
    return [each.tier for each in deferred]


def _after_fork() -> None:
    """No other thread is at work in a forked child."""
    for deferred in list(_pending):
        deferred.lock = threading.Lock()


os.register_at_fork(after_in_child=_after_fork)
