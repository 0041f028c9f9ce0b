"""Call resolution: the one path from a callable that exists to what a traced call of it does.

`resolve(fn)` goes through the stages in order; the first that answers gives the handler, `handler(tracer, args, kwargs)`.
What no stage claims is called by its own rules: a Python function is inlined, a class makes an instance, a function of C
is called on constants or breaks the graph.

`@handles(fn, ...)` registers a handler that works on values; `@function(fn)` one with the builtin's own parameters;
`@polyfill(fn, ...)` a Python function that is traced in place of `fn`; `pure(fns)` functions that are called while tracing
when all arguments are known. A callable is claimed once.
"""

from __future__ import annotations

import functools
import inspect
import sys
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any, Final, TypeVar

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.arguments import refusal
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.homes import name_with_module
from fxjit.skips import marks
from fxjit.skips.functions import twin_of

Handler = Callable[[Tracer, list[Value], dict[str, Value]], Value]
H = TypeVar("H", bound=Callable[..., Value])
F = TypeVar("F", bound=Callable[..., Any])


# -- the stages ----------------------------------------------------------------------------------------------------


class Stage(IntEnum):
    """The stages that resolve a call, in this order."""

    #: Calls that the user lets run after the graph (`config.reorderable_functions`): callables/deferred_calls.py.
    DEFERRED = 0
    #: This very callable: the handlers of this file's decorators.
    EXACT = 1
    #: Any function with this code object, for closures that a library makes; one of a package that is imported later; what
    #: torch has wrapped since it was claimed; any alternative constructor of an immutable type.
    FAMILY = 2
    #: torch's operators, tensor methods and state, by what they are: callables/torch_functions.py.
    TORCH = 3
    #: Python functions that speak to the compiler (`graph_break()`), or that skips/ keeps from being inlined:
    #: interp/inline.py.
    VERDICT = 4
    #: Functions of C that walk containers: callables/container_walks.py.
    WALK = 5
    #: Methods of C whose package has them in Python, too: skips/functions.py.
    TWIN = 6


