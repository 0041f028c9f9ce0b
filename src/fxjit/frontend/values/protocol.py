"""CPython's abstract object layer over symbolic values: which slots are called, in which order, and what is raised.

The interpreter, the builtins and the polyfills call these functions; values only implement slots. The order of
attempts follows Objects/abstract.c, Objects/object.c and Objects/typeobject.c of CPython.
"""

from __future__ import annotations

import math
import operator
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Literal

from fxjit import process_state
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Raised, Value, attribute_of_type, guard_nan_identity
from fxjit.frontend.values.concrete import builtin_part
from fxjit.frontend.values.extension import ExtensionPoint
from fxjit.frontend.values.traits import Alternatives, AttributeErrorValue, GuardedOperators, Indistinct, LateText
from fxjit.guards.constants import holds_nan
from fxjit.guards.kinds import IdIs, NotSameObject, SameObject
from fxjit.guards.source import ConstSource, Source, mro_of, namespace_of

BINARY: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.add, "-": operator.sub, "*": operator.mul, "/": operator.truediv, "//": operator.floordiv,
    "%": operator.mod, "**": operator.pow, "@": operator.matmul, "<<": operator.lshift, ">>": operator.rshift,
    "&": operator.and_, "|": operator.or_, "^": operator.xor,
}
INPLACE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "+": operator.iadd, "-": operator.isub, "*": operator.imul, "/": operator.itruediv, "//": operator.ifloordiv,
    "%": operator.imod, "**": operator.ipow, "@": operator.imatmul, "<<": operator.ilshift, ">>": operator.irshift,
    "&": operator.iand, "|": operator.ior, "^": operator.ixor,
}
COMPARE: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}
UNARY: Final[dict[str, Callable[[Any], Any]]] = {
    "neg": operator.neg, "pos": operator.pos, "invert": operator.invert, "abs": abs, "int": int, "float": float,
    "index": operator.index, "complex": complex, "round": round,
    "trunc": math.trunc, "floor": math.floor, "ceil": math.ceil,
}
SWAPPED: Final = {"<": ">", "<=": ">=", "==": "==", "!=": "!=", ">": "<", ">=": "<="}
#: Special method names of the binary operators: (left, right, in place).
BINARY_METHODS: Final = {
    "+": "add", "-": "sub", "*": "mul", "/": "truediv", "//": "floordiv", "%": "mod", "**": "pow", "@": "matmul",
    "<<": "lshift", ">>": "rshift", "&": "and", "|": "or", "^": "xor",
}
COMPARE_METHODS: Final = {"<": "__lt__", "<=": "__le__", "==": "__eq__", "!=": "__ne__", ">": "__gt__", ">=": "__ge__"}

# A constant bigger than this is not folded: the result would be kept in the code (2 ** 10**9, "a" * 10**9).
_MAX_FOLDED_BITS: Final = 1 << 16


def fold(t: Tracer, fn: Callable[..., Any], *constants: Any, promised: bool = False) -> Value:
    """The value of `fn(*constants)` for a pure `fn`; what it raises is raised in the user's program. `promised`: by the
    program, also where it is an object that may change."""
    guard_conversions(t, constants)
    try:
        result = fn(*constants)
    except Exception as error:  # `fn` is pure and all is known: the program raises the same
        t.raise_(type(error), *error.args)
    if hasattr(type(result), "__next__"):  # it is used up: each run needs one of its own
        t.break_("call-builtin", function=getattr(fn, "__name__", "?"), args="constants")
    if isinstance(result, str) and " at 0x" in result:
        process_state.bind("the address of an object")
    is_new = not promised and sys.getrefcount(result) == 2 and getattr(type(result), "__eq__", None) is object.__eq__
    value = t.make(result)
    if is_new and isinstance(value.source, ConstSource):  # no constant, but an object: each run needs one of its own
        t.break_("call-builtin", function=getattr(fn, "__name__", "?"), args="constants")
    return value


