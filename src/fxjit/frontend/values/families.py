"""Imports every file of values, so that each signs up with `wrap`. trace.py imports this; run-time helpers of new code stand in
some of the files, and a process that starts from stored entries imports those alone."""

from __future__ import annotations

import importlib
import pkgutil

from fxjit.frontend import values

for _module in pkgutil.iter_modules(values.__path__):
    importlib.import_module(f"{values.__name__}.{_module.name}")
