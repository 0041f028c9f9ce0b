"""The module that an object says it is of (`__module__`), which classes and functions may not have or may have anything for.

`type("A", (), {})` run where there is no `__name__` makes a class whose `__module__` raises AttributeError.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

_of_class: Final[Callable[[type], object]] = type.__dict__["__module__"].__get__


def module_of(obj: object) -> str:
    """Its module's name; "" where it has none or one that is no text. Of a class whatever its metaclass has for the name."""
    try:
        found = _of_class(obj) if isinstance(obj, type) else obj.__module__
    except AttributeError:
        return ""
    return found if isinstance(found, str) else ""


def package_of(obj: object) -> str:
    """The first part of its module's name."""
    return module_of(obj).partition(".")[0]