def guard_operators(t: Tracer, constants: Sequence[Value], *names: str) -> None:
    """Python's own operators are applied to the constants, under these names."""
    for each in constants:
        if isinstance(each, GuardedOperators):
            each.guard_operators(t, *names)


#: What functions of C call on an argument that is to be a number, or bytes, or whose size is asked for.
_CONVERSIONS: Final = ("__int__", "__index__", "__float__", "__complex__", "__round__", "__trunc__", "__floor__", "__ceil__",
                       "__divmod__", "__rdivmod__", "__pow__", "__rpow__", "__bytes__", "__sizeof__")


def guard_conversions(t: Tracer, constants: Iterable[Any]) -> None:
    """A function of C is given the constants: a class among them is no constant where its metaclass makes a number of it."""
    for each in constants:
        if type(each) in (tuple, list):
            guard_conversions(t, each)
        elif type(each) is not type and issubclass(type(each), type):
            names = [name for name in _CONVERSIONS if type_lookup(type(each), name) is not NOT_IMPLEMENTED]
            if names:
                guard_operators(t, [t.make(each)], *names)


def guard_comparisons(t: Tracer, constants: Iterable[Any]) -> None:
    """The constants, or what they hold, are compared with each other by Python: no class among them compares as its metaclass
    says."""
    for each in constants:
        if isinstance(each, (tuple, list, frozenset)):
            guard_comparisons(t, each)
        elif type(each) is not type and issubclass(type(each), type):
            guard_operators(t, [t.make(each)], "__eq__", "__lt__", "__gt__", "__le__", "__ge__")


def binary(t: Tracer, op: str, a: Value, b: Value) -> Value:
    """`a op b`."""
    guard_operators(t, (a, b), f"__{BINARY_METHODS[op]}__", f"__r{BINARY_METHODS[op]}__")
    if a.is_constant() and b.is_constant():
        if op == "+" and (isinstance(a, LateText) or isinstance(b, LateText)) and a.pytype() is b.pytype() is str:
            return joined_texts(t, [a, b])
        if op == "/" and isinstance(b, LateText) and b.has_numbers():  # a path: it would be compiled for each of them
            t.break_("call-builtin", function=f"{a.pytype().__name__}.__truediv__", args=b.describe())
        return _fold_binary(t, op, BINARY[op], a.as_constant(), b.as_constant())
    either = _applied(t, BINARY[op], a, b)
    if either is not None:
        return either
    result = _binary_slots(t, op, a, b)
    if result is NOT_IMPLEMENTED:
        spelled = "** or pow()" if op == "**" else op
        t.raise_(TypeError, f"unsupported operand type(s) for {spelled}: "
                            f"'{a.pytype().__name__}' and '{b.pytype().__name__}'")
    assert isinstance(result, Value)
    return result


def _applied(t: Tracer, fn: Callable[..., Any], a: Value, b: Value) -> Value | None:
    """`fn(a, b)` of each alternative, where one of them has such."""
    if isinstance(a, Alternatives):
        return a.applied(t, fn, (), (b,))
    return b.applied(t, fn, (a,), ()) if isinstance(b, Alternatives) else None


def _fold_binary(t: Tracer, op: str, fn: Callable[[Any, Any], Any], a: Any, b: Any) -> Value:
    if op in ("**", "<<", "*") and _would_be_huge(op, a, b):
        t.break_("constant-too-large", operation=f"{type(a).__name__} {op} {type(b).__name__}")
    return fold(t, fn, a, b)


def _would_be_huge(op: str, a: Any, b: Any) -> bool:
    if type(a) is int and type(b) is int:
        if op == "**":
            return b > 0 and a.bit_length() * b > _MAX_FOLDED_BITS
        if op == "<<":
            return b > _MAX_FOLDED_BITS
        return False
    if op == "*":
        text, count = (a, b) if isinstance(b, int) else (b, a)
        return isinstance(text, (str, bytes, tuple)) and isinstance(count, int) and len(text) * count > _MAX_FOLDED_BITS
    return False


