"""What tracing itself calls, and torch's fake tensors with it: methods of tensors, and functions of Python. While a program has
functions of its own in their place, nothing can be traced."""

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
_FUNCTIONS: Final[Mapping[ModuleType, str]] = {
    builtins: "all any bool callable dict enumerate filter float frozenset hasattr hash id int iter len list map max min next "
              "object property range repr reversed set slice sorted staticmethod classmethod str sum super tuple type zip",
    functools: "partial reduce wraps",
    itertools: "chain",
    typing: "cast",
}


def _method(name: str) -> object:
    return next((vars(cls)[name] for cls in torch.Tensor.__mro__ if name in vars(cls)), None)


def _function(module: ModuleType, name: str) -> object:
    """What Python has there; None where a program put another builtin there before fxjit was imported."""
    found = vars(module)[name]
    own = module is not builtins or (isinstance(found, (type, BuiltinFunctionType)) and found.__module__ == "builtins")
    return found if own else None


_TORCHS: Final = {name: _method(name) for name in _METHODS}
_PYTHONS: Final = tuple((module.__name__, name, vars(module), _function(module, name))
                        for module, names in _FUNCTIONS.items() for name in names.split())


def replaced() -> tuple[str, dict[str, str]] | None:
    """The reason not to trace, and what it names: a method that is not torch's own now, or a function that is not Python's."""
    for module, name, namespace, pythons in _PYTHONS:
        if namespace.get(name) is not pythons:
            return "skip-python-replaced", {"name": f"{module}.{name}"}
    for name, torchs in _TORCHS.items():
        if _method(name) is not torchs:
            return "skip-torch-replaced", {"method": name}
    return None
