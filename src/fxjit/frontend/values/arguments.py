"""Argument errors of builtins, in CPython's own words: a call that does not fit is made on harmless arguments to see what it
says."""

from __future__ import annotations

import collections
import functools
import inspect
import itertools
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, NoReturn

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import Value
from fxjit.guards.source import namespace_of

_signatures: dict[Any, inspect.Signature | None] = {}


def refusal(fn: Any, count: int, names: Iterable[str]) -> str | None:
    """In what words `fn` itself refuses this many arguments and these names. None where its signature would take them, or is
    not known: then nothing is called."""
    if hasattr(fn, "__wrapped__"):
        return None
    given, named = [None] * count, dict.fromkeys(names)
    try:
        inspect.signature(fn).bind(*given, **named)
    except TypeError:
        pass
    except ValueError:
        if fn not in _HARMLESS:
            return None
    else:
        return None
    try:
        fn(*given, **named)
    except TypeError as error:
        return str(error)
    return None


#: Callables without a signature that do nothing when they are called with None.
_HARMLESS: Final = frozenset({functools.reduce, itertools.repeat, itertools.zip_longest})
#: Builtin types whose methods are looked up on an empty instance.
_EMPTY: Final = (list, dict, set, frozenset, tuple, str, bytes, int, float, collections.deque, collections.OrderedDict)


def refused_by_method(cls: type, name: str, count: int, names: Iterable[str]) -> str | None:
    """In what words a builtin type's method refuses this many arguments and these names; None where it may take them."""
    return refusal(getattr(cls(), name), count, names) if cls in _EMPTY else None


def refuse_arguments(t: Tracer, receiver: Value, name: str, count: int, names: Iterable[str], problem: str) -> NoReturn:
    cls = receiver.pytype()
    text = refused_by_method(cls, name, count, names)
    owner = next((each for each in cls.__mro__ if name in namespace_of(each)), cls)
    t.raise_(TypeError, text or f"{owner.__name__}.{name}() {problem}")


def misfit(method: Callable[..., Any], args: Sequence[Value], kwargs: Mapping[str, Value]) -> str | None:
    """The mismatch of these arguments with `meth_...(tracer, *args, **kwargs)`; None when they fit."""
    fn = method.__func__ if isinstance(method, types.MethodType) else method
    if fn not in _signatures:
        try:
            _signatures[fn] = inspect.signature(method)
        except (TypeError, ValueError):
            _signatures[fn] = None
    signature = _signatures[fn]
    if signature is None:
        return None
    try:
        signature.bind(None, *args, **kwargs)
    except TypeError:
        positional = [parameter for parameter in list(signature.parameters.values())[1:]
                      if parameter.kind is not inspect.Parameter.KEYWORD_ONLY]
        if kwargs:
            return "got unexpected arguments"
        if not positional:
            return f"takes no arguments ({len(args)} given)"
        required = sum(parameter.default is inspect.Parameter.empty for parameter in positional)
        if required == len(positional):
            return f"takes exactly {_number(required)} ({len(args)} given)"
        if len(args) < required:
            return f"expected at least {required} argument{'s' * (required != 1)}, got {len(args)}"
        return f"expected at most {len(positional)} arguments, got {len(args)}"
    return None


def _number(count: int) -> str:
    return "one argument" if count == 1 else f"{count} arguments"
