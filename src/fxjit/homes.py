"""The module that an object says it is of (`__module__`), which classes and functions may not have or may have anything for,
and the names that messages call objects by; modules that are imported by now.

`type("A", (), {})` run where there is no `__name__` makes a class whose `__module__` raises AttributeError.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any, Final

_of_class: Final[Callable[[type], object]] = type.__dict__["__module__"].__get__


def module_of(obj: object) -> str:
    """Its module's name; "" where it has none or one that is no text. Of a class whatever its metaclass has for the name."""
    try:
        found = _of_class(obj) if isinstance(obj, type) else obj.__module__
    except AttributeError:
        return ""
    return found if isinstance(found, str) else ""


def imported_module(name: str) -> Any:
    """The module, which is not imported for it; None also while a thread is still running its code, which gives the module its
    names one after the other."""
    module = sys.modules.get(name)
    return None if getattr(getattr(module, "__spec__", None), "_initializing", False) else module


def package_of(obj: object) -> str:
    """The first part of its module's name."""
    return module_of(obj).partition(".")[0]


def name_with_module(obj: object) -> str:
    """How messages call a function, a class, or a method of a builtin type; without the module where that is `builtins`."""
    owner = getattr(obj, "__objclass__", None)
    if owner is not None:
        return f"{owner.__name__}.{getattr(obj, '__name__', obj)}"
    name = getattr(obj, "__qualname__", None) or getattr(obj, "__name__", None) or repr(obj)
    module = module_of(obj)
    return f"{module}.{name}" if module not in ("", "builtins") else str(name)


def target_name(target: Callable[..., object] | str) -> str:
    """How messages call what a node of a graph calls: a function, or a method of tensors by its name."""
    if isinstance(target, str):
        return f"Tensor.{target}"
    shown: str | None = getattr(target, "shown_as", None)
    return shown or name_with_module(target)
