"""Lists and tuples (with torch.Size, named tuples and structseqs, which are tuples of another class).

wrap.py finds the wrappers below through its registry; `interp/` makes `ListValue` and `TupleValue` for displays;
callables and methods make them for results. Items may be `Lazy`: whoever reads an item realizes it, whoever copies
a container copies the Lazy.
"""

from __future__ import annotations

import operator
import types
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, ClassVar, SupportsIndex

import torch

from fxjit import process_state
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import descriptors, protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Lazy, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.concrete import builtin_part
from fxjit.frontend.values.iteration import SequenceIteratorValue
from fxjit.frontend.values.ranges import SliceValue, as_index, as_slice
from fxjit.frontend.values.traits import LateIndex, Places
from fxjit.frontend.values.wrap import creates, wraps, wraps_if
from fxjit.guards.kinds import IdIs, LengthIs, TypeIs
from fxjit.guards.source import ApplySource, AttrSource, ClassItemSource, ItemSource, Source, class_source, shown_key
from fxjit.homes import module_of


class SequenceValue(Value):
    """The common part of lists and tuples. `items` is the state; `cls` the exact type."""

    base_type: ClassVar[type]

    def __init__(self, items: Iterable[Value], source: Source | None = None, cls: type | None = None) -> None:
        super().__init__(source)
        self.items: list[Value] = list(items)
        self.cls: type = cls or self.base_type

    def pytype(self) -> type:
        return self.cls

    def item(self, index: int) -> Value:
        return self.items[index].realize()

    def realized(self) -> list[Value]:
        return [item.realize() for item in self.items]

    def like(self, items: Iterable[Value]) -> Value:
        """The result of slicing and arithmetic."""
        return type(self)(items)

    def sq_length(self, t: Tracer) -> Value:
        return t.make(len(self.items))

    def nb_bool(self, t: Tracer) -> Value:
        return t.make(bool(self.items))

    def tp_iter(self, t: Tracer) -> Value:
        return SequenceIteratorValue(self)

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        return t.make(any(same_or_equal(t, self.item(i), item) for i in self._indices()))

    def _indices(self) -> Iterable[int]:
        """Indices while the list may change under the loop (a user's `__eq__` may do so)."""
        i = 0
        while i < len(self.items):
            yield i
            i += 1

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        name = self.base_type.__name__
        if isinstance(key, SliceValue):
            return self.like(self.items[as_slice(t, key)])
        if isinstance(key, LateIndex):
            return key.item_of(t, self.realized())
        index = as_index(t, key, f"{name} indices must be integers or slices, not {{}}")
        if not -len(self.items) <= index < len(self.items):
            t.raise_(IndexError, f"{name} index out of range")
        return self.item(index)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        theirs = sequence_part(other, self.base_type)
        if theirs is None:
            return NOT_IMPLEMENTED
        if op in ("==", "!=") and len(self.items) != len(theirs.items):
            return t.make(op == "!=")
        for i in self._indices():
            if i >= len(theirs.items):
                break
            a, b = self.item(i), theirs.item(i)
            if not same_or_equal(t, a, b):
                if i >= len(self.items) or i >= len(theirs.items):
                    break  # the comparison changed them
                if op in ("==", "!="):
                    return t.make(op == "!=")
                return protocol.compare(t, op, a, b)
        return t.make(ORDER[op](len(self.items), len(theirs.items)))

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        if op == "+" and not reflected:
            theirs = sequence_part(other, self.base_type)
            if theirs is None:
                return self._other_or_raise(t, op, other, "can only concatenate {0} (not \"{1}\") to {0}")
            return self.like(self.items + theirs.items)
        if op == "*" and is_index_like(other):
            return self.like(self.items * self._times(t, other))
        if op == "*" and not reflected:
            return self._other_or_raise(t, op, other, "can't multiply sequence by non-int of type '{1}'")
        return NOT_IMPLEMENTED

    def _times(self, t: Tracer, other: Value) -> int:
        count = max(as_index(t, other), 0)
        if len(self.items) * count > _MAX_ITEMS:
            t.break_("constant-too-large", operation=f"{self.base_type.__name__} * int")
        return count

    def _other_or_raise(self, t: Tracer, op: str, other: Value, message: str) -> Value | _NotImplemented:
        """Sequences come last in CPython's binary operators: what the other operand makes of it, or the error."""
        result = other.nb_binary(t, op, self, True)
        if isinstance(result, _NotImplemented):
            t.raise_(TypeError, message.format(self.base_type.__name__, other.pytype().__name__))
        return result

    def meth_index(self, t: Tracer, value: Value, start: Value | None = None, stop: Value | None = None) -> Value:
        size = len(self.items)
        first, last = (clamp_index(t, start, 0, size), clamp_index(t, stop, size, size))
        for i in range(first, last):
            if i < len(self.items) and same_or_equal(t, self.item(i), value):
                return t.make(i)
        what = "tuple.index(x): x not in tuple"
        if self.base_type is list:
            what = protocol.repr_(t, value).as_constant() + " is not in list"
        t.raise_(ValueError, what)

    def meth_count(self, t: Tracer, value: Value) -> Value:
        return t.make(sum(same_or_equal(t, self.item(i), value) for i in self._indices()))

    def text_of(self, t: Tracer, opening: str, closing: str) -> str:
        busy = busy_reprs(t)
        if id(self) in busy:
            return f"{opening}...{closing}"
        busy.add(id(self))
        try:
            return opening + ", ".join(protocol.repr_(t, item).as_constant() for item in self.realized()) + closing
        finally:
            busy.discard(id(self))


