"""Every exception of fxjit: the public tree (`fxjit.errors`), and the signals the front end raises to itself.

Whoever reports a failure to the user raises one of the first group; all are `FxjitError`, which is a
`RuntimeError` as torch.compile's errors are. The second group never leaves a compile: the pipeline catches it and
turns it into a graph break, a skipped frame or a new attempt. `is_foreign` says which exceptions are nobody's answer here, and
pass through every handler.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # not in the stubs
import difflib
import dis
import functools
import inspect
import itertools
import traceback
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, NoReturn

UserStack = Sequence[traceback.FrameSummary]


class FxjitError(RuntimeError):
    """The root of what fxjit raises on purpose."""

    def __init__(self, *args: object) -> None:
        # Not super(): while the drop-in is installed, torch's error of the same meaning is a base too (dropin.py).
        RuntimeError.__init__(self, *args)


class InvalidArgument(FxjitError, TypeError):
    """A public function was given something it cannot work with."""


class ArtifactError(InvalidArgument):
    """An artifact cannot be written or read: nothing was compiled, nothing of it has a form on the disk, the file is damaged,
    of another version, or of another function."""


class ConfigError(FxjitError, ValueError):
    """A setting, backend, mode, option or log name that does not exist, or a value that does not fit it."""


class UnknownSetting(ConfigError, AttributeError):
    """A name that `fxjit.config` does not have; an AttributeError too, so that `hasattr` works."""


class InvalidBackend(ConfigError, LookupError):
    """No backend is known by this name, or the one that is cannot be used here."""


class ExplainedError(FxjitError):
    """An error about a place in user code that carries its reason in parts as well as in words."""

    def __init__(
        self,
        message: str,
        *,
        reason_id: str = "",
        reason: str = "",
        explanation: str = "",
        hints: Iterable[str] = (),
        context: Mapping[str, Any] | None = None,
        user_stack: UserStack = (),
    ) -> None:
        super().__init__(message)
        self.reason_id = reason_id
        self.reason = reason
        self.explanation = explanation
        self.hints = tuple(hints)
        self.context = dict(context or {})
        self.user_stack = list(user_stack)

    def __reduce__(self) -> tuple[Any, ...]:
        return _restore, (type(self), str(self), self.__dict__)


class Unsupported(ExplainedError):
    """A graph break where `fullgraph=True` or `error_on_graph_break` forbids one."""


class SkipFrame(ExplainedError):
    """A frame would have to be given up where that is forbidden."""


class RecompileError(FxjitError):
    """A second compile of the same code where `error_on_recompile` or a stance forbids it."""


class RecompileLimitExceeded(FxjitError):
    """Code has reached `recompile_limit` where `fail_on_recompile_limit_hit` or `fullgraph=True` forbids that."""


class CompilerFailure(FxjitError):
    """A failure of a compiler, ours or a backend's; `suppress_errors` turns it into a frame that runs eagerly."""


class BackendCompilerFailed(CompilerFailure):
    """A backend raised while it compiled a graph; the backend's own exception is the cause."""

    def __init__(self, backend: str, inner: BaseException) -> None:
        super().__init__(
            f"backend={backend!r} raised:\n{type(inner).__name__}: {inner}\n\n"
            "Set fxjit.config.suppress_errors = True to run such frames eagerly instead."
        )
        self.backend_name = backend
        self.inner_exception = inner

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.backend_name, self.inner_exception)


class CppCompileError(CompilerFailure):
    """The C++ compiler refused generated code, or there is none; the message has its command and its output."""


class TritonCompileError(CompilerFailure):
    """Triton refused a generated kernel."""


class ConstraintViolationError(FxjitError):
    """A size that was marked dynamic had to be compiled as a constant."""


class AccuracyError(FxjitError):
    """`verify_correctness` found a compiled graph whose results are not eager's."""


class InternalError(CompilerFailure):
    """A mistake of fxjit itself."""


