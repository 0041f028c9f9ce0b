"""Steps that new code runs before its graph: calls of Python's and NumPy's random generators, and arithmetic on what they give.

A Python generator gives its numbers when the program runs, so a trace records each call of one as a step (values/rng.py), and
each operation on random values (values/random_values.py); a random number that meets a tensor is an input of the graph. All
steps run in the order of the program, before anything else of the frame: generators are called as eager code calls them, and
nothing else of the frame looks at them, since whatever could ends the graph. resume/rng.py runs the steps.

Locks of the program's are taken by steps, too (held_locks.py).

For each step the trace has an example, from a copy of the generator. Only its type may be relied on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fxjit.frontend.held_locks import Recheck
from fxjit.guards.source import Source


@dataclass(frozen=True, slots=True)
class StepResult:
    """The result of an earlier step, as an argument."""

    at: int


@dataclass(frozen=True, slots=True)
class Step:
    """`fn(*args, **kwargs)`; arguments are constants, results of earlier steps (`StepResult`), or found outside (`Source`)."""

    fn: Callable[..., Any]
    args: tuple[object, ...]
    kwargs: Mapping[str, object]
    #: Whether it may raise where its example did not.
    may_fail: bool


class RngSteps:
    """The steps of one trace, with an example of what each gives."""

    def __init__(self, may_lock: bool = True) -> None:
        self.steps: list[Step] = []
        self._examples: list[Any] = []
        self._copies: dict[Source, Any] = {}
        #: The steps that take locks of the program's, and what checks the guards once more under them.
        self.may_lock = may_lock
        self.locks: list[int] = []
        self.recheck = Recheck()
        #: Whether the generators get their states back where the graph, or its check, fails, which are noted for that.
        self.rewinds = False

    def __bool__(self) -> bool:
        return bool(self.steps)

    def found(self, generator: object, source: Source, copy: Callable[[Any], Any]) -> None:
        """A generator that existed before the frame: examples are drawn from its copy."""
        if source not in self._copies:
            self._copies[source] = copy(generator)

    def add(self, fn: Callable[..., Any], args: Sequence[object], kwargs: Mapping[str, object] | None = None, *,
            may_fail: bool) -> int:
        """Note a step; where it is. It is run on examples at once, and what it raises is raised."""
        step = Step(fn, tuple(args), dict(kwargs or {}), may_fail)
        named = {name: self.example_of(arg) for name, arg in step.kwargs.items()}
        self._examples.append(fn(*[self.example_of(arg) for arg in step.args], **named))
        self.steps.append(step)
        return len(self.steps) - 1

    def example(self, at: int) -> Any:
        """The value of the step at `at` while tracing."""
        return self._examples[at]

    def example_of(self, arg: object) -> Any:
        """The value of a step's argument while tracing."""
        if isinstance(arg, StepResult):
            return self._examples[arg.at]
        return self._copies[arg] if isinstance(arg, Source) else arg
