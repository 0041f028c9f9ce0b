"""Calls of the builtin types: int(), str(), list(), dict(), zip(), type(), super()..."""

from __future__ import annotations

import collections
import itertools
import types
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import deferred_numbers, descriptors, protocol, set_history, tensor_methods
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Value
from fxjit.frontend.values.calls import fold_call, function, handles
from fxjit.frontend.values.classes import NEW, ClassValue, SuperValue
from fxjit.frontend.values.concrete import concrete, is_concrete
from fxjit.frontend.values.constant import is_plain_constant
from fxjit.frontend.values.deferred_numbers import DeferredNumber
from fxjit.frontend.values.deques import DequeValue, bound_of
from fxjit.frontend.values.descriptors import metaclass_of
from fxjit.frontend.values.functions import FunctionValue, MethodValue
from fxjit.frontend.values.iteration import IndexIteratorValue, SequenceIteratorValue
from fxjit.frontend.values.iterators import EnumerateValue, FilterValue, MapValue, ZipValue
from fxjit.frontend.values.mapping import DictValue, MappingProxyValue, keyword_pairs, pairs_of
from fxjit.frontend.values.objects import UserObjectValue, new_instance
from fxjit.frontend.values.random_values import RandomValue
from fxjit.frontend.values.ranges import RangeValue, SliceValue, as_index
from fxjit.frontend.values.sequence import ListValue, TupleValue
from fxjit.frontend.values.sets import SetValue, set_part
from fxjit.frontend.values.symscalar import SymValue
from fxjit.frontend.values.tensor import GivenTensor, TensorValue
from fxjit.frontend.values.wrapped import StaticMethodValue

# -- numbers and text -------------------------------------------------------------------------------------------


def _is_none(value: Value) -> bool:
    return value.is_constant() and value.as_constant() is None


@function(bool)
def bool_(t: Tracer, value: Value | None = None) -> Value:
    if value is None:
        return t.make(False)
    plain = type(value) in (TensorValue, GivenTensor)
    plain = plain and t.break_points.captures_scalars
    if plain and isinstance(value, TensorValue) and tensor_methods.known_item(value) is None:
        number = tensor_methods.as_number(t, value, "item")
        return number if number.pytype() is bool else protocol.compare(t, "!=", number, t.make(0))
    if (later := deferred_numbers.truth(t, value)) is not None:
        return later
    if isinstance(value, SymValue) and value.depends_on_data():  # and may never be decided on
        return value if value.pytype() is bool else protocol.compare(t, "!=", value, t.make(0))
    answer = value.nb_bool(t)
    return answer if answer.is_constant() or answer.node is not None else t.make(protocol.truth(t, answer))


def _number(cls: type, slot: str) -> None:
    @handles(cls)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) == 1 and not kwargs and not args[0].is_constant():
            value = args[0]
            if value.pytype() is cls and _known_at_run_time(value):
                return value
            if slot != "complex" or hasattr(value.pytype(), "__complex__"):
                for name in (slot, "index"):
                    result = value.nb_unary(t, name)
                    if isinstance(result, Value):
                        return result if _known_at_run_time(result) else fold_call(t, cls, [result])
            method = protocol.lookup_special(t, value, f"__{slot}__") if isinstance(value, UserObjectValue) else None
            if method is not None:
                return fold_call(t, cls, [t.call(method, [])])
            base = getattr(value, "base", None)
            if isinstance(base, Value):
                return fold_call(t, cls, [base])
            if not hasattr(value.pytype(), f"__{slot}__") and not hasattr(value.pytype(), "__index__"):
                what = "a string or a real number" if slot == "float" else (
                    "a string, a bytes-like object or a real number")
                t.raise_(TypeError, f"{slot}() argument must be {what}, not '{value.pytype().__name__}'")
        return fold_call(t, cls, [_fixed(t, arg) for arg in args], {key: _fixed(t, arg) for key, arg in kwargs.items()})


def _known_at_run_time(value: Value) -> bool:
    """A number of the graph, or one computed before or behind it."""
    return value.node is not None or isinstance(value, (RandomValue, DeferredNumber))


def _fixed(t: Tracer, value: Value) -> Value:
    specialize: Callable[[Tracer], Value] | None = getattr(value, "specialize", None)
    return value if specialize is None else specialize(t)


