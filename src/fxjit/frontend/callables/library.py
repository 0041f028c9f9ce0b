"""Functions of the standard library that are C, or that are not worth tracing: operator, math, functools, itertools,
collections, dataclasses, inspect, typing, re, os, time.
"""

from __future__ import annotations

import collections
import dataclasses
import datetime
import enum
import functools
import inspect
import itertools
import json
import linecache
import math
import operator
import os
import pathlib
import pickle
import re
import sys
import time
import traceback
import types
import typing
from collections.abc import Callable, Iterator
from typing import Any, Final

from fxjit.frontend.callables.core import concrete_or_break
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import deferred_numbers, descriptors, protocol, random_values
from fxjit.frontend.values.base import Value
from fxjit.frontend.values.calls import (
    Handler,
    fold_call,
    function,
    handles,
    handles_code,
    pure,
    unknown_call,
)
from fxjit.frontend.values.computed_numbers import computed
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.frontend.values.constant import is_plain_constant
from fxjit.frontend.values.exceptions import TracebackValue
from fxjit.frontend.values.iterators import ChainValue, CountValue, CycleValue, FixedIteratorValue, RepeatValue
from fxjit.frontend.values.ranges import as_index
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.traits import LateText
from fxjit.frontend.values.wrapped import PartialValue, made_partial
from fxjit.guards.kinds import ConstIs, HasAttr, IdIs, KeysAre
from fxjit.guards.source import (
    ApplySource,
    AttrSource,
    CallSource,
    ClassItemSource,
    ConstSource,
    ItemSource,
    Source,
    class_source,
)
from fxjit.homes import name_with_module

# -- operator ---------------------------------------------------------------------------------------------------


def _operator_binary(op: str, *fns: Callable[..., Any]) -> None:
    @function(*fns)
    def call(t: Tracer, a: Value, b: Value, /) -> Value:
        return protocol.binary(t, op, a, b)


def _operator_inplace(op: str, *fns: Callable[..., Any]) -> None:
    @function(*fns)
    def call(t: Tracer, a: Value, b: Value, /) -> Value:
        return protocol.inplace(t, op, a, b)


def _operator_compare(op: str, fn: Callable[..., Any]) -> None:
    @function(fn)
    def call(t: Tracer, a: Value, b: Value, /) -> Value:
        return protocol.compare(t, op, a, b)


def _operator_unary(op: str, *fns: Callable[..., Any]) -> None:
    @function(*fns)
    def call(t: Tracer, a: Value, /) -> Value:
        return protocol.unary(t, op, a)


for _op, _fn in protocol.BINARY.items():
    _operator_binary(_op, _fn)
for _op, _fn in protocol.INPLACE.items():
    _operator_inplace(_op, _fn)
for _op, _fn in protocol.COMPARE.items():
    _operator_compare(_op, _fn)
for _op in ("neg", "pos", "invert", "index"):
    _operator_unary(_op, protocol.UNARY[_op])


@function(operator.abs)
def operator_abs(t: Tracer, a: Value, /) -> Value:
    return protocol.unary(t, "abs", a)


@function(operator.not_)
def operator_not(t: Tracer, a: Value, /) -> Value:
    return protocol.not_(t, a)


@function(operator.truth)
def operator_truth(t: Tracer, a: Value, /) -> Value:
    return t.make(protocol.truth(t, a))


@function(operator.is_)
def operator_is(t: Tracer, a: Value, b: Value, /) -> Value:
    return t.make(protocol.is_(t, a, b))


@function(operator.is_not)
def operator_is_not(t: Tracer, a: Value, b: Value, /) -> Value:
    return t.make(not protocol.is_(t, a, b))


@function(operator.getitem)
def operator_getitem(t: Tracer, a: Value, key: Value, /) -> Value:
    return protocol.getitem(t, a, key)


@function(operator.setitem)
def operator_setitem(t: Tracer, a: Value, key: Value, value: Value, /) -> Value:
    protocol.setitem(t, a, key, value)
    return t.make(None)


@function(operator.delitem)
def operator_delitem(t: Tracer, a: Value, key: Value, /) -> Value:
    protocol.delitem(t, a, key)
    return t.make(None)


@function(operator.contains)
def operator_contains(t: Tracer, a: Value, item: Value, /) -> Value:
    return t.make(protocol.contains(t, a, item))


