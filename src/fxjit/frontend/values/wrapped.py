"""Wrappers of Python functions that are none themselves: functools.partial, staticmethod, classmethod, functools.lru_cache."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Final

from fxjit import process_state
from fxjit.errors import RestartTrace, leave_trace
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import instance_dicts, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Callee, Rebuilder, Value
from fxjit.frontend.values.calls import handles, resolve
from fxjit.frontend.values.functions import MethodValue, items_of, string_items
from fxjit.frontend.values.keys import IdentityKey, compares_by_identity
from fxjit.frontend.values.natives import BuiltinMethodValue
from fxjit.frontend.values.objects import UserObjectValue
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.tensor import TensorValue
from fxjit.frontend.values.wrap import creates, wraps
from fxjit.guards.kinds import HasAttr, IdIs, TypeIs
from fxjit.guards.source import AttrSource, ConstSource, Source


class PartialValue(Value):
    """A functools.partial. `keywords` is its own dict, which a program may write to."""

    def __init__(self, func: Value, args: Sequence[Value], keywords: Value, source: Source | None = None,
                 real: functools.partial[Any] | None = None) -> None:
        super().__init__(source)
        self.real = real
        self.func = func
        self.args = list(args)
        self.keywords = keywords

    def pytype(self) -> type:
        return functools.partial

    def describe(self) -> str:
        return f"partial of {self.func.describe()}"

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        given = [arg.realize() for arg in self.args]
        return t.call(self.func.realize(), [*given, *args], {**self.named(t), **kwargs})

    def named(self, t: Tracer) -> dict[str, Value]:
        """What its dict has now."""
        return {name: value.realize() for name, value in string_items(t, self.keywords).items()}

    def callee(self, t: Tracer, args: list[Value]) -> Callee | None:
        return None if self.named(t) else Callee(self.func.realize(), [*(arg.realize() for arg in self.args), *args])

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "func":
            return self.func.realize()
        if name == "args":
            return TupleValue(self.args)
        if name == "keywords":
            return self.keywords.realize()
        pending = t.effects.load_attr(self, name)
        if pending is None and self.real is not None and self.source is not None and name not in ("__class__", "__dict__"):
            pending = instance_dicts.attribute(t, self, self.real, self.source, name)
        return pending if isinstance(pending, Value) else super().tp_getattro(t, name)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        if name in ("func", "args", "keywords"):
            t.raise_(AttributeError, "readonly attribute")
        if name in ("__class__", "__dict__"):
            t.break_("attribute-unsupported", value=self.describe(), name=name)
        if value is None and not isinstance(t.effects.load_attr(self, name), Value):
            found = None
            if self.real is not None and self.source is not None and t.effects.load_attr(self, name) is None:
                found = instance_dicts.attribute(t, self, self.real, self.source, name)
            if found is None:
                t.raise_(AttributeError, f"'functools.partial' object has no attribute '{name}'")
        if self.real is not None:
            instance_dicts.meet(t, self, self.real.__dict__, self.source)
        t.effects.store_attr(self, name, value)

    def tp_hash(self, t: Tracer) -> Value:
        t.break_("value-slot", slot="hash", type="functools.partial")

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(make_partial, self.func, self.keywords, *self.args)
        for name, value in cg.effects.stored_attrs(self).items():  # type: ignore[attr-defined]  # as in functions.py
            if value is not None:
                cg.asm.dup()
                cg.push(value)
                cg.asm.swap(2)
                cg.asm.store_attr(name)


def made_partial(t: Tracer, func: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> PartialValue:
    """`functools.partial(func, *args, **kwargs)` of what is no partial itself."""
    return PartialValue(func, args, t.call(t.make(dict), [], kwargs))


def make_partial(func: Callable[..., Any], keywords: dict[str, Any], *args: Any) -> Any:
    """Run-time helper of new bytecode: makes a partial that was made while tracing, with this very dict."""
    made = functools.partial(func)
    made.__setstate__((func, args, keywords, None))  # type: ignore[attr-defined]  # not in the stubs
    return made


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
        if name == "__get__":
            return protocol.make_builtin_method(t, self, name)
        if name == "__isabstractmethod__":
            found = protocol.getattr_or_none(t, self.func.realize(), name)
            return t.make(found is not None and protocol.truth(t, found))
        return super().tp_getattro(t, name)

    def meth___get__(self, t: Tracer, instance: Value, owner: Value | None = None) -> Value:
        func = self.func.realize()
        if self.cls is staticmethod:
            return func
        if func.pytype() is not types.FunctionType:  # whether descriptors chain is up to the Python
            t.break_("attribute-unsupported", value=self.describe(), name="__get__")
        missing = owner is None or (owner.is_constant() and owner.as_constant() is None)
        return MethodValue(func, t.make(instance.pytype()) if missing or owner is None else owner)

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(self.cls, self.func)


class CachedFunctionValue(Value):
    """A function under functools.lru_cache or functools.cache: its function is traced, once in a trace for the same constants
    and objects that are equal to themselves only. One that is called for what it writes to the outside (`warning_once`) is
    called itself, after the graph; any other that changes what existed before is called by the running program."""

    def __init__(self, fn: Any, source: Source | None, maxsize: int | None, typed: bool) -> None:
        super().__init__(source)
        self.fn = fn
        self.maxsize = maxsize
        self.typed = typed
        self._known: dict[Hashable, Value] = {}

    def pytype(self) -> type:
        return _LRU_TYPE

    def describe(self) -> str:
        return f"cached function `{self.name}`"

    @property
    def name(self) -> str:
        """What it is called: attributes of its own, which it need not have."""
        return str(getattr(self.fn, "__qualname__", "lru_cache"))

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        handler = resolve(self.fn)
        if handler is not None:
            return handler(t, list(args), dict(kwargs))
        if self.fn in process_state.counted:
            t.break_("call-builtin", function=self.name, args="its program looks at `cache_info()`")
        _called(t).add(self.fn)
        if self.maxsize == 0:  # nothing is kept, and nothing is hashed
            return self._call_function(t, args, kwargs)
        _refuse_unhashable(t, (*args, *kwargs.values()))
        key = _cache_key(args, kwargs, self.typed)
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
                t.break_("call-print", function=self.name)
            t.effects.call_later(call_named, (self.fn, tuple(kwargs), *args, *kwargs.values()))
        return result

    def meth_cache_info(self, t: Tracer) -> Value:
        return self._uncached(t, "cache_info")

    def meth_cache_clear(self, t: Tracer) -> Value:
        return self._uncached(t, "cache_clear")

    def _uncached(self, t: Tracer, name: str) -> Value:
        """The program looks at the cache itself: from now on the running program makes the calls, and this trace too."""
        if self.fn not in process_state.counted:
            process_state.counted.add(self.fn)
            if self.fn in _called(t):
                leave_trace(RestartTrace(f"the calls of {self.describe()} are counted"))
        t.break_("call-builtin", function=name, args=self.describe())

    def meth_cache_parameters(self, t: Tracer) -> Value:
        return t.make({"maxsize": self.maxsize, "typed": self.typed})

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name in _CACHE_METHODS:
            return BuiltinMethodValue(self, name)
        if name == "__class__":
            return t.make(_LRU_TYPE)
        assert self.source is not None
        instance_dicts.meet(t, self, self.fn.__dict__, self.source)
        instance_dicts.look_at(t, self.fn.__dict__, name)
        try:
            found = getattr(self.fn, name)
        except AttributeError as error:
            t.guard(HasAttr(self.source, name, False))
            t.raise_(AttributeError, *error.args)
        return t.wrap(found, AttrSource(self.source, name))

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push_const(self.fn)


_CACHE_METHODS: Final = ("cache_info", "cache_clear", "cache_parameters")
_KEYWORDS: Final = object()  # stands between positional and keyword arguments in a key


def _called(t: Tracer) -> set[Any]:
    """The cached functions from outside that the trace has called."""
    called: set[Any] = t.new_source_state("cached functions").setdefault("called", set())
    return called


def _refuse_unhashable(t: Tracer, values: Sequence[Value]) -> None:
    """The cache hashes each argument before anything is called."""
    for value in values:
        value = value.realize()
        if isinstance(value, TupleValue):
            _refuse_unhashable(t, value.realized())
        elif value.pytype().__hash__ is None:
            t.raise_(TypeError, f"unhashable type: '{value.pytype().__name__}'")


def _cache_key(args: Sequence[Value], kwargs: Mapping[str, Value], typed: bool) -> Hashable | None:
    """The arguments as functools makes them a key; None where they are not all plain constants, or equal to themselves only."""
    parts = [_key_part(value.realize()) for value in args]
    if not typed and not kwargs and len(parts) == 1 and type(parts[0]) in (int, str):
        return parts[0]
    if kwargs:
        parts.append(_KEYWORDS)
    for name, value in kwargs.items():
        parts += [name, _key_part(value.realize())]
    if typed:
        parts += [value.pytype() for value in (*args, *kwargs.values())]
    return None if any(part is _UNKNOWN for part in parts) else tuple(parts)


_UNKNOWN: Final = object()


def _key_part(value: Value) -> Hashable:
    if isinstance(value, (UserObjectValue, TensorValue)) and compares_by_identity(value.cls):
        return IdentityKey(value)
    known = value.as_constant() if value.is_constant() else _UNKNOWN
    return known if isinstance(known, (int, float, str, bytes, type(None), type)) else _UNKNOWN


class MadeCachedFunctionValue(CachedFunctionValue):
    """`functools.lru_cache(...)(func)` in a traced frame. Where it leaves the trace it is made with what was asked of it, so
    that it knows and counts what eager's does."""

    def __init__(self, func: Value, maxsize: int | None, typed: bool) -> None:
        super().__init__(None, None, maxsize if maxsize is None else max(maxsize, 0), typed)
        self.func = func
        self.hits = self.misses = 0
        #: The calls since the cache was empty: arguments, names of the last of them, result.
        self.calls: list[tuple[tuple[Value, ...], tuple[str, ...], Value]] = []
        self._all_counted = True

    def describe(self) -> str:
        return f"cached {self.func.describe()}"

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        if self.maxsize != 0:
            _refuse_unhashable(t, (*args, *kwargs.values()))
        key = _cache_key(args, kwargs, self.typed)
        self._all_counted &= key is not None
        if key is not None and key in self._known:
            result = self._known[key] = self._known.pop(key)  # the youngest now
            self.hits += 1
        else:
            self.misses += 1
            result = t.call(self.func, args, kwargs)
            self._keep(key, result)
        self.calls.append(((*args, *kwargs.values()), tuple(kwargs), result))
        return result

    def _keep(self, key: Hashable | None, result: Value) -> None:
        if key is None or self.maxsize == 0 or key in self._known:
            return
        if len(self._known) == self.maxsize:
            del self._known[next(iter(self._known))]
        self._known[key] = result

    def meth_cache_info(self, t: Tracer) -> Value:
        if not self._all_counted:
            t.break_("call-builtin", function="cache_info", args=self.describe())
        counts = (self.hits, self.misses, self.maxsize, len(self._known))
        return TupleValue([t.make(each) for each in counts], cls=type(functools.lru_cache(len).cache_info()))

    def meth_cache_clear(self, t: Tracer) -> Value:
        self.hits = self.misses = 0
        self._all_counted = True
        self._known.clear()
        self.calls.clear()
        return t.make(None)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        written = t.effects.load_attr(self, name)
        if isinstance(written, Value):
            return written
        if name in _CACHE_METHODS:
            return BuiltinMethodValue(self, name)
        if name == "__class__":
            return t.make(_LRU_TYPE)
        if name == "__dict__" and protocol.type_lookup(self.func.pytype(), name) is NOT_IMPLEMENTED:
            return t.make({})
        return protocol.getattr_(t, self.func, name)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        t.effects.store_attr(self, name, value)

    def rebuild(self, cg: Rebuilder) -> None:
        flat = [part for args, names, result in self.calls for part in (len(args), names, result, *args)]
        cg.call(_make_cached_function, self.func, self.maxsize, self.typed, *flat)
        for name, value in cg.effects.stored_attrs(self).items():
            if value is not None:
                cg.asm.dup()
                cg.push(value)
                cg.asm.swap(2)
                cg.asm.store_attr(name)


