"""Which module a dict of globals is of, as text: what another process knows it by."""

from __future__ import annotations

import sys
import types
from typing import Any


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
