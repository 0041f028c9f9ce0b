"""Plain values as JSON and back: numbers, text, bytes, sequences, torch's names for types, layouts and devices.

A `Format` is these and further kinds: serialisation.py has those of compiled graphs, stored/values.py those of entries."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

import torch

_TORCH: Final = {"dtype": torch.dtype, "layout": torch.layout, "format": torch.memory_format}


class Format:
    """What `pack` writes and `unpack` reads. `write` gives the form of a value that is not plain, a list that begins with its
    kind, or raises; `readers` has a function for each of these kinds, which is given the rest of the list."""

    def __init__(self, write: Callable[[Any], list[Any]], readers: Mapping[str, Callable[[list[Any]], Any]]) -> None:
        self._write = write
        self.readers = {**self._plain_readers(), **readers}

    def pack(self, value: Any) -> Any:
        """For `json.dumps`: null, bools, ints and text as they are, all else as a list that begins with its kind."""
        kind = type(value)
        if value is None or kind in (bool, int, str):
            return value
        if kind is float:
            return ["float", value.hex()]
        if kind is complex:
            return ["complex", value.real.hex(), value.imag.hex()]
        if kind is bytes:
            return ["bytes", base64.b64encode(value).decode()]
        if value is ...:
            return ["ellipsis"]
        if kind in (tuple, torch.Size):
            return ["tuple" if kind is tuple else "size", *map(self.pack, value)]
        if kind in (slice, range):
            return [kind.__name__, *map(self.pack, (value.start, value.stop, value.step))]
        if kind is torch.device:
            return ["device", str(value)]
        for name, cls in _TORCH.items():
            if kind is cls:
                return [name, str(value).removeprefix("torch.")]
        return self._write(value)

    def unpack(self, packed: Any) -> Any:
        """The inverse of `pack`; ValueError, KeyError, TypeError or AttributeError for what `pack` did not make, and what the
        further readers raise."""
        if not isinstance(packed, list):
            return packed
        kind, *rest = packed
        return self.readers[kind](rest)

    def _plain_readers(self) -> dict[str, Callable[[list[Any]], Any]]:
        unpack = self.unpack
        return {
            "float": lambda rest: float.fromhex(rest[0]),
            "complex": lambda rest: complex(float.fromhex(rest[0]), float.fromhex(rest[1])),
            "bytes": lambda rest: base64.b64decode(rest[0]),
            "ellipsis": lambda rest: ...,
            "tuple": lambda rest: tuple(map(unpack, rest)),
            "size": lambda rest: torch.Size(map(unpack, rest)),
            "slice": lambda rest: slice(*map(unpack, rest)),
            "range": lambda rest: range(*map(unpack, rest)),
            "device": lambda rest: torch.device(rest[0]),
            **{name: _reader_of(name) for name in _TORCH},
        }  # fmt: skip


def _reader_of(kind: str) -> Callable[[list[Any]], Any]:
    def read(rest: list[Any]) -> Any:
        found = getattr(torch, rest[0])
        if not isinstance(found, _TORCH[kind]):
            raise ValueError(f"torch.{rest[0]} is no {kind}")
        return found

    return read
