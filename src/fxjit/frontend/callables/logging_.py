"""logging: a message whose text is known while tracing is written after the graph ran, as if from the user's own line.

Messages below the logger's level say nothing. A message about tensors, or with an exception or a stack in it, breaks the
graph: it has to be made where it stands. Registered through families.py.
"""

from __future__ import annotations

import logging
from typing import Any

from fxjit.frontend.callables.table import NotPlain, fold_call, handles, plain
from fxjit.frontend.values.base import Tracer, Value

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "warn": logging.WARNING,
           "error": logging.ERROR, "exception": logging.ERROR, "critical": logging.CRITICAL}


def write_record(logger: logging.Logger, level: int, where: tuple[str, int, str], message: Any, *args: Any) -> None:
    """What new bytecode calls in the place of `logger.warning(message, *args)` that stood at `where`."""
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(logger.name, level, where[0], where[1], message, args, None, where[2]))


def _logs(name: str, level: int) -> None:
    @handles(getattr(logging.Logger, name))
    def method(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        logger = getattr(args[0], "obj", None)
        if isinstance(logger, logging.Logger):
            if not logger.isEnabledFor(level):
                return t.make(None)
            if name != "exception" and not kwargs and _can_wait(logger, args[1:]):
                where = t.frame.summary()  # type: ignore[attr-defined]  # trace.py: the running machine
                t.effects.call_later(write_record, (args[0], level, (where.filename, where.lineno, where.name), *args[1:]))
                return t.make(None)
        t.break_("call-print", function=f"logging.Logger.{name}")

    @handles(getattr(logging, name))
    def on_root(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not logging.getLogger().isEnabledFor(level):
            return t.make(None)
        t.break_("call-print", function=f"logging.{name}")


def _can_wait(logger: logging.Logger, args: list[Value]) -> bool:
    """The text is known, and the logger makes records in logging's own way."""
    own = all(getattr(type(logger), name) is getattr(logging.Logger, name) for name in ("_log", "findCaller"))
    try:
        return own and bool(args) and all(isinstance(plain(arg), (str, int, float, bool, type(None))) for arg in args)
    except NotPlain:
        return False


for _name, _level in _LEVELS.items():
    if getattr(logging.Logger, _name, None) is not None:
        _logs(_name, _level)


@handles(logging.Logger.isEnabledFor)
def is_enabled_for(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    logger = getattr(args[0], "obj", None)
    if not isinstance(logger, logging.Logger):
        t.break_("call-builtin", function="logging.Logger.isEnabledFor", args=args[0].describe())
    return fold_call(t, logger.isEnabledFor, args[1:], kwargs)