def _binary_slots(t: Tracer, op: str, a: Value, b: Value) -> Value | Any:
    left, right = a.pytype(), b.pytype()
    reflected = f"__r{BINARY_METHODS[op]}__"
    # Not issubclass, which a metaclass may answer; and only where the subclass overrides the method (SLOT1BINFULL).
    right_first = (left is not right and left in mro_of(right)
                   and type_lookup(left, reflected) is not type_lookup(right, reflected))
    if right_first:
        result = b.nb_binary(t, op, a, True)
        if result is not NOT_IMPLEMENTED:
            return result
    result = a.nb_binary(t, op, b, False)
    if result is NOT_IMPLEMENTED and not right_first:
        result = b.nb_binary(t, op, a, True)
    return result


def _is_sequence_slot(raw: object) -> bool:
    """Whether a method of C is a sequence's `+` or `*`, and no number's, which have reflected ones."""
    return isinstance(raw, types.WrapperDescriptorType) and not hasattr(raw.__objclass__, "__radd__")


def _is_reflected_first(a: Value, b: Value, op: str) -> bool:
    """Whether `a op= b` asks `b` before the sequence `a`: PyNumber_InPlaceAdd and PyNumber_InPlaceMultiply come to the slots
    of sequences last."""
    if op not in ("+", "*") or not _is_sequence_slot(type_lookup(a.pytype(), f"__i{BINARY_METHODS[op]}__")):
        return False
    reflected = type_lookup(b.pytype(), f"__r{BINARY_METHODS[op]}__")
    return reflected is not NOT_IMPLEMENTED and not _is_sequence_slot(reflected)


def inplace(t: Tracer, op: str, a: Value, b: Value) -> Value:
    """`a op= b`; gives the value to store."""
    if not a.is_constant():
        result = b.nb_binary(t, op, a, True) if _is_reflected_first(a, b, op) else NOT_IMPLEMENTED
        if result is NOT_IMPLEMENTED:
            result = a.nb_inplace(t, op, b)
        if result is not NOT_IMPLEMENTED:
            assert isinstance(result, Value)
            return result
    else:
        guard_operators(t, (a,), f"__i{BINARY_METHODS[op]}__")
        return binary(t, op, a, b)
    result = _binary_slots(t, op, a, b)
    if result is NOT_IMPLEMENTED:
        t.raise_(TypeError, f"unsupported operand type(s) for {op}=: "
                            f"'{a.pytype().__name__}' and '{b.pytype().__name__}'")
    return result


def unary(t: Tracer, op: str, a: Value) -> Value:
    """`-a`, `+a`, `~a`, `abs(a)`, `int(a)`, ...: `op` as in Value.nb_unary."""
    if a.is_constant():
        guard_operators(t, (a,), f"__{op}__")
        return fold(t, UNARY[op], a.as_constant())
    result = a.nb_unary(t, op)
    if result is NOT_IMPLEMENTED:
        symbol = {"neg": "-", "pos": "+", "invert": "~"}.get(op)
        name = a.pytype().__name__
        if symbol is not None:
            t.raise_(TypeError, f"bad operand type for unary {symbol}: '{name}'")
        if op == "abs":
            t.raise_(TypeError, f"bad operand type for abs(): '{name}'")
        if op == "index":
            t.raise_(TypeError, f"'{name}' object cannot be interpreted as an integer")
        t.raise_(TypeError, f"type {name} doesn't define __{op}__ method")
    assert isinstance(result, Value)
    return result


def not_(t: Tracer, a: Value) -> Value:
    """`not a`: symbolic where the truth is, a constant elsewhere."""
    answer = a.nb_bool(t)
    if answer.is_constant():
        return t.make(not answer.as_constant())
    return t.make(not truth(t, answer))


