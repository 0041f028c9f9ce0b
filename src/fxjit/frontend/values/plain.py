"""From a value all of whose parts are known to a Python object: for pure calls that are made while tracing."""

from __future__ import annotations

from typing import Any

from fxjit.frontend.values.base import Value


class NotPlain(Exception):
    """`plain` met something that is not known while tracing."""


def plain(value: Value) -> Any:
    """The Python object of a value all of whose parts are known: a constant, or a copy of a container of constants,
    for a call that neither keeps nor changes it. Raises NotPlain."""
    value = value.realize()
    if value.is_constant():
        return value.as_constant()
    pytype = value.pytype()
    items = getattr(value, "items", None)
    if pytype in (list, tuple, set, frozenset) and isinstance(items, list):
        return pytype(plain(item) for item in items)
    if pytype is dict and isinstance(items, dict):
        return {plain(key): plain(item) for key, item in items.values()}
    raise NotPlain(value)


def builtin_part(value: Value) -> Value:
    """The part that a builtin type has in an instance of a user's subclass: what that type's own methods look at."""
    part: Value | None = getattr(value, "base", None)
    return value if part is None else part


def is_plain(value: Value) -> bool:
    try:
        plain(value)
    except NotPlain:
        return False
    return True
