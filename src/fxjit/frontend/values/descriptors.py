"""The descriptor protocol: reading a raw class attribute through an instance or a class (Objects/descrobject.c,
`_PyObject_GenericGetAttrWithDict`), and writing it.

objects.py, classes.py and modules.py call `bind`, `is_data_descriptor` and `assign`.
"""

from __future__ import annotations

import collections
import functools
import types
import weakref
from typing import Any, Final, cast

from fxjit import _C
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Value
from fxjit.frontend.values.extension import ExtensionPoint
from fxjit.frontend.values.functions import MethodValue
from fxjit.guards.kinds import BasesAre, ConstIs, FoundIn, IdIs, TypeIs
from fxjit.guards.source import (
    AttrSource,
    ClassItemSource,
    Source,
    TypeSource,
    class_source,
    flags_of,
    mro_of,
    name_of,
    namespace_of,
    qualname_of,
)
from fxjit.homes import module_of
from fxjit.skips.functions import bound_class_of

#: Packages whose classes and functions are taken as they are: nothing of theirs is guarded.
_TRUSTED: Final = frozenset({
    "builtins", "torch", "numpy", "abc", "typing", "types", "enum", "dataclasses", "collections", "functools", "itertools",
    "contextlib", "operator", "math", "copy", "inspect", "re", "warnings", "logging", "weakref", "sympy", "_weakrefset",
    "_collections_abc", "typing_extensions", "fxjit", "string", "numbers", "os", "threading", "contextvars", "_thread",
})
#: What is read and written where it is, also in classes of trusted packages (`weakref.finalize` keeps a registry), as their
#: numbers are (`RemovableHandle` counts).
_CHANGEABLE: Final = (dict, list, set, collections.deque)
_DATA: Final = (property, types.MemberDescriptorType, types.GetSetDescriptorType)
#: The descriptor of a named tuple's field.
_FIELD: Final = type(vars(collections.namedtuple("_Named", "field"))["field"])
BUILTIN_CALLABLES: Final = (types.WrapperDescriptorType, types.MethodDescriptorType, types.BuiltinFunctionType,
                            types.ClassMethodDescriptorType, types.MethodWrapperType)

#: How what functools.lru_cache gives is bound: as a function is. Other descriptors of C that wrap a function (wrapt's, what
#: mypyc compiled) bind as they please.
_CACHE_BINDS: Final = vars(type(functools.cache(len)))["__get__"]

#: What a wrapper of C gives that is read through an object, or through a class; None where that is not known
#: (bound_wrappers.py).
bound_by_c: Final[ExtensionPoint[[Tracer, Value, type, Value | None, Value], Value | None]] = ExtensionPoint("bound_by_c")

_IMMUTABLE: Final = 1 << 8  # Py_TPFLAGS_IMMUTABLETYPE


def is_trusted(module: object) -> bool:
    """Whether code of the module of this name is assumed not to be patched while the program runs.

    A class may have anything for its `__module__`."""
    return isinstance(module, str) and module.partition(".")[0] in _TRUSTED


def class_attribute_source(owner: type, name: str) -> Source | None:
    """Where the raw attribute `name` of `owner`'s own namespace is found again; None where it needs no guard, or no other
    than look_up's."""
    raw = namespace_of(owner).get(name)
    if is_trusted(module_of(owner)) and not isinstance(raw, _CHANGEABLE) and type(raw) not in (int, float):
        return None
    return ClassItemSource(class_source(owner), name)


def look_up(t: Tracer, cls: type, name: str) -> tuple[Any, type | None]:
    """`find`, with guards that `name` is found there later too: in no class that comes before, whatever bases `cls` gets."""
    raw, owner = find(cls, name)
    guard_found(t, cls, owner, name)
    return raw, owner


