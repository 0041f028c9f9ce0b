"""Nanoseconds that are measured once for a processor, and kept on the disk."""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from fxjit import config, logs
from fxjit.backends.store.artifacts import get_facts, put_facts
from fxjit.counters import counters

from .cc import processor

log = logs.artifact("autotuning")

#: Calls that are measured, of which the shortest counts; and nanoseconds from which one is enough.
TURNS, LONG = 5, 5_000_000


def may_decide() -> bool:
    """Whether what this machine was measured to do decides in which types and by which operators is calculated: not where the
    setting is off, nor where each run has to give the same numbers (deterministic algorithms)."""
    return config.measure_machine and not torch.are_deterministic_algorithms_enabled()


def nanoseconds(
    facts: tuple[Any, ...], measure: Callable[[], Sequence[int]], counter: str, said: Callable[[Sequence[int]], str]
) -> list[int]:
    """What `measure` gives, in this process or in an earlier one. `facts` say what is measured, alike in all processes;
    `counter` counts the measurements, and `said` is their line in the log."""
    key = hashlib.sha256(repr((*facts, processor(), torch.__version__)).encode()).hexdigest()[:40]
    try:
        found = list(map(int, get_facts(key)["nanoseconds"]))
        if len(found) > 1:
            return found
    except (KeyError, TypeError, ValueError):  # not measured yet, or damaged
        pass
    found = [*measure()]
    counters["native"][counter] += 1
    log.info("%s", said(found))
    put_facts(key, {"nanoseconds": found})
    return found


def in_turns(*calls: Callable[[], Any], turns: int = TURNS) -> list[int]:
    """Nanoseconds of this thread that each takes, one after the other: the shortest of some turns."""
    least = [LONG * 1000] * len(calls)
    for call in calls:
        call()
    for _ in range(turns):
        for at, call in enumerate(calls):
            start = time.thread_time_ns()
            call()
            least[at] = min(least[at], max(time.thread_time_ns() - start, 1))
    return least


def shortest(call: Callable[[], Any]) -> int:
    """Nanoseconds of this thread that a call takes."""
    least = LONG
    for _ in range(TURNS):
        start = time.thread_time_ns()
        call()
        taken = time.thread_time_ns() - start
        if taken >= LONG:
            return taken
        least = min(least, taken)
    return max(least, 1)
