"""Classes: attribute lookup on them, making instances of them, and `super()`."""

from __future__ import annotations

import collections
import enum
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import calls, descriptors, exceptions, objects, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Callee, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.calls import handles, has_polyfill
from fxjit.frontend.values.exceptions import ExceptionValue
from fxjit.frontend.values.extension import ClassRegistry
from fxjit.frontend.values.natives import BuiltinMethodValue, bind_method, part_method
from fxjit.frontend.values.sequence import ListValue, TupleValue, guard_plain_tuple, plain_tuple_class
from fxjit.frontend.values.traits import GuardedOperators, SuperLookup
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import IdIs, LengthIs, TypeIs
from fxjit.guards.source import ApplySource, AttrSource, ClassItemSource, ItemSource, Source, class_source, namespace_of
from fxjit.homes import module_of

_TYPE_CALL = type.__dict__["__call__"]
#: Py_TPFLAGS_HEAPTYPE: made at run time, as classes of Python are.
_HEAP_TYPE: Final = 1 << 9
#: Attributes of a class that are more than entries of its namespace.
_OF_THE_CLASS = frozenset({
    "__class__", "__bases__", "__name__", "__qualname__", "__module__", "__dict__", "__abstractmethods__", "__annotations__",
    "__doc__", "__slots__", "__type_params__", "__static_attributes__",
})
#: Those that a program may write to later, with an effect on nothing but themselves (and, of the bases, on all look-ups).
_REWRITABLE = frozenset({"__annotations__", "__bases__", "__name__", "__qualname__", "__module__", "__doc__"})
#: `dtype=float`: Python's types as torch reads them.
_DTYPES = ((bool, torch.bool), (int, torch.int64), (float, torch.float64), (complex, torch.complex128))


#: `cls.__new__(cls, *args, **kwargs)` of classes with such a base.
NEW: Final[ClassRegistry[Callable[[Tracer, type, Sequence[Value], Mapping[str, Value]], Value]]] = ClassRegistry()
#: `cls(*args, **kwargs)` of classes with such a base; None where `__new__` and `__init__` are traced.
CALLS: Final[ClassRegistry[Callable[[Tracer, type, Sequence[Value], Mapping[str, Value]], Value | None]]] = ClassRegistry()


