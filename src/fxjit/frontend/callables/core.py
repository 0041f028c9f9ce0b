"""The builtin functions: len, isinstance, getattr, sorted, print... (types are in typecalls.py).

Each is its CPython definition (Python/bltinmodule.c) over values/protocol.py.
"""

from __future__ import annotations

import abc
import builtins
import importlib
import sys
import threading
import types
import typing
from collections.abc import Callable
from typing import Any, Final

import torch

from fxjit import process_state
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import choices, deferred_numbers, protocol
from fxjit.frontend.values.base import Raised, Value, callable_type
from fxjit.frontend.values.calls import fold_call, function, handles
from fxjit.frontend.values.classes import ClassValue
from fxjit.frontend.values.computed_numbers import computed
from fxjit.frontend.values.concrete import NotConcrete, concrete
from fxjit.frontend.values.descriptors import (
    guard_bases,
    is_trusted,
    look_up,
    may_say_class,
    metaclass_of,
    written,
    written_classes,
)
from fxjit.frontend.values.iterators import CallIteratorValue
from fxjit.frontend.values.late_numbers import LateNumber
from fxjit.frontend.values.mapping import DictValue
from fxjit.frontend.values.modules import MARKS
from fxjit.frontend.values.namespaces import known_namespace
from fxjit.frontend.values.pymodule import PyModuleValue
from fxjit.frontend.values.random_values import RandomValue, are_random, compute, extreme
from fxjit.frontend.values.sequence import ListValue, is_descending, sequence_part, sort_values
from fxjit.frontend.values.sets import unpack_in_any_order
from fxjit.frontend.values.text_buffers import BufferValue
from fxjit.guards.kinds import IdIs, PythonCheck
from fxjit.guards.source import ConstSource, ItemSource, class_source
from fxjit.homes import module_of, name_with_module

# -- about one object -------------------------------------------------------------------------------------------


@function(len)
def len_(t: Tracer, obj: Value) -> Value:
    return protocol.length(t, obj)


@function(callable)
def callable_(t: Tracer, obj: Value) -> Value:
    look_up(t, obj.pytype(), "__call__")
    return t.make(callable_type(obj.pytype()))


@function(id)
def id_(t: Tracer, obj: Value) -> Value:
    if isinstance(obj, (ClassValue, PyModuleValue)):
        process_state.bind("the identity of an object")
        return t.make(id(obj.as_constant()))
    return LateNumber(id, obj)


@function(threading.get_ident)
def get_ident(t: Tracer) -> Value:
    return LateNumber(threading.get_ident)


@function(hash)
def hash_(t: Tracer, obj: Value) -> Value:
    if obj.pytype().__hash__ is None:
        t.raise_(TypeError, f"unhashable type: '{obj.pytype().__name__}'")
    by_identity: Any = object.__hash__
    if not obj.is_constant() and obj.pytype().__hash__ is by_identity and written(t, obj.pytype(), "__hash__") is None:
        return LateNumber(by_identity, obj)  # not `hash`: the class may be given another meanwhile
    process_state.bind("a hash")
    return protocol.hash_(t, obj)


@function(repr)
def repr_(t: Tracer, obj: Value) -> Value:
    return protocol.repr_(t, obj)


@function(ascii)
def ascii_(t: Tracer, obj: Value) -> Value:
    return protocol.ascii_(t, obj)


@function(format)
def format_(t: Tracer, obj: Value, spec: Value | None = None) -> Value:
    return protocol.format_(t, obj, "" if spec is None else spec.as_constant())


@function(abs)
def abs_(t: Tracer, obj: Value) -> Value:
    return protocol.unary(t, "abs", obj)


