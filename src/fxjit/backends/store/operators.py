"""Operators of installed packages, as text for graphs on the disk: what AOTAutograd takes from an operator's definition.

That is its schema and the Python functions which say what its results look like and how it is derived; what it does is looked
up when it is called. A function of an installed package is what its file and the package's version say; one of the program's
own may be another next time, and so may what other registrations do.
"""

from __future__ import annotations

import functools
import hashlib
import importlib.metadata
import sys
import types
from pathlib import Path
from typing import Any

import torch
from torch._library.custom_ops import OPDEFS
from torch._library.simple_registry import singleton

#: Namespaces of operators that torch's version says all about.
TORCHS = ("aten", "prims")
#: What `torch.library.custom_op` registers by itself.
_USUAL = frozenset({"Autograd", "Meta", "CompositeExplicitAutograd", "ADInplaceOrView"})


class Unknown(Exception):
    """The operator may be another one next time; why."""


def operator_text(operator: torch._ops.OpOverload) -> str:
    """All of an operator's definition that decides what a graph with it compiles to. Raises Unknown."""
    name = operator._schema.name
    definition: Any = OPDEFS.get(name)
    prefix = name.replace("::", "/") + "/"
    registered = {each.removeprefix(prefix) for each in torch.library._impls if each.startswith(prefix)}
    entry: Any = singleton.find(name)
    if definition is None or not registered <= _USUAL:
        raise Unknown(f"the operator {operator}")
    if entry.torch_dispatch_rules._data or entry.effect.effect is not None:
        raise Unknown(f"the operator {operator}")
    functions = (definition._abstract_fn, definition._setup_context_fn, definition._backward_fn)
    if any(each is not None and not _is_installed(each) for each in functions):
        raise Unknown(f"the operator {operator}, whose code is the program's own")
    autocast = sorted((field, str(value)) for field, value in vars(definition).items() if "autocast" in field)
    return repr((str(operator._schema), operator.tags, sorted(registered), autocast, [_text(each) for each in functions]))


def _is_installed(function: Any) -> bool:
    """Whether a plain function is what the module that it names has in a file of an installed package."""
    if not isinstance(function, types.FunctionType) or function.__closure__ or not isinstance(function.__module__, str):
        return False
    file = Path(function.__code__.co_filename)
    module: Any = sys.modules.get(function.__module__)
    package: Any = sys.modules.get(function.__module__.partition(".")[0])
    if getattr(module, function.__qualname__, None) is not function or getattr(package, "__file__", None) is None:
        return False
    home = Path(str(package.__file__)).parent
    inside = home.parent.name in ("site-packages", "dist-packages") and home in file.parents
    return inside and _version(home.name) is not None


def _text(function: types.FunctionType | None) -> tuple[str, ...] | None:
    if function is None:
        return None
    package = function.__module__.partition(".")[0]
    return function.__module__, function.__qualname__, str(_version(package)), _hash(function.__code__.co_filename)


@functools.cache
def _version(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


@functools.cache
def _hash(file: str) -> str:
    return hashlib.sha256(Path(file).read_bytes()).hexdigest()
