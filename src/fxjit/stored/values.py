"""Constants as data: plain values, names of torch, references (objects.py), callables of ours by what they were made of."""

from __future__ import annotations

import datetime
import fractions
import pathlib
from collections.abc import Callable
from typing import Any, Final

from fxjit.backends.store.plain_values import Format
from fxjit.guards.constants import is_plain
from fxjit.homes import module_of

from .objects import NotStorable, find, refer


def _write(value: Any) -> list[Any]:
    if type(value) is frozenset and is_plain(value):
        return ["frozenset", *sorted(map(pack, value), key=repr)]
    cls = type(value)
    if cls in _PARTS:
        return ["value", cls.__name__, *map(pack, _PARTS[cls](value))]
    if module_of(cls).startswith("fxjit.") and "__slots__" in vars(cls) and callable(value):
        return ["made", refer(cls), *(pack(getattr(value, name)) for name in cls.__slots__)]
    return ["object", refer(value)]


#: Immutable objects that guards compare by value (guards/constants.py), by what their classes make them of.
_PARTS: Final[dict[type, Callable[[Any], tuple[Any, ...]]]] = {
    datetime.timedelta: lambda span: (span.days, span.seconds, span.microseconds),
    fractions.Fraction: lambda number: (number.numerator, number.denominator),
    pathlib.PurePosixPath: lambda path: (str(path),),
    pathlib.PosixPath: lambda path: (str(path),),
}
_BY_NAME: Final = {cls.__name__: cls for cls in _PARTS}


_format = Format(_write, {"frozenset": lambda rest: frozenset(map(unpack, rest)), "object": lambda rest: find(rest[0]),
                          "value": lambda rest: _BY_NAME[rest[0]](*map(unpack, rest[1:])),
                          "made": lambda rest: find(rest[0])(*map(unpack, rest[1:]))})


def pack(value: Any) -> Any:
    """As `Format.pack`. Raises NotStorable."""
    return _format.pack(value)


def unpack(packed: Any) -> Any:
    """As `Format.unpack`. Raises Changed."""
    return _format.unpack(packed)


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