@function(divmod)
def divmod_(t: Tracer, a: Value, b: Value) -> Value:
    if a.is_constant() and b.is_constant():
        return protocol.fold(t, divmod, a.as_constant(), b.as_constant())
    kinds = [value.realize().pytype() for value in (a, b)]
    ways = [(a, b, "__divmod__"), (b, a, "__rdivmod__")][:1 if kinds[0] is kinds[1] else 2]
    for value, other, name in ways[::-1] if issubclass(kinds[1], kinds[0]) else ways:
        method = protocol.lookup_special(t, value, name) if hasattr(value, "bind_special") else None
        if method is not None:
            result = t.call(method, [other])
            if not (result.is_constant() and result.as_constant() is NotImplemented):
                return result
    declined = any(hasattr(value, "bind_special") for value in (a, b)) or not all(hasattr(kind, "__divmod__") for kind in kinds)
    if declined and not any(module_of(kind).startswith("numpy") for kind in kinds):  # an array takes what it can convert
        names = " and ".join(f"'{kind.__name__}'" for kind in kinds)
        t.raise_(TypeError, f"unsupported operand type(s) for divmod(): {names}")
    return t.call(t.make(tuple), [ListValue([protocol.binary(t, "//", a, b), protocol.binary(t, "%", a, b)])])


@function(pow)
def pow_(t: Tracer, base: Value, exp: Value, mod: Value | None = None) -> Value:
    if mod is None or (mod.is_constant() and mod.as_constant() is None):
        return protocol.binary(t, "**", base, exp)
    found = computed(t, pow, [base, exp, mod])
    return fold_call(t, pow, [base, exp, mod]) if found is None else found


@function(round)
def round_(t: Tracer, number: Value, ndigits: Value | None = None) -> Value:
    digits = [] if ndigits is None or (ndigits.is_constant() and ndigits.as_constant() is None) else [ndigits]
    if number.is_constant():
        return fold_call(t, round, [number, *digits])
    if not hasattr(number.pytype(), "__round__"):
        t.raise_(TypeError, f"type {number.pytype().__name__} doesn't define __round__ method")
    if not digits and issubclass(number.pytype(), (int, float)):
        return protocol.unary(t, "round", number)
    if (later := deferred_numbers.of_function(t, round, [number, *digits])) is not None:
        return later
    if isinstance(number, RandomValue) and digits[0].is_constant():
        return compute(t, round, [number, *digits], may_fail=True)
    found = computed(t, round, [number, *digits])
    if found is not None:
        return found
    specialize = getattr(number, "specialize", None)
    if specialize is not None:
        return fold_call(t, round, [specialize(t), *digits])
    return t.call(protocol.getattr_(t, number, "__round__"), digits)


def _folded(fn: Any) -> None:
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) == 1 and not args[0].is_constant() and hasattr(args[0].pytype(), "__index__"):
            return fold_call(t, fn, [protocol.unary(t, "index", args[0])], kwargs)
        return fold_call(t, fn, args, kwargs)


for _fn in (chr, ord):
    _folded(_fn)


def _base(fn: Any, form: str) -> None:
    @function(fn)
    def call(t: Tracer, number: Value, /) -> Value:
        if not number.is_constant() and hasattr(number.pytype(), "__index__"):
            number = protocol.unary(t, "index", number)
        if number.is_constant() or number.pytype() is not int:
            return fold_call(t, fn, [number])
        return protocol.format_(t, number, form)


for _fn, _form in ((hex, "#x"), (oct, "#o"), (bin, "#b")):
    _base(_fn, _form)


# -- attributes -------------------------------------------------------------------------------------------------


def name_of(t: Tracer, name: Value) -> str:
    if not issubclass(name.pytype(), str):
        t.raise_(TypeError, f"attribute name must be string, not '{name.pytype().__name__}'")
    return str(name.as_constant())


@function(getattr)
def getattr_(t: Tracer, obj: Value, name: Value, default: Value | None = None) -> Value:
    if default is None:
        return protocol.getattr_(t, obj, name_of(t, name))
    return protocol.getattr_or_none(t, obj, name_of(t, name)) or default


@function(hasattr)
def hasattr_(t: Tracer, obj: Value, name: Value) -> Value:
    return t.make(protocol.hasattr_(t, obj, name_of(t, name)))


@function(setattr)
def setattr_(t: Tracer, obj: Value, name: Value, value: Value) -> Value:
    protocol.setattr_(t, obj, name_of(t, name), value)
    return t.make(None)


@function(delattr)
def delattr_(t: Tracer, obj: Value, name: Value) -> Value:
    protocol.delattr_(t, obj, name_of(t, name))
    return t.make(None)


