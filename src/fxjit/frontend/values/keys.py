"""Keys of dicts and elements of sets: the identity of a value under hashing and equality.

`key_of` maps a value to a Python object with the hash and the equality that the value's own object has: constants
stand for themselves (so 1 == 1.0 == True, and a NaN is itself only), tuples are tuples of keys, objects that compare
by identity are an `IdentityKey`, and objects whose class defines `__eq__` are compared by tracing it.
"""

from __future__ import annotations

import builtins
import dis
from collections.abc import Hashable, Iterable, Mapping
from types import CellType, FunctionType
from typing import Any, Final

import torch

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors, protocol
from fxjit.frontend.values.base import NotConstant, Value, guard_nan_identity
from fxjit.frontend.values.ranges import SliceValue
from fxjit.frontend.values.sequence import TupleValue
from fxjit.frontend.values.traits import GuardedOperators, Indistinct, Reference
from fxjit.guards.constants import holds_nan
from fxjit.guards.kinds import IdIs

HashKey = Hashable
#: The trace's table of the sources of such keys.
IDENTITY_KEYS: Final = "identity keys"


class IdentityKey:
    """An object that is equal to itself only. One value is one object, so the value's identity will do."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, IdentityKey) and other.value is self.value

    def __hash__(self) -> int:
        return hash(id(self.value))


class QueriedKey:
    """An object with a hash and an equality of its own, which is traced whenever a container compares the key with another
    one of its hash: just when CPython would call it. Whether it is equal to a key of another kind with the same hash, is known
    only at run time."""

    __slots__ = ("_t", "known_hash", "value")

    def __init__(self, t: Tracer, value: Value, known_hash: int) -> None:
        self._t = t
        self.value = value
        self.known_hash = known_hash

    def __eq__(self, other: object) -> bool:
        if other is self:
            return True
        if hash(other) != self.known_hash:
            return False
        if isinstance(other, QueriedKey):
            return protocol.equal(self._t, self.value, other.value)
        raise NotConstant(self.value)

    def __hash__(self) -> int:
        return self.known_hash


class ReferenceKey:
    """A weak reference, by the key that its referent is."""

    __slots__ = ("referent",)

    def __init__(self, referent: HashKey) -> None:
        self.referent = referent

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ReferenceKey) and other.referent == self.referent

    def __hash__(self) -> int:
        return hash(self.referent)


class NumberKey:
    """An int that varies from call to call, and that is none of the other keys: each comparison was a guard."""

    __slots__ = ("value",)

    def __init__(self, value: Value) -> None:
        self.value = value


def key_of(t: Tracer, value: Value, among: Iterable[HashKey] = ()) -> HashKey:
    """The key that `value` is. `among` are the keys it is looked for in: what an overridden `__eq__` is called with."""
    value = value.realize()
    if value.is_constant():
        known = value.as_constant()
        if isinstance(value, GuardedOperators):
            value.guard_operators(t, "__hash__", "__eq__")
        try:
            hash(known)
        except TypeError as error:
            t.raise_(TypeError, *error.args)
        assert isinstance(known, Hashable)
        guard_nan_identity(t, value)
        if _may_be_late(known) and t.new_source_state(_LATE_KEYS) and any(map(_holds_late, among)):
            t.break_("value-slot", slot="__hash__", type=value.pytype().__name__)
        return _varying_key(t, value, among) or known if isinstance(known, int | float) else known
    if isinstance(value, Reference):
        return ReferenceKey(key_of(t, value.alive(t), [key.referent for key in among if isinstance(key, ReferenceKey)]))
    if isinstance(value, Indistinct):
        value.distinguish(t)
    own = getattr(value, "hash_key", None)
    if own is not None:
        if not any(map(_may_be_late, among)):
            return _late_key(t, own(), among)
        settled = value.settle(t)  # type: ignore[attr-defined]  # what has a hash_key has it
        if settled is None:
            t.break_("value-slot", slot="__hash__", type=value.pytype().__name__)
        return key_of(t, settled, among)
    specialize = getattr(value, "specialize", None)
    if specialize is not None:
        known = specialize(t)
        assert isinstance(known, Value)
        return _varying_key(t, known, among) or known.as_constant()  # type: ignore[no-any-return]  # a number
    if isinstance(value, TupleValue):
        return tuple(key_of(t, item, among) for item in value.realized())
    cls = value.pytype()
    for name in ("__hash__", "__eq__"):
        descriptors.look_up(t, cls, name)
    if cls.__hash__ is None:
        t.raise_(TypeError, f"unhashable type: '{cls.__name__}'")
    if compares_by_identity(cls):
        hasher: Any = cls.__hash__
        if hasher is not object.__hash__ and not is_repeatable(cls, "__hash__"):
            t.break_("value-slot", slot="__hash__", type=cls.__name__)
        if isinstance(hasher, FunctionType) and not issubclass(cls, torch.Tensor):
            protocol.hash_(t, value)  # which must be a number
        _keep_apart(t, value)
        return IdentityKey(value)
    base = getattr(value, "base", None)
    if isinstance(base, Value) and (cls.__hash__, cls.__eq__) == (base.pytype().__hash__, base.pytype().__eq__):
        return key_of(t, base)  # a subclass of str, int, tuple... that compares as these do
    return _queried(t, value, among)


class _NoKey:
    """The key of a number that is none of the keys it was compared with."""


def key_to_find(t: Tracer, value: Value, among: Iterable[HashKey]) -> HashKey:
    """The key that `value` is, to be looked for and not stored. An int that varies from call to call is compared with each of a
    few keys, so that an entry holds for all the numbers that are found, or not found, alike."""
    value = value.realize()
    if value.is_constant():
        return key_of(t, value, among)  # a dict may be large, and asked for each of its keys
    keys = list(among)
    if not _can_be_compared(value, keys):
        return key_of(t, value, keys)
    found = _compared(t, value, keys)
    return _NoKey() if found is None else found


def key_to_store(t: Tracer, value: Value, among: Iterable[HashKey]) -> HashKey:
    """The key that `value` is in a dict to which it is about to be added. An int that varies and is none of a few keys stays
    one that varies (ids by which hooks of modules are kept)."""
    value = value.realize()
    keys = [] if value.is_constant() else list(among)
    if value.is_constant() or not _can_be_compared(value, keys):
        return key_of(t, value, among)
    found = _compared(t, value, keys)
    if found is not None:
        return found
    t.new_source_state(_VARYING_KEYS)[""] = True
    return NumberKey(value)


def _can_be_compared(value: Value, keys: list[HashKey]) -> bool:
    if getattr(value, "specialize", None) is None or value.pytype() is not int:
        return False
    return all(type(key) in _PLAIN for key in keys) and sum(map(_is_number, keys)) <= _MOST_COMPARED


def _is_number(key: HashKey) -> bool:
    return isinstance(key, int | float | NumberKey)


def _compared(t: Tracer, value: Value, keys: Iterable[HashKey]) -> HashKey | None:
    """The one of the keys that the number is; each comparison is a guard."""
    for key in filter(_is_number, keys):
        if protocol.truth(t, protocol.compare(t, "==", value, key.value if isinstance(key, NumberKey) else t.make(key))):
            return key
    return None


def _varying_key(t: Tracer, number: Value, among: Iterable[HashKey]) -> HashKey | None:
    """The key that varies and is this number."""
    if not t.new_source_state(_VARYING_KEYS):
        return None
    return _compared(t, number, [key for key in among if isinstance(key, NumberKey)])


#: The table of a trace that has something in it if there is a NumberKey.
_VARYING_KEYS: Final = "keys that vary"
_PLAIN: Final = frozenset({int, float, bool, str, bytes, type(None), NumberKey})
#: Keys that a number is compared with; among more it is compiled for its value.
_MOST_COMPARED: Final = 16


@guard_nan_identity.provide
def _guard_nan_identity(t: Tracer, value: Value) -> None:
    """A NaN is found only as the object that it is, of which the guard on its value says nothing."""
    if holds_nan(value.as_constant()):
        if isinstance(value, TupleValue):
            for item in value.realized():
                guard_nan_identity(t, item)
        elif isinstance(value, SliceValue):
            for part in value.parts():
                guard_nan_identity(t, part)
        elif value.source is not None:
            t.guard(IdIs(value.source, value.as_constant()))


def _late_key(t: Tracer, key: tuple[Any, tuple[Value, ...]], among: Iterable[HashKey]) -> HashKey:
    """The key of a number that is known late (callables/core.py), such as `id(obj)`: what it is computed from."""
    fn, args = key
    t.new_source_state(_LATE_KEYS)[""] = True
    for arg in args:
        _keep_apart(t, arg)
    for other in among:
        if isinstance(other, tuple) and len(other) == 2 and other[0] is fn and len(other[1]) == len(args):
            if all(a.is_constant() and b.is_constant() and protocol.is_(t, a, b) for a, b in zip(args, other[1], strict=True)):
                return other
    return key


def _keep_apart(t: Tracer, value: Value) -> None:
    """Keys that compare by identity were different objects: `Trace` guards that those found outside still are."""
    if value.source is not None and not value.is_constant():
        t.new_source_state(IDENTITY_KEYS)[value.source] = None  # type: ignore[index]  # tables of a trace have no types


#: The table of a trace that has something in it if there is a key of a number that is known late.
_LATE_KEYS: Final = "keys that are known late"
#: Identities of objects and threads are addresses: no number below this is one.
FIRST_ADDRESS: Final = 2**16


def _may_be_late(key: HashKey) -> bool:
    """Whether a number that is known late may turn out to be this key, or in it."""
    if isinstance(key, tuple | frozenset):
        return not _is_late(key) and any(map(_may_be_late, key))
    return isinstance(key, NumberKey) or (isinstance(key, int | float) and key >= FIRST_ADDRESS)


def _is_late(key: HashKey) -> bool:
    """Whether it is what `hash_key` of a number that is known late gives."""
    return isinstance(key, tuple) and len(key) == 2 and callable(key[0]) and isinstance(key[1], tuple) and all(
        isinstance(each, Value) for each in key[1])


def _holds_late(key: HashKey) -> bool:
    return _is_late(key) or (isinstance(key, tuple | frozenset) and any(map(_holds_late, key)))


def _queried(t: Tracer, value: Value, among: Iterable[HashKey]) -> HashKey:
    elements = getattr(value, "elements", None)
    if value.pytype() is frozenset and isinstance(elements, Mapping):
        return frozenset(elements)
    if t.new_source_state(_VARYING_KEYS):  # whether their hashes are one is known only at run time
        t.break_("value-slot", slot="__hash__", type=value.pytype().__name__)
    if not is_repeatable(value.pytype(), "__hash__"):
        t.break_("value-slot", slot="__hash__", type=value.pytype().__name__)
    found = protocol.hash_(t, value)
    if _is_its_identity(found, value) and not any(map(_may_be_late, among)):
        _keep_apart(t, value)  # no other object has its hash: `__eq__`, which may compare element by element, is not called
        return IdentityKey(value)
    if not is_repeatable(value.pytype(), "__eq__"):
        t.break_("value-slot", slot="__eq__", type=value.pytype().__name__)
    if not found.is_constant():
        t.break_("value-slot", slot="__hash__", type=value.pytype().__name__)
    return QueriedKey(t, value, found.as_constant())


def _is_its_identity(number: Value, value: Value) -> bool:
    """Whether the number is `id(value)`."""
    own = getattr(number, "hash_key", None)
    if own is None:
        return False
    fn, args = own()
    return fn is id and len(args) == 1 and args[0].realize() is value


def has_known_hash(key: HashKey) -> bool:
    """Whether the key has the hash that the program's own object has: that of an IdentityKey is another."""
    if isinstance(key, tuple | frozenset):
        return all(map(has_known_hash, key))
    if isinstance(key, ReferenceKey):
        return has_known_hash(key.referent)
    return not isinstance(key, IdentityKey | NumberKey | Value)