@function(operator.concat)
def operator_concat(t: Tracer, a: Value, b: Value, /) -> Value:
    return protocol.binary(t, "+", a, b)


@function(operator.iconcat)
def operator_iconcat(t: Tracer, a: Value, b: Value, /) -> Value:
    return protocol.inplace(t, "+", a, b)


@function(operator.length_hint)
def operator_length_hint(t: Tracer, obj: Value, default: Value | None = None, /) -> Value:
    if hasattr(obj.pytype(), "__len__"):
        return protocol.length(t, obj)
    if hasattr(obj.pytype(), "__length_hint__"):
        return protocol.call_method(t, obj, "__length_hint__")
    return t.make(0) if default is None else default


@function(operator.countOf)
def operator_count(t: Tracer, values: Value, wanted: Value, /) -> Value:
    return t.make(sum(protocol.equal(t, item, wanted) for item in protocol.unpack(t, values)))


@function(operator.indexOf)
def operator_index_of(t: Tracer, values: Value, wanted: Value, /) -> Value:
    items, index = protocol.iter_(t, values), 0
    while (item := protocol.next_(t, items)) is not None:  # which need not have an end
        if protocol.equal(t, item, wanted):
            return t.make(index)
        index += 1
    t.raise_(ValueError, "sequence.index(x): x not in sequence")


@handles(operator.call)
def operator_call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        t.raise_(TypeError, "call expected at least 1 argument, got 0")
    return t.call(args[0], args[1:], kwargs)


class GetterValue(Value):
    """operator.itemgetter, attrgetter and methodcaller. `parts` are the keys, names, or name and arguments."""

    def __init__(self, cls: type, parts: list[Value], kwargs: dict[str, Value] | None = None) -> None:
        super().__init__()
        self.cls = cls
        self.parts = parts
        self.kwargs = kwargs or {}

    def pytype(self) -> type:
        return self.cls

    def rebuild(self, cg: Any) -> None:
        cg.call(make_getter, self.cls, tuple(self.kwargs), *self.parts, *self.kwargs.values())

    def tp_call(self, t: Tracer, args: Any, kwargs: Any) -> Value:
        if len(args) != 1 or kwargs:
            t.raise_(TypeError, f"{self.cls.__name__} expected 1 argument, got {len(args)}")
        obj = args[0]
        if self.cls is operator.methodcaller:
            method = protocol.getattr_(t, obj, self.parts[0].as_constant())
            return t.call(method, self.parts[1:], self.kwargs)
        found = [self._get(t, obj, part) for part in self.parts]
        return found[0] if len(found) == 1 else TupleValue(found)

    def _get(self, t: Tracer, obj: Value, part: Value) -> Value:
        if self.cls is operator.itemgetter:
            return protocol.getitem(t, obj, part)
        for name in part.as_constant().split("."):
            obj = protocol.getattr_(t, obj, name)
        return obj


def make_getter(cls: Any, names: tuple[str, ...], *args: Any) -> Any:
    """Run-time helper of new bytecode: makes a getter."""
    split = len(args) - len(names)
    return cls(*args[:split], **dict(zip(names, args[split:], strict=True)))


def _getter(cls: type) -> None:
    @handles(cls)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args or (kwargs and cls is not operator.methodcaller):
            t.raise_(TypeError, f"{cls.__name__} expected at least 1 argument, got 0")
        if cls is not operator.itemgetter:
            for name in args if cls is operator.attrgetter else args[:1]:
                if not name.is_constant() or not isinstance(name.as_constant(), str):
                    t.raise_(TypeError, "attribute name must be a string" if cls is operator.attrgetter
                             else "method name must be a string")
        return GetterValue(cls, args, kwargs)


for _cls in (operator.itemgetter, operator.attrgetter, operator.methodcaller):
    _getter(_cls)


# -- math -------------------------------------------------------------------------------------------------------

_MATH_SLOTS = {math.floor: "floor", math.ceil: "ceil", math.trunc: "trunc"}
_SYMBOLIC = {"sqrt": "_sym_sqrt", "cos": "_sym_cos", "sin": "_sym_sin", "tan": "_sym_tan", "tanh": "_sym_tanh",
             "cosh": "_sym_cosh", "sinh": "_sym_sinh", "exp": "_sym_exp", "log2": "_sym_log2", "acos": "_sym_acos",
             "asin": "_sym_asin", "atan": "_sym_atan"}