def vars_(t: Tracer, obj: Value | None = None) -> Value:
    if obj is None:
        return locals_(t)
    found = protocol.getattr_or_none(t, obj, "__dict__")
    if found is None:
        t.raise_(TypeError, "vars() argument must have __dict__ attribute")
    return found


def dir_(t: Tracer, obj: Value | None = None) -> Value:
    if obj is None:
        names = [key for key, _ in locals_(t).items.values()]
        sort_values(t, names, None, False)
        return ListValue(names)
    if obj.is_constant() and not isinstance(obj.as_constant(), types.ModuleType):
        if written_classes(t) and isinstance(obj.as_constant(), type):
            t.break_("call-builtin", function="dir", args=obj.describe())
        _guard_names(t, obj)
        return fold_call(t, dir, [obj])
    own = [name for name in ("__dir__", "__class__") if protocol.type_lookup(obj.pytype(), name) is not object.__dict__[name]]
    if own or not hasattr(obj, "obj"):
        t.break_("call-builtin", function="dir", args=obj.describe())
    _guard_names(t, obj)
    names_of_class = set(dir(obj.pytype()))
    namespace = protocol.getattr_or_none(t, obj, "__dict__")
    if isinstance(namespace, DictValue):
        names_of_class.update(str(key) for key in namespace.items)
    return t.make(sorted(names_of_class))


def _guard_names(t: Tracer, obj: Value) -> None:
    """Guards that `dir(obj)` has the names of its class, or those that it has as a class."""
    known = obj.as_constant() if obj.is_constant() else None
    cls = known if isinstance(known, type) else obj.pytype()
    own, _ = look_up(t, type(known) if isinstance(known, type) else cls, "__dir__")
    if own not in (object.__dict__["__dir__"], type.__dict__["__dir__"]) and not isinstance(known, types.ModuleType):
        t.break_("call-builtin", function="dir", args=obj.describe())
    guard_bases(t, cls)
    for base in cls.__mro__:
        if not is_trusted(module_of(base)):
            protocol.unpack(t, protocol.getattr_(t, t.make(base), "__dict__"))  # all its keys are guarded


@function(globals)
def globals_(t: Tracer) -> Value:
    return t.running_frame.globals


def locals_(t: Tracer) -> DictValue:
    frame: Any = t.running_frame
    found = dict(frame.locals)
    for name, cell in {**frame.closure, **frame.cells}.items():
        contents = cell.realize().get(t)
        if contents is not None:
            found[name] = contents
    code = frame.code
    order = dict.fromkeys((*code.varnames, *code.cellvars, *code.freevars, *found))  # CPython's, whatever was bound first
    return DictValue(t, [(t.make(name), found[name]) for name in order if name in found])


# -- classes ----------------------------------------------------------------------------------------------------


@function(isinstance)
def isinstance_(t: Tracer, obj: Value, cls: Value) -> Value:
    return t.make(is_instance(t, obj, cls))


@function(issubclass)
def issubclass_(t: Tracer, sub: Value, cls: Value) -> Value:
    return t.make(_any_class(t, cls, lambda one: _is_subclass(t, sub, one)))


def is_instance(t: Tracer, obj: Value, cls: Value) -> bool:
    """`isinstance(obj, cls)`; `cls` may be a class, a union, or a tuple of these."""
    return _any_class(t, cls, lambda one: _is_instance_of(t, obj, one))


def _any_class(t: Tracer, cls: Value, test: Any) -> bool:
    part = sequence_part(cls, tuple)
    if part is not None:
        return any(_any_class(t, item, test) for item in part.realized())
    if cls.is_constant():
        known = cls.as_constant()
        if isinstance(known, types.UnionType) or typing.get_origin(known) is typing.Union:
            members = [type(None) if arg is None else arg for arg in typing.get_args(known)]
            return any(_any_class(t, t.make(member), test) for member in members)
        if isinstance(known, tuple):
            return any(_any_class(t, t.make(member), test) for member in known)
        if isinstance(known, _BARE_ALIAS):
            return _any_class(t, t.make(known.__origin__), test)
    return bool(test(cls))