def compare(t: Tracer, op: str, a: Value, b: Value) -> Value:
    """`a op b` for the six rich comparisons."""
    guard_operators(t, (a, b), COMPARE_METHODS[op], COMPARE_METHODS["==" if op == "!=" else SWAPPED[op]])
    if a.is_constant() and b.is_constant():
        if issubclass(a.pytype(), CONTAINERS) and issubclass(b.pytype(), CONTAINERS):
            guard_equal_items(t, (a, b))
            guard_comparisons(t, (a.as_constant(), b.as_constant()))
        return fold(t, COMPARE[op], a.as_constant(), b.as_constant())
    either = _applied(t, COMPARE[op], a, b)
    if either is not None:
        return either
    left, right = a.pytype(), b.pytype()
    right_first = left is not right and left in mro_of(right)
    if right_first:
        result = b.tp_richcompare(t, SWAPPED[op], a)
        if result is not NOT_IMPLEMENTED:
            return result  # type: ignore[return-value]  # not NotImplemented here
    result = a.tp_richcompare(t, op, b)
    if result is NOT_IMPLEMENTED and not right_first:
        result = b.tp_richcompare(t, SWAPPED[op], a)
    if result is NOT_IMPLEMENTED:
        if op == "==":
            return t.make(is_(t, a, b))
        if op == "!=":
            return t.make(not is_(t, a, b))
        t.raise_(TypeError, f"'{op}' not supported between instances of '{left.__name__}' and '{right.__name__}'")
    assert isinstance(result, Value)
    return result


#: Types of constants that compare what they hold by identity first.
CONTAINERS: Final = (tuple, frozenset, slice)


def guard_equal_items(t: Tracer, constants: Sequence[Value]) -> None:
    """Of constants that a container takes for equal where they are one object, only NaNs are not equal anyway."""
    unequal = [each for each in constants if holds_nan(each.as_constant())]
    if len(unequal) > 1:
        for each in unequal:
            guard_nan_identity(t, each)


def is_(t: Tracer, a: Value, b: Value) -> bool:
    """`a is b`. That two objects found outside the trace are one, or two, is guarded where it is not known otherwise."""
    a, b = a.realize(), b.realize()
    if a is b:
        return True
    if hasattr(a, "specialize") or hasattr(b, "specialize"):
        return _same_number(t, a, b)
    for value, other in ((a, b), (b, a)):
        if isinstance(value, Indistinct) and value.may_be(other):
            value.distinguish(t)
    if a.is_constant() and b.is_constant():
        return _same_constant(t, a, b, a.source, b.source)
    if a.is_constant() != b.is_constant():
        return _is_constant_itself(t, *((a, b) if a.is_constant() else (b, a)))
    if a.source is not None and b.source is not None:
        t.guard(NotSameObject((a.source, b.source)))
    return False


def _same_constant(t: Tracer, a: Value, b: Value, a_source: Source | None, b_source: Source | None) -> bool:
    """Equal ints, floats and strings made apart may or may not be one object: guards on their values do not say."""
    left, right = a.as_constant(), b.as_constant()
    equality: Any = type(left).__eq__
    if type(left) is not type(right) or equality is object.__eq__:
        return left is right
    if _is_interned(left) or _is_interned(right):
        return bool(left == right)
    if left != right and left == left and right == right:
        return False
    same = left is right
    if a_source is not None and b_source is not None and a_source != b_source:
        t.guard(SameObject(a_source, b_source) if same else NotSameObject((a_source, b_source)))
    elif (a_source is None) is not (b_source is None):
        source, known = (b_source, left) if a_source is None else (a_source, right)
        assert source is not None
        t.guard(IdIs(source, known) if same else NotSameObject((source, ConstSource(known, repr(known)))))
    return same


