"""When two constants are the same for a trace: exactly the same type, and the same value to the last bit.

1, 1.0 and True are equal to Python and compile to different graphs; so do 0.0 and -0.0. A NaN is the same as
itself. What is not a plain value (a class, an enum member, a dtype) is the same only if it is the same object. The
check "const" of _checks.c (_constants.c) means exactly this.
"""

from __future__ import annotations

import datetime
import fractions
import pathlib
import struct
from collections.abc import Hashable
from typing import Any

import numpy as np
import torch

#: Compared by `==` after the exact type: immutable, without surprises in `__eq__`, and not unique objects.
VALUE_TYPES: frozenset[type] = frozenset({
    torch.device, torch.Size, datetime.timedelta, fractions.Fraction, pathlib.PurePosixPath, pathlib.PosixPath,
})
#: Compared by their three numbers: equal ranges may have other ends.
_THREE = (slice, range)

#: Most keys: nothing in them is to be looked at.
_PLAIN_KEYS = frozenset({str, int, bool, bytes, type(None)})

_BITS = struct.Struct("<d")


def same_constant(a: Any, b: Any) -> bool:
    """See the module's docstring."""
    if a is b:
        return True
    cls = type(a)
    if cls is not type(b):
        return False
    if cls is float:
        return _BITS.pack(a) == _BITS.pack(b)
    if cls is complex:
        return _BITS.pack(a.real) == _BITS.pack(b.real) and _BITS.pack(a.imag) == _BITS.pack(b.imag)
    if cls in (int, str, bytes) or cls in VALUE_TYPES:
        return bool(a == b)
    if cls is tuple:
        return len(a) == len(b) and all(map(same_constant, a, b))
    if cls is frozenset:
        # Equal sets may hold 1 here and True there, and sets with NaN are equal to none.
        return constant_key(a) == constant_key(b)
    if cls in _THREE:
        return same_constant((a.start, a.stop, a.step), (b.start, b.stop, b.step))
    return False


def is_plain(value: Any) -> bool:
    """Whether `same_constant` looks at what it is and not at which object it is."""
    cls = type(value)
    if cls in (tuple, frozenset):
        return all(map(is_plain, value))
    if cls in _THREE:
        return all(map(is_plain, (value.start, value.stop, value.step)))
    return value is None or cls in (int, bool, float, complex, str, bytes) or cls in VALUE_TYPES


def is_plain_key(value: Any) -> bool:
    """Whether a dict finds a key like this one by its value. A NaN is found only as the object that it is."""
    return type(value) in _PLAIN_KEYS or (is_plain(value) and not holds_nan(value))


def holds_nan(value: Any) -> bool:
    """Whether a constant is a NaN, or holds one."""
    cls = type(value)
    if cls is slice:
        value = (value.start, value.stop, value.step)
    if cls is slice or issubclass(cls, (tuple, frozenset)):
        return any(map(holds_nan, value))
    return (cls in (float, complex) or issubclass(cls, np.inexact)) and bool(value != value)


def constant_key(value: Any) -> Hashable:
    """Equal for two values just when they are the same constant."""
    cls = type(value)
    if cls is float:
        return (float, _BITS.pack(value))
    if cls is complex:
        return (complex, _BITS.pack(value.real), _BITS.pack(value.imag))
    if cls in (int, str, bytes) or cls in VALUE_TYPES:
        return (cls, value)
    if cls is tuple:
        return (tuple, *map(constant_key, value))
    if cls is frozenset:
        return (frozenset, len(value), frozenset(map(constant_key, value)))
    if cls in _THREE:
        return (cls, constant_key((value.start, value.stop, value.step)))
    return (cls, id(value))
