"""The compiled entries of code objects: filed and looked up by the pipeline, removed by reset().

Entries and flags are kept on the code objects themselves (`_hook.c`) and go with them; entries of a key go with the key.
Here is what the C side does not know: why a code object is skipped, how often it was compiled, which code objects there
are, and who is compiling what at the moment. The hook tries the entries in order and moves the one that held to the
front.
"""

from __future__ import annotations

import os
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from fxjit import _C

# A compile that waits for another thread's gives up after this long and runs its frame eagerly: the other may be
# waiting for something that only this thread can do.
WAIT_SECONDS = 60.0
# Seconds between two safe points while a compile waits.
_PAUSE = 0.1
# Frames that run eagerly after the first suppressed failure.
FIRST_RETRY = 8


@dataclass(slots=True)
class _State:
    """The record of a code object, kept on it."""

    compiles: int = 0
    skip_reasons: list[str] = field(default_factory=list)
    failures: dict[int, _Retry] = field(default_factory=dict)  # by id of the key
    in_vain: dict[int, int] = field(default_factory=dict)  # by id of the key: `compiles_in_vain`
    owed: set[int] = field(default_factory=set)  # ids of keys: `owe`
    empty: dict[int, int] = field(default_factory=dict)  # by id of the key: `count_empty`
    skips: dict[int, list[Any]] = field(default_factory=dict)  # by id of the key: `note_skip`
    told: set[tuple[int, str]] = field(default_factory=set)  # ids of keys, and reasons: `first_time`
    speculates: bool = True
    # What takes an entry away when an object goes that it is for.
    watches: weakref.WeakKeyDictionary[_C.Entry, list[weakref.ref[Any]]] = field(default_factory=weakref.WeakKeyDictionary)


@dataclass(slots=True)
class _Retry:
    """A suppressed failure: how many frames run eagerly before the next attempt."""

    wait: int
    left: int


@dataclass(frozen=True, slots=True)
class Stats:
    codes: int
    entries: int
    hits: int
    skipped: int


_codes: weakref.WeakValueDictionary[int, CodeType] = weakref.WeakValueDictionary()  # by id: codes compare by value
# Who was compiled to run this code under this key and is still alive, by the ids of both: `sharers`.
_compiled: dict[tuple[int, int], dict[int, weakref.ref[Any]]] = {}
_compile_lock = threading.RLock()
_compiling_thread: int | None = None  # who has the lock
# (id of code, id of key) being compiled: by which thread, and an event that is set when that is over
_claims: dict[tuple[int, int], tuple[int, threading.Event]] = {}
_claims_lock = threading.Lock()


def _note(code: CodeType) -> _State:
    state = _C.get_state(code)
    if not isinstance(state, _State):
        state = _State()
        _C.set_state(code, state)
    _codes[id(code)] = code
    return state


def of(code: CodeType, key: object) -> list[_C.Entry]:
    """The entries in the order in which they are tried."""
    return _C.entries(code, key)


def under(key: object) -> Iterator[tuple[CodeType, _C.Entry]]:
    """All entries of a key, with their code objects."""
    for code in list(_codes.values()):
        for entry in _C.entries(code, key):
            yield code, entry


def remove(code: CodeType, key: object, entry: _C.Entry) -> bool:
    """False if the entry was not there. A call that is running it finishes."""
    removed = _C.remove_entry(code, key, entry)
    flags = _C.get_flags(code, key)
    if removed and flags & _C.FROZEN:
        _C.set_flags(code, flags & ~_C.FROZEN, key)  # there is room again
    return removed


def add(code: CodeType, key: object, entry: _C.Entry, weakly_held: Iterable[object] = ()) -> None:
    """Files the entry; when one of the objects in `weakly_held` goes, so does the entry."""
    state = _note(code)
    state.compiles += 1
    _C.add_entry(code, key, entry)
    state.watches[entry] = _watch(code, key, entry, weakly_held)


def _watch(code: CodeType, key: object, entry: _C.Entry, weakly_held: Iterable[object]) -> list[weakref.ref[Any]]:
    key_ref: Callable[[], object] = weakref.ref(key) if type(key).__weakrefoffset__ else lambda: key
    own: tuple[Callable[[], Any], ...] = (weakref.ref(code), key_ref, weakref.ref(entry))

    def drop(_: weakref.ref[Any], remove: Callable[..., bool] = remove) -> None:  # bound: globals go at the end of the process
        found = [ref() for ref in own]
        if all(part is not None for part in found) and _C is not None:  # and with them what `remove` needs
            if remove(*found):
                _count_use(*found)

    return [weakref.ref(obj, drop) for obj in weakly_held]


