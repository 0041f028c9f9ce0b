"""fxjit: trace, guard, compile and resume PyTorch programs. The public names, and nothing else."""

from __future__ import annotations

import importlib
from types import ModuleType

from .pythons import refusal_here

if _refused := refusal_here():
    raise ImportError(_refused)
try:
    importlib.import_module("fxjit._C")
except ImportError as error:
    raise ImportError(
        "fxjit's C extension cannot be loaded. Build it with `pip install .` in a clone; it needs a C compiler and "
        f"CPython's headers (Debian, Ubuntu: apt install gcc python3-dev). The loader said: {error}"
    ) from error

from . import config, errors
from .api import (
    allow_in_graph,
    assume_constant_result,
    compile,
    disable,
    disallow_in_graph,
    error_on_graph_break,
    forbid_in_graph,
    graph_break,
    is_compiling,
    load,
    load_cache_artifacts,
    load_compiled_function,
    mark_dynamic,
    mark_static,
    mark_unbacked,
    maybe_mark_dynamic,
    reset,
    run,
    save_cache_artifacts,
    skip_frame,
    substitute_in_graph,
    wait_for_compiles,
    wrap_numpy,
)
from .artifact import save
from .backends.registry import list_backends, lookup_backend, register_backend
from .counters import compile_times, counters
from .explain import explain
from .install import install, installed, uninstall
from .logs import set_logs
from .profiler import CompileProfiler
from .stance import set_stance

__version__ = "0.1.0"


def __getattr__(name: str) -> ModuleType:
    if name == "testing":  # imported at its first use: it imports torch, which `import fxjit` does not
        return importlib.import_module("fxjit.testing")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


__all__ = [
    "CompileProfiler",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "compile_times",
    "config",
    "counters",
    "disable",
    "disallow_in_graph",
    "error_on_graph_break",
    "errors",
    "explain",
    "forbid_in_graph",
    "graph_break",
    "install",
    "installed",
    "is_compiling",
    "list_backends",
    "load",
    "load_cache_artifacts",
    "load_compiled_function",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "mark_unbacked",
    "maybe_mark_dynamic",
    "register_backend",
    "reset",
    "run",
    "save",
    "save_cache_artifacts",
    "set_logs",
    "set_stance",
    "skip_frame",
    "substitute_in_graph",
    "uninstall",
    "wait_for_compiles",
    "wrap_numpy",
]
