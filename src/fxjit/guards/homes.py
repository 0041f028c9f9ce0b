"""Globals of functions: which module a dict of them is of, as text that another process knows it by; whether code uses any."""

from __future__ import annotations

import dis
import sys
import types
from typing import Any, Final

#: Instructions that read or write a global, in any Python; an import asks its globals where it is.
_OF_GLOBALS: Final = frozenset(dis.opmap.get(name) for name in (
    "LOAD_GLOBAL", "STORE_GLOBAL", "DELETE_GLOBAL", "LOAD_NAME", "LOAD_FROM_DICT_OR_GLOBALS", "IMPORT_NAME"))


def home_of(namespace: dict[str, Any]) -> str:
    """The name of the module whose globals these are; or all names of it, where it does not stand under its own; or that they
    are no module's, as what `exec` filled."""
    name = dict.get(namespace, "__name__")
    if isinstance(name, str) and _is_home(sys.modules.get(name), namespace):
        return name
    names = sorted(key for key, module in [*sys.modules.items()] if isinstance(key, str) and _is_home(module, namespace))
    return f"{names} called {name!r}" if isinstance(name, str) else f"{names} without a name"


def _is_home(module: object, namespace: dict[str, Any]) -> bool:
    return isinstance(module, types.ModuleType) and vars(module) is namespace


def uses_globals(code: types.CodeType) -> bool:
    """Whether the code, or that of functions made in it, reads or writes globals."""
    if not _OF_GLOBALS.isdisjoint(code.co_code[::2]):
        return True
    return any(uses_globals(each) for each in code.co_consts if isinstance(each, types.CodeType))
