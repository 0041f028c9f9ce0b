"""logging: a message whose text is known while tracing is written after the graph ran, as if from the user's own line.

Messages below the logger's level say nothing. A message about tensors breaks the graph unless
`config.reorderable_functions` says that it may wait; one with an exception or a stack in it has to be made where it
stands. Registered through families.py.
"""

from __future__ import annotations

import logging
from typing import Any

from fxjit.frontend.callables.deferred_calls import is_reorderable
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import fold_call, handles
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.frontend.values.deferred import snapshot
from fxjit.guards.kinds import ConstIs, IdIs
from fxjit.guards.source import AttrSource, ConstSource

_LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "warn": logging.WARNING,
           "error": logging.ERROR, "exception": logging.ERROR, "critical": logging.CRITICAL}


def write_record(logger: logging.Logger, level: int, where: tuple[str, int, str], message: Any, *args: Any) -> None:
    """Run-time helper of new bytecode: `logger.warning(message, *args)` as if called at `where`."""
    if logger.isEnabledFor(level):
        logger.handle(logger.makeRecord(logger.name, level, where[0], where[1], message, args, None, where[2]))


def write_to_root(level: int, where: tuple[str, int, str], message: Any, *args: Any) -> None:
    """The same for `logging.warning(message, *args)`."""
    root = logging.getLogger()
    if not root.handlers:
        logging.basicConfig()
    write_record(root, level, where, message, *args)


def _is_enabled(t: Tracer, logger: logging.Logger, level: int) -> bool:
    """`logger.isEnabledFor(level)`, with guards on the levels it reads, up to the first that is set, and on the switches
    that disable it."""
    manager = ConstSource(logger.manager, "logging.Manager")
    t.guard(ConstIs(AttrSource(manager, "disable"), logger.manager.disable))  # logging.disable() sets it
    asked: logging.Logger | None = logger
    while asked is not None:
        source = ConstSource(asked, f"logging.getLogger({asked.name!r})")
        t.guard(ConstIs(AttrSource(source, "level"), asked.level))
        t.guard(ConstIs(AttrSource(source, "disabled"), asked.disabled))
        if asked.level:
            break
        t.guard(IdIs(AttrSource(source, "parent"), asked.parent))
        asked = asked.parent
    return logger.isEnabledFor(level)


def _logs(name: str, level: int) -> None:
    @handles(getattr(logging.Logger, name))
    def method(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        logger = getattr(args[0], "obj", None)
        if isinstance(logger, logging.Logger):
            if not _is_enabled(t, logger, level):
                return t.make(None)
            known = _deferrable(t, logger, getattr(logging.Logger, name), args[1:])
            if name != "exception" and not kwargs and known:
                t.effects.call_later(write_record, (args[0], level, _where(t), *known))
                return t.make(None)
        t.break_("call-print", function=f"logging.Logger.{name}")

    @handles(getattr(logging, name))
    def on_root(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not _is_enabled(t, logging.getLogger(), level):
            return t.make(None)
        if is_reorderable(getattr(logging, name)) and name != "exception" and not kwargs:
            known = _deferrable(t, logging.getLogger(), getattr(logging, name), args)
            if known:
                t.effects.call_later(write_to_root, (level, _where(t), *known))
                return t.make(None)
        t.break_("call-print", function=f"logging.{name}")


def _where(t: Tracer) -> tuple[str, int, str]:
    where = t.running_frame.summary()
    return where.filename, where.lineno or 0, where.name


def _deferrable(t: Tracer, logger: logging.Logger, fn: Any, args: list[Value]) -> list[Value] | None:
    """The message and its arguments as they will be then: the text is known, or may be made later with what it is made of as
    it is now; and the logger makes records in logging's own way."""
    if not all(getattr(type(logger), name) is getattr(logging.Logger, name) for name in ("_log", "findCaller")):
        return None
    if is_reorderable(fn):
        now = [snapshot(t, arg) for arg in args]
        return [arg for arg in now if arg is not None] if all(arg is not None for arg in now) else None
    try:
        return args if all(isinstance(concrete(arg), (str, int, float, bool, type(None))) for arg in args) else None
    except NotConcrete:
        return None


for _name, _level in _LEVELS.items():
    if getattr(logging.Logger, _name, None) is not None:
        _logs(_name, _level)


@handles(logging.Logger.isEnabledFor)
def is_enabled_for(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    logger = getattr(args[0], "obj", None)
    if not isinstance(logger, logging.Logger):
        t.break_("call-builtin", function="logging.Logger.isEnabledFor", args=args[0].describe())
    _is_enabled(t, logger, logging.CRITICAL)
    return fold_call(t, logger.isEnabledFor, args[1:], kwargs)
