"""Imports every file of handlers and every polyfill, so that they register in values/calls.py. trace.py imports this."""

from __future__ import annotations

import importlib
import pkgutil

from fxjit.frontend import callables, polyfills

for _package in (callables, polyfills):
    for _module in pkgutil.iter_modules(_package.__path__):
        importlib.import_module(f"{_package.__name__}.{_module.name}")
