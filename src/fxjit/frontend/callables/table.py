"""The table of callables: what is done for a call of a builtin, a C function, or a class that C implements.

`@handles(fn, ...)` signs a handler up that works on values; `@polyfill(fn, ...)` a plain Python function that is
traced in place of `fn`; `pure(fn, ...)` says that `fn` may simply be called when all its arguments are known.
functions.py and classes.py ask `lookup` when such a thing is called. A callable is claimed once.
"""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable, Iterable
from typing import Any, Final, TypeVar

from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import Tracer, Value
from fxjit.frontend.values.natives import CALL_TABLE, refusal
from fxjit.frontend.values.plain import NotPlain, is_plain, plain

__all__ = ["BEFORE_LOOKUP", "Handler", "NotPlain", "callable_name", "fold_call", "function", "handler_of", "handles",
           "handles_code", "is_plain", "lookup", "plain", "polyfill", "pure", "stands_for", "unknown_call"]

Handler = Callable[[Tracer, list[Value], dict[str, Value]], Value]
H = TypeVar("H", bound=Callable[..., Value])
F = TypeVar("F", bound=Callable[..., Any])

_HANDLERS: Final[dict[Any, Handler]] = {}
#: What a call of a class asks it for.
CONSTRUCTORS: Final = ("__new__", "__init__")
#: What those were of the classes that have a handler.
_MADE_BY: Final[dict[type, tuple[Any, ...]]] = {}


def _claim(fn: object, handler: Handler) -> None:
    assert fn not in _HANDLERS, f"{fn!r} is handled twice"
    _HANDLERS[fn] = handler
    if isinstance(fn, type):
        _MADE_BY[fn] = _constructors(fn)


def _constructors(cls: type) -> tuple[Any, ...]:
    return tuple(protocol.type_lookup(cls, name) for name in CONSTRUCTORS)


def is_made_as_it_was(cls: type) -> bool:
    """Whether nobody has given a class that has a handler another constructor."""
    return all(now is then for now, then in zip(_constructors(cls), _MADE_BY.get(cls, ()), strict=False))


def handles(*fns: Any) -> Callable[[H], H]:
    """Sign up `handler(t, args, kwargs) -> Value` for these callables."""
    def register(handler: H) -> H:
        for fn in fns:
            _claim(fn, handler)
        return handler
    return register


def function(*fns: Any) -> Callable[[H], H]:
    """Like `handles`, for a handler with the builtin's own parameters after the tracer: `def len_(t, obj)`. Arguments
    that do not fit raise TypeError in the user's program."""
    def register(handler: H) -> H:
        signature = inspect.signature(handler)
        name = getattr(fns[0], "__name__", repr(fns[0]))

        def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
            try:
                signature.bind(t, *args, **kwargs)
            except TypeError as error:
                t.raise_(TypeError, refusal(fns[0], len(args), kwargs) or f"{name}() {error}")
            return handler(t, *args, **kwargs)

        for fn in fns:
            _claim(fn, call)
        return handler
    return register


def polyfill(*fns: Any) -> Callable[[F], F]:
    """Trace the decorated Python function in place of these callables."""
    def register(body: F) -> F:
        signature = inspect.signature(body)

        def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
            try:
                signature.bind(*args, **kwargs)
            except TypeError:
                text = refusal(fns[0], len(args), kwargs)
                if text is not None:
                    t.raise_(TypeError, text)
            return t.inline(t.make(body), args, kwargs)

        for fn in fns:
            _claim(fn, call)
        ORIGINALS[body] = fns[0]
        return body
    return register


#: What each polyfill stands for.
ORIGINALS: Final[dict[Any, Any]] = {}


def stands_for(fn: Any) -> Callable[[F], F]:
    """The decorated generator function is the part of a polyfill that runs later; its arguments are `fn`'s, so that one
    that leaves the compiled function before it began is made by `fn` itself."""
    def register(body: F) -> F:
        ORIGINALS[body] = fn
        return body
    return register


