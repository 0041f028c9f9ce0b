"""Events of the frames of this process: one record each, counted, logged, and passed to the listeners.

The pipeline calls the `report_*` functions and nothing else for telling; `explain`, `CompileProfiler` and the debug
folder `listen`. `unsupported` makes the error that `fullgraph=True` raises where a break would have been reported.
"""

from __future__ import annotations

import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import CodeType
from typing import Any

from . import config, logs
from .counters import counters
from .errors import SkipFrame, Unsupported, UserStack
from .origins import is_installed, is_library
from .reasons import Explained, explain_reason

_breaks_log = logs.artifact("graph_breaks")
_skips_log = logs.artifact("skips")
_recompiles_log = logs.artifact("recompiles")
_compile_log = logs.artifact("compile")


@dataclass(frozen=True, slots=True)
class FrameCompiled:
    """A frame, or its resume function, became an entry. `graph` is None where there was nothing to put in a graph, and where a
    stored entry (stored/) was installed while nobody listened."""

    code: CodeType
    graph: Any
    guards: Sequence[Any] = ()
    op_count: int = 0
    ops: tuple[str, ...] = ()
    seconds: Mapping[str, float] = field(default_factory=dict)

    @property
    def function(self) -> str:
        return self.code.co_qualname


class _WithReason:
    """The parts of `why`, under the names that reports use."""

    __slots__ = ()
    why: Explained

    @property
    def reason(self) -> str:
        return self.why.reason

    @property
    def reason_id(self) -> str:
        return self.why.id

    @property
    def explanation(self) -> str:
        return self.why.explanation


@dataclass(frozen=True, slots=True)
class GraphBreak(_WithReason):
    """A graph ended before its frame did."""

    why: Explained
    user_stack: tuple[traceback.FrameSummary, ...]
    function: str = ""

    @property
    def hints(self) -> tuple[str, ...]:
        return self.why.hints

    @property
    def context(self) -> str:
        return self.why.context

    def summary(self) -> list[str]:
        """The reason, what it means, what to do, and the user's line."""
        return [self.reason, self.explanation, *(f"Hint: {hint}" for hint in self.hints), *_place_lines(self.user_stack)]

    def __str__(self) -> str:
        return break_text(self.why, self.user_stack)


@dataclass(frozen=True, slots=True)
class FrameSkipped(_WithReason):
    """A frame runs as it stands. `cause` is the break that could not be resumed from, where that is why: it is told and counted
    here, once, and not as a `GraphBreak`, since no graph was broken by it. `user_stack` leads to its line."""

    code: CodeType
    why: Explained
    user_stack: tuple[traceback.FrameSummary, ...] = ()
    cause: Explained | None = None

    @property
    def function(self) -> str:
        return self.code.co_qualname

    @property
    def hints(self) -> tuple[str, ...]:
        return self.why.hints + (self.cause.hints if self.cause else ())

    def __str__(self) -> str:
        place = f"{self.code.co_filename}:{self.code.co_firstlineno}"
        text = f"{self.function} ({place}): {self.reason}\n  {self.explanation}"
        if self.cause:
            text += f"\n  The break: {self.cause.reason}: {self.cause.explanation}"
            text += "".join(f"\n  {line}" for line in _place_lines(self.user_stack))
        return "\n  Hint: ".join([text, *self.hints])


@dataclass(frozen=True, slots=True)
class Recompiled:
    """Code that had entries was compiled again; `why` names the guard that failed, newest entry first."""

    code: CodeType
    why: tuple[str, ...]
    count: int

    @property
    def function(self) -> str:
        return self.code.co_qualname


@dataclass(frozen=True, slots=True)
class RunsAsCaptured:
    """A backend runs a graph, or a call of it, operator by operator; `rule` is the id of its reason (docs/rules.md)."""

    rule: str
    stage: str
    reason: str
    graph: Any


@dataclass(frozen=True, slots=True)
class LibraryLoaded:
    """A library of kernels was loaded: its key in the cache, and the path that the loader knows it by."""

    key: str
    path: str