def guard_found(t: Tracer, cls: type, owner: type | None, name: str) -> None:
    """`name` was found in `owner` (None: in no class). What a trusted class has is guarded here, since programs put functions
    of their own there (`nn.Linear.forward = mine`). Of what others have, the type is, since it says whether and how it binds;
    more is guarded where it is used."""
    if not flags_of(cls) & _IMMUTABLE:
        t.guard(FoundIn(class_source(cls), name, owner))
    if owner is None or flags_of(owner) & _IMMUTABLE:
        return
    raw, source = namespace_of(owner)[name], ClassItemSource(class_source(owner), name)
    if isinstance(raw, types.MemberDescriptorType):  # it cannot be held weakly, and leads to its class
        t.guard(TypeIs(source, types.MemberDescriptorType))
        t.guard(ConstIs(AttrSource(source, "__name__"), raw.__name__))
    elif class_attribute_source(owner, name) is None or type(raw) is _FIELD:
        t.guard(IdIs(source, raw))
    else:
        t.guard(TypeIs(source, type(raw)))


def metaclass_of(t: Tracer, cls: type) -> type:
    """`type(cls)`, with a guard where a program may assign to the `__class__` of the class."""
    if not flags_of(cls) & _IMMUTABLE and not is_trusted(module_of(cls)):
        t.guard(IdIs(TypeSource(class_source(cls)), type(cls)))
    return type(cls)


def has_own_reading(cls: type) -> bool:
    """Whether a class on the way to `cls` has a `__getattribute__` of the program's: of a metaclass, one that answers what
    anybody reads of its classes, and tracing reads much. What a class of C reads with (pybind11's metaclass) runs none of the
    program's code. Runs no code of the program's."""
    return any(not _reads_in_c(each) for each in mro_of(cls) if "__getattribute__" in namespace_of(each))


def may_say_class(t: Tracer, cls: type) -> bool:
    """Whether objects of `cls` may give another `__class__` than their type: a class on the way to it has one, or a
    `__getattribute__` of the program's, or they are weak proxies, which give that of what they stand for. Guarded."""
    found = [look_up(t, cls, name)[1] for name in ("__class__", "__getattribute__")]
    return found[0] is not object or has_own_reading(cls) or cls in weakref.ProxyTypes


def _reads_in_c(cls: type) -> bool:
    """Whether the `__getattribute__` in the namespace of `cls` is the slot that `cls` itself has in C."""
    raw = namespace_of(cls)["__getattribute__"]
    return type(raw) is types.WrapperDescriptorType and raw.__objclass__ is cls


def field_index(raw: Any) -> int | None:
    """Which item of a named tuple the descriptor `raw` reads; None where it is no field's."""
    return raw.__reduce__()[1][0] if type(raw) is _FIELD else None


def guard_bases(t: Tracer, cls: type) -> None:
    """The trace relied on what `cls` derives from."""
    order = mro_of(cls)
    if order is None:  # while its metaclass says what they are
        t.break_("attribute-unsupported", value=qualname_of(cls), name="__mro__")
    if not flags_of(cls) & _IMMUTABLE:
        t.guard(BasesAre(class_source(cls), order))


def find(cls: type, name: str) -> tuple[Any, type | None]:
    """The raw attribute and the class whose namespace holds it; (NOT_IMPLEMENTED, None) where there is none."""
    try:
        for owner in mro_of(cls) or ():  # a class has none yet while its metaclass computes it
            namespace = namespace_of(owner)
            if name in namespace:
                return namespace[name], owner
    except Exception:  # a key that is no string, with an `__eq__` that raises: CPython finds nothing then
        pass
    return NOT_IMPLEMENTED, None


def written_classes(t: Tracer) -> dict[type, Value]:
    """The classes whose attributes this trace wrote; what it wrote is in the effect log."""
    return t.new_source_state("written classes")  # type: ignore[return-value]  # tables of a trace have no types


def written(t: Tracer, cls: type, name: str) -> Value | None:
    """The value of the class attribute `name` on an instance of `cls`, since the trace wrote to a class; None without a
    relevant write."""
    classes = written_classes(t)
    if not classes:
        return None
    for owner in mro_of(cls):
        known = classes.get(owner)
        pending = None if known is None else t.effects.load_attr(known, name)
        if isinstance(pending, Value):
            if pending.is_constant() and not hasattr(type(pending.as_constant()), "__get__"):
                return pending
            t.break_("attribute-unsupported", value=f"class {name_of(owner)}", name=name)
        if pending is not None:  # deleted, and perhaps found in a base
            t.break_("attribute-unsupported", value=f"class {name_of(owner)}", name=name)
        if name in namespace_of(owner):
            return None
    return None