def _make_cached_function(func: Callable[..., Any], maxsize: int | None, typed: bool, *calls: Any) -> Any:
    """A cached function that was called before: for each call there is the number of its arguments, the names of the last of
    them, the result, and the arguments."""
    if not calls:
        return functools.lru_cache(maxsize, typed)(func)
    known: list[Any] = []

    def answer(*args: Any, **kwargs: Any) -> Any:
        return known.pop() if known else func(*args, **kwargs)

    made = functools.update_wrapper(functools.lru_cache(maxsize, typed)(answer), func)
    while calls:
        count, names, result, *rest = calls
        known.append(result)
        call_named(made, names, *rest[:count])
        known.clear()
        calls = tuple(rest[count:])
    return made


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
    return PartialValue(func, args, t.wrap(partial.keywords, AttrSource(source, "keywords")), source, partial)


@creates(functools.partial)
def make_partial_value(t: Tracer, partial: Any) -> Value:
    return wrap_partial(t, partial, ConstSource(partial, "partial"))


@wraps(staticmethod, classmethod)
def wrap_static(t: Tracer, method: Any, source: Source) -> Value:
    t.guard(TypeIs(source, type(method)))
    return StaticMethodValue(t.wrap(method.__func__, AttrSource(source, "__func__")), type(method), source)


@wraps(_LRU_TYPE)
def wrap_cached(t: Tracer, fn: Any, source: Source) -> Value:
    t.guard(IdIs(source, fn))
    return CachedFunctionValue(fn, source, **_parameters(fn))


@creates(_LRU_TYPE)
def make_cached(t: Tracer, fn: Any) -> Value:
    return CachedFunctionValue(fn, ConstSource(fn, getattr(fn, "__qualname__", "cached")), **_parameters(fn))


def _parameters(fn: Any) -> dict[str, Any]:
    """The size and the kind of a cache, which only `lru_cache` itself gives."""
    told: Any = getattr(fn, "cache_parameters", None)
    known: dict[str, Any] = told() if callable(told) else {}
    return {"maxsize": known.get("maxsize"), "typed": bool(known.get("typed"))}


@handles(_LRU_TYPE)
def _lru_cache_wrapper(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    func, maxsize, typed, *_ = args
    return MadeCachedFunctionValue(func, maxsize.as_constant(), bool(typed.as_constant()))
