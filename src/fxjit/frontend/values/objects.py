"""Instances of user classes: attributes, special methods, and subclasses of builtin containers.

An object that existed before the frame reads its attributes from its real `__dict__` through sources; writes go to
the effect log, which is read first. An object made while tracing has nothing but the effect log. A subclass of
dict, list, tuple, ... keeps its builtin part in `base`, a container value.
"""

from __future__ import annotations

import collections
import threading
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NoReturn

from fxjit._C import instance_dict
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors, instance_dicts, overrides, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Callee, Raised, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.calls import handles, has_polyfill
from fxjit.frontend.values.extension import ClassRegistry
from fxjit.frontend.values.functions import FunctionValue, function_namespace
from fxjit.frontend.values.iteration import IndexIteratorValue
from fxjit.frontend.values.keys import HashKey
from fxjit.frontend.values.late_numbers import LateNumber
from fxjit.frontend.values.mapping import DictValue
from fxjit.frontend.values.natives import SHOW_THEIR_CLASS, part_method, shown_under
from fxjit.frontend.values.protocol import BINARY_METHODS, COMPARE_METHODS
from fxjit.frontend.values.tensor_attributes import AttributedTensor
from fxjit.frontend.values.traits import ObjectMethods
from fxjit.frontend.values.wrap import wrap_as_base, wraps_everything_else
from fxjit.guards.kinds import HasAttr, IdIs, InstanceHasAttr, TypeIs
from fxjit.guards.source import ApplySource, AttrSource, InstanceDictSource, ItemSource, Source, namespace_of
from fxjit.skips import marks

_UNARY_METHODS: Final = {"neg": "__neg__", "pos": "__pos__", "invert": "__invert__", "abs": "__abs__", "int": "__int__",
                         "float": "__float__", "index": "__index__", "complex": "__complex__", "round": "__round__",
                         "trunc": "__trunc__", "floor": "__floor__", "ceil": "__ceil__"}
#: Builtin types whose instances carry contents of their own, nearest first.
BASES: Final[tuple[type, ...]] = (dict, list, tuple, set, frozenset, collections.deque, str, int, float)


_IMMUTABLE: Final = (tuple, frozenset, str, int, float)
_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: a class made in Python
_NATIVE_METHODS: Final = (types.WrapperDescriptorType, types.MethodDescriptorType)
_NATIVE_DATA: Final = (types.GetSetDescriptorType, types.MemberDescriptorType)


def builtin_base(cls: type) -> type | None:
    """The builtin container (or scalar) that `cls` derives from; None for plain classes. OrderedDict and its like
    count as the dict they are."""
    return next((base for base in BASES if issubclass(cls, base)), None)


def _is_called_back(cls: type) -> bool:
    """Whether methods in C call those of a class: OrderedDict's `update`, what defaultdict does with a key that it lacks."""
    return issubclass(cls, (collections.OrderedDict, collections.defaultdict)) and not all(
        isinstance(protocol.type_lookup(cls, name), descriptors.BUILTIN_CALLABLES)
        for name in ("__setitem__", "__getitem__", "__contains__"))