#: They bind as functions do.
_FXJIT_CALLABLES = (_C.DisabledFunction, _C.CompiledFunction)


#: Whether a classmethod reads the descriptor that it is around, as a property: up to Python 3.12.
_CLASSMETHODS_CHAIN: Final = cast(Any, classmethod)(property(bool)).__get__(None, int) is True


def is_data_descriptor(t: Tracer, raw: object) -> bool:
    """Whether `raw` comes before the instance's own attributes."""
    if issubclass(type(raw), _DATA) and _binds_as_builtin(t, raw):
        return True
    return any(look_up(t, type(raw), method)[1] is not None for method in ("__set__", "__delete__"))


def _binds_as_builtin(t: Tracer, raw: object) -> bool:
    """Whether an instance of a descriptor type of C, or of a class derived from one, is read as those are."""
    return isinstance(look_up(t, type(raw), "__get__")[0], types.WrapperDescriptorType)


def _raw_value(t: Tracer, raw: object, source: Source | None) -> Value:
    return t.make(raw) if source is None else t.wrap(raw, source).realize()


def _step(source: Source | None, attr: str) -> Source | None:
    return None if source is None else AttrSource(source, attr)


def bind(t: Tracer, raw: Any, owner: type, name: str, obj: Value | None, cls: Value) -> Value:
    """`raw`, found as `name` in `owner`, read through `obj` (None: through the class `cls` itself)."""
    return _bound(t, raw, class_attribute_source(owner, name), name, obj, cls)


def _bound(t: Tracer, raw: Any, source: Source | None, name: str, obj: Value | None, cls: Value) -> Value:
    kind = type(raw)  # a proxy says another one
    if kind is types.FunctionType:
        fn = _raw_value(t, raw, source)
        return fn if obj is None else MethodValue(fn, obj)
    if issubclass(kind, staticmethod) and _binds_as_builtin(t, raw):
        return _raw_value(t, raw.__func__, _step(source, "__func__"))
    if issubclass(kind, classmethod) and _binds_as_builtin(t, raw):
        inner, step = raw.__func__, _step(source, "__func__")
        if _CLASSMETHODS_CHAIN and look_up(t, type(inner), "__get__")[1] is not None:
            return _bound(t, inner, step, name, cls, cls)
        return MethodValue(_raw_value(t, inner, step), cls)
    if issubclass(kind, property) and _binds_as_builtin(t, raw):
        if obj is None:
            return _raw_value(t, raw, source)
        if raw.fget is None:
            t.raise_(AttributeError, f"property '{name}' of '{obj.pytype().__name__}' object has no getter")
        return t.call(_raw_value(t, raw.fget, _step(source, "fget")), [obj], None)
    if issubclass(kind, functools.cached_property):
        if obj is None:
            return _raw_value(t, raw, source)
        if raw.attrname is None:
            t.raise_(TypeError, "Cannot use cached_property instance without calling __set_name__ on it.")
        result = t.call(_raw_value(t, raw.func, _step(source, "func")), [obj], None)
        t.effects.store_attr(obj, name, result)
        return result
    if issubclass(kind, types.ClassMethodDescriptorType):
        return t.make(raw.__get__(None, cls.as_constant()))
    if issubclass(kind, BUILTIN_CALLABLES):
        if obj is None or issubclass(kind, (types.BuiltinFunctionType, types.MethodWrapperType)):
            return t.make(raw)
        if not issubclass(obj.pytype(), raw.__objclass__):
            t.raise_(TypeError, _refused_by(raw, obj.pytype()))
        return protocol.make_builtin_method(t, obj, name)
    getter, getter_owner = look_up(t, kind, "__get__")
    if getter is NOT_IMPLEMENTED:
        return _raw_value(t, raw, source)
    if isinstance(getter, types.FunctionType) and getter_owner is not None:
        descriptor = _raw_value(t, raw, source)
        fn = _raw_value(t, getter, class_attribute_source(getter_owner, "__get__"))
        return t.call(fn, [descriptor, t.make(None) if obj is None else obj, cls], None)
    if not isinstance(getter, types.WrapperDescriptorType):
        t.break_("attribute-unsupported", value=cls.describe(), name=name)
    bound = bound_by_c(t, _raw_value(t, raw, source), kind, obj, cls) if bound_class_of(kind) is not None else None
    if bound is not None:
        return bound
    if obj is None:
        # A C descriptor read through its class: itself, or a constant such as `cls.__name__`.
        return t.make(raw.__get__(None, cls.as_constant()))
    if issubclass(kind, functools.partial):
        return _raw_value(t, raw, source)
    if getter is _CACHE_BINDS or issubclass(kind, _FXJIT_CALLABLES):  # functools.lru_cache on a method, or our own marks
        return MethodValue(_raw_value(t, raw, source), obj)
    t.break_("attribute-unsupported", value=obj.describe(), name=name)


