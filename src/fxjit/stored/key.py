"""The key of a code object's stored entries: all that decides what tracing a frame of it gives, but for what guards check.

That is the code, the options and settings, the state of the process, the versions of Python, torch, fxjit and what their code
takes for granted, the processor and the compiler, and the marks that the program put on its functions.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import sys
from types import CodeType
from typing import Any, Final

import torch

from fxjit import config
from fxjit.backends.native.runtime import cc
from fxjit.backends.store.fingerprints import NoText, process_text
from fxjit.backends.store.graphs import own_code
from fxjit.skips import marks

from .objects import NotStorable, code_digest

#: Settings that say where and how much is kept, and what is shown.
_APART: Final = frozenset({"cache_dir", "cache_size_mb", "verbose", "store_entries"})
#: Packages that tracing takes as they are (frontend/values/descriptors.py), beside torch and Python's own.
_ALONGSIDE: Final = ("numpy", "sympy", "typing_extensions")


def entries_key(code: CodeType, options: Any) -> str:
    """As the disk cache wants keys. Raises NotStorable where the code or the state of the process has no text."""
    settings = [(name, repr(_setting(name))) for name in config.SETTINGS if name not in _APART]
    chosen = (options.chosen_backend, options.mode, sorted(map(repr, options.options.items())), options.fullgraph,
              options.dynamic)
    if not isinstance(options.chosen_backend, str):
        raise NotStorable("a backend of the program's own")
    try:
        process = process_text()
    except NoText as why:
        raise NotStorable(str(why)) from None
    text = repr(("entries", _versions(), code_digest(code), chosen, settings, process, marks.described(),
                 torch.cuda.is_available() and torch.cuda.device_count()))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


def _setting(name: str) -> Any:
    """The present value of a setting."""
    found: Any = config
    for part in name.split("."):
        found = getattr(found, part)
    return found


@functools.cache
def _versions() -> tuple[Any, ...]:
    others = [(name, _version(name)) for name in _ALONGSIDE]
    return (sys.version, torch.__version__, str(torch.version.git_version), own_code(), cc.identity(), others)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
