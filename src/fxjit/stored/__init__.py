"""Stored entries (`config.store_entries`): compiled entries of code objects on the disk, which the next process installs
without tracing or lowering."""

from __future__ import annotations

import importlib
from types import ModuleType

from fxjit import torch_private

_FEATURE = "compiled graphs on the disk"


def entries_module() -> ModuleType | None:
    """stored/entries.py, imported when it is first needed because it is heavy; None where this torch lacks a name of what it
    stores: then nothing is kept and nothing found."""
    if not torch_private.is_on(_FEATURE):
        return None
    try:
        return importlib.import_module("fxjit.stored.entries")
    except torch_private.LACKING:
        if torch_private.is_on(_FEATURE, thoroughly=True):
            raise
        return None
