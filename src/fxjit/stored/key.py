"""The key of a code object's stored entries: all that decides what tracing a frame of it gives, but for what guards check.

That is the code, the options, the state of the process (state.py), the versions of Python, torch, fxjit and what their code
takes for granted, the processor, and the flags of the compiler. The compiler itself is in the entry: where there is none, as in
a small image, an entry that came with its libraries is good.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import sys
from types import CodeType
from typing import Any, Final

import torch

from fxjit.backends.native.runtime import cc
from fxjit.backends.store.graphs import own_code

from .objects import NotStorable, code_digest
from .state import State, present

#: Packages that tracing takes as they are (frontend/values/descriptors.py), beside torch and Python's own.
_ALONGSIDE: Final = ("numpy", "sympy", "typing_extensions")


def entries_key(code: CodeType, options: Any, state: State | None = None) -> str:
    """As the disk cache wants keys; `state` is that of a compile, or None for the present one. Raises NotStorable where the
    code or the state of the process has no text."""
    chosen = (options.chosen_backend, options.mode, sorted(map(repr, options.options.items())), options.fullgraph,
              options.dynamic)
    if not isinstance(options.chosen_backend, str):
        raise NotStorable("a backend of the program's own")
    state = state or present()
    if state.problem is not None:
        raise NotStorable(state.problem)
    text = repr(("entries", _versions(), code_digest(code), chosen, state.text))
    return hashlib.sha256(text.encode()).hexdigest()[:40]


@functools.cache
def _versions() -> tuple[Any, ...]:
    others = [(name, _version(name)) for name in _ALONGSIDE]
    return (sys.version, torch.__version__, str(torch.version.git_version), own_code(), cc.target(), others)


def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None