_number(int, "int")
_number(float, "float")
_number(complex, "complex")


@handles(str)
def str_(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and not kwargs:
        return protocol.str_(t, args[0])
    return fold_call(t, str, args, kwargs)


@handles(bytes)
def bytes_(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    items = args
    if len(args) == 1 and not args[0].is_constant() and hasattr(args[0].pytype(), "__iter__"):
        items = [ListValue(protocol.unpack_hinted(t, args[0]))]
    return fold_call(t, bytes, items, kwargs)


# -- containers -------------------------------------------------------------------------------------------------


@function(list)
def list_(t: Tracer, values: Value | None = None, /) -> Value:
    return ListValue([] if values is None else protocol.unpack_hinted(t, values))


@function(tuple)
def tuple_(t: Tracer, values: Value | None = None, /) -> Value:
    if isinstance(values, TupleValue) and values.cls is tuple:
        return values
    return TupleValue([] if values is None else protocol.unpack_hinted(t, values))


@function(set)
def set_(t: Tracer, values: Value | None = None, /) -> Value:
    return _set_of(t, values, set)


def _set_of(t: Tracer, values: Value | None, cls: type) -> SetValue:
    part = set_part(values) if values is not None and issubclass(values.pytype(), (set, frozenset)) else None
    if part is not None:  # whatever the `__iter__` of a subclass says
        made = SetValue(t, cls=cls)
        order, elements, history = part.operand(t)
        made.elements, made.order, made.history = dict(elements), cls(order), set_history.done(history, cls.__name__)
        return made
    made = SetValue(t, _elements(t, values), cls)
    if values is not None and values.pytype() is dict:
        made.order = cls(made.elements)  # of a dict, it takes its room beforehand
        made.history = set_history.of_dict(cls, list(made.elements))
    return made


@function(frozenset)
def frozenset_(t: Tracer, values: Value | None = None, /) -> Value:
    if isinstance(values, SetValue) and values.cls is frozenset:
        return values
    return _set_of(t, values, frozenset)


def _elements(t: Tracer, values: Value | None) -> list[Value]:
    return [] if values is None else protocol.unpack(t, values)


def _dict_like(cls: type) -> None:
    @handles(cls)
    def call(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
        if len(args) > 1:
            t.raise_(TypeError, f"{cls.__name__} expected at most 1 argument, got {len(args)}")
        pairs = pairs_of(t, args[0], cls) if args else ()
        return DictValue(t, [*pairs, *keyword_pairs(t, kwargs)], cls)


_dict_like(dict)
_dict_like(collections.OrderedDict)


@handles(collections.defaultdict)
def defaultdict_(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    factory, *rest = args or [t.make(None)]
    if not _is_none(factory) and not hasattr(factory.pytype(), "__call__"):  # noqa: B004 - of the type, not the value
        t.raise_(TypeError, "first argument must be callable or None")
    pairs = pairs_of(t, rest[0]) if rest else ()
    return DictValue(t, [*pairs, *keyword_pairs(t, kwargs)], collections.defaultdict, factory=factory)


def _fromkeys(cls: type) -> None:
    @function(cls.fromkeys)  # type: ignore[attr-defined]  # both dict types have it
    def fromkeys(t: Tracer, keys: Value, value: Value | None = None, /) -> Value:
        return DictValue(t, [(key, value or t.make(None)) for key in protocol.unpack(t, keys)], cls)


_fromkeys(dict)
_fromkeys(collections.OrderedDict)


@function(collections.deque)
def deque_(t: Tracer, iterable: Value | None = None, maxlen: Value | None = None) -> Value:
    bound = None if maxlen is None or _is_none(maxlen) else bound_of(t, maxlen)
    if bound is not None and bound < 0:
        t.raise_(ValueError, "maxlen must be non-negative")
    return DequeValue(_elements(t, iterable), maxlen=bound)


@function(types.MappingProxyType)
def mappingproxy_(t: Tracer, mapping: Value, /) -> Value:
    return MappingProxyValue(mapping)


@handles(range)
def range_(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs:
        t.raise_(TypeError, "range() takes no keyword arguments")
    if not 1 <= len(args) <= 3:
        few = not args
        t.raise_(TypeError, f"range expected at {'least 1 argument' if few else 'most 3 arguments'}, got {len(args)}")
    numbers = [as_index(t, arg) for arg in args]
    if len(numbers) == 3 and numbers[2] == 0:
        t.raise_(ValueError, "range() arg 3 must not be zero")
    return RangeValue(range(*numbers))


@handles(slice)
def slice_(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if kwargs or not 1 <= len(args) <= 3:
        t.raise_(TypeError, f"slice expected at least 1 argument, got {len(args)}")
    none = t.make(None)
    if len(args) == 1:
        return SliceValue(none, args[0], none)
    return SliceValue(args[0], args[1], args[2] if len(args) == 3 else none)


# -- iterators --------------------------------------------------------------------------------------------------


@handles(zip)
def zip_(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    strict = kwargs.pop("strict", None)
    if kwargs:
        t.raise_(TypeError, f"zip() got an unexpected keyword argument '{next(iter(kwargs))}'")
    return ZipValue([_iterator(t, arg, f"zip argument #{i + 1} must support iteration") for i, arg in enumerate(args)],
                    strict is not None and protocol.truth(t, strict))


def _iterator(t: Tracer, value: Value, message: str) -> Value:
    if not hasattr(value.pytype(), "__iter__") and not hasattr(value.pytype(), "__getitem__"):
        t.raise_(TypeError, f"'{value.pytype().__name__}' object is not iterable")
    return protocol.iter_(t, value)


@handles(map)
def map_(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) < 2:
        t.raise_(TypeError, "map() must have at least two arguments.")
    return MapValue(args[0], [protocol.iter_(t, arg) for arg in args[1:]])


@function(filter)
def filter_(t: Tracer, fn: Value, values: Value, /) -> Value:
    return FilterValue(fn, protocol.iter_(t, values))


@function(itertools.filterfalse)
def filterfalse_(t: Tracer, fn: Value, values: Value, /) -> Value:
    return FilterValue(fn, protocol.iter_(t, values), wanted=False)


@function(enumerate)
def enumerate_(t: Tracer, iterable: Value, start: Value | None = None) -> Value:
    count = t.make(0) if start is None else protocol.unary(t, "int", protocol.unary(t, "index", start))
    return EnumerateValue(protocol.iter_(t, iterable), count)


@function(reversed)
def reversed_(t: Tracer, values: Value, /) -> Value:
    from_values = values
    own = protocol.type_lookup(values.pytype(), "__reversed__")
    if own is None:
        t.raise_(TypeError, f"'{values.pytype().__name__}' object is not reversible")
    if own is not NOT_IMPLEMENTED:
        return t.call(protocol.getattr_(t, from_values, "__reversed__"), [])
    if isinstance(values, TupleValue):
        from_values = values
    elif values.is_constant() and hasattr(values.as_constant(), "__getitem__"):
        from_values = t.make(tuple(values.as_constant()))
    elif not hasattr(values.pytype(), "__getitem__") or not hasattr(values.pytype(), "__len__"):
        t.raise_(TypeError, f"'{values.pytype().__name__}' object is not reversible")
    else:
        return IndexIteratorValue(values, as_index(t, protocol.length(t, values)) - 1, -1)
    assert isinstance(from_values, TupleValue)
    return SequenceIteratorValue(from_values, len(from_values.items) - 1, -1)


# -- type, super, object and the decorators ---------------------------------------------------------------------


@handles(type)
def type_(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if len(args) == 1 and not kwargs:
        if isinstance(args[0], ClassValue):
            return t.make(metaclass_of(t, args[0].cls))
        made = getattr(args[0], "class_value", None)
        return made(t) if made is not None else t.make(args[0].pytype())
    if len(args) != 3:
        t.raise_(TypeError, "type() takes 1 or 3 arguments")
    return _made_class(t, args, kwargs)


def _made_class(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    """`type(name, bases, namespace)`: a class of the trace's own, where making it runs none of the program's code and nothing
    in it can be written to but the class itself."""
    named, derived, given = args
    if kwargs or not t.break_points.makes_classes or given.pytype() is not dict:
        t.break_("opcode-class-body")
    entries = list(pairs_of(t, given))
    if not all(map(is_concrete, (named, derived, *(key for key, _ in entries)))):
        t.break_("opcode-class-body")
    name, bases = concrete(named), concrete(derived)
    namespace = {concrete(key): _shared(_fixed(t, value.realize())) for key, value in entries}
    if type(name) is not str or type(bases) is not tuple or not all(type(key) is str for key in namespace):
        t.break_("opcode-class-body")
    if any(value is _NOT_SHARED for value in namespace.values()):
        t.break_("opcode-class-body")
    if not all(isinstance(base, type) and _is_derived_from_in_c(t, base) for base in bases):
        t.break_("opcode-class-body")
    module = t.running_frame.globals.namespace.get("__name__")
    if is_plain_constant(module):
        namespace.setdefault("__module__", module)
    return protocol.fold(t, lambda: t.effects.made_classes.make(type, name, bases, namespace))


def _is_derived_from_in_c(t: Tracer, base: type) -> bool:
    """Whether no code of the program's runs where a class is derived from `base`."""
    metaclass = descriptors.metaclass_of(t, base)
    steps = all(descriptors.look_up(t, metaclass, name)[1] is type for name in ("__new__", "__init__", "mro"))
    return steps and descriptors.look_up(t, base, "__init_subclass__")[1] is object


#: What each class would need its own one of.
_NOT_SHARED: Final = object()


def _shared(value: Value) -> Any:
    """The object that each class may have in its namespace, and that is not told of it."""
    known = value.fn if type(value) is FunctionValue else value.as_constant() if value.is_constant() else _NOT_SHARED
    if not isinstance(known, (types.FunctionType, types.BuiltinFunctionType, type)) and not is_plain_constant(known):
        return _NOT_SHARED
    return _NOT_SHARED if descriptors.find(type(known), "__set_name__")[1] is not None else known


@handles(super)
def super_(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    if not args:
        args = _own_frame(t)
    if len(args) > 2:
        t.raise_(TypeError, f"super() expected at most 2 arguments, got {len(args)}")
    cls = args[0]
    start = cls.as_constant() if cls.is_constant() else None
    if not isinstance(start, type):
        if issubclass(cls.pytype(), type):  # one that is not looked into
            t.break_("call-builtin", function="super", args=cls.describe())
        t.raise_(TypeError, f"super() argument 1 must be a type, not {cls.pytype().__name__}")
    if len(args) == 1:
        t.break_("call-builtin", function="super", args=cls.describe())
    obj = args[1]
    fits = issubclass(obj.pytype(), start) or (
        isinstance(obj, ClassValue) and issubclass(obj.cls, start))
    if not fits:
        t.raise_(TypeError, "super(type, obj): obj must be an instance or subtype of type")
    return SuperValue(start, obj)


def _own_frame(t: Tracer) -> list[Value]:
    """The arguments of a bare `super()`: the class that the running method was defined in, and its first argument."""
    frame: Any = t.running_frame
    code = frame.code.code
    if not code.co_argcount:
        t.raise_(RuntimeError, "super(): no arguments")
    cell = frame.closure.get("__class__")
    if code.co_varnames[0] not in (*frame.locals, *frame.cells):
        t.raise_(RuntimeError, "super(): arg[0] deleted")  # checked first
    contents = None if cell is None else cell.realize().get(t)
    if contents is None:
        t.raise_(RuntimeError, "super(): __class__ cell not found")
    first = code.co_varnames[0]
    if first in frame.cells:  # what an inner function sees, and may have changed since
        obj = frame.cells[first].realize().get(t)
    else:
        obj = frame.locals[first].realize()
    if obj is None:
        t.raise_(RuntimeError, "super(): arg[0] deleted")
    return [contents, obj]


def _method_wrapper(cls: type) -> None:
    @function(cls)
    def call(t: Tracer, fn: Value, /) -> Value:
        return StaticMethodValue(fn, cls)


_method_wrapper(staticmethod)
_method_wrapper(classmethod)


@handles(property)
def property_(t: Tracer, args: list[Value], kwargs: dict[str, Value]) -> Value:
    t.break_("call-builtin", function="property", args=", ".join(arg.describe() for arg in args))


@function(types.MethodType)
def method_(t: Tracer, function: Value, instance: Value, /) -> Value:
    return MethodValue(function, instance)


def _new_namespace(t: Tracer, cls: type, args: Sequence[Value], kwargs: Mapping[str, Value]) -> Value:
    return new_instance(t, cls)  # without attributes, which `__init__` gives it


NEW.register(types.SimpleNamespace, _new_namespace)