Event = FrameCompiled | GraphBreak | FrameSkipped | Recompiled | RunsAsCaptured | LibraryLoaded

_listeners: list[Callable[[Event], None]] = []
_logged_places: set[tuple[Any, ...]] = set()


@contextmanager
def listen(callback: Callable[[Event], None]) -> Iterator[None]:
    """Calls `callback(event)` for each event while the block runs."""
    _listeners.append(callback)
    try:
        yield
    finally:
        _listeners.remove(callback)


def record_event(event: Event) -> None:
    for listener in tuple(_listeners):
        listener(event)


def report_frame_started(code: CodeType) -> None:
    """A frame passed the skip rules and is about to be traced."""
    count_frame()
    _compile_log.info("compiling %s (%s:%d)", code.co_qualname, code.co_filename, code.co_firstlineno)


def count_frame() -> None:
    """A frame is traced, or takes what another process stored of it."""
    counters["frames"]["total"] += 1


def is_listened_to() -> bool:
    """Whether anybody is passed events."""
    return bool(_listeners)


def report_frame_compiled(event: FrameCompiled) -> None:
    counters["frames"]["ok"] += 1
    if event.graph is not None or event.op_count:
        counters["stats"]["unique_graphs"] += 1
        counters["stats"]["calls_captured"] += event.op_count
    if event.seconds:
        stages = ", ".join(f"{stage} {seconds * 1e3:.1f} ms" for stage, seconds in event.seconds.items())
        size = f"{event.op_count} operators, {len(event.guards)} guards"
        _compile_log.info("compiled %s: %s; %s", event.function, size, stages)
    record_event(event)


def report_break(reason: str, context: Mapping[str, Any], user_stack: UserStack | None, *, function: str = "") -> GraphBreak:
    """A graph break that will be resumed from. One that the frame is given up for is part of what `report_skip` tells."""
    event = break_event(reason, context, user_stack, function=function)
    tell_break(event)
    return event


def break_event(reason: str, context: Mapping[str, Any], user_stack: UserStack | None, *, function: str = "") -> GraphBreak:
    """The event of a graph break, not told yet."""
    return GraphBreak(explain_reason(reason, **context), user_frames(user_stack), function)


def tell_break(event: GraphBreak) -> None:
    """Counts, logs and passes on a graph break."""
    counters["graph_break"][event.reason] += 1
    _log_break(event.why, event.user_stack)
    record_event(event)


def _log_break(why: Explained, user_stack: tuple[traceback.FrameSummary, ...]) -> None:
    if _breaks_log.isEnabledFor(logs.INFO) and _first_time("break", why, user_stack[-1:]):
        _breaks_log.info("%s", break_text(why, (*_callers(), *user_stack)))


def report_skip(
    code: CodeType,
    reason: str,
    context: Mapping[str, Any],
    user_stack: UserStack | None = None,
    *,
    cause: Explained | None = None,
) -> FrameSkipped:
    """A frame that was to be compiled and is given up. (Frames that are not ours are no event: `log_passed_by`.)"""
    event = skip_event(code, reason, context, user_stack, cause)
    tell_skip(event)
    return event


def skip_event(code: CodeType, reason: str, context: Mapping[str, Any], user_stack: UserStack | None = None,
               cause: Explained | None = None) -> FrameSkipped:
    """The event of a frame that is given up, not told yet."""
    why = explain_reason(reason, **{"function": code.co_qualname, **context})
    return FrameSkipped(code, why, user_frames(user_stack), cause)


def tell_skip(event: FrameSkipped) -> None:
    """Counts, logs and passes on a frame that is given up, with the break that it is given up for."""
    code, why = event.code, event.cause
    counters["frames"]["skipped"] += 1
    counters["skip"][event.reason] += 1
    if why:
        counters["skip_cause"][why.reason] += 1
        _log_break(why, event.user_stack)
    if _skips_log.isEnabledFor(logs.INFO) and _first_time("skip", event.why, (code,)):
        head = f"Frame skipped: {code.co_qualname} ({code.co_filename}:{code.co_firstlineno})"
        cause_text = f"\n{why.text('The break that caused it: ')}" if why else ""
        _skips_log.info("%s\n%s%s%s", head, event.why.text("Skip Reason: "), cause_text,
                        stack_text((*_callers(), *event.user_stack)))
    record_event(event)