def _is_constant_itself(t: Tracer, constant: Value, other: Value) -> bool:
    """Whether an object from outside is the constant itself (`alias.__origin__ is typing.ClassVar`)."""
    found, known = getattr(other, "obj", None), constant.as_constant()
    if found is None or other.source is None:
        return False
    if found is known:
        t.guard(IdIs(other.source, found))
        return True
    if type(found) is type(known):
        t.guard(NotSameObject((other.source, ConstSource(known, constant.describe()))))
    return False


def _same_number(t: Tracer, a: Value, b: Value) -> bool:
    """`a is b` where one is a number of the graph: it becomes a constant."""
    if a.pytype() is not b.pytype():
        return False
    fixed = [v.specialize(t) if hasattr(v, "specialize") else v for v in (a, b)]
    return all(v.is_constant() for v in fixed) and _same_constant(t, fixed[0], fixed[1], a.source, b.source)


def _is_interned(obj: object) -> bool:
    """Whether CPython has one object of this value only."""
    if isinstance(obj, int):
        return -5 <= obj <= 256
    return (isinstance(obj, (str, bytes)) and len(obj) <= 1) or (type(obj) is tuple and not obj)


def equal(t: Tracer, a: Value, b: Value) -> bool:
    """`a is b or a == b`, as containers compare their items (PyObject_RichCompareBool)."""
    a, b = a.realize(), b.realize()
    if hasattr(a, "specialize") or hasattr(b, "specialize"):  # a number of the graph is identified by its value alone
        return a is b or truth(t, compare(t, "==", a, b))
    # Identity comes first only where it is known: a guard on it is wanted where equality does not settle the matter.
    return a is b or truth(t, compare(t, "==", a, b)) or is_(t, a, b)


def truth(t: Tracer, v: Value) -> bool:
    """`bool(v)`; breaks where that is known only at run time."""
    for _ in range(3):
        if v.is_constant() and not isinstance(v, GuardedOperators) and v.as_constant() is not NotImplemented:
            break
        v = v.nb_bool(t)
    if not v.is_constant():
        t.break_("data-branch", value=v.describe())
    return bool(v.as_constant())


# -- attributes ----------------------------------------------------------------------------------------------------


def getattr_(t: Tracer, v: Value, name: str) -> Value:
    v = v.realize()
    try:
        return v.tp_getattro(t, name).realize()
    except Raised as raised:
        if isinstance(raised.value, AttributeErrorValue):
            raised.value.set_lookup(t, v, name)
        raise


def getattr_or_none(t: Tracer, v: Value, name: str) -> Value | None:
    """None where `getattr` raises AttributeError."""
    try:
        return getattr_(t, v, name)
    except Raised as raised:
        if issubclass(raised.value.pytype(), AttributeError):
            return None
        raise


def hasattr_(t: Tracer, v: Value, name: str) -> bool:
    return getattr_or_none(t, v, name) is not None


def setattr_(t: Tracer, v: Value, name: str, value: Value) -> None:
    v.realize().tp_setattro(t, name, value)


def delattr_(t: Tracer, v: Value, name: str) -> None:
    v.realize().tp_setattro(t, name, None)


def type_lookup(cls: type, name: str) -> Any:
    """`_PyType_Lookup`: the raw attribute on the MRO, or NOT_IMPLEMENTED where there is none."""
    for base in mro_of(cls):
        namespace = namespace_of(base)  # a metaclass may have a `__dict__` of its own, and an `__mro__`
        if name in namespace:
            return namespace[name]
    return NOT_IMPLEMENTED


@attribute_of_type.provide
def generic_getattr(t: Tracer, v: Value, name: str) -> Value:
    """Attributes that a value of a builtin type has through its type: methods and data descriptors of constants."""
    cls = v.pytype()
    if name == "__class__":
        return t.make(cls)
    method = getattr(v, "meth_" + name, None)
    found = type_lookup(cls, name)
    if found is NOT_IMPLEMENTED:
        t.raise_(AttributeError, f"'{cls.__name__}' object has no attribute '{name}'")
    if found is None or type(found) is str:  # `__hash__` of what has none, `__module__`, `__doc__`
        return t.make(found)
    if method is not None:
        return make_builtin_method(t, v, name)
    if v.is_constant() and not callable(found):
        return fold(t, getattr, v.as_constant(), name)
    if callable(found):
        return make_builtin_method(t, v, name)
    t.break_("attribute-unsupported", value=v.describe(), name=name)


