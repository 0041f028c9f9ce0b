"""Symbolic values. Importing the package imports every file in it, so that each value signs up with `wrap`."""

from __future__ import annotations

import importlib
import pkgutil

for _module in pkgutil.iter_modules(__path__):
    importlib.import_module(f"{__name__}.{_module.name}")