def _math(fn: Callable[..., Any]) -> None:
    import torch

    symbolic = getattr(torch, _SYMBOLIC.get(fn.__name__, ""), None)
    slot = _MATH_SLOTS.get(fn)

    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if slot is None and not kwargs:
            found = random_values.of_math(t, fn, args)
            if found is None:
                found = deferred_numbers.of_function(t, fn, args)
            if found is not None:
                return found
        if len(args) == 1 and not args[0].is_constant():
            value = args[0]
            if slot is not None and hasattr(value.pytype(), f"__{slot}__"):
                return protocol.unary(t, slot, value)
            if symbolic is not None and value.node is not None and value.pytype() in (int, float):
                return t.emit(symbolic, args)
        found = computed(t, fn, args, kwargs)
        if found is not None:
            return found
        fixed = [_specialized(t, arg) for arg in args]
        if fn.__name__ in _ITERATES:
            return fold_call(t, fn, [_iterable(t, arg) for arg in fixed], kwargs)
        return fold_call(t, fn, [_number(t, arg, fn.__name__ in _TAKES_INTEGERS) for arg in fixed], kwargs)


#: Functions of math that iterate over their arguments, and those that take integers; all others take real numbers.
_ITERATES = frozenset({"fsum", "dist", "sumprod"})
_TAKES_INTEGERS = frozenset({"comb", "factorial", "gcd", "isqrt", "lcm", "perm"})


def _number(t: Tracer, value: Value, is_integer: bool) -> Value:
    """The number that a function in C makes of an argument: what `__index__` gives, or `__float__` where it takes any."""
    if value.is_constant():
        return value
    for name in ("index",) if is_integer else ("float", "index"):
        if hasattr(value.pytype(), f"__{name}__"):
            return protocol.unary(t, name, value)
    return value


def _specialized(t: Tracer, value: Value) -> Value:
    specialize: Callable[[Tracer], Value] | None = getattr(value, "specialize", None)
    return value if specialize is None else specialize(t)


def _iterable(t: Tracer, value: Value) -> Value:
    """The items that the function would iterate over, as a list; symbolic numbers are specialised to their hints."""
    if value.is_constant() or not hasattr(value.pytype(), "__iter__"):
        return value
    return ListValue([_specialized(t, item) for item in protocol.unpack(t, value)])


for _fn in vars(math).values():
    if isinstance(_fn, types.BuiltinFunctionType) and _fn is not math.prod:  # in polyfills/math_.py
        _math(_fn)


# -- functools --------------------------------------------------------------------------------------------------


