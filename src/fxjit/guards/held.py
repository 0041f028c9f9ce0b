"""What guards compare with, and how a message shows it: objects by weak reference, keys of dicts and elements of sets."""

from __future__ import annotations

import itertools
import types
import weakref
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

from fxjit.guards.constants import constant_key, is_plain, is_plain_key, same_constant

#: How many keys a message shows.
_MOST = 20


def _gone(ref: weakref.ref[Any]) -> None:
    """Whoever wants to know asks the reference."""


class WeakHeld:
    """An object held by a weak reference, or by a strong one when its type does not support weak references."""

    __slots__ = ("_label", "_ref", "_strong")

    def __init__(self, obj: object) -> None:
        self._label = short(obj)
        self._strong: object = None
        self._ref: Callable[[], object] | None = None
        try:
            self._ref = weakref.ref(obj, _gone)  # no reference of the program's, as one without a callback may be
        except TypeError:
            self._strong = obj

    @property
    def obj(self) -> Any:
        """None when it is gone; `alive` distinguishes that from a None that was held."""
        return self._strong if self._ref is None else self._ref()

    @property
    def alive(self) -> bool:
        return self._ref is None or self._ref() is not None

    @property
    def objects(self) -> tuple[object, ...]:
        """The object, if it is there and may go."""
        obj = None if self._ref is None else self._ref()
        return () if obj is None else (obj,)

    def is_(self, value: object) -> bool:
        return self.obj is value and self.alive

    def __str__(self) -> str:
        return self._label if self.alive else f"{self._label} (gone)"


def short(value: object, limit: int = 60) -> str:
    """`value` for a message of one line. Never runs a user's `__repr__`."""
    if isinstance(value, type):
        return type.__dict__["__name__"].__get__(value)  # type: ignore[no-any-return]  # a descriptor of C
    if isinstance(value, str | bytes) and type(value) in (str, bytes) and len(value) > limit:
        value = value[:limit]
    if is_plain(value):
        text = repr(value)
        return text if len(text) <= limit else text[: limit - 3] + "..."
    if type(value) in (types.FunctionType, types.BuiltinFunctionType, types.ModuleType):
        return str(getattr(value, "__qualname__", None) or getattr(value, "__name__", "?"))
    if isinstance(value, types.CodeType):
        return f"the code of {value.co_qualname}"
    return f"{type(value).__name__} at {id(value):#x}"


def listed(texts: Iterable[str], number: int) -> str:
    """The first of `number` texts, for a message: a program may have thousands of keys."""
    shown = ", ".join(itertools.islice(texts, _MOST))
    return shown if number <= _MOST else f"{shown}, ... ({number} in all)"


def key_of_key(key: object) -> Hashable:
    """Equal for two keys that `HeldKeys` takes for one."""
    return constant_key(key) if is_plain_key(key) else (type(key), id(key))


class HeldKeys:
    """Keys remembered, in their order: plain constants that are no NaN by value, anything else by identity."""

    __slots__ = ("_others", "_values")

    def __init__(self, keys: Iterable[object]) -> None:
        self._values = list(keys)
        self._others = {place: WeakHeld(key) for place, key in enumerate(self._values) if not is_plain_key(key)}
        for place in self._others:
            self._values[place] = None

    def __len__(self) -> int:
        return len(self._values)

    @property
    def alive(self) -> bool:
        return all(held.alive for held in self._others.values())

    @property
    def objects(self) -> tuple[object, ...]:
        return tuple(obj for held in self._others.values() for obj in held.objects)

    def pairs(self) -> tuple[tuple[Any, bool], ...]:
        """Each key, and whether it is compared by value."""
        if not self._others:
            return tuple(zip(self._values, itertools.repeat(True)))
        return tuple((value, True) if held is None else (held.obj, False) for value, held in self._each())

    def is_at(self, place: int, key: object) -> bool:
        held = self._others.get(place)
        return same_constant(self._values[place], key) if held is None else held.is_(key)

    def texts(self) -> Iterator[str]:
        return (short(value) if held is None else str(held) for value, held in self._each())

    def _each(self) -> Iterator[tuple[Any, WeakHeld | None]]:
        return ((value, self._others.get(place)) for place, value in enumerate(self._values))