#: A container bigger than this is not made while tracing.
_MAX_ITEMS = 10_000_000
ORDER: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}


class _Emptied(list[Value]):
    """The content of a list while it is sorted: nothing. An insertion meanwhile is detected at the end, even if it was
    removed again."""

    was_filled = False

    def append(self, item: Value, /) -> None:
        self.was_filled = True
        super().append(item)

    def extend(self, items: Iterable[Value], /) -> None:
        for item in items:
            self.append(item)

    def insert(self, index: SupportsIndex, item: Value, /) -> None:
        self.was_filled = True
        super().insert(index, item)


class ListValue(SequenceValue, Places):
    shell = True
    base_type = list

    def graph_arg(self, t: Tracer) -> Any:
        return [item.graph_arg(t) for item in self.realized()]

    def rebuild(self, cg: Rebuilder) -> None:
        cg.asm.build_list(0)

    def fill(self, cg: Rebuilder) -> None:
        if self.items:
            for item in self.items:
                cg.push(item)
            cg.asm.build_list(len(self.items))
            cg.asm.list_extend(1)

    def places(self) -> Iterator[tuple[Source, Value]]:
        if self.source is not None:
            yield from ((ItemSource(self.source, index), item) for index, item in enumerate(self.items))

    def write_back(self, cg: Rebuilder) -> None:
        for item in self.items:
            cg.push(item)
        cg.asm.build_list(len(self.items))
        cg.asm.call_const(set_list, 2)
        cg.asm.pop()

    def tp_repr(self, t: Tracer) -> Value:
        return t.make(self.text_of(t, "[", "]"))

    def mp_ass_subscript(self, t: Tracer, key: Value, value: Value | None) -> None:
        if isinstance(key, SliceValue):
            self._store_slice(t, as_slice(t, key), value)
            return
        index = as_index(t, key, "list indices must be integers or slices, not {}")
        if not -len(self.items) <= index < len(self.items):
            t.raise_(IndexError, "list assignment index out of range")
        t.effects.mutate(self)
        if value is None:
            del self.items[index]
        else:
            self.items[index] = value

    def _store_slice(self, t: Tracer, where: slice, value: Value | None) -> None:
        if value is None:
            t.effects.mutate(self)
            del self.items[where]
            return
        if builtin_part(value.realize()) is self:
            new = list(self.items)
        else:
            new = iterated(t, value, "can only assign an iterable" if where.step in (None, 1) else
                           "must assign iterable to extended slice")
        t.effects.mutate(self)
        try:
            self.items[where] = new
        except ValueError as error:
            t.raise_(ValueError, *error.args)

    def nb_inplace(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if op == "+":
            self.meth_extend(t, other)
            return self
        if op == "*" and is_index_like(other):
            count = self._times(t, other)
            t.effects.mutate(self)
            self.items = self.items * count
            return self
        return NOT_IMPLEMENTED

    def meth_append(self, t: Tracer, value: Value) -> Value:
        t.effects.mutate(self)
        self.items.append(value)
        return t.make(None)

    def meth_extend(self, t: Tracer, values: Value) -> Value:
        if isinstance(values, SequenceValue):
            new: list[Value] | None = list(values.items)
        else:  # of an instance of a subclass that is this list itself, the items before
            new = iterated(t, values, "") if builtin_part(values.realize()) is self else None
        t.effects.mutate(self)
        if new is not None:
            self.items.extend(new)
            return t.make(None)
        iterator = protocol.iter_(t, values)
        values.realize().query_length_hint(t)
        while (item := protocol.next_(t, iterator)) is not None:
            self.items.append(item)
        return t.make(None)

    def meth_insert(self, t: Tracer, index: Value, value: Value) -> Value:
        where = as_index(t, index)
        t.effects.mutate(self)
        self.items.insert(where, value)
        return t.make(None)

    def meth_pop(self, t: Tracer, index: Value | None = None) -> Value:
        where = -1 if index is None else as_index(t, index)
        if not self.items:
            t.raise_(IndexError, "pop from empty list")
        if not -len(self.items) <= where < len(self.items):
            t.raise_(IndexError, "pop index out of range")
        t.effects.mutate(self)
        return self.items.pop(where).realize()

    def meth_remove(self, t: Tracer, value: Value) -> Value:
        for i in self._indices():
            if same_or_equal(t, self.item(i), value):
                t.effects.mutate(self)
                del self.items[i]
                return t.make(None)
        t.raise_(ValueError, "list.remove(x): x not in list")

    def meth_clear(self, t: Tracer) -> Value:
        t.effects.mutate(self)
        self.items.clear()
        return t.make(None)

    def meth_copy(self, t: Tracer) -> Value:
        return ListValue(self.items)

    def meth_reverse(self, t: Tracer) -> Value:
        t.effects.mutate(self)
        self.items.reverse()
        return t.make(None)

    def meth_sort(self, t: Tracer, *, key: Value | None = None, reverse: Value | None = None) -> Value:
        descending = is_descending(t, reverse)
        t.effects.mutate(self)
        items = self.realized()
        self.items = meanwhile = _Emptied()
        try:
            sort_values(t, items, key, descending)
        finally:
            modified = bool(self.items) or meanwhile.was_filled
            self.items = items
        if modified:
            t.raise_(ValueError, "list modified during sort")
        return t.make(None)

    def meth___init__(self, t: Tracer, values: Value | None = None) -> Value:
        t.effects.mutate(self)
        self.items = []
        return t.make(None) if values is None else self.meth_extend(t, values)

    def meth___reversed__(self, t: Tracer) -> Value:
        return SequenceIteratorValue(self, len(self.items) - 1, -1)


class TupleValue(SequenceValue):
    """A tuple, or an instance of a subclass of tuple that adds no state: see `plain_tuple_class`."""

    base_type = tuple
    #: The constant of a code object that this is.
    interned: Any = None
    #: The struct sequence outside the trace that this is: some only the interpreter can make, and some have more than items.
    struct: Any = None

    def is_constant(self) -> bool:
        return all(item.realize().is_constant() for item in self.items)

    def as_constant(self) -> Any:
        if self.interned is not None:
            return self.interned
        items = tuple(item.realize().as_constant() for item in self.items)
        return make_tuple(self.cls, items) if self.struct is None else self.struct

    def graph_arg(self, t: Tracer) -> Any:
        items = tuple(item.graph_arg(t) for item in self.realized())
        return type(self.cls).__call__(self.cls, *items) if is_namedtuple_class(self.cls) else items

    def like(self, items: Iterable[Value]) -> Value:
        return TupleValue(items, cls=torch.Size if self.cls is torch.Size else None)

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        if isinstance(key, SliceValue) and self.cls is tuple and key.is_whole():
            return self
        return super().mp_subscript(t, key)

    def rebuild(self, cg: Rebuilder) -> None:
        if self.interned is not None:
            cg.push_const(self.interned)
            return
        if self.cls is not tuple:
            cg.asm.begin_call(make_tuple)
            cg.push_const(self.cls)
        for item in self.items:
            cg.push(item)
        cg.asm.build_tuple(len(self.items))
        if self.cls is not tuple:
            cg.asm.call(2)

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        if op == "+" and other.pytype() is torch.Size and self.cls is not torch.Size and not reflected:
            return NOT_IMPLEMENTED  # torch.Size has an __radd__ of its own
        if op == "+" and reflected and self.cls is torch.Size:
            theirs = sequence_part(other, tuple)
            return NOT_IMPLEMENTED if theirs is None else TupleValue(theirs.items + self.items, cls=torch.Size)
        return super().nb_binary(t, op, other, reflected)

    def tp_hash(self, t: Tracer) -> Value:
        return t.make(hash(tuple(known_hash(t, item) for item in self.realized())))

    def tp_repr(self, t: Tracer) -> Value:
        if self.is_constant() and not is_namedtuple_class(self.cls):
            return t.make(repr(self.as_constant()))
        own, owner = descriptors.look_up(t, self.cls, "__repr__")
        if isinstance(own, types.FunctionType) and owner is not None and module_of(own) != "collections":
            return t.call(descriptors.bind(t, own, owner, "__repr__", self, t.make(self.cls)), [])
        if self.cls is torch.Size:
            return t.make(self.text_of(t, "torch.Size([", "])"))
        if is_structseq_class(self.cls):
            shown = tuple([_Shown(protocol.repr_(t, item).as_constant()) for item in self.items])
            try:
                return t.make(repr(self.cls(shown)))
            except TypeError:  # sys.flags and its like
                t.break_("value-slot", slot="repr", type=self.cls.__name__)
        if is_namedtuple_class(self.cls):
            named = zip(getattr(self.cls, "_fields", ()), self.items, strict=False)
            texts = [f"{name}={protocol.repr_(t, item).as_constant()}" for name, item in named]
            return t.make(f"{self.cls.__name__}({', '.join(texts)})")
        return t.make(self.text_of(t, "(", ",)" if len(self.items) == 1 else ")"))

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if self.cls is not tuple:
            raw, owner = descriptors.look_up(t, self.cls, name)
            index = _field_of(self.cls, raw, name)
            if index is not None and index < len(self.items):
                return self.item(index)
            if index is not None:
                if self.struct is None or self.source is None:
                    t.break_("attribute-unsupported", value=self.describe(), name=name)
                return t.wrap(getattr(self.struct, name), AttrSource(self.source, name)).realize()
            if owner not in (None, tuple, object, torch.Size):
                if not hasattr(self, "meth_" + name) or not _is_made_by_namedtuple(raw):
                    return descriptors.bind(t, raw, owner, name, self, t.make(self.cls))
                t.guard(IdIs(ClassItemSource(class_source(owner), name), raw))
        return super().tp_getattro(t, name)

    def meth__asdict(self, t: Tracer) -> Value:
        return t.call(t.make(dict), [t.call(t.make(zip), [t.make(tuple(field_names(self.cls))), self])])

    def meth__replace(self, t: Tracer, /, **changes: Value) -> Value:
        fields = field_names(self.cls)
        items = list(self.items)
        for name in list(changes):
            if name in fields:
                items[fields[name]] = changes.pop(name)
        if changes:
            t.raise_(ValueError, f"Got unexpected field names: {list(changes)!r}")
        return TupleValue(items, cls=self.cls)

    def meth_numel(self, t: Tracer) -> Value:
        total: Value = t.make(1)
        for item in self.realized():
            total = protocol.binary(t, "*", total, item)
        return total

    def meth___getnewargs__(self, t: Tracer) -> Value:
        return TupleValue([TupleValue(self.items)] if not is_namedtuple_class(self.cls) else self.items)


class Hashed:
    """Stands for an object whose hash is known, inside a tuple whose hash is wanted."""

    __slots__ = ("_hash",)

    def __init__(self, known: int) -> None:
        self._hash = known

    def __hash__(self) -> int:
        return self._hash


def known_hash(t: Tracer, item: Value) -> Hashed:
    """The hash of an element, for the hash of a container; it has to be known while tracing."""
    process_state.bind("a hash")
    found = protocol.hash_(t, item)
    if not found.is_constant():
        t.break_("value-slot", slot="__hash__", type=item.pytype().__name__)
    return Hashed(found.as_constant())


# -- what the new bytecode calls --------------------------------------------------------------------------------


def set_list(target: list[Any], items: list[Any]) -> None:
    """The final state of a list that existed before; also of an instance of a subclass that overrides things."""
    list.__setitem__(target, slice(None), items)


def make_tuple(cls: type, items: tuple[Any, ...]) -> Any:
    if cls is tuple:
        return items
    if is_structseq_class(cls) or cls is torch.Size:
        return cls(items)
    return tuple.__new__(cls, items)


# -- tuple classes ----------------------------------------------------------------------------------------------


def is_namedtuple_class(cls: type) -> bool:
    fields = getattr(cls, "_fields", None)
    return issubclass(cls, tuple) and isinstance(fields, tuple) and all(isinstance(name, str) for name in fields)


def is_structseq_class(cls: type) -> bool:
    return issubclass(cls, tuple) and isinstance(getattr(cls, "n_sequence_fields", None), int)


def _is_made_by_namedtuple(raw: object) -> bool:
    return isinstance(raw, types.FunctionType) and module_of(raw) == "collections"


def _field_of(cls: type, raw: object, name: str) -> int | None:
    """Which item the attribute `name` is, found as `raw` in the class."""
    return field_names(cls).get(name) if is_structseq_class(cls) else descriptors.field_index(raw)


_FIELDS: weakref.WeakKeyDictionary[type, dict[str, int]] = weakref.WeakKeyDictionary()


def field_names(cls: type) -> dict[str, int]:
    """Name to index, in order; empty for what has no named fields."""
    if is_namedtuple_class(cls):
        fields: tuple[str, ...] = getattr(cls, "_fields", ())
        return {name: i for i, name in enumerate(fields) if descriptors.field_index(getattr(cls, name, None)) is not None}
    known = _FIELDS.get(cls)
    if known is None:
        known = {}
        if is_structseq_class(cls):
            try:
                sample = cls(range(getattr(cls, "n_fields", 0)))
            except TypeError:  # sys.flags and its like: only the interpreter makes one
                sample = None
            known = {name: i for i, name in enumerate(getattr(cls, "__match_args__", ()))}
            named = {} if sample is None else {name: getattr(sample, name) for name, member in vars(cls).items()
                     if type(member).__name__ == "member_descriptor"}
            known = dict(sorted(named.items(), key=operator.itemgetter(1))) or known
        _FIELDS[cls] = known
    return known


class _Shown:
    """An item of which only the text is known."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __repr__(self) -> str:
        return self._text


_SEQUENCE_SLOTS = ("__getitem__", "__iter__", "__len__", "__contains__", "__eq__", "__hash__", "__lt__", "__gt__",
                   "__le__", "__ge__", "__ne__", "__add__", "__mul__", "__rmul__", "__getattribute__", "__getattr__",
                   "__bool__", "__radd__")


def plain_tuple_class(cls: type) -> bool:
    """A subclass of tuple whose instances behave and are stored like tuples: named tuples, and those without
    overridden slots or an instance dictionary."""
    if cls in (tuple, torch.Size) or is_structseq_class(cls):
        return True
    if not issubclass(cls, tuple) or cls.__dictoffset__:
        return False
    return all(name not in vars(base) for base in cls.__mro__ if base not in (tuple, object)
               for name in _SEQUENCE_SLOTS)


def guard_plain_tuple(t: Tracer, cls: type) -> None:
    """The trace relied on `plain_tuple_class`."""
    guarded: dict[Any, Any] = t.new_source_state("plain tuples")
    if guarded.setdefault(cls, t) is t and len(guarded) and cls not in (tuple, torch.Size):
        for name in _SEQUENCE_SLOTS:
            descriptors.look_up(t, cls, name)


class FoundListValue(ListValue):
    """A list that existed before. What is in it, and how much, is looked at when it matters: a list that is only appended to
    may have grown at the next call."""

    def __init__(self, t: Tracer, obj: list[Any], source: Source) -> None:
        self._unseen: tuple[Tracer, list[Any]] | None = (t, obj)
        self._items: list[Value] = []
        super().__init__((), source)
        self._unseen, self._items = (t, obj), []

    @property
    def items(self) -> list[Value]:
        if self._unseen is not None:
            (t, obj), self._unseen = self._unseen, None
            assert self.source is not None
            t.guard(LengthIs(self.source, list.__len__(obj)))
            self._items[:0] = lazy_items(t, obj, self.source)
        return self._items

    @items.setter
    def items(self, items: list[Value]) -> None:
        self._unseen, self._items = None, items

    def unread(self) -> object | None:
        return None if self._unseen is None else self._unseen[1]

    def like(self, items: Iterable[Value]) -> Value:
        return ListValue(items)

    def meth_append(self, t: Tracer, value: Value) -> Value:
        t.effects.mutate(self)
        self._items.append(value)
        return t.make(None)

    def places(self) -> Iterator[tuple[Source, Value]]:
        return super().places() if self._unseen is None else iter(())

    def write_back(self, cg: Rebuilder) -> None:
        if self._unseen is None:
            super().write_back(cg)
            return
        for item in self._items:
            cg.push(item)
        cg.asm.build_list(len(self._items))
        cg.asm.call_const(list.extend, 2)
        cg.asm.pop()


@wraps(list)
def wrap_list(t: Tracer, obj: list[Any], source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    return FoundListValue(t, obj, source)


@wraps(tuple, torch.Size)
def wrap_tuple(t: Tracer, obj: tuple[Any, ...], source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    t.guard(LengthIs(source, tuple.__len__(obj)))
    plain = plain_tuple_class(type(obj))  # or the tuple part of an instance of a subclass
    if plain:
        guard_plain_tuple(t, type(obj))
    found = TupleValue(lazy_items(t, obj, source), source, type(obj) if plain else tuple)
    found.struct = obj if is_structseq_class(type(obj)) else None
    return found


wraps_if(lambda obj: issubclass(type(obj), tuple) and plain_tuple_class(type(obj)), order=19)(wrap_tuple)


@creates(list)
def make_list(t: Tracer, obj: list[Any]) -> Value:
    """A new list of things known while tracing: what a folded call gave."""
    return ListValue([t.make(item) for item in obj])


@creates(tuple, torch.Size)
def make_tuple_value(t: Tracer, obj: tuple[Any, ...]) -> Value:
    return TupleValue([t.make(item) for item in obj], cls=type(obj))


def lazy_items(t: Tracer, obj: Sequence[Any], source: Source) -> list[Value]:
    base: Any = list if isinstance(obj, list) else tuple
    items = enumerate(base.__iter__(obj))  # whatever the class makes of it
    if type(obj).__getitem__ is not base.__getitem__ and type(obj) is not torch.Size:
        return [Lazy(t, item, RawItem(base, i).of(source)) for i, item in items]
    return [Lazy(t, item, ItemSource(source, i)) for i, item in items]


class RawItem:
    """`base.__getitem__(obj, key)`, past what a subclass makes of it. Equal for equal keys, as sources compare."""

    __slots__ = ("base", "key")

    def __init__(self, base: Any, key: Any) -> None:
        self.base = base
        self.key = key

    def __call__(self, container: Any) -> Any:
        return self.base.__getitem__(container, self.key)

    def of(self, source: Source) -> Source:
        """The item's place, in a container at `source`."""
        return ApplySource(source, self, f"{self.base.__name__}.__getitem__", shown_key(self.key))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RawItem) and self.base is other.base and (self.key is other.key or (
            type(self.key) is type(other.key) and self.key == other.key))

    def __hash__(self) -> int:
        return hash((RawItem, self.base, self.key))


