"""What `types.SimpleNamespace` and its subclasses do in C, in plain Python."""

from __future__ import annotations

import types
from typing import Any, Final

from fxjit.frontend.values.calls import polyfill

_METHODS: Final = vars(types.SimpleNamespace)


def _takes_a_mapping() -> bool:
    """Whether attributes may be given as a mapping or pairs, as from Python 3.13 on."""
    fn: Any = types.SimpleNamespace
    try:
        fn({})
    except TypeError:
        return False
    return True


_TAKES_A_MAPPING: Final = _takes_a_mapping()


@polyfill(_METHODS["__init__"])
def init(self: types.SimpleNamespace, /, *pairs: Any, **attributes: Any) -> None:
    if pairs and not _TAKES_A_MAPPING:
        raise TypeError("no positional arguments expected")
    if len(pairs) > 1:
        raise TypeError(f"{type(self).__name__} expected at most 1 argument, got {len(pairs)}")
    for given in pairs:
        named = given if isinstance(given, dict) else dict(given)
        if not all(isinstance(name, str) for name in named):
            raise TypeError("keywords must be strings")
        self.__dict__.update(named)
    self.__dict__.update(attributes)


@polyfill(_METHODS["__eq__"])
def eq(self: Any, other: Any, /) -> Any:
    return self.__dict__ == other.__dict__ if _are_both(self, other) else NotImplemented


@polyfill(_METHODS["__ne__"])
def ne(self: Any, other: Any, /) -> Any:
    return self.__dict__ != other.__dict__ if _are_both(self, other) else NotImplemented


@polyfill(_METHODS["__lt__"])
def lt(self: Any, other: Any, /) -> Any:
    return self.__dict__ < other.__dict__ if _are_both(self, other) else NotImplemented


@polyfill(_METHODS["__le__"])
def le(self: Any, other: Any, /) -> Any:
    return self.__dict__ <= other.__dict__ if _are_both(self, other) else NotImplemented


@polyfill(_METHODS["__gt__"])
def gt(self: Any, other: Any, /) -> Any:
    return self.__dict__ > other.__dict__ if _are_both(self, other) else NotImplemented


@polyfill(_METHODS["__ge__"])
def ge(self: Any, other: Any, /) -> Any:
    return self.__dict__ >= other.__dict__ if _are_both(self, other) else NotImplemented


def _are_both(self: Any, other: Any) -> bool:
    """By their types, as C has it: what merely says that it is one (`__class__`) is none."""
    return issubclass(type(self), types.SimpleNamespace) and issubclass(type(other), types.SimpleNamespace)


@polyfill(_METHODS["__repr__"])
def repr_(self: types.SimpleNamespace, /) -> str:
    name = "namespace" if type(self) is types.SimpleNamespace else type(self).__name__
    named = [f"{key}={value!r}" for key, value in self.__dict__.items() if isinstance(key, str) and key]
    return f"{name}({', '.join(named)})"