class ClassValue(GuardedOperators):
    """A class, known by identity."""

    def __init__(self, cls: type, source: Source | None = None) -> None:
        super().__init__(source)
        self.cls = cls

    def pytype(self) -> type:
        return type(self.cls)

    def is_constant(self) -> bool:
        return True

    def as_constant(self) -> Any:
        return self.cls

    def graph_arg(self, t: Tracer) -> Any:
        """The dtype that torch takes Python's type for; of other classes the text of a graph cannot speak."""
        for number, dtype in _DTYPES:
            if self.cls is number:
                return dtype
        t.break_("not-a-graph-argument", value=self.describe())

    def describe(self) -> str:
        return f"class {self.cls.__qualname__}"

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push_const(self.cls)

    # -- attributes ----------------------------------------------------------------------------------------------

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        written = t.effects.load_attr(self, name)
        if isinstance(written, Value):
            return written
        self._of_metaclass(t, "__getattribute__")
        if descriptors.has_own_reading(type(self.cls)):
            t.break_("attribute-unsupported", value=self.describe(), name=name)  # wrapped while it had none
        meta_raw, meta_owner = self._of_metaclass(t, name)
        if meta_raw is not NOT_IMPLEMENTED and descriptors.is_data_descriptor(t, meta_raw):
            if isinstance(meta_raw, property) and meta_owner is not None:
                return descriptors.bind(t, meta_raw, meta_owner, name, self, t.make(type(self.cls)))
            return self._from_metatype(t, name)
        inherited = descriptors.written(t, self.cls, name)
        if inherited is not None:
            return inherited
        raw, owner = descriptors.look_up(t, self.cls, name)
        if raw is not NOT_IMPLEMENTED and owner is not None and not isinstance(written, _NotImplemented):
            if isinstance(self.cls, enum.EnumMeta) and name in self.cls.__members__:
                return t.make(self.cls.__members__[name])
            return descriptors.bind(t, raw, owner, name, None, self)
        if meta_raw is not NOT_IMPLEMENTED and meta_owner is not None:
            if isinstance(meta_raw, descriptors.BUILTIN_CALLABLES):
                return protocol.make_builtin_method(t, self, name)
            return descriptors.bind(t, meta_raw, meta_owner, name, self, t.make(type(self.cls)))
        hook, hook_owner = self._of_metaclass(t, "__getattr__")
        if hook is not NOT_IMPLEMENTED and hook_owner is not None:
            return t.call(descriptors.bind(t, hook, hook_owner, "__getattr__", self, t.make(type(self.cls))),
                          [t.make(name)], None)
        t.raise_(AttributeError, f"type object '{self.cls.__name__}' has no attribute '{name}'")

    def _of_metaclass(self, t: Tracer, name: str) -> tuple[Any, type | None]:
        return descriptors.look_up(t, descriptors.metaclass_of(t, self.cls), name)

    def _from_metatype(self, t: Tracer, name: str) -> Value:
        """`__name__`, `__mro__`, `__dict__`, ...: what C descriptors of `type` compute."""
        if name == "__dict__" and self.cls in descriptors.written_classes(t):
            t.break_("attribute-unsupported", value=self.describe(), name=name)
        if name in ("__mro__", "__base__"):
            descriptors.guard_bases(t, self.cls)
        if name == "__annotations__" and name not in vars(self.cls) and self.cls.__flags__ & _HEAP_TYPE:
            why = "reading it puts it into the class"
            t.break_("value-attribute", name=name, value=self.describe(), type="type", why=why)
        try:
            found = getattr(self.cls, name)
        except AttributeError as error:
            t.raise_(AttributeError, *error.args)
        if name in _REWRITABLE and not descriptors.is_trusted(module_of(self.cls)):
            return t.wrap(found, AttrSource(self.source or class_source(self.cls), name)).realize()
        return t.make(found)

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        if not self.cls.__flags__ & (1 << 9):  # Py_TPFLAGS_HEAPTYPE: classes of C do not take attributes
            t.raise_(TypeError, f"cannot set '{name}' attribute of immutable type '{self.cls.__name__}'")
        if self.source is None:
            t.break_("attribute-unsupported", value=self.describe(), name=name)
        own = self._of_metaclass(t, "__setattr__" if value is not None else "__delattr__")[1] is not type
        if own or self._of_metaclass(t, name)[1] not in (None, object) or name in _OF_THE_CLASS:
            # The metaclass has a say, or more than the namespace changes.
            t.break_("attribute-unsupported", value=self.describe(), name=name)
        if value is None and name not in self.cls.__dict__ and t.effects.load_attr(self, name) is None:
            t.raise_(AttributeError, f"type object '{self.cls.__name__}' has no attribute '{name}'")
        descriptors.written_classes(t)[self.cls] = self
        t.effects.store_attr(self, name, value)

    # -- calls ---------------------------------------------------------------------------------------------------

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        handler = calls.resolve(self.cls)
        if handler is not None:
            if not calls.has_original_constructor(self.cls):
                t.break_("call-unsupported", callable=self.describe())
            for name in calls.CONSTRUCTORS:
                descriptors.look_up(t, self.cls, name)
            return handler(t, list(args), dict(kwargs))
        meta_call, owner = self._of_metaclass(t, "__call__")
        if isinstance(meta_call, types.MethodType):  # is not bound again
            return t.call(t.make(meta_call), args, kwargs)
        of_c = isinstance(meta_call, (*descriptors.BUILTIN_CALLABLES, type))
        if not of_c and owner is not None and not isinstance(self.cls, enum.EnumMeta):
            fn = descriptors.bind(t, meta_call, owner, "__call__", self, t.make(type(self.cls)))
            return t.call(fn, args, kwargs)
        if isinstance(meta_call, type):  # TypedDict: calling the class calls dict
            return t.call(t.make(meta_call), args, kwargs)
        if isinstance(self.cls, enum.EnumMeta):
            return self._enum_lookup(t, args, kwargs)
        return self.instantiate(t, args, kwargs)

    def meth___call__(self, t: Tracer, *args: Value, **kwargs: Value) -> Value:
        """`type.__call__(cls, ...)`, as a metaclass calls it through `super()`."""
        return self.instantiate(t, args, kwargs)

    def callee(self, t: Tracer, args: list[Value]) -> Callee | None:
        """`__init__`, where the call makes an object of a plain class and runs nothing else of the user's."""
        cls = self.cls
        own_call = self._of_metaclass(t, "__call__")[0] is not _TYPE_CALL or issubclass(cls, BaseException)
        init, owner = descriptors.look_up(t, cls, "__init__")
        if own_call or owner is None or not isinstance(init, types.FunctionType) or not self._has_objects_new(t):
            return None
        if calls.resolve(cls) is not None or CALLS.find(cls) is not None or descriptors.written(t, cls, "__init__") is not None:
            return None
        obj = objects.new_instance(t, cls)
        return Callee(descriptors.bind(t, init, owner, "__init__", obj, self), args, constructor_result=obj)

    def _has_objects_new(self, t: Tracer) -> bool:
        """Whether `object.__new__` makes the instances, and does no more."""
        cls = self.cls
        plain = descriptors.look_up(t, cls, "__new__")[1] is object and descriptors.look_up(t, cls, "__del__")[1] is None
        return plain and not getattr(cls, "__abstractmethods__", None)

    def _guard_members(self, t: Tracer) -> None:
        """The trace relied on which members the enum has: libraries add some to those of others."""
        for table_of_members in ("_member_map_", "_member_names_"):
            found = self.cls.__dict__.get(table_of_members)
            if isinstance(found, (dict, list)):
                source = ClassItemSource(class_source(self.cls), table_of_members)
                t.guard(LengthIs(source, len(found)))

    def _enum_lookup(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        if kwargs or not all(arg.is_constant() for arg in args):
            t.break_("call-unsupported", callable=self.describe())
        self._guard_members(t)
        known = [arg.as_constant() for arg in args]
        made = protocol.fold(t, self.cls, *known)
        members = self.cls.__dict__.get("_value2member_map_")
        if len(known) == 1 and isinstance(known[0], (int, str)) and type(members) is dict and known[0] in members:
            source = ClassItemSource(class_source(self.cls), "_value2member_map_")
            t.guard(IdIs(ItemSource(source, known[0]), members[known[0]]))
        return made

    def instantiate(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """`type.__call__`: `__new__`, then `__init__` when the result is an instance."""
        cls = self.cls
        if issubclass(cls, BaseException):
            return exceptions.instantiate(t, cls, args, kwargs)
        call = CALLS.find(cls)
        made = None if call is None else call(t, cls, args, kwargs)
        if made is not None:
            return made
        new, new_owner = descriptors.look_up(t, cls, "__new__")
        python_new = new.__func__ if isinstance(new, staticmethod) else new
        if isinstance(python_new, types.FunctionType) and new_owner is not None:
            fn = descriptors.bind(t, new, new_owner, "__new__", None, self)
            obj = t.call(fn, [self, *args], kwargs)
        else:
            obj = self.new_object(t, args, kwargs)
        if cls not in obj.pytype().__mro__:  # not issubclass: `type.__call__` does not dispatch to the metaclass
            return obj
        self._init(t, obj, args, kwargs)
        return obj

    def _init(self, t: Tracer, obj: Value, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
        if descriptors.written(t, obj.pytype(), "__init__") is not None:
            t.break_("attribute-unsupported", value=self.describe(), name="__init__")
        init, owner = descriptors.look_up(t, obj.pytype(), "__init__")
        if isinstance(init, types.FunctionType) and owner is not None:
            fn = descriptors.bind(t, init, owner, "__init__", obj, t.make(obj.pytype()))
            constructed(t, obj, t.call(fn, args, kwargs))
        elif owner is not None and (not isinstance(init, types.WrapperDescriptorType) or has_polyfill(init)):
            t.call(descriptors.bind(t, init, owner, "__init__", obj, t.make(obj.pytype())), args, kwargs)
        elif owner not in _INITIALISED and isinstance(obj, objects.UserObjectValue):
            t.break_("class-instantiation-unsupported", cls=obj.pytype().__qualname__)
        elif isinstance(obj, objects.UserObjectValue):
            init_native(t, obj, args, kwargs)

    def new_object(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        """An instance as the builtin `__new__` of the class makes it, its builtin part empty (mutable) or given."""
        cls = self.cls
        native = next((owner for owner in cls.__mro__
                       if isinstance(namespace_of(owner).get("__new__"), types.BuiltinFunctionType)), object)
        abstract, owner = descriptors.look_up(t, cls, "__abstractmethods__")
        if owner is not None:
            t.guard(IdIs(ClassItemSource(class_source(owner), "__abstractmethods__"), abstract))
        if owner is cls and abstract:
            return protocol.fold(t, object.__new__, cls)  # raises, in this Python's words
        base_type = objects.builtin_base(cls)
        if descriptors.look_up(t, cls, "__del__")[1] is not None:
            t.break_("class-instantiation-unsupported", cls=cls.__qualname__)  # when it dies is part of the program
        if base_type is tuple and plain_tuple_class(cls):
            guard_plain_tuple(t, cls)
            return TupleValue(protocol.unpack_hinted(t, args[0]) if args else (), cls=cls)
        if native is object:
            if args or kwargs:
                _refuse_excess(t, cls)
            return objects.new_instance(t, cls)
        new = NEW.find(cls)
        if new is not None:
            return new(t, cls, args, kwargs)
        if base_type is None:
            t.break_("class-instantiation-unsupported", cls=cls.__qualname__)
        part = next((kind for kind in (collections.OrderedDict, collections.defaultdict) if issubclass(cls, kind)), base_type)
        base = t.call(t.make(part), [] if base_type in _MUTABLE else list(args), None)
        if base_type in (str, int, float) and not base.is_constant():
            t.break_("class-instantiation-unsupported", cls=cls.__qualname__)
        return objects.new_instance(t, cls, base)

    # -- operators -----------------------------------------------------------------------------------------------

    def tp_iter(self, t: Tracer) -> Value:
        if isinstance(self.cls, enum.EnumMeta):
            self._guard_members(t)
            return protocol.iter_(t, t.make(tuple(self.cls)))
        return self._special_or_default(t, "__iter__") or super().tp_iter(t)

    def _special_or_default(self, t: Tracer, name: str, *args: Value) -> Value | None:
        raw, owner = self._of_metaclass(t, name)
        if isinstance(raw, types.FunctionType) and owner is not None:
            return t.call(descriptors.bind(t, raw, owner, name, self, t.make(type(self.cls))), args, None)
        return None

    def sq_length(self, t: Tracer) -> Value:
        if isinstance(self.cls, enum.EnumMeta):
            self._guard_members(t)
            return t.make(len(self.cls))
        told = self._special_or_default(t, "__len__")
        return super().sq_length(t) if told is None else protocol.checked_length(t, told)

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        if isinstance(self.cls, enum.EnumMeta) and item.is_constant():
            known = item.as_constant()
            self._guard_members(t)
            return protocol.fold(t, lambda: known in self.cls)  # type: ignore[operator]  # only an enum's metaclass comes here
        return self._special_or_default(t, "__contains__", item) or NOT_IMPLEMENTED

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        found = self._special_or_default(t, "__getitem__", key)
        if found is not None:
            return found
        if isinstance(self.cls, enum.EnumMeta) and key.is_constant():
            members = self.cls
            self._guard_members(t)
            return protocol.fold(t, lambda: members[key.as_constant()])
        item, owner = descriptors.look_up(t, self.cls, "__class_getitem__")
        if owner is not None and isinstance(item, classmethod) and not descriptors.is_trusted(module_of(owner)):
            return t.call(descriptors.bind(t, item, owner, "__class_getitem__", None, self), [key], None)
        if item is not NOT_IMPLEMENTED:
            if not _all_constant(t, key):
                t.break_("subscript-unsupported", value=self.describe())
            parameters = _constant_tree(t, key)
            cls: Any = self.cls
            return protocol.fold(t, lambda: cls[parameters])
        return super().mp_subscript(t, key)

    def nb_bool(self, t: Tracer) -> Value:
        told = self._special_or_default(t, "__bool__")
        if told is not None:
            return t.make(protocol.checked_truth(t, told))
        told = self._special_or_default(t, "__len__")
        if told is not None:
            return t.make(protocol.truth(t, protocol.checked_length(t, told)))
        return protocol.fold(t, bool, self.cls)

    def guard_operators(self, t: Tracer, *names: str) -> None:
        for name in names:
            raw, owner = self._of_metaclass(t, name)
            if isinstance(raw, types.FunctionType) and owner is not None and not descriptors.is_trusted(module_of(owner)):
                t.break_("value-slot", slot=name, type=owner.__name__)

    def tp_repr(self, t: Tracer) -> Value:
        return self._special_or_default(t, "__repr__") or super().tp_repr(t)

    def tp_str(self, t: Tracer) -> Value:
        return self._special_or_default(t, "__str__") or self.tp_repr(t)

    def tp_hash(self, t: Tracer) -> Value:
        self.guard_operators(t, "__hash__")
        return super().tp_hash(t)


def constructed(t: Tracer, obj: Value, result: Value) -> Value:
    """`obj`, given what its `__init__` returned."""
    if not (result.is_constant() and result.as_constant() is None):
        t.raise_(TypeError, f"__init__() should return None, not '{result.pytype().__name__}'")
    return obj


@handles(type.__subclasses__)
def _subclasses(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = args[0].as_constant() if len(args) == 1 and args[0].is_constant() else None
    if kwargs or not isinstance(cls, type):
        t.break_("call-builtin", function="type.__subclasses__", args=", ".join(arg.describe() for arg in args))
    source = ApplySource(class_source(cls), type.__subclasses__, "type.__subclasses__")
    return ListValue(protocol.unpack(t, t.wrap(type.__subclasses__(cls), source)))


@handles(type.mro)
def _mro(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = args[0].as_constant() if len(args) == 1 and args[0].is_constant() else None
    if kwargs or not isinstance(cls, type):
        t.break_("call-builtin", function="type.mro", args=", ".join(arg.describe() for arg in args))
    descriptors.guard_bases(t, cls)
    return protocol.fold(t, type.mro, cls)


def _refuse_excess(t: Tracer, cls: type) -> None:
    """`object.__new__` with arguments is right only where the class has an `__init__` of its own (object_new)."""
    if descriptors.look_up(t, cls, "__new__")[1] is not object:
        t.raise_(TypeError, "object.__new__() takes exactly one argument (the type to instantiate)")
    if descriptors.look_up(t, cls, "__init__")[1] is object:
        t.raise_(TypeError, f"{cls.__name__}() takes no arguments")


def _all_constant(t: Tracer, key: Value) -> bool:
    if key.is_constant():
        return True
    return key.pytype() in (tuple, list) and all(_all_constant(t, item) for item in protocol.unpack(t, key))


def _constant_tree(t: Tracer, key: Value) -> Any:
    if key.is_constant():
        return key.as_constant()
    return key.pytype()(_constant_tree(t, item) for item in protocol.unpack(t, key))


def init_native(t: Tracer, obj: objects.UserObjectValue, args: Sequence[Value], kwargs: Mapping[str, Value]) -> None:
    """The builtin `__init__` of an instance's builtin part: fills a dict, list or set; checks nothing else."""
    base_type = objects.builtin_base(obj.cls)
    if base_type in _MUTABLE and (args or kwargs) and obj.base is not None:
        t.call(protocol.getattr_(t, obj.base, "__init__"), args, kwargs)


_MUTABLE = (dict, list, set, collections.deque)
#: Classes whose builtin `__init__` is known: it fills, or does nothing.
_INITIALISED = (None, object, *objects.BASES, collections.OrderedDict, collections.defaultdict)


@handles(dict.__init__, list.__init__, set.__init__, collections.deque.__init__)
def _init_by_name(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if issubclass(args[0].pytype(), collections.OrderedDict):  # dict's calls nothing back and leaves the order alone
        t.break_("call-builtin", function="dict.__init__", args=args[0].describe())
    return _init_builtin_part(t, args, kwargs)


def _init_builtin_part(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    obj, *rest = args
    if isinstance(obj, objects.UserObjectValue):
        init_native(t, obj, rest, kwargs)
    else:
        t.call(protocol.getattr_(t, obj, "extend" if obj.pytype() is list else "update"), rest, kwargs)
    return t.make(None)


@handles(object.__init__)
def _object_init(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    cls = args[0].pytype()
    if len(args) > 1 or kwargs:
        if descriptors.look_up(t, cls, "__init__")[1] is not object:
            t.raise_(TypeError, "object.__init__() takes exactly one argument (the instance to initialize)")
        if descriptors.look_up(t, cls, "__new__")[1] is object:
            t.raise_(TypeError, f"{cls.__name__}() takes no arguments")
    return t.make(None)


@handles(object.__new__)
def _object_new(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args or not isinstance(args[0], ClassValue):
        t.break_("class-instantiation-unsupported", cls=args[0].describe() if args else "nothing")
    return args[0].new_object(t, args[1:], kwargs)


def _new_of(native: type) -> None:
    @handles(native.__new__)
    def make(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if not args or not isinstance(args[0], ClassValue):
            t.break_("class-instantiation-unsupported", cls=args[0].describe() if args else "nothing")
        cls, *rest = args
        assert isinstance(cls, ClassValue)
        if cls.cls is native:
            return t.call(cls, rest, kwargs)
        return cls.new_object(t, rest, kwargs)


for _native in (dict, list, tuple, set, frozenset, collections.deque, str, int, float):
    _new_of(_native)


class SuperValue(Value):
    """`super(start, obj)`: attribute lookup on `obj` behind `start` in the MRO of its type (of itself, for a class)."""

    def __init__(self, start: type, obj: Value) -> None:
        super().__init__()
        self.start = start
        self.obj = obj

    def pytype(self) -> type:
        return super

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(super, self.start, self.obj)

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        of_class = isinstance(self.obj, ClassValue) and issubclass(self.obj.cls, self.start)
        cls = self.obj.cls if isinstance(self.obj, ClassValue) and of_class else self.obj.pytype()
        if name == "__class__":
            return t.make(super)
        if self.start not in cls.__mro__:  # a proxy, which says that it is one: the class that it says is not followed
            t.break_("call-builtin", function="super", args=self.obj.describe())
        behind = cls.__mro__[cls.__mro__.index(self.start) + 1:]
        descriptors.guard_bases(t, cls)
        for owner in behind:
            if descriptors.look_up(t, owner, name)[1] is not owner:
                continue
            raw = owner.__dict__[name]
            if isinstance(raw, staticmethod) or name == "__new__":
                return descriptors.bind(t, raw, owner, name, None, self.obj)
            if of_class and not isinstance(raw, classmethod):
                return descriptors.bind(t, raw, owner, name, None, self.obj)
            found = self.obj.super_getattr(t, name, raw) if isinstance(self.obj, SuperLookup) and not of_class else None
            if found is not None:
                return found
            if isinstance(raw, descriptors.BUILTIN_CALLABLES) and not isinstance(raw, types.ClassMethodDescriptorType):
                return self._builtin(t, raw, owner, name)
            return descriptors.bind(t, raw, owner, name, None if of_class else self.obj,
                                    self.obj if of_class else t.make(cls))
        t.raise_(AttributeError, f"'super' object has no attribute '{name}'")

    def _builtin(self, t: Tracer, raw: Any, owner: type, name: str) -> Value:
        base = getattr(self.obj, "base", None)
        if owner is not object and isinstance(base, Value):
            if name == "__init__":
                return _BoundHandler(_init_builtin_part, self.obj, raw)
            return part_method(t, base, self.obj, raw)
        if name == "__init__" and isinstance(self.obj, ExceptionValue):
            return _BoundHandler(_init_exception, self.obj, raw)
        return BuiltinMethodValue(self.obj, name, owner=owner)


class _BoundHandler(Value):
    """A native method looked up through `super()`, bound to its object."""

    def __init__(self, handler: Any, obj: Value, raw: Any) -> None:
        super().__init__()
        self.handler = handler
        self.obj = obj
        self.raw = raw

    def pytype(self) -> type:
        return types.MethodWrapperType

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        result: Value = self.handler(t, [self.obj, *args], dict(kwargs))
        return result

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(bind_method, self.raw, self.obj)


def _init_exception(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    obj, *rest = args
    assert isinstance(obj, ExceptionValue)
    exceptions.native_init(t, obj, rest, kwargs)
    return t.make(None)


@wraps(super)
def _wrap_super(t: Tracer, obj: super, source: Source) -> Value:
    t.guard(TypeIs(source, super))
    start, bound_to = object.__getattribute__(obj, "__thisclass__"), object.__getattribute__(obj, "__self__")
    if bound_to is None:
        return UntraceableValue(obj, source, "attribute-unsupported", value="super", name="__get__")
    t.guard(IdIs(AttrSource(source, "__thisclass__"), start))
    found = SuperValue(start, t.wrap(bound_to, AttrSource(source, "__self__")).realize())
    found.source = source
    return found


@wraps(type, subclasses=True)
def _wrap_class(t: Tracer, obj: type, source: Source) -> Value:
    t.guard(IdIs(source, obj))
    return ClassValue(obj, source)