#: `typing.Iterable` and its like without arguments, which stand for a class.
_BARE_ALIAS: Final[Any] = type(typing.Iterable)


def _is_instance_of(t: Tracer, obj: Value, cls: Value) -> bool:
    pytype = obj.pytype() if not isinstance(obj, ClassValue) else metaclass_of(t, obj.cls)
    known = _known_class(cls)
    if known is pytype:
        return True
    if known is None:
        method = protocol.lookup_special(t, cls, "__instancecheck__")
        if method is None or cls.is_constant():
            t.raise_(TypeError, "isinstance() arg 2 must be a type, a tuple of types, or a union")
        return protocol.truth(t, t.call(method, [obj]))
    hook, _ = look_up(t, metaclass_of(t, known), "__instancecheck__")
    if isinstance(known, _TENSOR_TYPES) and issubclass(pytype, torch.Tensor):
        return _has_tensor_type(t, obj, known)
    if hook is type.__dict__["__instancecheck__"] or isinstance(hook, _C_HOOKS):
        guard_bases(t, pytype)
        return issubclass(pytype, known) or _says_so(t, obj, known)
    if known in MARKS:
        return issubclass(pytype, known) or (
            issubclass(pytype, torch.Tensor) and protocol.hasattr_(t, obj, MARKS[known]))
    if isinstance(known, _PROTOCOL_META) and getattr(known, "_is_protocol", False):
        return _is_protocol_instance(t, obj, known)
    if type(known) in _METACLASSES:
        return _METACLASSES[type(known)](t, obj, known)
    if isinstance(known, abc.ABCMeta) and hook is abc.ABCMeta.__instancecheck__:
        said = _said_class(t, obj, _checked_class)
        return (said is not None and _subclass_of_constant(t, said, known)) or _subclass_of_constant(t, pytype, known)
    if module_of(type(known)).startswith(("torch", "typing")) or not isinstance(hook, types.FunctionType):
        return _subclass_of_constant(t, pytype, known)
    return protocol.truth(t, t.call(t.make(hook), [cls, obj]))


def _has_tensor_type(t: Tracer, obj: Value, cls: Any) -> bool:
    """`isinstance(x, torch.FloatTensor)`, which checks dtype, layout and device."""
    device = protocol.getattr_(t, obj, "device").as_constant()
    same = all(protocol.getattr_(t, obj, name).as_constant() == getattr(cls, name) for name in ("dtype", "layout"))
    return same and device.type == ("cuda" if cls.is_cuda else "cpu")


def _is_tensor(t: Tracer, obj: Value, cls: Any) -> bool:
    """`isinstance(x, torch.autograd.Variable)`."""
    return issubclass(obj.pytype(), torch.Tensor)


def _holds_type(t: Tracer, storage: Value, cls: Any) -> bool:
    """`isinstance(storage, torch.FloatStorage)`, which is a class for each dtype and kind of device."""
    if storage.pytype() is not torch.TypedStorage:
        return False
    device, dtype = (protocol.getattr_(t, storage, name).as_constant() for name in ("device", "dtype"))
    of_class = "cpu" if cls.__module__ == "torch" else cls.__module__.rpartition(".")[2]
    return bool(dtype == cls._dtype and device.type == of_class)


def _says_so(t: Tracer, obj: Value, cls: type) -> bool:
    said = _said_class(t, obj, protocol.getattr_or_none)
    return said is not None and issubclass(said, cls)


def _said_class(t: Tracer, obj: Value, get: Callable[[Tracer, Value, str], Value | None]) -> type | None:
    """The class that a proxy passes itself off as."""
    if not may_say_class(t, obj.pytype()):
        return None
    said = get(t, obj, "__class__")
    known = said.as_constant() if said is not None and said.is_constant() else None
    return known if isinstance(known, type) else None


def _checked_class(t: Tracer, obj: Value, name: str) -> Value:
    """The attribute, as abstract base classes read it."""
    said = protocol.getattr_(t, obj, name)
    if said.is_constant() and not isinstance(said.as_constant(), type):
        t.raise_(TypeError, "issubclass() arg 1 must be a class")
    return said


