"""Numbers about what happened, and the seconds each phase took.

`counters` behaves like nested `collections.Counter`s: `counters["graph_break"]["Data-dependent branching"]`. The
groups are `frames` (total, ok, skipped), `stats` (calls_captured, unique_graphs), `graph_break` (of graphs that were
broken), `skip` and `skip_cause` (of frames that were given up, and of the breaks that they were given up for; each by
reason), `recompiles` (by function), `cache` (hit, miss: of kernels; graph hit, graph miss, graph not kept), `guards`
(python), `failed_graphs` and `expectations` (by function: calls that started over eagerly) and what a backend adds. The
pipeline wraps its stages in `timed(...)`; `compile_times()` reports them.
"""

from __future__ import annotations

import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Literal, overload

from .errors import ConfigError, displayed


class _Group(Counter[str]):
    """A group of counters; what is counted here is added elsewhere too (`Counters.also`)."""

    name = ""
    owner: Counters | None = None

    def __setitem__(self, key: str, value: int) -> None:
        also = self.owner.also if self.owner is not None else None
        if also is not None:
            also[self.name][key] += value - self[key]
        super().__setitem__(key, value)


class Counters(defaultdict[str, "Counter[str]"]):
    """Group name -> Counter; a group is made by its first lookup."""

    #: Groups of somebody else's, who is to see what is counted here: torch._dynamo's while the drop-in is installed, for
    #: those who bound them before. Torch's own compiles count there, and not here.
    also: dict[str, Counter[str]] | None = None

    def __missing__(self, name: str) -> Counter[str]:
        group = self[name] = _Group()
        group.name, group.owner = name, self
        return group

    def __repr__(self) -> str:
        groups = ", ".join(f"{name!r}: {dict(group)!r}" for name, group in self.items() if group)
        return f"Counters({{{groups}}})"


counters = Counters(Counter)

_seconds: defaultdict[str, defaultdict[str, list[float]]] = defaultdict(lambda: defaultdict(list))


@contextmanager
def timed(phase: str, function: str = "") -> Iterator[None]:
    """Adds the seconds the block takes to `phase` of `function`."""
    start = time.perf_counter()
    try:
        yield
    finally:
        add_time(phase, function, time.perf_counter() - start)


def add_time(phase: str, function: str, seconds: float) -> None:
    """A phase of `function` that took so many seconds has just ended."""
    _seconds[phase][function].append(seconds)
    for listener in tuple(_listeners):
        listener(phase, function, seconds)


_listeners: list[Callable[[str, str, float], None]] = []


@contextmanager
def listen(callback: Callable[[str, str, float], None]) -> Iterator[None]:
    """Calls `callback(phase, function, seconds)` at the end of each timed phase while the block runs."""
    _listeners.append(callback)
    try:
        yield
    finally:
        _listeners.remove(callback)


def time_by_phase() -> dict[str, float]:
    return {phase: sum(sum(each) for each in functions.values()) for phase, functions in _seconds.items()}


@overload
def compile_times(repr: Literal["str"] = "str", aggregate: bool = False) -> str: ...
@overload
def compile_times(repr: Literal["csv"], aggregate: bool = False) -> tuple[list[str], list[str]]: ...
def compile_times(repr: str = "str", aggregate: bool = False) -> str | tuple[list[str], list[str]]:
    """Seconds by phase and function. `csv` gives headers and values; `aggregate` gives one sum a phase."""
    if not isinstance(repr, str) or repr not in ("str", "csv"):
        raise ConfigError(f"compile_times: repr must be 'str' or 'csv', not {displayed(repr)}.")
    rows: list[tuple[str, list[float]]] = []
    for phase, functions in _seconds.items():
        if aggregate:
            rows.append((phase, [sum(sum(each) for each in functions.values())]))
        else:
            rows += [(f"{phase} {function}".rstrip(), each) for function, each in functions.items()]
    if repr == "csv":
        return [name for name, _ in rows], [", ".join(f"{second:.4f}" for second in each) for _, each in rows]
    if not rows:
        return "fxjit has compiled nothing yet."
    width = max(len("phase"), *(len(name) for name, _ in rows))
    lines = [f"{'phase':<{width}}  seconds"]
    lines += [f"{name:<{width}}  {', '.join(f'{second:.4f}' for second in each)}" for name, each in rows]
    return "\n".join(lines)


def reset() -> None:
    counters.clear()
    _seconds.clear()
