"""Runs the steps of random generators (frontend/rng_steps.py) before the graph, one after the other.

A step that raises is the user's program raising, at a place that the graph may not have come to yet: the generators get back
the state they had, and the frame goes on in the user's own code (deoptimization.py), which calls them again and raises there.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
import torch

from fxjit.errors import is_foreign
from fxjit.frontend.held_locks import Held, LockIsBusy
from fxjit.frontend.rng_steps import RngSteps, StepResult
from fxjit.guards.source import RandomSource, Source

_LOCK: Final = type(threading.Lock())
_RLOCK: Final = type(threading.RLock())


class RngProgram:
    """The steps of one frame as a callable over `sources`' objects; `give` says which results it gives."""

    def __init__(self, rng_steps: RngSteps) -> None:
        arguments = [arg for step in rng_steps.steps for arg in (*step.args, *step.kwargs.values())]
        self.sources = list(dict.fromkeys(arg for arg in arguments if isinstance(arg, Source)))
        self.may_fail = any(step.may_fail for step in rng_steps.steps)
        self.rewinds = rng_steps.rewinds
        self._steps = [
            (step.fn, [self._position(arg) for arg in step.args],
             {name: self._position(arg) for name, arg in step.kwargs.items()})
            for step in rng_steps.steps
        ]
        self._wanted: list[int] = []
        #: Checks the guards once more, where steps take locks: called with the arguments, the closure and the globals.
        self.recheck = rng_steps.recheck if rng_steps.locks else None

    def _position(self, arg: object) -> tuple[bool, Any]:
        """Where an argument lies among what was found and computed so far; (False, it) for a constant."""
        if isinstance(arg, StepResult):
            return True, len(self.sources) + arg.at
        return (True, self.sources.index(arg)) if isinstance(arg, Source) else (False, arg)

    def give(self, wanted: Sequence[RandomSource]) -> Sequence[RandomSource]:
        """Give the results of these steps."""
        self._wanted = [len(self.sources) + source.at for source in wanted]
        return wanted

    def __call__(self, *found: Any) -> tuple[Any, ...] | None:
        """The wanted results, with what `rewind` takes first where that may be called; None where a step raised, or the guards
        hold no longer. What `recheck` takes comes last."""
        found, frame = found[:len(self.sources)], found[len(self.sources):]
        restore = [restorer(each) for each in found] if self.may_fail or self.rewinds else []
        values = list(found)
        try:
            for fn, args, named in self._steps:
                given = [values[at] if computed else at for computed, at in args]
                values.append(fn(*given, **{name: values[at] if computed else at for name, (computed, at) in named.items()}))
            if self.recheck is not None and not self.recheck(*frame):
                raise LockIsBusy
        except Exception as error:  # the frame then starts over eagerly (deoptimization.py), and raises where the program does
            for undo in restore:
                undo()
            for value in values:
                if isinstance(value, Held):
                    value.release()
            if is_foreign(error):
                raise
            return None
        wanted = [values[at] for at in self._wanted]
        return (restore, *wanted) if self.rewinds else tuple(wanted)


def rewind(restore: Sequence[Callable[[], None]]) -> None:
    """Run-time helper of new code: the generators are as they were before the steps."""
    for undo in restore:
        undo()


def restorer(generator: Any) -> Callable[[], None]:
    """A callable that restores the present state of what the steps were given: a generator, numbers, an array that is read, or
    a lock."""
    if isinstance(generator, (int, float, tuple, np.ndarray, _LOCK, _RLOCK)):
        return lambda: None
    if isinstance(generator, np.random.Generator):
        bits = generator.bit_generator
        before = bits.state
        return lambda: setattr(bits, "state", before)
    if isinstance(generator, np.random.RandomState):
        state = generator.get_state()
        return lambda: generator.set_state(state)
    if isinstance(generator, torch.Generator):
        before_it = generator.get_state()
        return lambda: _set_state(generator, before_it)
    assert isinstance(generator, random.Random), f"{generator!r} is no generator of random numbers"
    now = generator.getstate()
    return lambda: generator.setstate(now)


def _set_state(generator: torch.Generator, state: torch.Tensor) -> None:
    generator.set_state(state)