def tell_empty(event: FrameSkipped, users: bool) -> None:
    """As `tell_skip`, of a frame of which nothing goes in a graph: only of what the user compiled that is an event."""
    if users:
        tell_skip(event)
    else:
        log_passed_by(event.code, "nothing of it goes in a graph")


def log_passed_by(code: CodeType, rule: str) -> None:
    """A frame that no rule lets be touched: shown by `+skips` only."""
    _skips_log.debug("passed by: %s (%s): %s", code.co_qualname, code.co_filename, rule)


def report_recompile(code: CodeType, why: Sequence[str], count: int) -> Recompiled:
    """`count` entries exist and none holds; `why` has a line for each."""
    event = Recompiled(code, tuple(why), count)
    counters["recompiles"][code.co_qualname] += 1
    if _recompiles_log.isEnabledFor(logs.INFO):
        head = f"{code.co_name} ({code.co_filename}:{code.co_firstlineno}) is compiled again"
        shown = why if _recompiles_log.isEnabledFor(logs.DEBUG) else why[:1]
        reasons = "\n".join(f"    - {number}/{count - 1}: {text}" for number, text in enumerate(shown))
        _recompiles_log.info("%s: no entry's guards hold\n%s", head, reasons)
    record_event(event)
    return event


def unsupported(
    reason: str,
    context: Mapping[str, Any],
    user_stack: UserStack | None,
    *,
    cls: type[Unsupported | SkipFrame] = Unsupported,
) -> Unsupported | SkipFrame:
    """The exception for a break or skip that is forbidden here."""
    why = explain_reason(reason, **context)
    stack = user_frames(user_stack)
    text = why.text("") + stack_text(stack, "\n\nfrom user code:\n")
    return cls(
        text,
        reason_id=why.id,
        reason=why.reason,
        explanation=why.explanation,
        hints=why.hints,
        context=context,
        user_stack=stack,
    )


def user_frames(user_stack: UserStack | None) -> tuple[traceback.FrameSummary, ...]:
    """The frames of the user's own files; all of them where there is none, or with `config.verbose`."""
    frames = tuple(user_stack or ())
    kept = tuple(frame for frame in frames if not is_library(frame.filename))
    return kept if kept and not config.verbose else frames


def _callers() -> list[traceback.FrameSummary]:
    """The frames of the user's program that are running: those above the frame that is being compiled."""
    return [frame for frame in traceback.extract_stack() if not is_installed(frame.filename)]


def _place_lines(user_stack: UserStack) -> list[str]:
    """The user's line, as a traceback shows it."""
    if not user_stack:
        return []
    frame = user_stack[-1]
    return [f'File "{frame.filename}", line {frame.lineno}, in {frame.name}', f"  {frame.line}"]


def break_text(why: Explained, user_stack: UserStack) -> str:
    place = f" at {user_stack[-1].filename}:{user_stack[-1].lineno}" if user_stack else ""
    return f"Graph break in user code{place}\n{why.text()}{stack_text(user_stack)}"


def stack_text(user_stack: UserStack, head: str = "\n\nUser code traceback:\n") -> str:
    if not user_stack:
        return ""
    return head + "".join(traceback.format_list(list(user_stack))).rstrip("\n")


def count(number: int, what: str) -> str:
    """So many, in words for a report."""
    return f"{number} {what}" if number == 1 else f"{number} {what}s"


def reset() -> None:
    _logged_places.clear()


def _first_time(kind: str, why: Explained, place: Sequence[Any]) -> bool:
    """One line of a log for one place, however often it is traced."""
    where = tuple((each.filename, each.lineno) if isinstance(each, traceback.FrameSummary) else each for each in place)
    key = (kind, why.id, where)
    if key in _logged_places:
        return False
    _logged_places.add(key)
    return True