# -- shared with the other containers ---------------------------------------------------------------------------


def same_or_equal(t: Tracer, a: Value, b: Value) -> bool:
    """`PyObject_RichCompareBool(a, b, Py_EQ)`: identity first."""
    return a is b or protocol.equal(t, a, b)


def busy_reprs(t: Tracer) -> set[int]:
    """The containers whose repr is being made: inside itself a container is shown as `...`."""
    found: set[int] = t.new_source_state("repr").setdefault("busy", set())
    return found


def sequence_part(value: Value, base: type) -> SequenceValue | None:
    """`value` as a list (tuple), if it is one or an instance of a subclass."""
    inner = getattr(value, "base", None)
    part = inner if isinstance(inner, Value) else value
    return part if isinstance(part, SequenceValue) and part.base_type is base else None


def is_index_like(value: Value) -> bool:
    return hasattr(value.pytype(), "__index__")


def clamp_index(t: Tracer, value: Value | None, default: int, size: int) -> int:
    """A start or stop argument, as slices read it."""
    if value is None:
        return default
    index = as_index(t, value)
    return max(index + size, 0) if index < 0 else min(index, size)


def iterated(t: Tracer, value: Value, message: str) -> list[Value]:
    """All items; a value that cannot be iterated raises `message`."""
    if isinstance(value, SequenceValue):
        return list(value.items)
    if not hasattr(value.pytype(), "__iter__") and not hasattr(value.pytype(), "__getitem__"):
        t.raise_(TypeError, message)
    return protocol.unpack_fast(t, value)