def _refused_by(raw: Any, cls: type) -> str:
    """What a method of C says that is read through an instance of a class that does not derive from its own."""
    try:
        raw.__get__(object())
    except TypeError as error:
        return f"{str(error).removesuffix(repr('object') + ' object')}'{cls.__name__}' object"
    raise AssertionError("every object has the methods of object")


def assign(t: Tracer, raw: Any, owner: type, name: str, obj: Value, value: Value | None) -> bool:
    """Write (None: delete) through the data descriptor `raw`; False when it is none that Python code implements and the
    plain attribute store is meant (slots)."""
    source = class_attribute_source(owner, name)
    if isinstance(raw, property):
        accessor, part = (raw.fset, "fset") if value is not None else (raw.fdel, "fdel")
        if accessor is None:
            what = "setter" if value is not None else "deleter"
            t.raise_(AttributeError, f"property '{name}' of '{obj.pytype().__name__}' object has no {what}")
        t.call(_raw_value(t, accessor, _step(source, part)), [obj] if value is None else [obj, value], None)
        return True
    if isinstance(raw, types.MemberDescriptorType):
        return False
    if isinstance(raw, types.GetSetDescriptorType):
        t.break_("attribute-unsupported", value=obj.describe(), name=name)
    method = "__set__" if value is not None else "__delete__"
    setter, setter_owner = look_up(t, type(raw), method)
    if isinstance(setter, types.FunctionType) and setter_owner is not None:
        fn = _raw_value(t, setter, class_attribute_source(setter_owner, method))
        descriptor = _raw_value(t, raw, source)
        t.call(fn, [descriptor, obj] if value is None else [descriptor, obj, value], None)
        return True
    t.break_("attribute-unsupported", value=obj.describe(), name=name)


class _Empty:
    __slots__ = ("slot",)


def _message_of_an_empty_slot() -> str:
    try:
        return str(_Empty().slot)  # type: ignore[attr-defined]  # it raises
    except AttributeError as error:
        return str(error)


#: Whether this Python says the module of the class.
_SAYS_MODULE: Final = __name__ in _message_of_an_empty_slot()


def nothing_in_slot(cls: type, name: str) -> str:
    """What CPython says where a slot that is read is empty."""
    says_module = _SAYS_MODULE and module_of(cls) not in ("builtins", "__main__", "")
    what = f"{module_of(cls)}.{cls.__qualname__}" if says_module else cls.__qualname__ if _SAYS_MODULE else cls.__name__
    return f"'{what}' object has no attribute '{name}'"


def nowhere_to_write(cls: type, name: str, deleting: bool) -> str:
    """This Python's error for writing to an attribute that no class defines, on an object without a `__dict__`."""
    bare = type(cls.__name__, (), {"__slots__": ()})()
    try:
        delattr(bare, name) if deleting else setattr(bare, name, None)
    except AttributeError as error:
        return str(error)
    raise AssertionError("an object without slots took an attribute")
