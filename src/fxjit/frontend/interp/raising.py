"""Exceptions of the user's program: raising, chaining, matching.

`raise_exception` serves `Tracer.raise_`; the RAISE_VARARGS family and WITH_EXCEPT_START use the rest. What is thrown is
`base.Raised`; machine.py catches it and goes to the frame's handler.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from fxjit.frontend.values import descriptors, protocol
from fxjit.frontend.values.base import Raised, Value
from fxjit.frontend.values.exceptions import ExceptionValue, class_of, is_exception_class, make_exception

if TYPE_CHECKING:
    from fxjit.frontend.interp.machine import Machine
    from fxjit.frontend.tracer import Tracer


def raise_exception(t: Tracer, cls: type[BaseException], *args: Any) -> NoReturn:
    """Raise `cls(*args)` in the user's program; arguments are values or constants."""
    throw(t, make_exception(t, cls, args))


def throw(t: Tracer, exc: Value) -> NoReturn:
    """Raise an exception instance, chained to the one being handled."""
    handled = current_exception(t.frame)
    if handled is not None and handled is not exc and isinstance(exc, ExceptionValue):
        _cut_chain(t, handled, exc)
        exc.set_context(t, handled)
    raise Raised(exc)


def _cut_chain(t: Tracer, start: Value, target: ExceptionValue) -> None:
    """Where the contexts of `start` lead to `target`, they end before it, so that there is no circle."""
    seen: set[int] = set()
    link = start
    while isinstance(link, ExceptionValue) and id(link) not in seen:
        seen.add(id(link))
        if link.source is not None:
            if target.source is not None:  # whether one leads to the other is nothing that is guarded
                t.break_("attribute-unsupported", value=link.describe(), name="__context__")
            written = t.effects.load_attr(link, "__context__")
            if not isinstance(written, ExceptionValue):
                return
            following: Value | None = written
        else:
            following = link.context
        if following is target:
            link.set_context(t, None)
            return
        if following is None:
            return
        link = following


def current_exception(machine: Machine | None) -> Value | None:
    """The exception of `sys.exc_info()`: the one that the innermost handler under way handles."""
    while machine is not None:
        if machine.handled is not None:
            return machine.handled
        machine = machine.parent
    return None


def as_exception(t: Tracer, value: Value) -> Value:
    """The instance that `raise value` raises: a class is called."""
    value = value.realize()
    if is_exception_class(value):
        made = t.call(value, [], None)
        if not issubclass(made.pytype(), BaseException):
            t.raise_(TypeError, f"calling {value.describe()} should have returned an instance of BaseException, "
                                f"not {made.pytype()}")
        assert isinstance(made, Value)
        return made
    if not issubclass(value.pytype(), BaseException):
        t.raise_(TypeError, "exceptions must derive from BaseException")
    return value


def do_raise(t: Tracer, value: Value, cause: Value | None) -> NoReturn:
    """`raise value` or `raise value from cause`."""
    exc = as_exception(t, value)
    if cause is not None:
        cause = cause.realize()
        if is_exception_class(cause) or issubclass(cause.pytype(), BaseException):
            known: Value | None = as_exception(t, cause)
        elif cause.is_constant() and cause.as_constant() is None:
            known = None
        else:
            t.raise_(TypeError, "exception causes must derive from BaseException")
        if isinstance(exc, ExceptionValue):
            exc.set_cause(t, known)
    throw(t, exc)


def matches(t: Tracer, exc: Value, against: Value) -> bool:
    """Whether `except against` catches `exc`."""
    against = against.realize()
    if issubclass(against.pytype(), tuple):
        found = [matches(t, exc, item) for item in protocol.unpack(t, against)]  # all: each must be a class of exceptions
        return any(found)
    if not is_exception_class(against):
        t.raise_(TypeError, "catching classes that do not inherit from BaseException is not allowed")
    cls = class_of(against)
    assert cls is not None
    descriptors.guard_bases(t, exc.pytype())
    return cls in exc.pytype().__mro__  # not issubclass, which a metaclass may answer


def refuse_groups(t: Tracer, against: Value) -> None:
    """`except*` takes classes of exceptions that are not groups."""
    classes = protocol.unpack(t, against) if issubclass(against.pytype(), tuple) else [against]
    if not all(map(is_exception_class, classes)):
        t.raise_(TypeError, "catching classes that do not inherit from BaseException is not allowed")
    for each in classes:
        cls = class_of(each)
        if cls is not None and BaseExceptionGroup in cls.__mro__:
            t.raise_(TypeError, "catching ExceptionGroup with except* is not allowed. Use except instead.")
