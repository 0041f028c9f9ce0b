"""Constants as data: plain values, names of torch, and references (objects.py)."""

from __future__ import annotations

import base64
from typing import Any, Final

import torch

from fxjit.guards.constants import is_plain

from .objects import NotStorable, find, refer

_TORCH: Final = {"dtype": torch.dtype, "layout": torch.layout, "format": torch.memory_format}


def pack(value: Any) -> Any:
    """For `json.dumps`: null, bools, ints and text as they are, all else as a list that begins with its kind. Raises
    NotStorable."""
    kind = type(value)
    if value is None or kind in (bool, int, str):
        return value
    if kind is float:
        return ["float", value.hex()]
    if kind is complex:
        return ["complex", value.real.hex(), value.imag.hex()]
    if kind is bytes:
        return ["bytes", base64.b85encode(value).decode()]
    if value is ...:
        return ["ellipsis"]
    if kind in (tuple, torch.Size):
        return ["tuple" if kind is tuple else "size", *map(pack, value)]
    if kind is frozenset and is_plain(value):
        return ["frozenset", *sorted(map(pack, value), key=repr)]
    if kind in (slice, range):
        return [kind.__name__, *map(pack, (value.start, value.stop, value.step))]
    if kind is torch.device:
        return ["device", str(value)]
    for name, cls in _TORCH.items():
        if kind is cls:
            return [name, str(value).removeprefix("torch.")]
    return ["object", refer(value)]


def pack_plain(value: Any) -> Any:
    """The same of a value that is the same whatever object it is. Raises NotStorable."""
    packed = pack(value)
    if "object" in _kinds(packed):
        raise NotStorable(f"a value of type {type(value).__name__}")
    return packed


def _kinds(packed: Any) -> set[str]:
    if not isinstance(packed, list):
        return set()
    return {packed[0]}.union(*map(_kinds, packed[1:])) if packed[0] != "object" else {"object"}


def unpack(packed: Any) -> Any:
    """The inverse of `pack`. Raises Changed, and ValueError, KeyError or TypeError for what `pack` did not make."""
    if not isinstance(packed, list):
        return packed
    kind, *rest = packed
    if kind in _TORCH:
        found = getattr(torch, rest[0])
        if not isinstance(found, _TORCH[kind]):
            raise ValueError(f"torch.{rest[0]} is no {kind}")
        return found
    return _READERS[kind](rest)


_READERS: Final[dict[str, Any]] = {
    "float": lambda rest: float.fromhex(rest[0]),
    "complex": lambda rest: complex(float.fromhex(rest[0]), float.fromhex(rest[1])),
    "bytes": lambda rest: base64.b85decode(rest[0]),
    "ellipsis": lambda rest: ...,
    "tuple": lambda rest: tuple(map(unpack, rest)),
    "size": lambda rest: torch.Size(map(unpack, rest)),
    "frozenset": lambda rest: frozenset(map(unpack, rest)),
    "slice": lambda rest: slice(*map(unpack, rest)),
    "range": lambda rest: range(*map(unpack, rest)),
    "device": lambda rest: torch.device(rest[0]),
    "object": lambda rest: find(rest[0]),
}