#: `v.name`, a bound method of a builtin type (natives.py).
make_builtin_method: Final[ExtensionPoint[[Tracer, Value, str], Value]] = ExtensionPoint("make_builtin_method")


def lookup_special(t: Tracer, v: Value, name: str) -> Value | None:
    """`type(v).name` bound to `v`, as the interpreter looks special methods up (not on the instance)."""
    v = v.realize()
    if type_lookup(v.pytype(), name) is NOT_IMPLEMENTED and not hasattr(v, "meth_" + name):
        return None
    bind = getattr(v, "bind_special", None)
    if bind is not None:
        bound = bind(t, name)
        assert bound is None or isinstance(bound, Value)
        return bound
    return v.tp_getattro(t, name)


# -- calls and iteration -------------------------------------------------------------------------------------------


def call(t: Tracer, fn: Value, args: Sequence[Value] = (), kwargs: Mapping[str, Value] | None = None) -> Value:
    return t.call(fn, args, kwargs)


def call_method(t: Tracer, v: Value, name: str, *args: Value) -> Value:
    return t.call(getattr_(t, v, name), args, None)


def iter_(t: Tracer, v: Value) -> Value:
    return v.realize().tp_iter(t).realize()


def next_(t: Tracer, it: Value) -> Value | None:
    """The next item, or None when exhausted (a StopIteration raised by a user's `__next__` counts)."""
    try:
        item = it.tp_iternext(t)
    except Raised as raised:
        if issubclass(raised.value.pytype(), StopIteration):
            return None
        raise
    return None if item is None else item.realize()


def one_by_one(t: Tracer, v: Value) -> Iterator[Value]:
    """The items of an iterable, each when it is asked for: methods that fill a container take one after the other, so that code
    of the program's that makes the next one sees what is there by then, and what is there stays if it raises."""
    it = iter_(t, v)
    while (item := next_(t, it)) is not None:
        yield item


def drain(t: Tracer, it: Value) -> list[Value]:
    """All items that an iterator has left."""
    items: list[Value] = []
    while (item := next_(t, it)) is not None:
        items.append(item)
    return items


def unpack(t: Tracer, v: Value) -> list[Value]:
    """All items of an iterable."""
    return drain(t, iter_(t, v))


def unpack_hinted(t: Tracer, v: Value) -> list[Value]:
    """All items of an iterable, as `PySequence_List` and `PySequence_Tuple` take them: its length is asked for beforehand."""
    it = iter_(t, v)
    v.realize().query_length_hint(t)
    return drain(t, it)


def unpack_fast(t: Tracer, v: Value) -> list[Value]:
    """All items of an iterable, as `PySequence_Fast` takes them: through a list of its iterator."""
    return unpack_hinted(t, iter_(t, v))


#: More than this is not set aside while tracing: whether there is room shows where it is done for real.
_MOST_SET_ASIDE: Final = 1 << 20


def query_length_hint(t: Tracer, v: Value, length: Callable[[], Value | None], hint: Callable[[], Value | None]) -> None:
    """`PyObject_LengthHint` by what `__len__` and `__length_hint__` give, None where there is none: an answer of which nothing
    is seen but an error, and a TypeError of the program's only where the answer is of a wrong kind."""
    told = _unless_type_error(length)
    if told is None:
        told = _unless_type_error(hint)
        if told is None or (told.is_constant() and told.as_constant() is NotImplemented):
            return
        if not issubclass(told.pytype(), int):
            t.raise_(TypeError, f"__length_hint__ must be an integer, not {told.pytype().__name__}")
        if told.is_constant() and not -sys.maxsize - 1 <= told.as_constant() <= sys.maxsize:
            t.raise_(OverflowError, "Python int too large to convert to C ssize_t")
        if truth(t, compare(t, "<", told, t.make(0))):
            t.raise_(ValueError, "__length_hint__() should return >= 0")
    if told.is_constant() and told.as_constant() > _MOST_SET_ASIDE:
        t.break_("call-builtin", function="__length_hint__", args=v.describe())


