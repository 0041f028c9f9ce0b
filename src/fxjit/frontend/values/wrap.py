"""From an object and its source to a symbolic value: the registry that values sign up in.

Looked up by exact type, then along the MRO among registrations that admit subclasses, then by predicate; what
nothing claims goes to the fallback (objects.py). This module imports no value class: they register here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, TypeVar

if TYPE_CHECKING:
    from fxjit.frontend.tracer import Tracer
    from fxjit.frontend.values.base import Value
    from fxjit.guards.source import Source

Wrapper = Callable[[Any, Any, Any], Any]
W = TypeVar("W", bound=Wrapper)
Factory = Callable[[Any, Any], Any]
M = TypeVar("M", bound=Factory)

_exact: Final[dict[type, Wrapper]] = {}
_by_mro: Final[dict[type, Wrapper]] = {}
_predicates: Final[list[tuple[int, Callable[[object], bool], Wrapper]]] = []
_fallback: Final[list[Wrapper]] = []
_factories: Final[dict[type, Factory]] = {}


def wraps(*types: type, subclasses: bool = False) -> Callable[[W], W]:
    """Register a wrapper `fn(tracer, obj, source) -> Value` for these exact types (and their subclasses, with `subclasses`)."""
    def register(fn: W) -> W:
        for cls in types:
            table = _by_mro if subclasses else _exact
            assert cls not in table, f"two wrappers claim {cls.__name__}"
            table[cls] = fn
        return fn
    return register


def wraps_if(predicate: Callable[[object], bool], order: int = 50) -> Callable[[W], W]:
    """Register a wrapper for objects that satisfy `predicate`; lower orders are tried first."""
    def register(fn: W) -> W:
        _predicates.append((order, predicate, fn))
        _predicates.sort(key=lambda row: row[0])
        return fn
    return register


def wraps_everything_else(fn: W) -> W:
    """Register the fallback; there is one."""
    assert not _fallback, "the fallback wrapper is registered twice"
    _fallback.append(fn)
    return fn


def creates(*types: type) -> Callable[[M], M]:
    """Register a maker `fn(tracer, obj) -> Value` for objects of these exact types that come from nowhere: a container
    of things known while tracing, say. A maker adds no guard and sets no source."""
    def register(fn: M) -> M:
        for cls in types:
            assert cls not in _factories, f"two makers claim {cls.__name__}"
            _factories[cls] = fn
        return fn
    return register


def factory_of(cls: type) -> Factory | None:
    """The maker registered for exactly this type."""
    return _factories.get(cls)


def wrap_object(t: Tracer, obj: object, source: Source) -> Value:
    """The value of `obj`. Memoising by identity is the tracer's part."""
    wrapper = _exact.get(type(obj))
    if wrapper is not None:
        return wrapper(t, obj, source)  # type: ignore[no-any-return]  # wrappers sign up untyped
    for _, predicate, candidate in _predicates:
        if predicate(obj):
            return candidate(t, obj, source)  # type: ignore[no-any-return]  # wrappers sign up untyped
    wrapper = next((_by_mro[base] for base in type(obj).__mro__ if base in _by_mro), _fallback[0])
    return wrapper(t, obj, source)  # type: ignore[no-any-return]  # wrappers sign up untyped


def wrap_as_base(t: Tracer, obj: object, source: Source) -> Value:
    """The builtin part of an instance of a subclass of a builtin type: wrapped by the nearest base's own wrapper."""
    for base in type(obj).__mro__[1:]:
        if base in _exact:
            return _exact[base](t, obj, source)  # type: ignore[no-any-return]  # wrappers sign up untyped
    raise AssertionError(f"{type(obj).__name__} derives from no builtin type that has a wrapper")