_PROTOCOL_META: Any = type(typing.Protocol)
#: The type of `torch.FloatTensor` and its like.
_TENSOR_TYPES: Any = type(torch.FloatTensor)
_C_HOOKS = (types.MethodDescriptorType, types.WrapperDescriptorType)
#: Metaclasses of torch's whose classes are no base classes of what counts as their instance.
_METACLASSES: Final = {type(torch.FloatStorage): _holds_type, type(torch.autograd.Variable): _is_tensor}


def _known_class(cls: Value) -> type | None:
    """The class that a value represents; None for other values, or for a class that is created at run time."""
    if cls.is_constant():
        known = cls.as_constant()
        return known if isinstance(known, type) and not isinstance(known, types.GenericAlias) else None
    return None


def _is_protocol_instance(t: Tracer, obj: Value, cls: type) -> bool:
    """A class made with typing.Protocol: an instance has the attributes that it names, none of which may be None where the
    protocol has a method, or its class is registered."""
    if not getattr(cls, "_is_runtime_protocol", False):
        t.raise_(TypeError, "Instance and class checks can only be used with @runtime_checkable protocols")
    if cls in obj.pytype().__mro__:
        return True
    names = getattr(cls, "__protocol_attrs__", None)
    if names is None:
        names = typing._get_protocol_attrs(cls)  # type: ignore[attr-defined]  # 3.11 has no attribute for it
    return all(_has_member(t, obj, cls, name) for name in sorted(names)) or _is_registered(t, obj.pytype(), cls)


def _has_member(t: Tracer, obj: Value, protocol_class: type, name: str) -> bool:
    found = protocol.getattr_or_none(t, obj, name)
    return found is not None and not (found.pytype() is type(None) and callable(getattr(protocol_class, name, None)))


def _is_registered(t: Tracer, sub: type, cls: Any) -> bool:
    answer = _is_registered_now(sub, cls)
    if not is_trusted(module_of(sub)):
        known = (class_source(sub), class_source(cls))
        t.guard(PythonCheck(known, _is_registered_now if answer else _is_not_registered_now,
                            f"{cls.__qualname__} has {sub.__qualname__} registered, or not, as in the trace"))
    return answer


class _Instance:
    """Stands for an instance of `cls`: protocols that name more than methods may only be asked about instances."""

    def __init__(self, cls: type) -> None:
        self.cls = cls

    @property  # type: ignore[misc]  # what an object says of its class
    def __class__(self) -> type:
        return self.cls


def _is_registered_now(sub: type, cls: abc.ABCMeta) -> bool:
    return abc.ABCMeta.__instancecheck__(cls, _Instance(sub))


def _is_not_registered_now(sub: type, cls: abc.ABCMeta) -> bool:
    return not _is_registered_now(sub, cls)


def _subclass_of_constant(t: Tracer, sub: type, cls: Any) -> bool:
    answer = bool(protocol.fold(t, issubclass, sub, cls).as_constant())
    guard_bases(t, sub)
    if isinstance(cls, abc.ABCMeta) and cls not in sub.__mro__ and not is_trusted(module_of(sub)):
        # Whoever registers the class, or gives it a method that the other's `__subclasshook__` looks for, changes it.
        known = (class_source(sub), class_source(cls))
        check = _is_subclass_now if answer else _is_no_subclass_now
        t.guard(PythonCheck(known, check, f"issubclass({sub.__qualname__}, {cls.__qualname__}) is {answer}"))
    return answer


def _is_subclass_now(sub: type, cls: type) -> bool:
    return issubclass(sub, cls)


def _is_no_subclass_now(sub: type, cls: type) -> bool:
    return not issubclass(sub, cls)


def _is_subclass(t: Tracer, sub: Value, cls: Value) -> bool:
    known, wanted = _known_class(sub), _known_class(cls)
    if known is None:
        if sub.is_constant():
            t.raise_(TypeError, "issubclass() arg 1 must be a class")
        t.break_("call-builtin", function="issubclass", args=sub.describe())
    if wanted is None:
        t.raise_(TypeError, "issubclass() arg 2 must be a class, a tuple of classes, or a union")
    hook, _ = look_up(t, type(wanted), "__subclasscheck__")
    if isinstance(hook, types.FunctionType) and module_of(hook) not in ("abc", "typing") and (
            not module_of(hook).startswith("torch")):
        return protocol.truth(t, t.call(t.make(hook), [cls, sub]))
    return _subclass_of_constant(t, known, wanted)