def _unless_type_error(answer: Callable[[], Value | None]) -> Value | None:
    try:
        told = answer()
    except Raised as raised:
        if not issubclass(raised.value.pytype(), TypeError):
            raise
        return None
    return None if told is None else told.realize()


# -- containers ----------------------------------------------------------------------------------------------------


def getitem(t: Tracer, v: Value, key: Value) -> Value:
    v = v.realize()
    if v.is_constant() and key.is_constant() and isinstance(v.as_constant(), (str, bytes)):
        return fold(t, operator.getitem, v.as_constant(), key.as_constant())
    return v.mp_subscript(t, key).realize()


def setitem(t: Tracer, v: Value, key: Value, value: Value) -> None:
    v.realize().mp_ass_subscript(t, key, value)


def delitem(t: Tracer, v: Value, key: Value) -> None:
    v.realize().mp_ass_subscript(t, key, None)


def length(t: Tracer, v: Value) -> Value:
    return v.realize().sq_length(t)


def checked_length(t: Tracer, told: Value) -> Value:
    """What a program's own `__len__` gave, as a length."""
    told = unary(t, "index", told.realize())
    if truth(t, compare(t, "<", told, t.make(0))):
        t.raise_(ValueError, "__len__() should return >= 0")
    if told.is_constant() and told.as_constant() > sys.maxsize:
        t.raise_(OverflowError, f"cannot fit '{told.pytype().__name__}' into an index-sized integer")
    return told


def checked_truth(t: Tracer, told: Value) -> bool:
    """What a program's own `__bool__` gave, as a truth value."""
    told = told.realize()
    if told.pytype() is not bool:
        t.raise_(TypeError, f"__bool__ should return bool, returned {told.pytype().__name__}")
    return truth(t, told)


_NUMBERS: Final[dict[str, type]] = {"index": int, "int": int, "float": float, "complex": complex}


def checked_number(t: Tracer, op: str, cls: type, told: Value) -> Value:
    """What the own conversion of an instance of `cls` gave, `op` as in Value.nb_unary."""
    wanted, kind = _NUMBERS.get(op), told.realize().pytype()
    if wanted is not None and not issubclass(kind, wanted):
        name = f"{cls.__name__}.__float__" if op == "float" else f"__{op}__"
        t.raise_(TypeError, f"{name} returned non-{op.replace('index', 'int')} (type {kind.__name__})")
    if op != "index" or kind is int:
        return told
    number = getattr(told, "base", None) or told  # of an instance of a subclass
    return t.make(int(number.as_constant())) if number.is_constant() else number


def checked_hash(t: Tracer, told: Value) -> Value:
    """What a program's own `__hash__` gave, as a hash."""
    told = told.realize()
    if not issubclass(told.pytype(), int):
        t.raise_(TypeError, "__hash__ method should return an integer")
    if not told.is_constant():
        return told
    number = int(told.as_constant())
    return t.make(-2 if number == -1 else number if -sys.maxsize - 1 <= number <= sys.maxsize else hash(number))


def checked_iterator(t: Tracer, told: Value) -> Value:
    """What a program's own `__iter__` gave, as an iterator."""
    told = told.realize()
    if not hasattr(told.pytype(), "__next__"):
        t.raise_(TypeError, f"iter() returned non-iterator of type '{told.pytype().__name__}'")
    return told