def is_descending(t: Tracer, reverse: Value | None) -> bool:
    """The argument of sorts. Which objects it may be is up to the Python: asked by sorting nothing."""
    if reverse is None:
        return False
    cls = reverse.pytype()
    like: Any = reverse.as_constant() if reverse.is_constant() else cls() if cls in (list, dict, set) else True
    try:
        [].sort(reverse=like)
    except TypeError as refused:
        t.raise_(TypeError, *refused.args)
    return protocol.truth(t, reverse)


def sort_values(t: Tracer, items: list[Value], key: Value | None, reverse: bool) -> None:
    """`items.sort(key=key, reverse=reverse)`: constants at once, other keys by traced `<`. Where `<` raises, the items stay in
    the order that they had then."""
    no_key = key is None or (key.is_constant() and key.as_constant() is None)
    keys = items if no_key or key is None else [t.call(key, [item]) for item in items]
    order = list(range(len(items)))
    try:
        if all(k.is_constant() for k in keys):
            protocol.guard_equal_items(t, keys)
            known = [k.as_constant() for k in keys]
            protocol.guard_comparisons(t, known)
            _sort_constants(t, order, known, reverse)
        else:
            order.sort(key=_traced_order(t, keys).__getitem__, reverse=reverse)
    finally:
        items[:] = [items[i] for i in order]


def _sort_constants(t: Tracer, order: list[int], keys: list[Any], reverse: bool) -> None:
    try:
        order.sort(key=keys.__getitem__, reverse=reverse)
    except Exception as error:  # constants compare by pure functions: the program raises the same
        t.raise_(type(error), *error.args)


def _traced_order(t: Tracer, keys: list[Value]) -> list[Any]:
    """Objects that compare as the keys do, in traced code."""

    class Ordered:
        __slots__ = ("value",)

        def __init__(self, value: Value) -> None:
            self.value = value

        def __lt__(self, other: Ordered) -> bool:
            return protocol.truth(t, protocol.compare(t, "<", self.value, other.value))

    return [Ordered(k) for k in keys]
