"""What wraps a Python function without being one: functools.partial, staticmethod, classmethod, functools.lru_cache."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fxjit.frontend.callables.table import handles
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Callee, Rebuilder, Tracer, Value
from fxjit.frontend.values.functions import items_of, string_items
from fxjit.frontend.values.keys import IdentityKey, compares_by_identity
from fxjit.frontend.values.natives import BuiltinMethodValue, find_handler
from fxjit.frontend.values.objects import UserObjectValue
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.wrap import makes, wraps
from fxjit.guards.kinds import IdIs, TypeIs
from fxjit.guards.source import AttrSource, ConstSource, Source


class PartialValue(Value):
    """A functools.partial."""

    def __init__(self, func: Value, args: Sequence[Value], kwargs: Mapping[str, Value], source: Source | None = None) -> None:
        super().__init__(source)
        self.func = func
        self.args = list(args)
        self.kwargs = dict(kwargs)
        self.keywords_value: Value | None = None

    def pytype(self) -> type:
        return functools.partial

    def describe(self) -> str:
        return f"partial of {self.func.describe()}"

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        given = [arg.realize() for arg in self.args]
        named = {name: value.realize() for name, value in self.kwargs.items()}
        return t.call(self.func.realize(), [*given, *args], {**named, **kwargs})

    def callee(self, t: Tracer, args: list[Value]) -> Callee | None:
        return None if self.kwargs else Callee(self.func.realize(), [*(arg.realize() for arg in self.args), *args])

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "func":
            return self.func.realize()
        if name == "args":
            return TupleValue(self.args)
        if name == "keywords":
            if self.keywords_value is None:
                known = {key: value.realize() for key, value in self.kwargs.items()}
                self.keywords_value = t.call(t.make(dict), [], known)
            return self.keywords_value
        pending = t.effects.load_attr(self, name)
        if isinstance(pending, Value):
            return pending
        return super().tp_getattro(t, name)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        if name in ("func", "args", "keywords"):
            t.raise_(AttributeError, "readonly attribute")
        t.effects.store_attr(self, name, value)

    def tp_hash(self, t: Tracer) -> Value:
        t.break_("value-slot", slot="hash", type="functools.partial")

    def rebuild(self, cg: Rebuilder) -> None:
        names = tuple(self.kwargs)
        cg.call(make_partial, names, self.func, *self.args, *self.kwargs.values())
        for name, value in cg.effects.stored_attrs(self).items():  # type: ignore[attr-defined]
            if value is not None:
                cg.asm.dup()
                cg.push(value)
                cg.asm.swap(2)
                cg.asm.store_attr(name)


def make_partial(names: tuple[str, ...], func: Callable[..., Any], *args: Any) -> Any:
    """What new bytecode calls to make a partial that was made while tracing."""
    split = len(args) - len(names)
    return functools.partial(func, *args[:split], **dict(zip(names, args[split:], strict=True)))


class StaticMethodValue(Value):
    """A staticmethod or classmethod object, as a decorator leaves it."""

    def __init__(self, func: Value, cls: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.func = func
        self.cls = cls

    def pytype(self) -> type:
        return self.cls

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        if self.cls is classmethod:
            t.raise_(TypeError, "'classmethod' object is not callable")
        return t.call(self.func.realize(), args, kwargs)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name in ("__func__", "__wrapped__"):
            return self.func.realize()
        return super().tp_getattro(t, name)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(self.cls, self.func)


class CachedFunctionValue(Value):
    """A function under functools.lru_cache or functools.cache: its function is traced, once in a trace for the same constants
    and objects that are equal to themselves only. One that is called for what it writes to the outside (`warning_once`) is
    called itself, after the graph; any other that changes what existed before is called by the running program."""

    def __init__(self, fn: Any, source: Source | None) -> None:
        super().__init__(source)
        self.fn = fn
        self._known: dict[Any, Value] = {}

    def pytype(self) -> type:
        return type(self.fn)

    def describe(self) -> str:
        return f"cached function `{self.fn.__qualname__}`"

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        handler = find_handler(self.fn)
        if handler is not None:
            return handler(t, list(args), dict(kwargs))
        key = _constant_key(args, kwargs)
        if key is not None and key in self._known:
            return self._known[key]
        result = self._call_function(t, args, kwargs)
        if key is not None:
            self._known[key] = result
        return result

    def _call_function(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        before = t.effects.length()
        result = t.call(protocol.getattr_(t, self, "__wrapped__"), args, kwargs)
        if t.effects.length() != before:
            if not (result.is_constant() and result.as_constant() is None and t.effects.withdraw_calls(before)):
                t.break_("call-print", function=self.fn.__qualname__)
            t.effects.call_later(call_named, (self.fn, tuple(kwargs), *args, *kwargs.values()))
        return result

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name in ("cache_info", "cache_clear", "cache_parameters"):
            return BuiltinMethodValue(self, name)
        if name == "__class__":
            return t.make(type(self.fn))
        try:
            found = getattr(self.fn, name)
        except AttributeError as error:
            t.raise_(AttributeError, *error.args)
        assert self.source is not None
        return t.wrap(found, AttrSource(self.source, name))

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push_const(self.fn)


def _constant_key(args: Sequence[Value], kwargs: Mapping[str, Value]) -> Any:
    """What stands for the arguments in a cache; None where they are not all plain constants, or equal to themselves only."""
    parts: list[Any] = []
    for name, value in (*enumerate(args), *kwargs.items()):
        value = value.realize()
        if isinstance(value, UserObjectValue) and compares_by_identity(value.cls):
            parts += [name, value.cls, IdentityKey(value)]
            continue
        if not value.is_constant() or not isinstance(value.as_constant(), (int, float, str, bytes, type(None), type)):
            return None
        parts += [name, value.pytype(), value.as_constant()]
    return tuple(parts)


class MadeCachedFunctionValue(CachedFunctionValue):
    """`functools.lru_cache(...)(func)` in a traced frame."""

    def __init__(self, func: Value, arguments: tuple[Any, ...]) -> None:
        super().__init__(None, None)
        self.func = func
        self.arguments = arguments

    def pytype(self) -> type:
        return _LRU_TYPE

    def describe(self) -> str:
        return f"cached {self.func.describe()}"

    def _call_function(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        return t.call(self.func, args, kwargs)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        written = t.effects.load_attr(self, name)
        if isinstance(written, Value):
            return written
        if name in ("cache_info", "cache_clear", "cache_parameters"):
            return BuiltinMethodValue(self, name)
        if name == "__class__":
            return t.make(_LRU_TYPE)
        return protocol.getattr_(t, self.func, name)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        t.effects.store_attr(self, name, value)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(_make_cached_function, self.func, *self.arguments)
        for name, value in cg.effects.stored_attrs(self).items():
            if value is not None:
                cg.asm.dup()
                cg.push(value)
                cg.asm.swap(2)
                cg.asm.store_attr(name)


def _make_cached_function(func: Callable[..., Any], maxsize: int | None, typed: bool) -> Any:
    return functools.lru_cache(maxsize, typed)(func)


def call_named(fn: Callable[..., Any], names: tuple[str, ...], *args: Any) -> Any:
    """Call `fn` with the last arguments under `names`."""
    split = len(args) - len(names)
    return fn(*args[:split], **dict(zip(names, args[split:], strict=True)))


# -- wrapping ------------------------------------------------------------------------------------------------------

_LRU_TYPE: Final = type(functools.lru_cache(maxsize=None)(len))


@wraps(functools.partial)
def wrap_partial(t: Tracer, partial: Any, source: Source) -> Value:
    t.guard(TypeIs(source, functools.partial))
    func = t.wrap(partial.func, AttrSource(source, "func"))
    args = items_of(t, t.wrap(partial.args, AttrSource(source, "args")))
    kwargs = string_items(t, t.wrap(partial.keywords, AttrSource(source, "keywords")))
    return PartialValue(func, args, kwargs, source)


@makes(functools.partial)
def make_partial_value(t: Tracer, partial: Any) -> Value:
    return wrap_partial(t, partial, ConstSource(partial, "partial"))


@wraps(staticmethod, classmethod)
def wrap_static(t: Tracer, method: Any, source: Source) -> Value:
    t.guard(TypeIs(source, type(method)))
    return StaticMethodValue(t.wrap(method.__func__, AttrSource(source, "__func__")), type(method), source)


@wraps(_LRU_TYPE)
def wrap_cached(t: Tracer, fn: Any, source: Source) -> Value:
    t.guard(IdIs(source, fn))
    return CachedFunctionValue(fn, source)


@makes(_LRU_TYPE)
def make_cached(t: Tracer, fn: Any) -> Value:
    return CachedFunctionValue(fn, ConstSource(fn, getattr(fn, "__qualname__", "cached")))


@handles(_LRU_TYPE)
def _lru_cache_wrapper(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func, maxsize, typed, *_ = args
    return MadeCachedFunctionValue(func, (maxsize.as_constant(), typed.as_constant()))