def contains(t: Tracer, container: Value, item: Value) -> bool:
    """`item in container`."""
    container = container.realize()
    if container.is_constant() and item.is_constant():
        if isinstance(container, GuardedOperators):
            own = container.sq_contains(t, item)
            if isinstance(own, Value):
                return truth(t, own)
            container.guard_operators(t, "__iter__")
        guard_operators(t, (item,), "__eq__")
        if issubclass(container.pytype(), CONTAINERS):
            guard_equal_items(t, (container, item))
        return bool(fold(t, operator.contains, container.as_constant(), item.as_constant()).as_constant())
    answer = container.sq_contains(t, item)
    if answer is not NOT_IMPLEMENTED:
        assert isinstance(answer, Value)
        return truth(t, answer)
    it = iter_(t, container)
    while (candidate := next_(t, it)) is not None:
        if equal(t, candidate, item):
            return True
    return False


def hash_(t: Tracer, v: Value) -> Value:
    return v.realize().tp_hash(t)


#: `str(v)`, `repr(v)`, `format(v, spec)` and `text * v` of values whose text may be deferred (deferred.py); None where it is
#: not.
deferred_text: Final[ExtensionPoint[
    [Tracer, Literal["str", "repr", "format", "times"], Value, str], Value | None]] = ExtensionPoint("deferred_text")
#: `"".join(parts)` of str (deferred.py).
joined_texts: Final[ExtensionPoint[[Tracer, list[Value]], Value]] = ExtensionPoint("joined_texts")
#: `template % other` (callables/printf.py).
printf: Final[ExtensionPoint[[Tracer, str, Value], Value]] = ExtensionPoint("printf")


def repr_(t: Tracer, v: Value) -> Value:
    v = v.realize()
    deferred = deferred_text(t, "repr", v, "")
    return deferred if deferred is not None else _text(t, v.tp_repr(t), "__repr__ returned non-string (type {})")


def str_(t: Tracer, v: Value) -> Value:
    v = v.realize()
    deferred = deferred_text(t, "str", v, "")
    return deferred if deferred is not None else _text(t, v.tp_str(t), "__str__ returned non-string (type {})")


def _text(t: Tracer, made: Value, otherwise: str) -> Value:
    """The result of a program's own method, checked to be a str; `otherwise` is the message for another type."""
    made = made.realize()
    if not issubclass(made.pytype(), str):
        t.raise_(TypeError, otherwise.format(made.pytype().__name__))
    return made


def ascii_(t: Tracer, v: Value) -> Value:
    """`ascii(v)`: its repr, itself where that has nothing but ASCII, and what else it has as escapes."""
    text = repr_(t, v)
    known = builtin_part(text)  # a `__repr__` may give an instance of a subclass of str
    if not known.is_constant():
        t.break_("tensor-data", function="ascii")
    shown: str = known.as_constant()
    return text if shown.isascii() else t.make(shown.encode("ascii", "backslashreplace").decode("ascii"))


#: Whose `__format__` without a specification is `str()`, which a subclass may define.
_FORMATTED_AS_STR: Final = tuple(cls.__dict__["__format__"] for cls in (object, str, int, float, complex))


def format_(t: Tracer, v: Value, spec: str) -> Value:
    """`format(v, spec)`."""
    v = v.realize()
    deferred = deferred_text(t, "format", v, spec)
    if deferred is not None:
        return deferred
    if v.is_constant() and not isinstance(v, GuardedOperators):
        return fold(t, format, v.as_constant(), spec)
    method = lookup_special(t, v, "__format__")
    found = type_lookup(v.pytype(), "__format__")
    if not spec and any(found is each for each in _FORMATTED_AS_STR):
        return str_(t, v)
    if method is not None and found is not object.__dict__["__format__"]:
        return _text(t, t.call(method, [t.make(spec)], None), "__format__ must return a str, not {}")
    if spec:
        t.raise_(TypeError, f"unsupported format string passed to {v.pytype().__name__}.__format__")
    return str_(t, v)
