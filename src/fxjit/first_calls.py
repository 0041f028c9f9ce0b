"""First calls that ran eagerly, under the stance `eager_then_compile`: what of their arguments decides on shapes is kept, so
that the compile at the second call knows which sizes and numbers vary.
"""

from __future__ import annotations

import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from types import CodeType
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Layout:
    """Of a tensor that a call was given."""

    sizes: tuple[int, ...]
    strides: tuple[int, ...]


_calls: dict[tuple[int, int], tuple[weakref.ref[CodeType], list[Any]]] = {}
#: How deep containers are looked into.
_DEPTH = 3


def note(code: CodeType, key: object, args: Sequence[object]) -> bool:
    """Whether this is the first call of `code` in the region of this key."""
    if _known(code, key) is not None:
        return False
    _calls[id(code), id(key)] = weakref.ref(code), [_facts(arg, _DEPTH) for arg in args]
    return True


def given(code: CodeType, key: object) -> list[Any]:
    """What the first call was given: a `Layout` for each tensor, numbers as they were, lists and dicts of these; None for all
    others. Empty where none was noted."""
    return _known(code, key) or []


def forget() -> None:
    _calls.clear()


def _known(code: CodeType, key: object) -> list[Any] | None:
    found = _calls.get((id(code), id(key)))
    return found[1] if found is not None and found[0]() is code else None


def _facts(value: object, depth: int) -> Any:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        plain = kind in (torch.Tensor, torch.nn.Parameter) and value.layout is torch.strided and not value.is_nested
        return Layout(tuple(value.shape), value.stride()) if plain else None
    if kind in (int, float):
        return value
    if depth and isinstance(value, (list, tuple)) and kind in (list, tuple):
        return [_facts(each, depth - 1) for each in value]
    if depth and isinstance(value, dict) and kind is dict:
        return {name: _facts(each, depth - 1) for name, each in value.items() if type(name) is str}
    return None