class TraceSignal(Exception):
    """Signal: the trace under way ends here, with or without a result. All are raised through `leave_trace`, and are
    immutable; a handler with more information raises another (`BreakGraph.but`)."""

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        vars(self).update(facts)

    def __setattr__(self, name: str, value: object) -> None:
        if not name.startswith("__"):  # traceback and context are Python's own
            raise AttributeError(f"a signal does not change: {name}")
        super().__setattr__(name, value)


class BreakGraph(TraceSignal):
    """Signal: the trace cannot go on past this instruction. `reason` is an id of `reasons.py`."""

    reason: str
    context: Mapping[str, Any]
    user_stack: UserStack | None
    #: `error_on_graph_break(True)` was in force there.
    is_error: bool
    #: The frames under way there, outermost first, until it is decided where to break.
    frames: Sequence[Any]
    #: The break further on that makes the trace end here already; what the error of a program that wants no break is about.
    because: BreakGraph | None
    #: The instruction changes state that a block around it holds: the blocks stay entered from there on.
    keeps_blocks: bool

    def __init__(
        self,
        reason: str,
        context: Mapping[str, Any] | None = None,
        user_stack: UserStack | None = None,
        *,
        is_error: bool = False,
        frames: Sequence[Any] = (),
        because: BreakGraph | None = None,
        keeps_blocks: bool = False,
    ) -> None:
        super().__init__(reason, reason=reason, context=MappingProxyType(dict(context or {})), user_stack=user_stack,
                         is_error=is_error, frames=tuple(frames), because=because, keeps_blocks=keeps_blocks)

    def but(self, **changes: Any) -> BreakGraph:
        """The same break with other facts."""
        facts = {name: getattr(self, name) for name in BreakGraph.__annotations__}
        return BreakGraph(**(facts | changes))

    def __str__(self) -> str:
        details = ", ".join(f"{name}={value!r}" for name, value in self.context.items())
        return f"{self.reason}({details})"


class SkipFrameSignal(TraceSignal):
    """Signal: this frame runs as it stands; what it calls is still looked at."""

    reason: str
    context: Mapping[str, Any]
    user_stack: UserStack | None

    def __init__(self, reason: str, context: Mapping[str, Any] | None = None, user_stack: UserStack | None = None) -> None:
        super().__init__(reason, reason=reason, context=MappingProxyType(dict(context or {})), user_stack=user_stack)


class RestartTrace(TraceSignal):
    """Signal: something learned now has to be known from the first instruction; the trace starts again."""

    #: What eager code would have done by now, to be done before the trace starts again.
    action: Callable[[], object] | None

    def __init__(self, why: str, action: Callable[[], object] | None = None) -> None:
        super().__init__(why, action=action)


class RetraceFrame(TraceSignal):
    """Signal: a finished trace is of no use, and the frame is traced once more with other assumptions: the backend cannot do
    with this graph's numbers or sizes as variables, or failed otherwise, so that they are constants and none is random; or a
    leaf of autograd's graph that the trace made, or a part of a class, can be seen; or a number changed meanwhile."""


class BreakReached(TraceSignal):
    """Signal: the innermost frame is at the break point that was decided; `end` is the result of the trace."""

    end: Any

    def __init__(self, end: Any) -> None:
        super().__init__("", end=end)


def leave_trace(signal: TraceSignal, cause: BaseException | None = None) -> NoReturn:
    """The one way to end a trace early, for `Tracer.break_` and for callers with a signal more specific than a reason."""
    try:
        raise signal from cause
    finally:
        del signal, cause  # this frame is in the signal's traceback: a cycle, which would hold the trace until it is collected


# As they were at first: a program may have put something else in their place when an error is looked at, and Python's own
# modules call them by name.
_isinstance, _any, _getattr, _hasattr, _type, _str = isinstance, any, getattr, hasattr, type, str