# -- iteration --------------------------------------------------------------------------------------------------


@function(iter)
def iter_(t: Tracer, obj: Value, sentinel: Value | None = None) -> Value:
    if sentinel is None:
        return protocol.iter_(t, obj)
    if not callable_type(obj.pytype()):
        return protocol.fold(t, iter, 0, 0)  # raises, in this Python's words
    return CallIteratorValue(obj, sentinel)


@function(next)
def next_(t: Tracer, it: Value, default: Value | None = None) -> Value:
    if default is not None:
        return protocol.next_(t, it) or default
    item = it.realize().tp_iternext(t)
    if item is None:
        t.raise_(StopIteration, *_stop_values(it))
    return item.realize()


def _stop_values(it: Value) -> list[Value]:
    """The return value of a generator, for the StopIteration that ends it."""
    returned = getattr(it, "returned", None)
    if not isinstance(returned, Value) or (returned.is_constant() and returned.as_constant() is None):
        return []
    return [returned]


@function(any)
def any_(t: Tracer, values: Value) -> Value:
    it = protocol.iter_(t, values)
    while (item := protocol.next_(t, it)) is not None:
        if protocol.truth(t, item):
            return t.make(True)
    return t.make(False)


@function(all)
def all_(t: Tracer, values: Value) -> Value:
    it = protocol.iter_(t, values)
    while (item := protocol.next_(t, it)) is not None:
        if not protocol.truth(t, item):
            return t.make(False)
    return t.make(True)


@function(sum)
def sum_(t: Tracer, values: Value, /, start: Value | None = None) -> Value:
    total = t.make(0) if start is None else start
    if issubclass(total.pytype(), (str, bytes)):
        kind = "strings" if issubclass(total.pytype(), str) else "bytes"
        joiner = "''" if kind == "strings" else "b''"
        t.raise_(TypeError, f"sum() can't sum {kind} [use {joiner}.join(seq) instead]")
    items = protocol.unpack(t, values)
    known = [item.as_constant() for item in items if item.is_constant()]
    if len(known) == len(items) and total.is_constant() and all(isinstance(item, (int, float)) for item in known):
        return protocol.fold(t, sum, known, total.as_constant())
    for item in items:
        total = protocol.binary(t, "+", total, item)
    return total


def _is_given(key: Value | None) -> bool:
    return key is not None and not (key.is_constant() and key.as_constant() is None)


def _extreme(fn: Any, op: str) -> None:
    name = fn.__name__

    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        key, default = kwargs.pop("key", None), kwargs.pop("default", None)
        if kwargs:
            t.raise_(TypeError, f"'{next(iter(kwargs))}' is an invalid keyword argument for {name}()")
        if not args:
            t.raise_(TypeError, f"{name} expected at least 1 argument, got 0")
        if len(args) > 1 and default is not None:
            t.raise_(TypeError, f"Cannot specify a default for {name}() with multiple positional arguments")
        if not _is_given(key):
            key = None
        items = args if len(args) > 1 else protocol.unpack(t, args[0]) if key else unpack_in_any_order(t, args[0])
        if not items:
            if default is None:
                t.raise_(ValueError, _EMPTY.format(name))
            return default
        return _pick(t, items, key, op, fn)


def _pick(t: Tracer, items: list[Value], key: Value | None, op: str, fn: Any) -> Value:
    if key is None and (later := deferred_numbers.of_function(t, fn, items)) is not None:
        return later
    keys = items if key is None else [t.call(key, [item]) for item in items]
    if key is None and any(item.node is not None and item.pytype() in (int, float) for item in items):
        symbolic = _symbolic_extreme(t, items, fn)
        if symbolic is not None:
            return symbolic
    if key is None and are_random(items):
        return extreme(t, fn, items)
    if key is None and choices.stays_in_graph(t, items):
        found = items[0]
        for item in items[1:]:
            found = choices.choose(t, protocol.compare(t, op, item, found), item, found)
        return found
    best = 0
    for index in range(1, len(items)):
        if protocol.truth(t, protocol.compare(t, op, keys[index], keys[best])):
            best = index
    return items[best]


