"""Callables that C implements: builtin functions, methods of builtin types, special methods by name.

A call goes by `calls.resolve`. Methods are `meth_<name>` of the value they are called on; special methods its slots.
"""

from __future__ import annotations

import collections
import functools
import operator
import re
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.arguments import misfit, refuse_arguments, refused_by_method
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.calls import has_polyfill, resolve
from fxjit.frontend.values.concrete import builtin_part, concrete, is_concrete
from fxjit.frontend.values.container_copies import copier_of
from fxjit.frontend.values.traits import ObjectMethods
from fxjit.frontend.values.wrap import creates, wraps
from fxjit.guards.kinds import IdIs, TypeIs
from fxjit.guards.source import AttrSource, Source
from fxjit.homes import module_of, name_with_module


class BuiltinValue(Value):
    """A callable implemented in C: a builtin function, a slot wrapper, a method descriptor of a builtin type."""

    def __init__(self, fn: Any, source: Source | None = None) -> None:
        super().__init__(source)
        self.fn = fn

    def pytype(self) -> type:
        return type(self.fn)

    def describe(self) -> str:
        return f"builtin `{name_with_module(self.fn)}`"

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        handler = resolve(self.fn)
        if handler is not None:
            return handler(t, list(args), dict(kwargs))
        if isinstance(self.fn, _METHOD_DESCRIPTORS):
            return self._call_descriptor(t, args, kwargs)
        if is_pure(self.fn) and all(arg.is_constant() for arg in (*args, *kwargs.values())):
            return protocol.fold(t, lambda: self.fn(
                *[arg.as_constant() for arg in args], **{key: arg.as_constant() for key, arg in kwargs.items()}))
        name, module = name_with_module(self.fn), module_of(self.fn)
        if module in ("", "builtins"):
            t.break_("call-builtin", function=name, args=", ".join(arg.describe() for arg in args))
        t.break_("call-c-extension", function=name, module=module)

    def _call_descriptor(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """`list.append(x, 1)`: the method of the builtin type, whatever the first argument's own class overrides."""
        name, owner = self.fn.__name__, self.fn.__objclass__
        if not args:
            t.raise_(TypeError, f"unbound method {owner.__name__}.{name}() needs an argument")
        receiver = args[0].realize()
        if not issubclass(receiver.pytype(), owner):
            if isinstance(self.fn, types.WrapperDescriptorType):
                t.raise_(TypeError, f"descriptor '{name}' requires a '{owner.__name__}' object but received a "
                                    f"'{receiver.pytype().__name__}'")
            t.raise_(TypeError, f"descriptor '{name}' for '{owner.__name__}' objects doesn't apply to a "
                                f"'{receiver.pytype().__name__}' object")
        return call_builtin_method(t, receiver, name, args[1:], kwargs, owner)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__class__":
            return t.make(type(self.fn))
        if name == "__self__":
            owner = getattr(self.fn, "__self__", NOT_IMPLEMENTED)
            if owner is not NOT_IMPLEMENTED:
                return t.make(owner)
        try:
            found = getattr(self.fn, name)
        except AttributeError as error:
            t.raise_(AttributeError, *error.args)
        if name in ("__call__", "__get__"):
            return protocol.make_builtin_method(t, self, name)
        return t.make(found)

    def meth___call__(self, t: Tracer, *args: Value, **kwargs: Value) -> Value:
        return t.call(self, args, kwargs)

    def meth___get__(self, t: Tracer, instance: Value, owner: Value | None = None) -> Value:
        if isinstance(self.fn, types.ClassMethodDescriptorType):
            descriptor = self.fn
            known = [concrete(each) for each in (instance, owner) if each is not None and is_concrete(each)]
            return protocol.fold(t, lambda: descriptor.__get__(*known))
        if not isinstance(self.fn, _METHOD_DESCRIPTORS):
            return self
        if instance.is_constant() and instance.as_constant() is None:
            if owner is None or (owner.is_constant() and owner.as_constant() is None):
                t.raise_(TypeError, "__get__(None, None) is invalid")
            return self
        if not issubclass(instance.pytype(), self.fn.__objclass__):
            t.raise_(TypeError, f"descriptor '{self.fn.__name__}' for '{self.fn.__objclass__.__name__}' objects doesn't apply "
                                f"to a '{instance.pytype().__name__}' object")
        return BuiltinMethodValue(instance, self.fn.__name__, owner=self.fn.__objclass__)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        """Methods of C bound to one object are equal, and not one object: `torch.Tensor.shape.__get__`."""
        if op not in ("==", "!=") or not isinstance(other, BuiltinValue):
            return NOT_IMPLEMENTED
        return t.make(bool(self.fn == other.fn) is (op == "=="))

    def tp_hash(self, t: Tracer) -> Value:
        return t.make(hash(self.fn))

    def tp_repr(self, t: Tracer) -> Value:
        return t.make(repr(self.fn))

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push_const(self.fn)


_METHOD_DESCRIPTORS: Final = (types.MethodDescriptorType, types.WrapperDescriptorType)
_PURE_MODULES: Final = frozenset({"math", "cmath", "_operator", "unicodedata", "binascii", "zlib", "_struct"})
_PURE_BUILTINS: Final = frozenset({
    abs, all, any, ascii, bin, callable, chr, divmod, format, hash, hex, isinstance, issubclass, len, max, min, oct,
    ord, pow, repr, round, sum,
})


def is_pure(fn: Any) -> bool:
    """Whether a C function gives the same for the same constants, and does nothing else."""
    try:
        return fn in _PURE_BUILTINS or module_of(fn) in _PURE_MODULES
    except TypeError:
        return False


class BuiltinMethodValue(Value):
    """A method of a builtin type bound to a value: `items.append`."""

    def __init__(self, self_value: Value, name: str, source: Source | None = None, owner: type | None = None) -> None:
        super().__init__(source)
        self.self_value = self_value
        self.name = name
        #: The class whose method it is, where that is not what the value's own type gives for the name (`super()`).
        self.owner = owner
        #: Of a builtin part (`part_method`): the method as it was found, and the instance that it is bound to.
        self.whole: tuple[Any, Value] | None = None

    def pytype(self) -> type:
        found = protocol.type_lookup(self.owner or self.self_value.pytype(), self.name)
        if isinstance(found, types.WrapperDescriptorType):
            return types.MethodWrapperType
        if isinstance(found, types.MethodDescriptorType) and self.self_value.is_constant() and self.owner is None:
            return type(getattr(self.self_value.as_constant(), self.name))
        return types.BuiltinMethodType

    def describe(self) -> str:
        return f"`{self.self_value.pytype().__name__}.{self.name}`"

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        if self.whole is not None and (copier := copier_of(self.whole[0])) is not None:
            return t.inline(t.make(copier), [self.whole[1], *args], kwargs)
        return call_builtin_method(t, self.self_value, self.name, args, kwargs, self.owner)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "__self__":
            return self.self_value if self.whole is None else self.whole[1]
        if name == "__name__":
            return t.make(self.name)
        if name == "__qualname__":
            return t.make(f"{self.self_value.pytype().__qualname__}.{self.name}")
        if name == "__class__":
            return t.make(self.pytype())
        if name == "__call__":
            return self
        if name == "__doc__":
            return t.make(getattr(self.self_value.pytype(), self.name).__doc__)
        return protocol.generic_getattr(t, self, name)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if op not in ("==", "!=") or not isinstance(other, BuiltinMethodValue):
            if op in ("==", "!=") and isinstance(other, BuiltinValue) and _bound_method(other.fn) and (
                    getattr(other.fn, "__name__", "") == self.name):  # of an object that is known by itself
                t.break_("value-slot", slot=op, type="builtin_function_or_method")
            return NOT_IMPLEMENTED
        same = self.name == other.name and protocol.is_(t, self.self_value, other.self_value)
        return t.make(same if op == "==" else not same)

    def tp_hash(self, t: Tracer) -> Value:
        t.break_("value-slot", slot="hash", type="builtin_function_or_method")

    def rebuild(self, cg: Rebuilder) -> None:
        if self.whole is not None:
            cg.call(bind_method, *self.whole)
            return
        if self.owner is not None:
            cg.call(bind_method, self.owner.__dict__[self.name], self.self_value)
            return
        cg.push(self.self_value)
        cg.asm.load_attr(self.name)


def _nesting(value: Value) -> int:
    depth = 0
    while isinstance(value, BuiltinMethodValue) and depth < _MAX_NESTING:
        value, depth = value.self_value, depth + 1
    return depth


_MAX_NESTING: Final = 20


def bound_to(t: Tracer, value: Value, name: str) -> Value:
    """`value.name`, a method of a builtin type; methods of methods of methods... end somewhere."""
    if _nesting(value) >= _MAX_NESTING:
        t.break_("attribute-unsupported", value="method", name=name)
    known = getattr(value, "obj", None)
    if isinstance(known, types.GetSetDescriptorType) and value.source is not None:  # what modes are told of an attribute
        t.guard(IdIs(value.source, known))
        return t.make(getattr(known, name))
    return BuiltinMethodValue(value, name)


def part_method(t: Tracer, part: Value, instance: Value, raw: Any) -> Value:
    """A method of C bound to an instance of the program's class, followed on the instance's builtin part. Where the running
    program gets it, it is the instance's: what it writes to another container would be lost."""
    method = part.tp_getattro(t, getattr(raw, "__name__", "?"))
    if isinstance(method, BuiltinMethodValue) and isinstance(raw, _BOUND_BY_READING):
        method.whole = raw, instance
    return method


_BOUND_BY_READING: Final = (types.WrapperDescriptorType, types.MethodDescriptorType)


def bind_method(descriptor: Any, obj: object) -> Any:
    """Run-time helper of new bytecode: makes a bound method of a builtin type."""
    return descriptor.__get__(obj, type(obj))


protocol.make_builtin_method.provide(bound_to)


_SHOWING: Final = frozenset({"__repr__", "__str__", "__format__"})
#: Builtin types that show the name of an instance's class, and whose copies are of that class; of the first three the
#: operators as well.
SHOW_THEIR_CLASS: Final = (collections.OrderedDict, collections.defaultdict, collections.deque, set, frozenset)


def shown_under(name: str, shown: str, kind: type) -> str:
    """`repr` of an instance of a subclass of such a type, from that of its builtin part."""
    return f"{name}({shown})" if kind is set and shown.startswith("{") else name + shown.removeprefix(kind.__name__)


def call_builtin_method(t: Tracer, receiver: Value, name: str, args: Sequence[Value], kwargs: Mapping[str, Value],
                        owner: type | None) -> Value:
    """`receiver.name(*args)` for a method that a builtin type has: the value's own `meth_<name>`, or the table's handler for
    the type's descriptor, or, on constants, the method itself."""
    method = getattr(receiver, "meth_" + name, None)
    descriptor = protocol.type_lookup(owner if owner is not None else receiver.pytype(), name)
    handler = resolve(descriptor) if has_polyfill(descriptor) else None
    if handler is not None:
        return handler(t, [receiver, *args], dict(kwargs))
    if owner is dict and _has_its_own(getattr(receiver, "base", None) or receiver, descriptor, name):
        t.break_("call-builtin", function=f"dict.{name}", args=receiver.describe())
    if isinstance(receiver, ObjectMethods) and owner is not None and descriptor is not object.__dict__.get(name):
        # An instance of a class that derives from one of C: `dict.__setitem__(obj, ...)`, `bytearray.__init__(obj, ...)`.
        base = getattr(receiver, "base", None)
        if isinstance(base, Value) and issubclass(base.pytype(), owner) and name != "__init__":
            # Where it is shown later, `repr` would call the class again; and some types show the name of the class.
            if name in _SHOWING and (issubclass(owner, SHOW_THEIR_CLASS) or not base.is_constant()):
                t.break_("repr-unsupported", value=receiver.describe())
            if isinstance(descriptor, types.MethodDescriptorType) and (copier := copier_of(descriptor)) is not None:
                return t.inline(t.make(copier), [receiver, *args], kwargs)
            return call_builtin_method(t, base, name, args, kwargs, owner)
        if name in ("__init__", "__setattr__", "__delattr__"):
            handler = resolve(descriptor)
            if handler is not None:
                return handler(t, [receiver, *args], dict(kwargs))
        t.break_("call-builtin", function=f"{owner.__name__}.{name}", args=receiver.describe())
    if method is None:
        handler = resolve(descriptor) if descriptor is not NOT_IMPLEMENTED else None
        if handler is not None:
            return handler(t, [receiver, *args], dict(kwargs))
        known = receiver.is_constant() and all(arg.is_constant() for arg in args)
        itself = known and (owner is not None or isinstance(receiver.as_constant(), PLAIN_OPERANDS))
        slot = None if itself else _SLOT_METHODS.get(name)
        if slot is not None and not kwargs and len(args) == slot[0]:
            return slot[1](t, receiver, *args)
        return call_on_constants(t, receiver, name, args, kwargs, owner)
    problem = misfit(method, args, kwargs)
    if problem is not None:
        refuse_arguments(t, receiver, name, len(args), kwargs, problem)
    result = method(t, *args, **kwargs)
    assert isinstance(result, Value), f"meth_{name} of {type(receiver).__name__} gave {result!r}"
    return result


def _has_its_own(value: Value, descriptor: object, name: str) -> bool:
    """Whether it is an OrderedDict or the like, which has its own method for one of dict's that is called by its name: dict's
    leaves the order alone, calls nothing back, gives plain dicts."""
    return issubclass(value.pytype(), dict) and protocol.type_lookup(value.pytype(), name) is not descriptor


def call_on_constants(t: Tracer, receiver: Value, name: str, args: Sequence[Value],
                      kwargs: Mapping[str, Value], owner: type | None) -> Value:
    """The method itself is called, where all is known; else the graph breaks."""
    if receiver.is_constant() and all(is_concrete(arg) for arg in (*args, *kwargs.values())):
        obj = receiver.as_constant()
        raw = None if owner is None else protocol.type_lookup(owner, name)
        # `type.mro(cls)` is type's, whatever the metaclass makes of it.
        method = raw.__get__(obj, type(obj)) if isinstance(raw, _METHOD_DESCRIPTORS) else getattr(obj, name)
        known, named = [concrete(arg) for arg in args], {key: concrete(arg) for key, arg in kwargs.items()}
        protocol.guard_conversions(t, [*known, *named.values()])
        return protocol.fold(t, lambda: method(*known, **named))
    text = refused_by_method(receiver.pytype(), name, len(args), kwargs)
    if text is not None:
        t.raise_(TypeError, text)
    t.break_("call-builtin", function=f"{receiver.pytype().__name__}.{name}",
             args=", ".join(arg.describe() for arg in args))


#: Operands whose special methods are called as they are when all arguments are known.
PLAIN_OPERANDS: Final = (int, float, complex, str, bytes)


#: Sequences that `__mul__` repeats as often as an object with `__index__` says.
_REPEATED: Final = (str, bytes, list, tuple)


def _slot_binary(op: str, reflected: bool = False) -> Callable[[Tracer, Value, Value], Value]:
    name = f"__{'r' if reflected else ''}{protocol.BINARY_METHODS[op]}__"

    def call(t: Tracer, a: Value, b: Value) -> Value:
        a, b = builtin_part(a), builtin_part(b)
        if op == "*" and a.pytype() in _REPEATED and not issubclass(b.pytype(), int) and hasattr(b.pytype(), "__index__"):
            b = protocol.unary(t, "index", b)
        if a.is_constant() and b.is_constant():
            return protocol.fold(t, getattr(a.pytype(), name), a.as_constant(), b.as_constant())
        result = a.nb_binary(t, op, b, reflected)
        return t.make(NotImplemented) if isinstance(result, _NotImplemented) else result
    return call


def _slot_inplace(op: str) -> Callable[[Tracer, Value, Value], Value]:
    def call(t: Tracer, a: Value, b: Value) -> Value:
        result = a.nb_inplace(t, op, b)
        return t.make(NotImplemented) if isinstance(result, _NotImplemented) else result
    return call


def _slot_compare(op: str) -> Callable[[Tracer, Value, Value], Value]:
    name = protocol.COMPARE_METHODS[op]

    def call(t: Tracer, a: Value, b: Value) -> Value:
        a, b = builtin_part(a), builtin_part(b)
        if a.is_constant() and b.is_constant():
            return protocol.fold(t, getattr(a.pytype(), name), a.as_constant(), b.as_constant())
        result = a.tp_richcompare(t, op, b)
        return t.make(NotImplemented) if isinstance(result, _NotImplemented) else result
    return call


def _slot_next(t: Tracer, it: Value) -> Value:
    item = it.tp_iternext(t)
    if item is None:
        t.raise_(StopIteration)
    return item


def _slot_setitem(t: Tracer, a: Value, key: Value, value: Value) -> Value:
    a.mp_ass_subscript(t, key, value)
    return t.make(None)


def _slot_delitem(t: Tracer, a: Value, key: Value) -> Value:
    a.mp_ass_subscript(t, key, None)
    return t.make(None)


def _slot_setattr(t: Tracer, a: Value, name: Value, value: Value) -> Value:
    a.tp_setattro(t, name.as_constant(), value)
    return t.make(None)


#: Special methods called by name on values of builtin types: (arguments, what the slot does).
_SLOT_METHODS: Final[dict[str, tuple[int, Callable[..., Value]]]] = {
    **{f"__{name}__": (1, _slot_binary(op)) for op, name in protocol.BINARY_METHODS.items()},
    **{f"__r{name}__": (1, _slot_binary(op, True)) for op, name in protocol.BINARY_METHODS.items()},
    **{f"__i{name}__": (1, _slot_inplace(op)) for op, name in protocol.BINARY_METHODS.items()},
    **{name: (1, _slot_compare(op)) for op, name in protocol.COMPARE_METHODS.items()},
    **{f"__{name}__": (0, functools.partial(lambda t, a, op: protocol.unary(t, op, a), op=name))
       for name in ("neg", "pos", "invert", "abs", "int", "float", "index", "complex")},
    "__len__": (0, protocol.length),
    "__bool__": (0, lambda t, a: a.nb_bool(t)),
    "__iter__": (0, protocol.iter_),
    "__next__": (0, _slot_next),
    "__getitem__": (1, lambda t, a, key: a.mp_subscript(t, key)),
    "__setitem__": (2, _slot_setitem),
    "__delitem__": (1, _slot_delitem),
    "__contains__": (1, lambda t, a, item: t.make(protocol.contains(t, a, item))),
    "__hash__": (0, protocol.hash_),
    "__repr__": (0, protocol.repr_),
    "__str__": (0, protocol.str_),
    "__format__": (1, lambda t, a, spec: protocol.format_(t, a, spec.as_constant())),
    "__getattribute__": (1, lambda t, a, name: protocol.getattr_(t, a, name.as_constant())),
    "__setattr__": (2, _slot_setattr),
}


# -- wrapping ------------------------------------------------------------------------------------------------------

#: What a method of C is, bound, that is told its class (`PyCMethod_Type`).
_TOLD_ITS_CLASS: Final = type(re.compile("").match)
_BUILTIN_TYPES: Final[tuple[type, ...]] = tuple(dict.fromkeys((
    types.BuiltinFunctionType, _TOLD_ITS_CLASS, types.MethodDescriptorType, types.WrapperDescriptorType,
    types.MethodWrapperType, types.ClassMethodDescriptorType, type(operator.itemgetter(0)), type(operator.attrgetter("a")),
    type(operator.methodcaller("a")),
)))


def _bound_method(fn: Any) -> bool:
    """Whether a builtin is bound to an object of the program (`items.append`), not to its module or class."""
    owner = getattr(fn, "__self__", None)
    return owner is not None and not isinstance(owner, (types.ModuleType, type))


@wraps(*_BUILTIN_TYPES)
def wrap_builtin(t: Tracer, fn: Any, source: Source) -> Value:
    if _bound_method(fn) and resolve(fn) is None:
        t.guard(TypeIs(source, type(fn)))
        name_source = AttrSource(source, "__name__")
        t.wrap(fn.__name__, name_source)
        return BuiltinMethodValue(t.wrap(fn.__self__, AttrSource(source, "__self__")), fn.__name__, source)
    t.guard(IdIs(source, fn))
    return BuiltinValue(fn, source)


@creates(*_BUILTIN_TYPES)
def make_builtin(t: Tracer, fn: Any) -> Value:
    return BuiltinValue(fn)