def is_foreign(error: BaseException) -> bool:
    """Whether an exception came from outside into the code that it was raised through: it is not that code's answer, and goes
    on to the program as it is.

    That is so for what is no Exception, for what a signal handler raised, for what was thrown into the thread
    (`PyThreadState_SetAsyncExc`, which makes exceptions without arguments, at any instruction), and for an error that was
    raised from such a one. While a frame is compiled on the main thread, handlers raise only afterwards: `_C.defer_signals`.
    """
    if not _isinstance(error, Exception):
        return True
    trail = []
    trace = error.__traceback__
    while trace is not None:
        trail.append(trace)
        trace = trace.tb_next
    if not trail:
        return False
    if _any(_is_handler_call(inner.tb_frame, outer.tb_frame) for outer, inner in itertools.pairwise(trail)):
        return True
    if not _own_args(error) and not _isinstance(error, MemoryError) and not _raises(trail[-1]):
        return True
    return error.__cause__ is not None and error.__cause__ is not error and is_foreign(error.__cause__)


def _own_args(error: BaseException) -> tuple[Any, ...]:
    """Without the node that torch.fx's interpreter was executing, which it makes the text of an exception that has none."""
    first: Any = error.args[0] if error.args else None
    return error.args[1:] if _isinstance(first, _str) and first.startswith("While executing ") else error.args


def is_signalled(given: Iterable[Any], interrupted: types.FrameType | None = None) -> bool:
    """Whether these are the arguments of a signal's handler: the signal's number, and the frame that it interrupts (None:
    whichever). They are known by their types: `isinstance` would read `__class__` of a program's objects, which it may see."""
    return _any(
        _type(number) is int and (_type(each) is types.FrameType if interrupted is None else each is interrupted)
        for number, each in itertools.pairwise(given)
    )


def _is_handler_call(frame: types.FrameType, interrupted: types.FrameType) -> bool:
    """Whether CPython called this frame's function as the handler of a signal: with the signal's number and the frame that it
    interrupted."""
    code, variables = frame.f_code, frame.f_locals
    given = [variables.get(name) for name in code.co_varnames[:code.co_argcount]]
    if code.co_flags & inspect.CO_VARARGS:
        given += variables.get(code.co_varnames[code.co_argcount + code.co_kwonlyargcount]) or ()
    if is_signalled(given, interrupted):
        return True
    return _any(code is _code_of(_signal.getsignal(number)) for number in _signal.valid_signals())


def _code_of(handler: Any) -> types.CodeType | None:
    while _isinstance(handler, functools.partial):
        handler = handler.func
    called = handler if _hasattr(handler, "__code__") else _getattr(handler, "__call__", None)
    return _getattr(called, "__code__", None)


def _raises(trace: types.TracebackType) -> bool:
    """Whether the instruction that an exception came from is one that raises."""
    return dis.opname[trace.tb_frame.f_code.co_code[trace.tb_lasti]] in ("RAISE_VARARGS", "RERAISE")


#: Characters of a value in a message.
_MOST_SHOWN = 200


def displayed(value: object) -> str:
    """A value in a message: short, and whatever its `repr` does."""
    try:
        text = repr(value)
    except Exception:  # the program's own: the message is about something else
        text = object.__repr__(value)
    return text if len(text) <= _MOST_SHOWN else f"{text[:_MOST_SHOWN - 3]}..."


def near(name: str, known: Iterable[str]) -> str:
    """A sentence that names what the user may have meant, or lists what there is when nothing is near."""
    names = sorted(set(known))
    matches = difflib.get_close_matches(name, names, n=3, cutoff=0.6)
    if matches:
        return "Did you mean " + " or ".join(repr(match) for match in matches) + "?"
    if len(names) <= 40:
        return "There are: " + ", ".join(names) + "."
    return ""


def _restore(cls: type[ExplainedError], message: str, state: dict[str, Any]) -> ExplainedError:
    error = cls(message)
    error.__dict__.update(state)
    return error