def _count_use(code: CodeType, key: object, entry: _C.Entry) -> None:
    in_vain = _note(code).in_vain
    in_vain[id(key)] = 0 if entry.hits > 1 else in_vain.get(id(key), 0) + 1


def compiles_in_vain(code: CodeType, key: object) -> int:
    """How many of this key's entries went one after the other without having run a second time, since they were for an
    object that is made anew for each call."""
    return _note(code).in_vain.get(id(key), 0)


def clear(code: CodeType, key: object) -> None:
    """Remove all entries of this key: the next call compiles."""
    for entry in of(code, key):
        remove(code, key, entry)


def speculates(code: CodeType) -> bool:
    """Whether branches are speculated on: not once the data often took the way that raises."""
    state = _C.get_state(code)
    return not isinstance(state, _State) or state.speculates


def gives_up_speculation(code: CodeType, key: object) -> Callable[[], None]:
    """What an entry with such a branch calls then: the next call compiles, with the branch as a break."""
    weakly = weakref.ref(code)

    def give_up() -> None:
        known = weakly()
        if known is not None:
            _note(known).speculates = False
            clear(known, key)

    return give_up


def owe(code: CodeType, key: object, entry: _C.Entry) -> None:
    """Takes an entry away that was good for the meantime only: the next frame is compiled, and that is no recompile."""
    if remove(code, key, entry):
        _note(code).owed.add(id(key))


def is_owed(code: CodeType, key: object) -> bool:
    state = _C.get_state(code)
    return isinstance(state, _State) and id(key) in state.owed


def settle(code: CodeType, key: object) -> bool:
    """The frame is being compiled: whether that was owed, and is no longer."""
    owed = is_owed(code, key)
    if owed:
        _note(code).owed.discard(id(key))
    return owed


def compiles(code: CodeType) -> int:
    """How often the code object was compiled since the last reset, over all keys."""
    state = _C.get_state(code)
    return state.compiles if isinstance(state, _State) else 0


def mark_skipped(code: CodeType, key: object | None, reason: str, recursive: bool = False) -> None:
    """Runs frames of this code eagerly from now on; their callees are still traced, unless `recursive`.

    A key of None means whatever the key.
    """
    flag = _C.SKIP_RECURSIVE if recursive else _C.SKIP
    reasons = _note(code).skip_reasons
    if reason not in reasons:
        reasons.append(reason)
    if key is None:
        _C.set_flags(code, _C.get_flags(code) | flag)
    else:
        _C.set_flags(code, _C.get_flags(code, key) | flag, key)


def mark_failed(code: CodeType, key: object) -> int:
    """The frame could not be compiled and errors are suppressed: its next frames run as they are. Gives how many; the
    number doubles with each failure."""
    failures = _note(code).failures
    before = failures.get(id(key))
    wait = FIRST_RETRY if before is None else before.wait * 2
    failures[id(key)] = _Retry(wait, wait)
    return wait


def waits_for_retry(code: CodeType, key: object) -> bool:
    """Whether a frame of this code still runs eagerly because of an earlier failure; counts the frame."""
    state = _C.get_state(code)
    retry = state.failures.get(id(key)) if isinstance(state, _State) else None
    if retry is None or retry.left == 0:
        return False
    retry.left -= 1
    return True


def note_compiled(code: CodeType, key: object, owner: object) -> None:
    """The user compiled `owner`, a function or a module that runs this code: it may have as many entries as any other."""
    if not type(owner).__weakrefoffset__:
        return
    which, owners = (id(code), id(key)), _compiled.setdefault((id(code), id(key)), {})
    at = id(owner)

    def forget(_: weakref.ref[Any], known: dict[tuple[int, int], dict[int, weakref.ref[Any]]] = _compiled) -> None:
        owners.pop(at, None)
        if not owners:
            known.pop(which, None)

    if at not in owners:
        owners[at] = weakref.ref(owner, forget)
        flags = _C.get_flags(code, key)
        if flags & _C.FROZEN:
            _C.set_flags(code, flags & ~_C.FROZEN, key)


def sharers(code: CodeType, key: object) -> int:
    """How many functions or modules that the user compiled share the entries of this code: at least one."""
    return max(1, len(_compiled.get((id(code), id(key)), ())))


def is_users(code: CodeType, key: object) -> bool:
    """Whether the user compiled this code object directly: it is traced whatever its arguments are."""
    return (id(code), id(key)) in _compiled


def first_time(code: CodeType, key: object, reason: str) -> bool:
    """Whether frames of this code run eagerly for this reason for the first time: more often it is not reported."""
    told, what = _note(code).told, (id(key), reason)
    new = what not in told
    told.add(what)
    return new


