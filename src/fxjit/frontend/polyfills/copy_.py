"""copy.copy and copy.deepcopy of objects whose classes do not say how they are copied."""

from __future__ import annotations

import collections
import copy
import types
from typing import Any

import torch

from fxjit.frontend.callables.library import register_copy
from fxjit.frontend.callables.table import polyfill

_ATOMS = (type(None), bool, int, float, complex, str, bytes, type, range, types.FunctionType, types.BuiltinFunctionType,
          torch.dtype, torch.device, torch.Size)


def copy_object(obj: Any) -> Any:
    """A new instance of the same class with the same attributes (`__reduce_ex__` of plain classes does this)."""
    cls = obj.__class__
    made = cls.__new__(cls)
    if hasattr(obj, "__dict__"):
        made.__dict__.update(obj.__dict__)
    return made


register_copy(copy_object)


@polyfill(copy.deepcopy)
def deepcopy(x: Any, memo: Any = None) -> Any:
    if memo is None:
        memo = {}
    return _deep(x, memo, [])


def _deep(x: Any, memo: Any, alive: list[Any]) -> Any:
    if isinstance(x, _ATOMS):
        return x
    for old, new in alive:
        if old is x:
            return new
    if type(x) is list:
        made: Any = []
        alive.append((x, made))
        for item in x:
            made.append(_deep(item, memo, alive))
        return made
    if type(x) is tuple:
        items = [_deep(item, memo, alive) for item in x]
        if all([new is old for new, old in zip(items, x)]):
            return x
        return tuple(items)
    if type(x) is dict or type(x) is collections.OrderedDict:
        made = type(x)()
        alive.append((x, made))
        for key, value in x.items():
            made[_deep(key, memo, alive)] = _deep(value, memo, alive)
        return made
    if type(x) is set:
        return {_deep(item, memo, alive) for item in x}
    if type(x) is frozenset:
        return frozenset([_deep(item, memo, alive) for item in x])
    if isinstance(x, torch.Tensor):
        made = x.clone().detach()
        alive.append((x, made))
        return made
    if hasattr(type(x), "__deepcopy__"):
        return x.__deepcopy__(memo)
    return _deep_object(x, memo, alive)


def _deep_object(x: Any, memo: Any, alive: list[Any]) -> Any:
    cls = x.__class__
    made = cls.__new__(cls)
    alive.append((x, made))
    for name, value in x.__dict__.items():
        object.__setattr__(made, name, _deep(value, memo, alive))
    return made