@handles(functools.partial)
def partial(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        t.raise_(TypeError, "type 'partial' takes at least one argument")
    fn, *given = args
    if isinstance(fn, PartialValue):
        return made_partial(t, fn.func.realize(), [*fn.args, *given], {**fn.named(t), **kwargs})
    return made_partial(t, fn, given, kwargs)


def _code_inside(fn: Callable[..., Any], name: str) -> types.CodeType:
    """The code of a function that `fn` makes."""
    return next(const for const in fn.__code__.co_consts if isinstance(const, types.CodeType) and const.co_name == name)


class Dispatched:
    """The implementation that a functools.singledispatch function selects for a class."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    def __call__(self, dispatch: Any) -> Any:
        return dispatch(self.cls)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Dispatched) and other.cls is self.cls

    def __hash__(self) -> int:
        return hash((Dispatched, self.cls))


@handles_code(_code_inside(functools.singledispatch, "dispatch"))
def singledispatch(dispatch: Any) -> Handler:
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        cls = concrete_or_break(t, args[0], "singledispatch")
        return t.wrap(dispatch(cls), ApplySource(ConstSource(dispatch, "dispatch"), Dispatched(cls), "dispatch"))
    return call


# -- itertools --------------------------------------------------------------------------------------------------


@handles(itertools.chain)
def chain(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    return ChainValue(protocol.iter_(t, TupleValue(args)))


@function(itertools.chain.from_iterable)
def chain_from_iterable(t: Tracer, parts: Value, /) -> Value:
    return ChainValue(protocol.iter_(t, parts))


@function(itertools.count)
def count(t: Tracer, start: Value | None = None, step: Value | None = None) -> Value:
    for number in (start, step):
        if number is not None and not any(hasattr(number.pytype(), name) for name in _OF_NUMBERS):
            t.raise_(TypeError, "a number is required")
    if start is not None and start.pytype() is bool and step is None:
        start = protocol.unary(t, "int", start)  # which counts by a number of C's
    return CountValue(t.make(0) if start is None else start, t.make(1) if step is None else step)


_OF_NUMBERS = ("__index__", "__int__", "__float__", "__complex__")


@function(itertools.repeat)
def repeat(t: Tracer, object: Value, times: Value | None = None) -> Value:
    number = None if times is None else as_index(t, times)
    if number is not None and not -sys.maxsize - 1 <= number <= sys.maxsize:
        t.raise_(OverflowError, "Python int too large to convert to C ssize_t")
    return RepeatValue(object, None if number is None else max(number, 0))


@function(itertools.cycle)
def cycle(t: Tracer, values: Value, /) -> Value:
    return CycleValue(protocol.iter_(t, values))


@handles(itertools.product)
def product(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    times = kwargs.pop("repeat", None)
    if times is not None and as_index(t, times) < 0:
        t.raise_(ValueError, "repeat argument cannot be negative")
    pools = [protocol.unpack_hinted(t, arg) for arg in args] * (1 if times is None else as_index(t, times))
    rows = _rows(t, itertools.product(*pools))
    return FixedIteratorValue(itertools.product, rows, [TupleValue(pool) for pool in pools])


def _rows(t: Tracer, rows: Iterator[tuple[Value, ...]]) -> list[Value]:
    found: list[Value] = [TupleValue(row) for row in itertools.islice(rows, _MAX_ROWS + 1)]
    if len(found) > _MAX_ROWS:
        t.break_("trace-too-long", limit=_MAX_ROWS)
    return found


_MAX_ROWS = 100_000


def _arrangement(fn: Any) -> None:
    @function(fn)
    def call(t: Tracer, iterable: Value, r: Value | None = None) -> Value:
        pool = protocol.unpack_hinted(t, iterable)
        whole = fn is itertools.permutations and (r is None or (r.is_constant() and r.as_constant() is None))
        if r is None and not whole:
            t.raise_(TypeError, f"{fn.__name__}() missing required argument 'r' (pos 2)")
        size = len(pool) if whole or r is None else as_index(t, r)
        if size < 0:
            t.raise_(ValueError, "r must be non-negative")
        return FixedIteratorValue(fn, _rows(t, fn(pool, size)), [TupleValue(pool), t.make(size)])


for _choice in (itertools.permutations, itertools.combinations, itertools.combinations_with_replacement):
    _arrangement(_choice)


# -- collections, copy, dataclasses, enum, typing, inspect, re ---------------------------------------------------


@handles(collections.namedtuple)
def namedtuple(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not t.break_points.makes_classes:
        t.break_("call-builtin", function="namedtuple", args=", ".join(arg.describe() for arg in args))
    known = [concrete_or_break(t, arg, "namedtuple") for arg in args]
    named = {name: concrete_or_break(t, arg, "namedtuple") for name, arg in kwargs.items()}
    caller = t.running_frame.globals.namespace.get("__name__", "__main__")
    named.setdefault("module", caller)
    defaults = named.get("defaults") or ()
    if not all(is_plain_constant(each) for each in defaults):
        t.break_("call-builtin", function="namedtuple", args="defaults that can be written to")
    return protocol.fold(t, lambda: t.effects.made_classes.make(collections.namedtuple, *known, **named))


def _dataclass(t: Tracer, obj: Value) -> tuple[type, Source] | None:
    """The class, or the object's class, and where its table of fields is, which is guarded; None where it has none."""
    known = obj.as_constant() if obj.is_constant() and isinstance(obj.as_constant(), type) else obj.pytype()
    table, owner = descriptors.look_up(t, known, "__dataclass_fields__")
    if owner is None:
        return None
    source = ClassItemSource(class_source(owner), "__dataclass_fields__")
    if type(table) is dict:
        t.guard(KeysAre(source, tuple(table)))
    return known, source


@function(dataclasses.is_dataclass)
def is_dataclass(t: Tracer, obj: Value, /) -> Value:
    return t.make(_dataclass(t, obj) is not None)


@function(dataclasses.fields)
def fields(t: Tracer, class_or_instance: Value) -> Value:
    found = _dataclass(t, class_or_instance)
    if found is None:
        t.raise_(TypeError, "must be called with a dataclass type or instance")
    known, table = found
    return TupleValue([t.wrap(field, ItemSource(table, field.name)).realize() for field in dataclasses.fields(known)])


#: What says how to call a function; other attributes of it are the program's own.
_SAYS_SIGNATURE: Final = (
    "__wrapped__", "__signature__", "_partialmethod", "__partialmethod__", "__defaults__", "__kwdefaults__")
_ASKED: Final = frozenset((*_SAYS_SIGNATURE, "__code__", "__annotations__", "__annotate__", "__type_params__", "__name__",
                           "__qualname__", "__module__", "__call__", "__text_signature__", "__no_type_check__"))


def _inspected(t: Tracer, obj: Value, asker: str) -> Any:
    """The value of a callable whose signature is inspected: the object itself, guarded."""
    known = getattr(obj, "fn", None) or (obj.as_constant() if obj.is_constant() else None)
    asked = obj
    if known is None and obj.pytype() is types.MethodType:
        asked = obj.func.realize()  # type: ignore[attr-defined]  # MethodValue
        fn = getattr(asked, "fn", None)
        known = fn and types.MethodType(fn, obj)  # its object is not queried
    if known is None or not _ASKED.isdisjoint(t.effects.stored_attrs(asked)):
        t.break_("call-builtin", function=asker, args=obj.describe())
    if asked.source is not None:
        _guard_signature(t, asked, known)
    return known


@function(inspect.signature)
def signature(t: Tracer, obj: Value, **options: Value) -> Value:
    known = _inspected(t, obj, "inspect.signature")
    named = {name: concrete_or_break(t, value, "inspect.signature") for name, value in options.items()}
    return protocol.fold(t, lambda: inspect.signature(known, **named))


@function(inspect.getfullargspec)
def getfullargspec(t: Tracer, func: Value) -> Value:
    known = _inspected(t, func, "inspect.getfullargspec")
    try:
        spec = inspect.getfullargspec(known)
    except TypeError as error:
        t.raise_(TypeError, *error.args)
    return TupleValue([t.make(part) for part in spec], cls=inspect.FullArgSpec)


def _guard_signature(t: Tracer, asked: Value, known: Any) -> None:
    """That what says how to call it stays: a function may be another one with the same code."""
    source = asked.source
    assert source is not None
    for name in _SAYS_SIGNATURE:
        present = hasattr(known, name)
        t.guard(HasAttr(source, name, present))
        if present:
            found = getattr(known, name)
            if found is not getattr(known, name):  # made at each access: a method, a property
                t.break_("attribute-unsupported", value=asked.describe(), name=name)
            t.guard(IdIs(AttrSource(source, name), found))


@function(typing.cast)
def cast(t: Tracer, typ: Value, val: Value) -> Value:
    return val


@handles(typing.get_type_hints)
def _get_type_hints(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Of a class, and of a function or a method, whose annotations stay as they are."""
    asked = args[0].realize() if args else None
    if asked is None or asked.is_constant():
        return fold_call(t, typing.get_type_hints, args, kwargs)
    known = _inspected(t, asked, "typing.get_type_hints")
    if asked.source is not None:
        t.guard(IdIs(AttrSource(asked.source, "__annotations__"), known.__annotations__))
    rest = [concrete_or_break(t, value, "typing.get_type_hints") for value in args[1:]]
    named = {name: concrete_or_break(t, value, "typing.get_type_hints") for name, value in kwargs.items()}
    return protocol.fold(t, lambda: typing.get_type_hints(known, *rest, **named))


pure([typing.get_origin, typing.get_args, re.compile, re.escape, enum.unique, sys.getsizeof, sys.intern, os.path.join,
      os.path.basename, os.path.dirname, os.path.splitext, os.fspath, inspect.isabstract,
      inspect.cleandoc, json.dumps, json.loads, str.maketrans, bytes.maketrans])


def _made_of_constants(fn: Callable[..., Any]) -> None:
    @handles(fn)
    def make(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        """An immutable object of constants. Of a number that varies it would be another one in each call."""
        for each in (*args, *kwargs.values()):
            each = each.realize()
            if not each.is_constant() or (isinstance(each, LateText) and each.has_numbers()):
                unknown_call(t, fn, args)
        return fold_call(t, fn, args, kwargs)


for _immutable in (datetime.timedelta, pathlib.PurePath, pathlib.PurePosixPath, pathlib.Path, pathlib.PosixPath):
    _made_of_constants(_immutable)
for _name in ("with_suffix", "with_name", "with_stem", "joinpath", "relative_to", "is_relative_to", "is_absolute", "as_posix"):
    _made_of_constants(getattr(pathlib.PurePath, _name))


@handles(pickle.dumps)
def _dumps(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """Pickled constants. What is met twice is written once if it is the same object, which no guard on values says."""
    try:
        memoised = list(_memoised([concrete(each) for each in args]))
    except NotConcrete:
        unknown_call(t, pickle.dumps, args)
    if len(set(memoised)) < len(memoised):
        unknown_call(t, pickle.dumps, args)
    return fold_call(t, pickle.dumps, args, kwargs)


def _memoised(value: Any) -> Iterator[str]:
    """What pickle may write a reference to instead, of a value made of constants; numbers it always writes."""
    if isinstance(value, dict):
        value = [*value, *value.values()]
    if isinstance(value, (list, tuple, set, frozenset)):
        for each in value:
            yield from _memoised(each)
    elif value is not None and type(value) not in (bool, int, float):
        yield repr(value)


def _inspects(fn: Any, cls: Any) -> None:
    @function(fn)
    def call(t: Tracer, object: Value) -> Value:
        return t.make(issubclass(object.pytype(), cls))


for _predicate, _kind in ((inspect.isfunction, types.FunctionType), (inspect.ismethod, types.MethodType),
                     (inspect.isbuiltin, types.BuiltinFunctionType), (inspect.ismodule, types.ModuleType),
                     (inspect.isgenerator, types.GeneratorType), (inspect.isclass, type)):
    _inspects(_predicate, _kind)


def _handled(t: Tracer, function: str) -> Value:
    """The exception that the innermost `except` under way handles. What a caller of the traced frame handles is another one
    at each call; that it handles none, as nearly always, is guarded."""
    frame = t.frame
    while frame is not None:
        if frame.handled is not None:
            handled: Value = frame.handled
            return handled
        frame = frame.parent
    if sys.exception() is None:
        t.guard(ConstIs(CallSource(ConstSource(sys.exception, "sys.exception")), None))
        return t.make(None)
    t.break_("call-builtin", function=function, args="")


@function(sys.exc_info)
def exc_info(t: Tracer) -> Value:
    handled = _handled(t, "sys.exc_info").realize()
    if handled.is_constant():
        return TupleValue([handled, handled, handled])
    return TupleValue([t.make(handled.pytype()), handled, protocol.getattr_(t, handled, "__traceback__")])


@function(sys.exception)
def exception(t: Tracer) -> Value:
    return _handled(t, "sys.exception")


@function(traceback.clear_frames)
def clear_frames(t: Tracer, tb: Value) -> Value:
    """Frames that were traced have let go of their locals when the exception left them."""
    if not isinstance(tb.realize(), TracebackValue):
        t.break_("call-skipped-module", function="clear_frames", module="traceback")
    return t.make(None)


# -- the process ------------------------------------------------------------------------------------------------


@function(os.getenv)
def getenv(t: Tracer, key: Value, default: Value | None = None) -> Value:
    return t.call(protocol.getattr_(t, t.make(os.environ), "get"), [key, t.make(None) if default is None else default])


def _hook_handler(fn: Callable[[], Any]) -> None:
    """Handler of what a debugger or a profiler has set, if anything."""
    @function(fn)
    def call(t: Tracer) -> Value:
        return t.wrap(fn(), CallSource(ConstSource(fn, name_with_module(fn)))).realize()


for _hook in (sys.gettrace, sys.getprofile):
    _hook_handler(_hook)


def _depends_on_process(fns: list[Any]) -> None:
    for fn in fns:
        _breaks(fn, "call-subprocess")


def _breaks(fn: Any, reason: str) -> None:
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        t.break_(reason, function=name_with_module(fn))


_depends_on_process([
    time.time, time.perf_counter, time.monotonic, time.process_time, time.sleep, time.time_ns, time.perf_counter_ns,
    time.monotonic_ns, os.urandom, os.system, inspect.stack, inspect.trace,
    inspect.getsource, inspect.getsourcelines, inspect.findsource, linecache.getline, linecache.getlines, linecache.checkcache,
])