@dataclass(frozen=True, slots=True)
class Substitute:
    """The handler of a function that is traced as another one: the user's `substitute_in_graph`, or what was compiled."""

    fn: Any

    def __call__(self, t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        return t.call(t.make(self.fn), args, kwargs)


Finder = Callable[[Any], Handler | None]
_FINDERS: Final[dict[Stage, Finder]] = {}


def resolves(stage: Stage) -> Callable[[Finder], Finder]:
    """Register the function that answers for a stage."""
    def register(finder: Finder) -> Finder:
        assert stage not in _FINDERS, f"{stage!r} is answered twice"
        _FINDERS[stage] = finder
        return finder
    return register


def resolve(fn: Any, after: Stage | None = None) -> Handler | None:
    """The handler of a callable, by the first stage (behind `after`) that has one."""
    for stage in Stage:
        if after is None or stage > after:
            handler = _FINDERS[stage](fn)
            if handler is not None:
                return handler
    return None


def pass_on(t: Tracer, fn: Any, args: Sequence[Value], kwargs: Mapping[str, Value], after: Stage = Stage.EXACT) -> Value:
    """The call of a Python function, for its own handler that leaves this one alone: what the later stages say."""
    handler = resolve(fn, after=after)
    return handler(t, list(args), dict(kwargs)) if handler is not None else t.inline(t.make(fn), args, kwargs)


# -- handlers of very callables ------------------------------------------------------------------------------------


_HANDLERS: Final[dict[Any, Handler]] = {}
#: What a call of a class looks up on it.
CONSTRUCTORS: Final = ("__new__", "__init__")
#: Those of the classes that have a handler, when they were given it.
_ORIGINAL_CONSTRUCTORS: Final[dict[type, tuple[Any, ...]]] = {}


def _claim(fn: object, handler: Handler) -> None:
    if isinstance(fn, types.FunctionType):  # torch may have wrapped it before it is claimed, or afterwards
        fn = marks.disabled_by_torch(fn) or fn
    assert fn not in _HANDLERS, f"{fn!r} is handled twice"
    _HANDLERS[fn] = handler
    if isinstance(fn, type):
        _ORIGINAL_CONSTRUCTORS[fn] = _constructors(fn)


def _constructors(cls: type) -> tuple[Any, ...]:
    return tuple(protocol.type_lookup(cls, name) for name in CONSTRUCTORS)


def has_original_constructor(cls: type) -> bool:
    """Whether the constructor of a class that has a handler was not replaced."""
    return all(now is then for now, then in zip(_constructors(cls), _ORIGINAL_CONSTRUCTORS.get(cls, ()), strict=False))


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
            if isinstance(fn, types.WrapperDescriptorType):
                _METHODS.add(fn)
        ORIGINALS[body] = fns[0]
        return body
    return register


#: What each polyfill stands for.
ORIGINALS: Final[dict[Any, Any]] = {}
#: The methods of C that have a polyfill.
_METHODS: Final[set[types.WrapperDescriptorType]] = set()


def has_polyfill(method: Any) -> bool:
    """Whether a special method of a class of C is traced in Python."""
    return isinstance(method, types.WrapperDescriptorType) and (method in _METHODS or twin_of(method) is not None)


@resolves(Stage.TWIN)
def _twin(fn: Any) -> Handler | None:
    found = twin_of(fn) if isinstance(fn, types.WrapperDescriptorType) else None
    return None if found is None else Substitute(found)


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
    """The value of a pure call; arguments may be constants and containers of constants. Numbers that vary are constants for
    it: what takes these as they are has a handler of its own."""
    args, kwargs = list(args), kwargs or {}
    try:
        known = [concrete(settled(t, arg)) for arg in args]
        named = {name: concrete(settled(t, arg)) for name, arg in kwargs.items()}
    except NotConcrete:
        unknown_call(t, fn, args)
    protocol.guard_conversions(t, [*known, *named.values()])
    return protocol.fold(t, lambda: fn(*known, **named))


def settled(t: Tracer, arg: Value) -> Value:
    """A number that varies, and is known when the frame starts, as the constant that it is now."""
    arg = arg.realize()
    depends_on_data = getattr(arg, "depends_on_data", None)
    if depends_on_data is None or depends_on_data():
        return arg
    settled: Value = arg.specialize(t)  # type: ignore[attr-defined]  # only numbers that vary depend on data or do not
    return settled


def unknown_call(t: Tracer, fn: Any, args: Iterable[Value]) -> Any:
    """End the graph here: nothing is known about calling `fn` with these arguments."""
    t.break_("call-builtin", function=name_with_module(fn), args=", ".join(arg.describe() for arg in args))


@resolves(Stage.EXACT)
def exact(fn: Any) -> Handler | None:
    """The handler registered for this callable itself."""
    if isinstance(fn, type) and isinstance(type(fn).__hash__, types.FunctionType):
        return None  # nobody has claimed a class whose metaclass has a hash of the program's, which is not to run here
    try:
        return _HANDLERS.get(fn)
    except Exception:  # not hashable, for whatever reason of the program's: nobody can have claimed it
        return None


@resolves(Stage.FAMILY)
def _of_family(fn: Any) -> Handler | None:
    if isinstance(fn, types.FunctionType):
        factory = _BY_CODE.get(fn.__code__)
        if factory is not None:
            return factory(fn)
        module, handler = _BY_NAME.get(fn.__code__.co_name, (None, None))
        if handler is not None and getattr(sys.modules.get(str(module)), fn.__code__.co_name, None) is fn:
            return functools.partial(handler, fn)
        return exact(marks.disabled_by_torch(fn))
    if isinstance(fn, types.BuiltinFunctionType) and isinstance(fn.__self__, type):
        return _bound_class_method(fn, fn.__self__) or _constructor_of_constants(fn)
    return None


_BY_CODE: Final[dict[types.CodeType, Callable[[Any], Handler]]] = {}


def handles_code(code: types.CodeType) -> Callable[[Callable[[Any], Handler]], Callable[[Any], Handler]]:
    """Sign up what makes the handler of any function that has this code: for closures that a library makes."""
    def register(factory: Callable[[Any], Handler]) -> Callable[[Any], Handler]:
        _BY_CODE[code] = factory
        return factory
    return register


def handles_named(module: str, name: str) -> Callable[[Callable[..., Value]], Callable[..., Value]]:
    """Sign up the handler of a function of a package that is imported later, if ever; it gets the function first."""
    def register(handler: Callable[..., Value]) -> Callable[..., Value]:
        assert name not in _BY_NAME, f"{name} is handled twice"
        _BY_NAME[name] = (module, handler)
        return handler
    return register


_BY_NAME: Final[dict[str, tuple[str, Callable[..., Value]]]] = {}


def _bound_class_method(fn: types.BuiltinFunctionType, owner: type) -> Handler | None:
    """A class method of C (`autograd.Function.apply` from torch 2.14 on), claimed by its descriptor: the handler gets the
    class that it is bound to as its first argument, as that of a class method of Python does."""
    descriptor = protocol.type_lookup(owner, fn.__name__)
    if not isinstance(descriptor, types.ClassMethodDescriptorType):
        return None
    handler = _HANDLERS.get(descriptor)
    return None if handler is None else lambda t, args, kwargs: handler(t, [t.make(owner), *args], kwargs)


def _constructor_of_constants(fn: types.BuiltinFunctionType) -> Handler | None:
    """Alternative constructors of immutable types: `int.from_bytes`, `str.maketrans`, `bytes.fromhex`..."""
    if fn.__self__ in _IMMUTABLE_TYPES and not fn.__name__.startswith("__"):
        return _folding(fn)
    return None


_IMMUTABLE_TYPES: Final = (int, float, complex, bool, str, bytes)