def count_empty(code: CodeType, key: object, limit: int) -> None:
    """Counts a trace that put nothing in a graph. The frame is passed by from now on; one that the user compiled only when
    there were as many as `limit`, since other arguments may do more."""
    empty = _note(code).empty
    empty[id(key)] = empty.get(id(key), 0) + 1
    if not is_users(code, key) or empty[id(key)] >= limit:
        mark_skipped(code, key, "skip-nothing-captured")


def note_skip(code: CodeType, key: object, record: object) -> None:
    """What a trace that gave the frame up knows of why, for the disk and for artifacts."""
    _note(code).skips.setdefault(id(key), []).append(record)


def skips_under(key: object) -> Iterator[tuple[CodeType, Any]]:
    """All such records of a key, with their code objects."""
    for code in list(_codes.values()):
        state = _C.get_state(code)
        for record in state.skips.get(id(key), ()) if isinstance(state, _State) else ():
            yield code, record


def mark_limit(code: CodeType, key: object) -> None:
    """The code has all the entries it may have: they are still used, and nothing new is compiled."""
    _note(code)
    _C.set_flags(code, _C.get_flags(code, key) | _C.FROZEN, key)


def is_skipped(code: CodeType, key: object) -> bool:
    return bool(_C.get_flags(code, key) & (_C.SKIP | _C.SKIP_RECURSIVE))


def skip_reasons(code: CodeType) -> tuple[str, ...]:
    """Why frames of this code are skipped; empty if they are not."""
    state = _C.get_state(code)
    return tuple(state.skip_reasons) if isinstance(state, _State) else ()


@contextmanager
def compiling(code: CodeType, key: object) -> Iterator[bool]:
    """The lock on compiling this: True for its holder; False: another compile is under way, the frame should run eagerly.

    One compile runs at a time: tracing patches process-wide state. A thread that meets a frame another thread is
    compiling does not wait here (`wait_for_other` does); one that wants to compile something else does, for a while. A
    thread may compile within a compile.
    """
    global _compiling_thread
    claim, own = (id(code), id(key)), (threading.get_ident(), threading.Event())
    with _claims_lock:
        taken = _claims.setdefault(claim, own) is not own
    if taken:
        yield False
        return
    try:
        if not _waited(lambda seconds: _compile_lock.acquire(timeout=seconds)):
            yield False
            return
        outer, _compiling_thread = _compiling_thread, threading.get_ident()
        try:
            yield True
        finally:
            _compiling_thread = outer
            _compile_lock.release()
    finally:
        _claims.pop(claim, None)
        own[1].set()


def compiled_by_another_thread() -> bool:
    """Whether another thread compiles now, for which torch patches methods that all threads call."""
    return _compiling_thread not in (None, threading.get_ident())


def wait_for_other(code: CodeType, key: object) -> bool:
    """Waits for another thread that is compiling this; False where there is none, or none that could end before us."""
    if _compiling_thread == threading.get_ident():
        return False
    claim = _claims.get((id(code), id(key)))
    return claim is not None and _waited(claim[1].wait)


def _waited(wait: Callable[[float], bool]) -> bool:
    """The result of `wait`, after WAIT_SECONDS at the most, with safe points meanwhile."""
    deadline = time.monotonic() + WAIT_SECONDS
    while not wait(max(0.0, min(_PAUSE, deadline - time.monotonic()))):
        _C.safe_point()
        if time.monotonic() >= deadline:
            return False
    return True


def reset() -> None:
    """Drop every entry, skip mark and note. Entries that are running finish."""
    for code in list(_codes.values()):
        _C.clear(code)
    _codes.clear()


def stats() -> Stats:
    codes = list(_codes.values())
    entries = [entry for code in codes for key in _C.keys(code) for entry in _C.entries(code, key)]
    return Stats(
        len(codes), len(entries), sum(entry.hits for entry in entries), sum(bool(skip_reasons(c)) for c in codes)
    )


def _forget_other_threads() -> None:
    """A forked child has no thread but its own: what others were compiling will never be finished. What the thread itself
    was compiling when it forked, it goes on with."""
    global _claims_lock, _compile_lock, _compiling_thread
    thread = threading.get_ident()
    _claims_lock = threading.Lock()
    if _compiling_thread != thread:
        _compile_lock, _compiling_thread = threading.RLock(), None
    for claim in [claim for claim, (owner, _) in _claims.items() if owner != thread]:
        del _claims[claim]
    _C.forget_other_threads()


os.register_at_fork(after_in_child=_forget_other_threads)