class UserObjectValue(ObjectMethods):
    """An instance of `cls`. `obj` is the real object where it existed before the frame."""

    shell = True

    def __init__(self, cls: type, source: Source | None = None, obj: object | None = None, base: Value | None = None) -> None:
        super().__init__(source)
        self.cls = cls
        self.obj = obj
        self.base = base
        if base is not None and base.source is None and base.pytype() not in _IMMUTABLE:
            base.part_of = self
        if isinstance(base, DictValue):
            base.holder, base.calls_back = self, _is_called_back(cls)
        self._namespace: InstanceDictValue | None = None

    def pytype(self) -> type:
        return self.cls

    def graph_arg(self, t: Tracer) -> Any:
        """An int, str... of a subclass stands in a graph as what it is."""
        return super().graph_arg(t) if self.base is None else self.base.graph_arg(t)

    def class_value(self, t: Tracer) -> Value:
        return t.make(self.cls)

    def namespace(self) -> dict[str, Any] | None:
        """The instance dict of the real object."""
        return instance_namespace(self.obj)

    def instance_dict(self, t: Tracer) -> Value:
        """`obj.__dict__`, one value for all objects that share it."""
        owner = t.effects.owner(self)
        assert isinstance(owner, UserObjectValue)
        if owner._namespace is None:
            owner._namespace = InstanceDictValue(t, owner, owner.source)
        return owner._namespace

    # -- attributes ----------------------------------------------------------------------------------------------

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        self._refuse_written(t, "__getattribute__")
        hook, owner = descriptors.look_up(t, self.cls, "__getattribute__")
        if owner is not None and not isinstance(hook, _NATIVE_METHODS):
            fn = descriptors.bind(t, hook, owner, "__getattribute__", self, self.class_value(t))
            try:
                return t.call(fn, [t.make(name)], None)
            except Raised as error:
                if not issubclass(error.value.pytype(), AttributeError):
                    raise
                return self._getattr_hook(t, name, error)
        if name == "__dict__" and self._is_looked_up_in_c(t):
            if t.effects.stored_attrs(self):
                t.break_("attribute-unsupported", value=self.describe(), name=name)
            found = self._of_c_lookup(t, name)
            if found is not None:
                return found
        return self.generic_getattr(t, name)

    def _is_looked_up_in_c(self, t: Tracer) -> bool:
        """Whether a `__getattribute__` in C finds attributes in another dict: `threading.local` has one a thread."""
        hook, owner = descriptors.look_up(t, self.cls, "__getattribute__")
        if owner is None or owner is object or self.base is not None or isinstance(hook, types.FunctionType):
            return False
        if self.obj is None or self.source is None:
            return False
        return getattr(self.obj, "__dict__", None) is not instance_namespace(self.obj)

    def _of_c_lookup(self, t: Tracer, name: str) -> Value | None:
        """What such a `__getattribute__` finds now; None where that is nothing, which is guarded."""
        if self.obj is None or self.source is None:
            return None
        try:
            found = getattr(self.obj, name)
        except AttributeError:
            t.guard(HasAttr(self.source, name, False))
            return None
        return t.wrap(found, AttrSource(self.source, name)).realize()

    def generic_getattr(self, t: Tracer, name: str, hook: bool = True) -> Value:
        """`object.__getattribute__`, then (`hook`) the class's `__getattr__`, which is asked whoever raised AttributeError."""
        error = None
        try:
            found = self._plain_getattr(t, name)
        except Raised as raised:
            if not hook or not issubclass(raised.value.pytype(), AttributeError):
                raise
            found, error = None, raised
        if found is not None:
            return found
        if not hook:
            t.raise_(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")
        return self._getattr_hook(t, name, error)

    def _plain_getattr(self, t: Tracer, name: str) -> Value | None:
        """What `object.__getattribute__` finds; None where that is nothing."""
        if name == "__class__" and descriptors.look_up(t, self.cls, name)[1] is object:
            return self.class_value(t)
        raw, owner = descriptors.look_up(t, self.cls, name)
        if raw is not NOT_IMPLEMENTED and owner is not None and descriptors.is_data_descriptor(t, raw):
            if hasattr(type(raw), "__get__"):
                return self._read_data_descriptor(t, raw, owner, name)
        found = self.instance_attr(t, name) or descriptors.written(t, self.cls, name)
        if found is not None:
            return found
        if raw is not NOT_IMPLEMENTED and owner is not None:
            of_class = isinstance(raw, types.ClassMethodDescriptorType)
            reduces = name in ("__reduce__", "__reduce_ex__") and isinstance(raw, descriptors.BUILTIN_CALLABLES)
            if reduces and self.base is not None and issubclass(self.cls, SHOW_THEIR_CLASS):
                t.break_("attribute-unsupported", value=self.describe(), name=name)
            builtin = isinstance(raw, descriptors.BUILTIN_CALLABLES) and owner is not object and not of_class
            if self.base is not None and builtin:
                if name == "__getitem__" and descriptors.look_up(t, self.cls, "__missing__")[1] is not None:
                    return protocol.make_builtin_method(t, self, name)
                return part_method(t, self.base, self, raw)  # also where it has another name: `put = dict.__setitem__`
            return descriptors.bind(t, raw, owner, name, self, self.class_value(t))
        return None

    def _getattr_hook(self, t: Tracer, name: str, error: Raised | None) -> Value:
        self._refuse_written(t, "__getattr__")
        hook, owner = descriptors.look_up(t, self.cls, "__getattr__")
        if hook is not NOT_IMPLEMENTED and owner is not None:
            if isinstance(hook, _NATIVE_METHODS):  # `__getattr__ = dict.get`
                return t.call(t.make(hook), [self, t.make(name)], None)
            return t.call(descriptors.bind(t, hook, owner, "__getattr__", self, self.class_value(t)), [t.make(name)], None)
        if error is not None:
            raise error
        t.raise_(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")

    def _read_data_descriptor(self, t: Tracer, raw: Any, owner: type, name: str) -> Value:
        if name == "__dict__" and type(raw) in _NATIVE_DATA and (
                self.obj is None or raw.__get__(self.obj) is instance_namespace(self.obj)):
            return self.instance_dict(t)
        if self.base is not None and type(raw) in _NATIVE_DATA and issubclass(self.base.pytype(), raw.__objclass__):
            written = t.effects.load_attr(self, name)
            return written if isinstance(written, Value) else self.base.tp_getattro(t, name)  # a bound, a factory
        if isinstance(raw, types.MemberDescriptorType):
            found = self._slot(t, raw, name)
            if found is None:
                t.raise_(AttributeError, descriptors.nothing_in_slot(self.cls, name))
            return found
        if isinstance(raw, types.GetSetDescriptorType):
            if self.source is not None and self.obj is not None and name not in t.effects.stored_attrs(self):
                return t.wrap(getattr(self.obj, name), AttrSource(self.source, name)).realize()
            t.break_("attribute-unsupported", value=self.describe(), name=name)
        index = descriptors.field_index(raw)
        if index is not None and self.base is not None:
            return self.base.mp_subscript(t, t.make(index))
        return descriptors.bind(t, raw, owner, name, self, self.class_value(t))

    def _slot(self, t: Tracer, slot: types.MemberDescriptorType, name: str) -> Value | None:
        """The content of a slot of the instance; None where it is empty."""
        self._refuse_foreign(t, slot)
        written = t.effects.load_attr(self, name)
        if isinstance(written, Value):
            return written
        if written is NOT_IMPLEMENTED or self.obj is None or self.source is None:
            return None
        try:
            found = slot.__get__(self.obj, type(self.obj))
        except AttributeError:
            if any(descriptors.look_up(t, self.cls, hook)[0] not in (NOT_IMPLEMENTED, object.__getattribute__)
                   for hook in ("__getattr__", "__getattribute__")):  # which a guard would call
                t.break_("attribute-unsupported", value=self.describe(), name=name)
            t.guard(HasAttr(self.source, name, False))
            return None
        return t.wrap(found, AttrSource(self.source, name)).realize()

    def _refuse_foreign(self, t: Tracer, slot: types.MemberDescriptorType) -> None:
        """A slot of another class, found in this one, is no place in its instances."""
        if not issubclass(self.cls, slot.__objclass__):
            t.raise_(TypeError, f"descriptor '{slot.__name__}' for '{slot.__objclass__.__name__}' objects doesn't apply to "
                                f"a '{self.cls.__name__}' object")

    def instance_attr(self, t: Tracer, name: str) -> Value | None:
        """An attribute of the instance itself (its `__dict__`), or None; absence is guarded."""
        written = t.effects.load_attr(self, name)
        if written is NOT_IMPLEMENTED:
            return None
        if isinstance(written, Value):
            return written
        if self.obj is None or self.source is None:
            return None
        if self._is_looked_up_in_c(t):
            return self._of_c_lookup(t, name)
        namespace = instance_namespace(self.obj)
        if namespace is None:
            return None
        instance_dicts.look_at(t, namespace, name)
        if name in namespace:
            return t.wrap(namespace[name], ItemSource(InstanceDictSource(self.source), name)).realize()
        t.guard(InstanceHasAttr(self.source, name, False))
        return None

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        method = "__setattr__" if value is not None else "__delattr__"
        self._refuse_written(t, method)
        hook, owner = descriptors.look_up(t, self.cls, method)
        given = [t.make(name)] if value is None else [t.make(name), value]
        if owner is not None and not isinstance(hook, _NATIVE_METHODS):  # a function, or what Cython makes of one
            fn = descriptors.bind(t, hook, owner, method, self, self.class_value(t))
            t.call(fn, given, None)
            return
        if owner is not None and owner.__flags__ & _HEAP_TYPE and isinstance(hook, _NATIVE_METHODS):
            t.call(t.make(hook), [self, *given], None)
            return
        self.generic_setattr(t, name, value)

    def generic_setattr(self, t: Tracer, name: str, value: Value | None) -> None:
        """`object.__setattr__` / `object.__delattr__`."""
        if name == "__class__":
            t.break_("attribute-unsupported", value=self.describe(), name=name)
        raw, owner = descriptors.look_up(t, self.cls, name)
        is_slot = isinstance(raw, types.MemberDescriptorType)
        if is_slot:
            self._refuse_foreign(t, raw)
            if owner is not None and "__slots__" not in namespace_of(owner):  # of a class of C, and may be read-only
                t.break_("value-set-attribute", name=name, value=self.describe(), type=self.cls.__name__,
                         why="what that does is up to its class, and not modelled")
        if raw is not NOT_IMPLEMENTED and owner is not None and descriptors.is_data_descriptor(t, raw):
            if descriptors.assign(t, raw, owner, name, self, value):
                return
        if not is_slot and not self._has_dict():
            if raw is not NOT_IMPLEMENTED:
                t.raise_(AttributeError, f"'{self.cls.__name__}' object attribute '{name}' is read-only")
            t.raise_(AttributeError, descriptors.nowhere_to_write(self.cls, name, value is None))
        if value is None and is_slot and self._slot(t, raw, name) is None:
            t.raise_(AttributeError, raw.__name__)
        if value is None and not is_slot and self.instance_attr(t, name) is None:
            t.raise_(AttributeError, f"'{self.cls.__name__}' object has no attribute '{name}'")
        t.effects.store_attr(self, name, value)

    def _has_dict(self) -> bool:
        if issubclass(self.cls, threading.local):
            return True
        return self.cls.__dictoffset__ != 0 if self.obj is None else instance_namespace(self.obj) is not None

    # -- special methods -----------------------------------------------------------------------------------------

    def bind_special(self, t: Tracer, name: str) -> Value | None:
        """The special method bound to this object; None if the class has none (or set it to None)."""
        self._refuse_written(t, name)
        raw, owner = descriptors.look_up(t, self.cls, name)
        if raw is NOT_IMPLEMENTED or raw is None or owner is None:
            return None
        if isinstance(raw, descriptors.BUILTIN_CALLABLES) and owner is not object and self.base is not None:
            return part_method(t, self.base, self, raw)
        return descriptors.bind(t, raw, owner, name, self, self.class_value(t))

    def _user_special(self, t: Tracer, name: str) -> Value | None:
        """A special method that is the user's own code, or has a polyfill; what builtin types implement else is the base's."""
        self._refuse_written(t, name)
        raw, owner = descriptors.look_up(t, self.cls, name)
        if raw is None and owner is not None:
            self._refuse_none(t, name)
        if raw is NOT_IMPLEMENTED or owner is None:
            return None
        if isinstance(raw, descriptors.BUILTIN_CALLABLES) and not has_polyfill(raw):
            return None
        return descriptors.bind(t, raw, owner, name, self, self.class_value(t))

    def _refuse_written(self, t: Tracer, name: str) -> None:
        """Refuses a special method that this trace wrote to the class."""
        if descriptors.written(t, self.cls, name) is not None:
            t.break_("attribute-unsupported", value=self.describe(), name=name)

    def _refuse_none(self, t: Tracer, name: str) -> NoReturn:
        """The class says that it does not have the special method (`__iter__ = None`)."""
        words = {"__contains__": "'{}' object is not a container", "__iter__": "'{}' object is not iterable",
                 "__hash__": "unhashable type: '{}'"}.get(name)
        if words is None:
            t.break_("value-slot", slot=name, type=self.cls.__name__)
        t.raise_(TypeError, words.format(self.cls.__name__))

    def _try_special(self, t: Tracer, name: str, *args: Value) -> Value | _NotImplemented:
        method = self._user_special(t, name)
        if method is None:
            self._refuse_c_slot(t, name)
            return NOT_IMPLEMENTED
        result = t.call(method, args, None)
        if result.is_constant() and result.as_constant() is NotImplemented:
            return NOT_IMPLEMENTED
        return result

    def _of_c_slot(self, t: Tracer, name: str, fn: Callable[[Any], Any]) -> Value | None:
        """`fn(obj)`, where a class of C says what that is of an object from outside: read and guarded as its attributes are."""
        raw, owner = descriptors.look_up(t, self.cls, name)
        if self.base is not None or owner in (None, object) or not isinstance(raw, types.WrapperDescriptorType):
            return None
        if self.obj is None or self.source is None:
            return None
        try:
            found = fn(self.obj)
        except Exception:  # the program raises the same, where it comes to that
            return None
        return t.wrap(found, ApplySource(self.source, fn)).realize()

    def _refuse_c_slot(self, t: Tracer, name: str) -> None:
        """Refuses an operator that a C type implements and that is not modelled."""
        raw, owner = descriptors.look_up(t, self.cls, name)
        if self.base is None and owner is not object and isinstance(raw, types.WrapperDescriptorType):
            t.break_("value-slot", slot=name, type=self.cls.__name__)

    def tp_call(self, t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
        target = self.callee(t, list(args))
        return super().tp_call(t, args, kwargs) if target is None else t.call(target.fn, target.args, kwargs)

    def callee(self, t: Tracer, args: list[Value]) -> Callee | None:
        if self.obj is not None and self.source is not None and (allowed := marks.caller_of(self.obj)) is not None:
            t.guard(IdIs(self.source, self.obj))
            return Callee(t.make(allowed), args)
        method = self._user_special(t, "__call__")
        return None if method is None else Callee(method, args)

    def tp_iter(self, t: Tracer) -> Value:
        method = self._user_special(t, "__iter__")
        if method is not None:
            return protocol.checked_iterator(t, t.call(method, [], None))
        if self.base is not None:
            return self.base.tp_iter(t)
        if descriptors.look_up(t, self.cls, "__getitem__")[1] is not None:
            return IndexIteratorValue(self)
        return super().tp_iter(t)

    def tp_iternext(self, t: Tracer) -> Value | None:
        method = self._user_special(t, "__next__")
        return super().tp_iternext(t) if method is None else t.call(method, [], None)

    def tp_repr(self, t: Tracer) -> Value:
        method = self._user_special(t, "__repr__")
        if method is not None:
            return t.call(method, [], None)
        text = t.break_("repr-unsupported", value=self.describe()) if self.base is None else self.base.tp_repr(t)
        if self.base is None or not issubclass(self.cls, SHOW_THEIR_CLASS):
            return text
        if not text.is_constant() or "__name__" in t.effects.stored_attrs(self.class_value(t)):
            t.break_("repr-unsupported", value=self.describe())
        return t.make(shown_under(self.cls.__name__, text.as_constant(), self.base.pytype()))

    def tp_str(self, t: Tracer) -> Value:
        method = self._user_special(t, "__str__")
        if method is not None:
            return t.call(method, [], None)
        return self.base if self.base is not None and issubclass(self.cls, str) else self.tp_repr(t)

    def tp_hash(self, t: Tracer) -> Value:
        method = self._user_special(t, "__hash__")
        if method is not None:
            return protocol.checked_hash(t, t.call(method, [], None))
        by_identity: Any = object.__hash__
        if self.cls.__hash__ is by_identity:
            return self.meth___hash__(t)
        return super().tp_hash(t) if self.base is None else self.base.tp_hash(t)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        result = self._try_special(t, COMPARE_METHODS[op], other)
        if result is not NOT_IMPLEMENTED:
            return result
        # Also in the namespace of another class: `__ne__ = Mapping.__ne__` of a dict.
        objects_ne = op == "!=" and descriptors.look_up(t, self.cls, "__ne__")[0] is object.__dict__["__ne__"]
        if objects_ne and self._user_special(t, "__eq__") is not None:
            equal = self._try_special(t, "__eq__", other)
            return equal if isinstance(equal, _NotImplemented) else t.make(not protocol.truth(t, equal))
        if self.base is None:
            return NOT_IMPLEMENTED
        if self._user_special(t, COMPARE_METHODS[op]) is not None:
            return self._declined(t, op, other)
        theirs = getattr(other, "base", None) or other
        if self.base.is_constant() and (theirs.is_constant() or theirs.node is not None):
            return protocol.compare(t, op, self.base, theirs)
        return self.base.tp_richcompare(t, op, theirs)

    def nb_bool(self, t: Tracer) -> Value:
        for name in ("__bool__", "__len__"):
            method = self._user_special(t, name)
            if method is not None:
                told = t.call(method, [], None)
                return t.make(protocol.checked_truth(t, told) if name == "__bool__"
                              else protocol.truth(t, protocol.checked_length(t, told)))
            found = self._of_c_slot(t, name, bool)
            if found is not None:
                return found
            self._refuse_c_slot(t, name)
        return t.make(True) if self.base is None else self.base.nb_bool(t)

    def _declined(self, t: Tracer, op: str, other: Value) -> _NotImplemented:
        """The class's own method gave NotImplemented. The other operand's builtin type then takes this one for its builtin
        part, which is not traced."""
        if isinstance(other, UserObjectValue) and other.base is None:
            return NOT_IMPLEMENTED
        t.break_("value-slot", slot=op, type=self.cls.__name__)

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        if reflected and other.pytype() is self.cls:
            return NOT_IMPLEMENTED  # CPython calls the method of a shared class once
        name = f"__{'r' if reflected else ''}{BINARY_METHODS[op]}__"
        result = self._try_special(t, name, other)
        if result is NOT_IMPLEMENTED and self.base is not None:
            if self._user_special(t, name) is not None:
                return self._declined(t, op, other)
            theirs = getattr(other, "base", None) or other
            if issubclass(self.cls, SHOW_THEIR_CLASS[:3]):
                t.break_("value-slot", slot=op, type=self.cls.__name__)
            if self.base.is_constant() and (theirs.is_constant() or theirs.node is not None):
                a, b = (theirs, self.base) if reflected else (self.base, theirs)
                return protocol.binary(t, op, a, b)
            return self.base.nb_binary(t, op, theirs, reflected)
        return result

    def nb_inplace(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        name = f"__i{BINARY_METHODS[op]}__"
        result = self._try_special(t, name, other)
        if result is NOT_IMPLEMENTED and self.base is not None and self._user_special(t, name) is None:
            changed = self.base.nb_inplace(t, op, other)
            return self if changed is self.base else changed
        return result

    def nb_unary(self, t: Tracer, op: str) -> Value | _NotImplemented:
        if op == "index" and self.base is not None and issubclass(self.cls, int):
            return self.base  # CPython calls no method of an int
        result = self._try_special(t, _UNARY_METHODS[op])
        if isinstance(result, Value):
            return protocol.checked_number(t, op, self.cls, result)
        if self.base is None:
            return result
        return protocol.unary(t, op, self.base) if self.base.is_constant() else self.base.nb_unary(t, op)

    def sq_length(self, t: Tracer) -> Value:
        method = self._user_special(t, "__len__")
        if method is not None:
            return protocol.checked_length(t, t.call(method, [], None))
        found = self._of_c_slot(t, "__len__", len)
        return found or (super().sq_length(t) if self.base is None else self.base.sq_length(t))

    def query_length_hint(self, t: Tracer) -> None:
        def length() -> Value | None:
            method = self._user_special(t, "__len__")
            return None if method is None else protocol.checked_length(t, t.call(method, [], None))

        def hint() -> Value | None:
            if isinstance(descriptors.look_up(t, self.cls, "__len__")[0], descriptors.BUILTIN_CALLABLES):
                return None  # its length has been the answer
            method = self._user_special(t, "__length_hint__")
            return None if method is None else t.call(method, [], None)

        protocol.query_length_hint(t, self, length, hint)

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        method = self._user_special(t, "__contains__")
        if method is not None:
            return t.make(protocol.truth(t, t.call(method, [item], None)))
        if self.base is None:
            self._refuse_c_slot(t, "__contains__")
            return NOT_IMPLEMENTED
        return t.make(protocol.contains(t, self.base, item))

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        method = self._user_special(t, "__getitem__")
        if method is not None:
            return t.call(method, [key], None)
        if self.base is None:
            return super().mp_subscript(t, key)
        missing = self._user_special(t, "__missing__")
        if missing is not None and isinstance(self.base, DictValue) and not protocol.contains(t, self.base, key):
            return t.call(missing, [key], None)
        return self.base.mp_subscript(t, key)

    def mp_ass_subscript(self, t: Tracer, key: Value, value: Value | None) -> None:
        method = self._user_special(t, "__setitem__" if value is not None else "__delitem__")
        if method is not None:
            t.call(method, [key] if value is None else [key, value], None)
        elif self.base is not None:
            self.base.mp_ass_subscript(t, key, value)
        else:
            super().mp_ass_subscript(t, key, value)

    # -- object's own methods ------------------------------------------------------------------------------------

    def meth___setattr__(self, t: Tracer, name: Value, value: Value) -> Value:
        self.generic_setattr(t, name.as_constant(), value)
        return t.make(None)

    def meth___delattr__(self, t: Tracer, name: Value) -> Value:
        self.generic_setattr(t, name.as_constant(), None)
        return t.make(None)

    def meth___getattribute__(self, t: Tracer, name: Value) -> Value:
        return self.generic_getattr(t, name.as_constant(), hook=False)

    def meth___init__(self, t: Tracer, *args: Value, **kwargs: Value) -> Value:
        return t.call(t.make(object.__init__), [self, *args], kwargs)

    def meth___init_subclass__(self, t: Tracer) -> Value:
        return t.make(None)

    def meth___eq__(self, t: Tracer, other: Value) -> Value:
        return t.make(True if protocol.is_(t, self, other) else NotImplemented)

    def meth___ne__(self, t: Tracer, other: Value) -> Value:
        return t.make(not protocol.equal(t, self, other))

    def meth___hash__(self, t: Tracer) -> Value:
        """`object.__hash__`: of what globals and classes hold, which lives longer than a call, the entry is bound to."""
        found = LateNumber(object.__hash__, self).settle(t)
        if found is None:
            t.break_("hash-unsupported", value=self.describe())
        return found

    def meth___repr__(self, t: Tracer) -> Value:
        t.break_("repr-unsupported", value=self.describe())

    def meth___str__(self, t: Tracer) -> Value:
        return protocol.repr_(t, self)

    def meth___format__(self, t: Tracer, spec: Value) -> Value:
        """`object.__format__`, which takes no specification."""
        if not spec.is_constant() or not isinstance(spec.as_constant(), str):
            t.break_("repr-unsupported", value=self.describe())
        if spec.as_constant():
            t.raise_(TypeError, f"unsupported format string passed to {self.cls.__name__}.__format__")
        return protocol.str_(t, self)

    # -- building ------------------------------------------------------------------------------------------------

    def rebuild(self, cg: Rebuilder) -> None:
        base = builtin_base(self.cls)
        if base in (tuple, frozenset, str, int, float) and self.base is not None:
            assert base is not None
            cg.call(base.__new__, self.cls, _contents(self.base))
        else:
            native = next(owner for owner in self.cls.__mro__ if isinstance(namespace_of(owner).get("__new__"),
                                                                           types.BuiltinFunctionType))
            cg.call(native.__new__, self.cls)

    def fill(self, cg: Rebuilder) -> None:
        if isinstance(self.base, DictValue):
            if self.base.factory is not None:
                cg.call(collections.defaultdict.__init__, self, self.base.factory)
                cg.asm.pop()
            store = next(owner.__dict__["__setitem__"] for owner in self.cls.__mro__
                         if isinstance(namespace_of(owner).get("__setitem__"), types.WrapperDescriptorType))
            for key, value in self.base.items.values():
                cg.call(store, self, key, value)
                cg.asm.pop()
        elif self.base is not None and builtin_base(self.cls) in _FILLED_BY:
            cg.call(_FILLED_BY[builtin_base(self.cls)], self, _contents(self.base))
            cg.asm.pop()
        for name, attr in cg.effects.stored_attrs(self).items():
            if attr is not None:
                store = instance_dicts.put_entry if instance_dicts.hides_entry(self.cls, name) else object.__setattr__
                cg.call(store, self, name, attr)
                cg.asm.pop()


#: Value classes for instances of certain classes; their constructors take what UserObjectValue's takes.
INSTANCES: Final[ClassRegistry[type[UserObjectValue]]] = ClassRegistry()


def new_instance(t: Tracer, cls: type, base: Value | None = None) -> UserObjectValue:
    """A fresh instance of `cls`, made while tracing."""
    overrides.note_class(t, cls)
    kind = INSTANCES.find(cls) or UserObjectValue
    return kind(cls, base=base)


def fill_deque(queue: Any, items: tuple[Any, ...]) -> None:
    """Run-time helper of new bytecode: fills an instance of a subclass of deque; the bound comes first."""
    maxlen, *rest = items
    collections.deque.__init__(queue, rest, maxlen)


#: Puts the items into a new instance of a subclass of a mutable builtin.
_FILLED_BY: Final[dict[type | None, Callable[..., Any]]] = {
    list: list.extend, set: set.update, collections.deque: fill_deque,
}


class _ContentsValue(Value):
    """The items of a container as a fresh plain container, for building a subclass from them."""

    def __init__(self, base: Value) -> None:
        super().__init__()
        self.base = base

    def pytype(self) -> type:
        return self.base.pytype()

    def rebuild(self, cg: Rebuilder) -> None:
        items = getattr(self.base, "items", None)
        if items is None:
            cg.push_const(self.base.as_constant())
            return
        bound = [self.base.maxlen] if hasattr(self.base, "maxlen") else []
        for known in bound:
            cg.push_const(known)
        for item in (items.values() if isinstance(items, dict) else items):
            cg.push(item)
        cg.asm.build_tuple(len(items) + len(bound))


def _contents(base: Value) -> Value:
    return _ContentsValue(base)


def instance_namespace(obj: object) -> dict[str, Any] | None:
    """The instance's own dict, as guards find it, whatever its class has for `__dict__` (a proxy's gives that of what it stands
    for); None where it has none."""
    try:
        found = instance_dict(obj)
    except AttributeError:
        return None
    return found if isinstance(found, dict) else None


class InstanceDictValue(DictValue):
    """`obj.__dict__`: always what the effect log and the real dict say together. Changes are attribute writes."""

    shell = False

    def __init__(self, t: Tracer, owner: UserObjectValue | FunctionValue | AttributedTensor, root: Source | None) -> None:
        super().__init__(t, source=None if root is None else InstanceDictSource(root))
        self.owner = owner
        if root is not None:
            self._real = owner.namespace()

    def _written(self) -> dict[str, Value | None]:
        """Pending writes, those to slots left out."""
        written = self._t.effects.stored_attrs(self.owner)
        return {name: value for name, value in written.items()
                if not isinstance(protocol.type_lookup(self.owner.cls, name), instance_dicts.SLOTS)}

    def _look_at(self, name: str | None) -> None:
        if (namespace := self.owner.namespace()) is not None:
            instance_dicts.look_at(self._t, namespace, name)

    @property
    def items(self) -> dict[HashKey, tuple[Value, Value]]:
        self._look_at(None)
        items = super().items
        for name, value in self._written().items():
            if value is None:
                items.pop(name, None)
            else:
                items[name] = (self._t.make(name), value)
        return items

    def in_order(self) -> dict[HashKey, tuple[Value, Value]]:
        return self.items

    def find(self, t: Tracer, key: Value) -> tuple[Value, Value] | None:
        name = key.as_constant() if key.is_constant() else None
        self._look_at(name if isinstance(name, str) else None)
        written = self._written()
        if isinstance(name, str) and name in written:
            value = written[name]
            return None if value is None else (key, value)
        return super().find(t, key)

    def store(self, t: Tracer, key: Value, value: Value) -> None:
        name = self._name(t, key)
        if isinstance(protocol.type_lookup(self.owner.cls, name), instance_dicts.SLOTS):  # `setattr` would go there
            t.break_("attribute-unsupported", value=self.owner.describe(), name=f"__dict__[{name!r}]")
        t.effects.store_attr(self.owner, name, value)

    def remove(self, t: Tracer, key: Value) -> tuple[Value, Value] | None:
        entry = self.find(t, key)
        if entry is not None:
            t.effects.store_attr(self.owner, self._name(t, key), None)
        return entry

    def _name(self, t: Tracer, key: Value) -> str:
        if not key.is_constant() or not isinstance(key.as_constant(), str):
            t.break_("attribute-unsupported", value=self.owner.describe(), name="__dict__")
        return str(key.as_constant())

    def meth_clear(self, t: Tracer) -> Value:
        for key, _ in list(self.items.values()):
            self.remove(t, key)
        return t.make(None)

    def meth_popitem(self, t: Tracer, last: Value | None = None) -> Value:
        t.break_("attribute-unsupported", value=self.owner.describe(), name="__dict__")

    def rebuild(self, cg: Rebuilder) -> None:
        cg.push(self.owner)
        cg.asm.load_attr("__dict__")


function_namespace.provide(InstanceDictValue)


#: What a str, int or float of a subclass is as a plain one, whatever the subclass says.
_EXACT: Final[dict[type | None, Callable[[Any], Any]]] = {str: str.__str__, int: int.__int__, float: float.__float__}


@wraps_everything_else
def _wrap_user_object(t: Tracer, obj: object, source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    overrides.note_class(t, type(obj))
    base_type = builtin_base(type(obj))
    if base_type in (str, int, float):
        t.guard(IdIs(source, obj))
        return UserObjectValue(type(obj), source, obj, t.make(_EXACT[base_type](obj)))
    base = None if base_type is None else wrap_as_base(t, obj, source)
    return instance_dicts.met_object(t, UserObjectValue(type(obj), source, obj, base), obj, instance_namespace(obj))


def _receiver(t: Tracer, name: str, args: Sequence[Value], count: int) -> Sequence[Value]:
    """The arguments of `object.name`; a class is not read by it as classes are, and not written to."""
    cls = args[0].pytype() if args else object
    if len(args) != count or (name == "__getattribute__" and issubclass(cls, type)):
        t.break_("call-builtin", function=f"object.{name}", args=", ".join(arg.describe() for arg in args))
    if issubclass(cls, type):
        t.raise_(TypeError, f"can't apply this {name} to {cls.__name__} object")
    return args


@handles(object.__setattr__)
def _object_setattr(t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    obj, name, value = _receiver(t, "__setattr__", args, 3)
    store = getattr(obj, "generic_setattr", None)
    (obj.tp_setattro if store is None else store)(t, name.as_constant(), value)
    return t.make(None)


@handles(object.__delattr__)
def _object_delattr(t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    obj, name = _receiver(t, "__delattr__", args, 2)
    store = getattr(obj, "generic_setattr", None)
    (obj.tp_setattro if store is None else store)(t, name.as_constant(), None)
    return t.make(None)


@handles(object.__getattribute__)
def _object_getattribute(t: Tracer, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    obj, name = _receiver(t, "__getattribute__", args, 2)
    return obj.meth___getattribute__(t, name) if isinstance(obj, UserObjectValue) else obj.tp_getattro(t, name.as_constant())
