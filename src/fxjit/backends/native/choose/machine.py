"""The machine in a handful of numbers, which predictions (model.py) are made from.

A probe measures them once for a machine (probe.py). Until then, and where decisions must not depend on what was measured, they
are those of `REFERENCE`. They are used in steps of a factor of two from there: a measurement that some other program disturbed
gives the same decisions as one that was not.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
from collections.abc import Iterator
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Machine:
    """Speeds of one thread, and what threads share."""

    #: Microseconds of a call of an operator of ATen from Python, over 16 numbers: how fast interpreter and dispatcher are.
    call: float
    #: Microseconds until all threads have begun a loop, and ended it.
    team: float
    #: Nanoseconds of an addition of float32 in a loop of vectors.
    addition: float
    #: Nanoseconds of a multiplication and an addition in a matrix product of float32.
    product: float
    #: Nanoseconds in which a loop reads a float32 and writes one, where all of it is in the first cache, in the second, or in
    #: neither (`FAR` bytes); and there with all threads.
    first: float
    second: float
    far: float
    shared: float
    #: Bytes of the first cache and of the second, which a thread has to itself.
    first_bytes: int
    second_bytes: int


#: Between these is any number of a machine that there is.
LEAST, MOST = 1e-6, 1e12
#: Bytes of what is in neither of a thread's caches: about as much as the activations of a layer.
FAR = 32 << 20
#: Two cores of a Xeon of the fourth generation (AVX-512), torch 2.13, GCC 12: the middle of what was measured while the machine
#: was free and while it was not (a call took 1.4 to 1.9 us, far 0.29 to 0.38 ns).
REFERENCE = Machine(call=1.6, team=0.55, addition=0.0098, product=0.0108, first=0.024, second=0.1, far=0.3, shared=0.16,
                    first_bytes=48 << 10, second_bytes=2 << 20)

_used: ContextVar[Machine] = ContextVar("machine", default=REFERENCE)


def here() -> Machine:
    """The machine that the present compile is for."""
    return _used.get()


@contextlib.contextmanager
def used(machine: Machine) -> Iterator[None]:
    """Around a compile: the machine that it is for."""
    token = _used.set(machine)
    try:
        yield
    finally:
        _used.reset(token)


def graded(measured: Machine) -> Machine:
    """The numbers that decisions are made by: times are those of REFERENCE, times powers of two."""
    times: dict[str, Any] = {
        name: number * 2.0 ** round(math.log2(getattr(measured, name) / number))
        for name, number in dataclasses.asdict(REFERENCE).items() if isinstance(number, float)
    }
    return dataclasses.replace(measured, **times)


def from_facts(facts: object) -> Machine | None:
    """The machine that `dataclasses.asdict` made these of; None where they are anything else."""
    types = {name: type(number) for name, number in dataclasses.asdict(REFERENCE).items()}
    if not isinstance(facts, dict) or {name: type(number) for name, number in facts.items()} != types:
        return None
    return Machine(**facts) if all(LEAST < number < MOST for number in facts.values()) else None