def pure(fns: Iterable[Any]) -> None:
    """Calls of these with arguments that are known are made while tracing: they depend on nothing else and change
    nothing. With other arguments they break the graph."""
    for fn in fns:
        _claim(fn, _folding(fn))


def _folding(fn: Callable[..., Any]) -> Handler:
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return fold_call(t, fn, args, kwargs)
    return call


def fold_call(t: Tracer, fn: Callable[..., Any], args: Iterable[Value],
              kwargs: dict[str, Value] | None = None) -> Value:
    """The value of a pure call; arguments may be constants and containers of constants."""
    args, kwargs = list(args), kwargs or {}
    try:
        known = [plain(arg) for arg in args]
        named = {name: plain(arg) for name, arg in kwargs.items()}
    except NotPlain:
        unknown_call(t, fn, args)
    return protocol.fold(t, lambda: fn(*known, **named))


def unknown_call(t: Tracer, fn: Any, args: Iterable[Value]) -> Any:
    """End the graph here: nothing is known about calling `fn` with these arguments."""
    t.break_("call-builtin", function=callable_name(fn), args=", ".join(arg.describe() for arg in args))


def callable_name(fn: Any) -> str:
    module = getattr(fn, "__module__", None) or getattr(getattr(fn, "__objclass__", None), "__module__", None)
    name = getattr(fn, "__qualname__", None) or getattr(fn, "__name__", None) or repr(fn)
    return name if module in (None, "builtins") else f"{module}.{name}"


#: Asked before the table: reorder.py's.
BEFORE_LOOKUP: Final[list[Callable[[Any], Handler | None]]] = []


def lookup(fn: Any) -> Handler | None:
    """The handler of a callable, or None."""
    for find in BEFORE_LOOKUP:
        found = find(fn)
        if found is not None:
            return found
    return handler_of(fn)


def handler_of(fn: Any) -> Handler | None:
    """The handler that the table has for a callable, or None."""
    try:
        handler = _HANDLERS.get(fn)
    except TypeError:  # not hashable: nobody can have claimed it
        return None
    if handler is not None:
        return handler
    if isinstance(fn, types.BuiltinFunctionType) and isinstance(fn.__self__, type):
        return _of_class_method(fn, fn.__self__) or _of_plain_type(fn)
    if isinstance(fn, types.FunctionType) and fn.__code__ in _BY_CODE:
        return _BY_CODE[fn.__code__](fn)
    return None


_BY_CODE: Final[dict[types.CodeType, Callable[[Any], Handler]]] = {}


def handles_code(code: types.CodeType) -> Callable[[Callable[[Any], Handler]], Callable[[Any], Handler]]:
    """Sign up what makes the handler of any function that has this code: for closures that a library makes."""
    def register(factory: Callable[[Any], Handler]) -> Callable[[Any], Handler]:
        _BY_CODE[code] = factory
        return factory
    return register


def _of_class_method(fn: types.BuiltinFunctionType, owner: type) -> Handler | None:
    """A class method of C (`autograd.Function.apply` from torch 2.14 on), claimed by its descriptor: the handler gets the
    class that it is bound to as its first argument, as that of a class method of Python does."""
    descriptor = protocol.type_lookup(owner, fn.__name__)
    if not isinstance(descriptor, types.ClassMethodDescriptorType):
        return None
    handler = _HANDLERS.get(descriptor)
    return None if handler is None else lambda t, args, kwargs: handler(t, [t.make(owner), *args], kwargs)


def _of_plain_type(fn: types.BuiltinFunctionType) -> Handler | None:
    """Alternative constructors of immutable types: `int.from_bytes`, `str.maketrans`, `bytes.fromhex`..."""
    if fn.__self__ in _PLAIN_TYPES and not fn.__name__.startswith("__"):
        return _folding(fn)
    return None


_PLAIN_TYPES: Final = (int, float, complex, bool, str, bytes)


CALL_TABLE.append(lookup)
