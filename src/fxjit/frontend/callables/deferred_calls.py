"""Deferred calls (`config.reorderable_functions`): made after the graph ran, in their order, with snapshots of their arguments.

values/deferred.py makes the snapshots; where there is none, the graph breaks, as it does without the setting.
"""

from __future__ import annotations

import logging
import sys
import types
import warnings
from typing import Any

from fxjit import config
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import Handler, Stage, exact, resolve, resolves
from fxjit.frontend.values.deferred import snapshot
from fxjit.frontend.values.namespaces import known_namespace
from fxjit.homes import module_of, name_with_module


@resolves(Stage.DEFERRED)
def find(fn: object) -> Handler | None:
    """The handler that puts a call of `fn` off; None where the user did not say that it may wait."""
    functions = config.reorderable_functions
    if not functions or not is_reorderable(fn) or _defers_by_itself(fn):
        return None
    return _later(fn)


def is_reorderable(fn: object) -> bool:
    """Whether calls of `fn` may be made after the graph: it, or a method of an object that is this function, is in the
    setting."""
    return any(fn is known or (isinstance(known, types.MethodType) and known.__func__ is fn)
               for known in config.reorderable_functions)


def _defers_by_itself(fn: object) -> bool:
    """Those of logging and warnings put calls off in their own way, which keeps the user's line."""
    module = module_of(fn)
    return module in (logging.__name__, warnings.__name__, "_warnings") and exact(fn) is not None


def _later(fn: Any) -> Handler:
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        now = [*args, *(value for name, value in kwargs.items() if name != "file")]
        if not _is_meant(fn, args):
            handler = resolve(fn, after=Stage.DEFERRED)
            return handler(t, args, kwargs) if handler is not None else t.inline(t.make(fn), args, kwargs)
        given = _snapshots(t, now, first_as_it_is=isinstance(fn, types.FunctionType))
        somewhere_else = kwargs["file"].realize().source is None if "file" in kwargs else _streams_are_changed(t)
        if given is None or (fn is print and somewhere_else):
            t.break_("call-print", function=name_with_module(fn))
        if "file" in kwargs:
            given.append(kwargs["file"])
        names = (*(name for name in kwargs if name != "file"), *(("file",) if "file" in kwargs else ()))
        t.effects.call_later(call_in_order, (fn, names, *given))
        return t.make(None)
    return call


def _streams_are_changed(t: Tracer) -> bool:
    """Whether the trace has set `sys.stdout`: new code writes the globals of a module once, not in between."""
    streams = known_namespace(t, vars(sys))
    return streams is not None and "stdout" in streams.written


def call_in_order(fn: Any, names: tuple[str, ...], *args: Any) -> None:
    """Run-time helper of new bytecode: calls with the arguments called `names` last."""
    split = len(args) - len(names)
    fn(*args[:split], **dict(zip(names, args[split:], strict=True)))


def _is_meant(fn: object, args: list[Value]) -> bool:
    """A bound method in the setting is meant for its own object alone."""
    bound = [known for known in config.reorderable_functions if isinstance(known, types.MethodType) and known.__func__ is fn]
    if not bound or fn in config.reorderable_functions:
        return True
    return bool(args) and any(getattr(args[0].realize(), "obj", None) is known.__self__ for known in bound)


def _snapshots(t: Tracer, values: list[Value], first_as_it_is: bool) -> list[Value] | None:
    """The values as they are now; None where one cannot be kept so. `first_as_it_is`: the first may be the object that a
    method of the user's is called on."""
    kept: list[Value] = []
    for at, value in enumerate(values):
        now = snapshot(t, value)
        if now is None:
            if at or not first_as_it_is or value.realize().source is None:
                return None
            now = value
        kept.append(now)
    return kept