def compared_by_c(keys: Iterable[object]) -> bool:
    """Whether a look-up among these keys runs none of the user's code."""
    return all(type(key).__eq__ in _C_EQUALITY or isinstance(key, type) for key in keys)


_C_EQUALITY: Final = frozenset(cls.__eq__ for cls in (str, int, float, bytes, object, type(None), complex))


def is_repeatable(cls: type, name: str) -> bool:
    """Whether a method of the user's may be called again, and at another time, when the container is made for real: it only
    reads the object and computes. Others (which count, raise, look around) have to be called by the container itself."""
    fn = getattr(cls, name)
    code = getattr(fn, "__code__", None)
    if code is None:
        return True
    cells = dict(zip(code.co_freevars, fn.__closure__ or (), strict=True))
    for instruction in dis.get_instructions(code):
        if instruction.opname.startswith(_ACTS):
            return False
        if instruction.opname == "LOAD_DEREF" and not isinstance(_contents(cells.get(instruction.argval)), type):
            return False
        if instruction.opname in ("LOAD_GLOBAL", "LOAD_NAME"):
            known = fn.__globals__.get(instruction.argval, getattr(builtins, str(instruction.argval), None))
            if not isinstance(known, type) and known not in _COMPUTES:
                return False
    return True


def _contents(cell: CellType | None) -> object:
    try:
        return None if cell is None else cell.cell_contents
    except ValueError:
        return None


_ACTS = ("STORE_ATTR", "STORE_DEREF", "STORE_GLOBAL", "STORE_SUBSCR", "DELETE_", "RAISE", "YIELD", "LOAD_METHOD", "IMPORT")
_COMPUTES: Final = (hash, isinstance, len, getattr, NotImplemented, id, super)


def compares_by_identity(cls: type) -> bool:
    """Whether instances are equal to themselves only (a tensor's `==` is no answer for a dict, its hash is its id)."""
    if issubclass(cls, torch.Tensor):
        return True
    hasher: Any = cls.__hash__
    return hasher is object.__hash__ or cls.__eq__ is object.__eq__
