"""Concrete Python objects of values all of whose parts are known: arguments of pure calls that are made while tracing."""

from __future__ import annotations

from typing import Any

from fxjit.frontend.values.base import Value


class NotConcrete(Exception):
    """`concrete` met something that is not known while tracing."""


def concrete(value: Value) -> Any:
    """The Python object of a value all of whose parts are known: a constant, or a copy of a container of constants,
    for a call that neither keeps nor changes it. Raises NotConcrete."""
    value = value.realize()
    if value.is_constant():
        return value.as_constant()
    pytype = value.pytype()
    items = getattr(value, "items", None)
    if pytype in (list, tuple, set, frozenset) and isinstance(items, list):
        return pytype(concrete(item) for item in items)
    if pytype is dict and isinstance(items, dict):
        return {concrete(key): concrete(item) for key, item in items.values()}
    raise NotConcrete(value)


def builtin_part(value: Value) -> Value:
    """The part that a builtin type has in an instance of a user's subclass: what that type's own methods look at."""
    part: Value | None = getattr(value, "base", None)
    return value if part is None else part


def is_concrete(value: Value) -> bool:
    try:
        concrete(value)
    except NotConcrete:
        return False
    return True
