"""warnings.warn: a warning whose text is known while tracing is given after the graph ran, as if from the user's own line.

One that the filters ignore does nothing. One that they turn into an exception, or whose text is not known, breaks the
graph. Registered through families.py.
"""

from __future__ import annotations

import warnings
from typing import Any, NoReturn

from fxjit import state_steps
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Lazy, Value
from fxjit.frontend.values.calls import function
from fxjit.frontend.values.ranges import as_index
from fxjit.frontend.values.state_blocks import emit_step, filters_are_set


def give_warning(text: Any, category: Any, where: tuple[str, int], namespace: dict[str, Any]) -> None:
    """Run-time helper of new bytecode: a `warnings.warn` as if called at `where` in the module of `namespace`."""
    registry = namespace.setdefault("__warningregistry__", {})
    warnings.warn_explicit(text, category, where[0], where[1], namespace.get("__name__") or "<string>", registry)


@function(warnings.warn)
def warn(t: Tracer, message: Value, category: Value | None = None, stacklevel: Value | None = None,
         source: Value | None = None, *, skip_file_prefixes: Value | None = None) -> Value:
    caller, frame = t.running_frame, t.frame
    for _ in range(1 if stacklevel is None else as_index(t, stacklevel)):
        if frame is None:
            break
        caller, frame = frame, frame.parent
    where, namespace = caller.summary(), caller.globals.namespace
    cls = UserWarning if category is None or not category.is_constant() else category.as_constant() or UserWarning
    known = message.is_constant() and isinstance(message.as_constant(), str) and isinstance(cls, type)
    if issubclass(message.pytype(), Warning):
        cls = message.pytype()
    action = _action(str(message.as_constant()) if known else None, cls, namespace.get("__name__"), where.lineno)
    if action == "ignore":
        return t.make(None)
    def refuse(t: Tracer) -> NoReturn:
        t.break_("call-print", function="warnings.warn")

    if not known or action == "error" or _is_recorded_here(t):
        refuse(t)
    if filters_are_set(t):  # which are others behind the graph
        if not message.is_constant():
            refuse(t)
        given = (message.as_constant(), cls, (where.filename, where.lineno), namespace)
        emit_step(t, state_steps.calling(give_warning, given, {}), [], refuse)
    else:
        t.effects.call_later(give_warning, (message, cls, (where.filename, where.lineno), namespace))
    return t.make(None)


def _is_recorded_here(t: Tracer) -> bool:
    """Whether warnings go to a list that the frame holds (`catch_warnings(record=True)`, entered by the running program)."""
    record = getattr(getattr(warnings, "_showwarnmsg_impl", None), "__self__", None)
    if type(record) is not list:
        return False
    frame = t.frame
    while frame is not None:
        held = (*frame.locals.values(), *frame.stack, *frame.cells.values())
        if any(isinstance(each, Lazy) and each.peek() is record for each in held):
            return True
        frame = frame.parent
    return t.known(record) is not None


def _action(text: str | None, category: Any, module: str | None, lineno: int | None) -> str:
    """The action of the warning filters now; an unknown text matches only the filters for every text."""
    for action, message, cls, where, line in warnings.filters:
        fits_text = message is None or (text is not None and _matches(message, text))
        if fits_text and issubclass(category, cls) and (where is None or _matches(where, module or "")) and (
                line in (0, lineno)):
            return action
    return "default"


def _matches(pattern: Any, text: str) -> bool:
    return bool(pattern.match(text)) if hasattr(pattern, "match") else pattern == text
