"""Functions that tracing depends on, and torch's fake tensors with it: methods of tensors, and functions of Python. While a
program has replaced one, nothing can be traced."""

from __future__ import annotations

import builtins
import functools
import itertools
import typing
from collections.abc import Mapping
from types import BuiltinFunctionType, ModuleType
from typing import Final

import torch

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
        isinstance(found, (type, BuiltinFunctionType)) and found.__module__ == "builtins")
    return found if own else None


_CLASSES: Final = [name for name, found in vars(builtins).items() if isinstance(found, type) and not name.startswith("_")]
_TORCHS: Final = {name: _method(name) for name in _METHODS}
_PYTHONS: Final = tuple((f"{module.__name__}.{name}", name, vars(module), _function(module, name))
                        for module, names in _FUNCTIONS.items()
                        for name in (*names.split(), *(_CLASSES if module is builtins else ())))
_BUILTINS: Final = dict(vars(builtins))


def python_replaced() -> str | None:
    """The function or class of Python that tracing relies on and that is replaced now. Calls no builtin, since it may be
    the replaced one."""
    for told, name, namespace, pythons in _PYTHONS:
        if namespace.get(name) is not pythons:
            return told
    return None


def any_builtin_replaced() -> str | None:
    """A builtin that is another than when fxjit was imported: of those that programs may replace and are traced with, one that
    does something else altogether is what made tracing fail, if it did."""
    namespace = vars(builtins)
    return next((name for name, found in _BUILTINS.items() if namespace.get(name) is not found), None)


def torch_replaced() -> str | None:
    """The method of tensors that is not torch's own now."""
    return next((name for name, torchs in _TORCHS.items() if _method(name) is not torchs), None)