def _symbolic_extreme(t: Tracer, items: list[Value], fn: Any) -> Value | None:
    """min and max of numbers of the graph stay numbers of the graph, if they are of one type: of several, the result has that
    of the one that is found (`max(7, 4.0)` is 7), and torch's has not."""
    if len({item.pytype() for item in items}) > 1:
        return None
    operation = torch.sym_max if fn is max else torch.sym_min
    result = items[0]
    for item in items[1:]:
        result = t.emit(operation, [result, item])
    return result


try:
    max(())
except ValueError as _error:  # worded differently by each Python
    _EMPTY = str(_error).replace("max", "{}")
_extreme(max, ">")
_extreme(min, "<")


@function(sorted)
def sorted_(t: Tracer, values: Value, /, *, key: Value | None = None, reverse: Value | None = None) -> Value:
    descending = is_descending(t, reverse)
    hinted = protocol.unpack_hinted
    items = hinted(t, values) if _is_given(key) else unpack_in_any_order(t, values, hinted)
    sort_values(t, items, key, descending)
    return ListValue(items)


# -- the outside world ------------------------------------------------------------------------------------------


def _writes_outside(fn: Any) -> None:
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        t.break_("call-print", function=name_with_module(fn))


for _outside in (input, open):
    _writes_outside(_outside)


@handles(print)
def print_(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    file = kwargs["file"].realize() if "file" in kwargs else t.make(None)
    streams = known_namespace(t, vars(sys))
    if file.is_constant() and file.as_constant() is None and streams is not None and "stdout" in streams.written:
        file = protocol.getattr_(t, t.make(sys), "stdout")  # which the trace has set
    if not isinstance(file, BufferValue) or not kwargs.keys() <= {"file", "sep", "end"}:
        t.break_("call-print", function="print")
    return file.print(t, args, kwargs)


def _runs_code(fn: Any) -> None:
    @handles(fn)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        t.break_("call-builtin", function=fn.__name__, args=", ".join(arg.describe() for arg in args))


for _code_runner in (eval, compile):
    _runs_code(_code_runner)


@function(builtins.__import__)
def import_(t: Tracer, name: Value, globals: Value | None = None, locals: Value | None = None,
            fromlist: Value | None = None, level: Value | None = None) -> Value:
    """A module that is there already; relative imports, and first imports, run as they stand."""
    known = concrete_or_break(t, name, "__import__")
    if known not in sys.modules or (level is not None and concrete_or_break(t, level, "__import__") != 0):
        t.break_("opcode-import", name=known)
    whole = fromlist is not None and protocol.truth(t, fromlist)
    return _imported_module(t, known if whole else known.partition(".")[0])


@function(importlib.import_module)
def import_module(t: Tracer, name: Value, package: Value | None = None) -> Value:
    """The same."""
    known = concrete_or_break(t, name, "import_module")
    if known not in sys.modules:
        t.break_("opcode-import", name=known)
    return _imported_module(t, known)


def _imported_module(t: Tracer, name: str) -> Value:
    module, found_by = sys.modules[name], known_namespace(t, sys.modules)
    if not isinstance(module, types.ModuleType) or (found_by is not None and found_by.written):
        t.break_("opcode-import", name=name)
    t.guard(IdIs(ItemSource(ConstSource(sys.modules, "sys.modules"), name), module))
    return t.make(module)


def concrete_or_break(t: Tracer, value: Value, what: str) -> Any:
    """A known argument, or the end of the graph."""
    try:
        return concrete(value)
    except NotConcrete:
        t.break_("call-builtin", function=what, args=value.describe())


def caught(t: Tracer, attempt: Any, *classes: type[BaseException]) -> Value | None:
    """The result of `attempt()`; None where it raises one of these in the user's program."""
    try:
        result: Value = attempt()
    except Raised as raised:
        if issubclass(raised.value.pytype(), classes):
            return None
        raise
    return result
