"""Functions that tracing depends on, and torch's fake tensors with it: methods of tensors, and functions of Python. While a
program has replaced one, nothing can be traced."""

from __future__ import annotations

import builtins
import functools
import itertools
import sys
import typing
from collections.abc import Mapping
from types import BuiltinFunctionType, ModuleType
from typing import Final

import torch

from fxjit.homes import module_of

_METHODS: Final = ("size", "stride", "dim", "shape", "is_contiguous", "storage_offset", "__setattr__", "__getattribute__",
                   "__getattr__")
#: Of the builtins, all classes too.
_FUNCTIONS: Final[Mapping[ModuleType, str]] = {
    builtins: "all any callable compile delattr dir eval exec format getattr globals hasattr hash id isinstance issubclass "
              "iter len locals max min next ord repr setattr sorted sum vars NotImplemented",
    functools: "partial reduce wraps",
    itertools: "chain",
    typing: "cast",
}


def _method(name: str) -> object:
    return next((vars(cls)[name] for cls in torch.Tensor.__mro__ if name in vars(cls)), None)


def _function(module: ModuleType, name: str) -> object:
    """Python's own function; None where a program replaced the builtin before fxjit was imported."""
    found = vars(module)[name]
    own = module is not builtins or found is NotImplemented or (
        isinstance(found, (type, BuiltinFunctionType)) and module_of(found) == "builtins")
    return found if own else None


_CLASSES: Final = [name for name, found in vars(builtins).items() if isinstance(found, type) and not name.startswith("_")]
_TORCHS: Final = {name: _method(name) for name in _METHODS}
_PYTHONS: Final = tuple((f"{module.__name__}.{name}", name, vars(module), _function(module, name))
                        for module, names in _FUNCTIONS.items()
                        for name in (*names.split(), *(_CLASSES if module is builtins else ())))
#: Modules of Python that a compile calls, but for those whose names are hooks (sys, warnings, threading, logging).
_CALLED: Final = (
    *("builtins", "ast", "collections", "contextlib", "copy", "ctypes", "dataclasses", "enum", "functools", "hashlib"),
    *("importlib", "inspect", "io", "itertools", "json", "math", "operator", "os", "os.path", "pathlib", "pickle", "platform"),
    *("random", "re", "shutil", "stat", "string", "struct", "subprocess", "tempfile", "textwrap", "time", "traceback", "types"),
    *("typing", "weakref"),
)
#: The functions and classes in each, those of builtins with its constants.
_LIBRARY: Final = {
    name: (vars(module), {each: found for each, found in vars(module).items() if module is builtins or callable(found)})
    for name in _CALLED if (module := sys.modules.get(name)) is not None
}  # fmt: skip


def python_replaced() -> str | None:
    """The function or class of Python that tracing relies on and that is replaced now. Calls no builtin, since it may be
    the replaced one."""
    for told, name, namespace, pythons in _PYTHONS:
        if namespace.get(name) is not pythons:
            return told
    return None


def any_function_replaced() -> str | None:
    """A builtin, or a function of the modules of Python that a compile calls, that is another than when fxjit was imported: of
    those that programs may replace and are traced with (`unittest.mock.patch("builtins.open")`), one that does something else
    altogether is what made a compile fail, if it did."""
    return next((f"{module}.{name}" for module, (namespace, functions) in _LIBRARY.items()
                 for name, found in functions.items() if namespace.get(name) is not found), None)


def torch_replaced() -> str | None:
    """The method of tensors that is not torch's own now."""
    return next((name for name, torchs in _TORCHS.items() if _method(name) is not torchs), None)
