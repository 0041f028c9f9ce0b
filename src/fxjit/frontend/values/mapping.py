"""Dicts (with OrderedDict and defaultdict), their views and iterators, and mappingproxy.

A dict that existed before the frame is *open* at first: a lookup guards the one key it looks up. As soon as somebody
iterates over it, counts it or changes it, all keys are guarded and it is like any other (`items` does that). Where all keys
are ints, counting it and iterating over it guard their number alone (`in_order` does that), and a key is guarded when
somebody looks at it: such keys are often numbers that only tell entries apart, as those of a module's hooks are.
"""

from __future__ import annotations

import collections
import itertools
import sys
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import instance_dicts, protocol, set_history
from fxjit.frontend.values.base import (
    NOT_IMPLEMENTED,
    Lazy,
    Rebuilder,
    Value,
    _NotImplemented,
    callable_type,
    guard_nan_identity,
)
from fxjit.frontend.values.constant import ConstantFromOutside, is_plain_constant
from fxjit.frontend.values.dict_replay import change_items, iterator_behind, put_items, set_items, stale_iterator, view_of
from fxjit.frontend.values.dict_texts import has_one_order, is_read_by_place, place_of, text_of_dict
from fxjit.frontend.values.functions import function_namespace
from fxjit.frontend.values.iteration import CLEAR_COUNTS, IteratorValue
from fxjit.frontend.values.keys import HashKey, NumberKey, compared_by_c, key_of, key_to_find, key_to_store
from fxjit.frontend.values.namespaces import known_namespace, namespace_value
from fxjit.frontend.values.sequence import RawItem, TupleValue, busy_reprs, same_or_equal
from fxjit.frontend.values.sets import Operand, SetValue, set_operation, set_part
from fxjit.frontend.values.traits import Places, Undoable
from fxjit.frontend.values.untraceable import UntraceableValue
from fxjit.frontend.values.wrap import creates, wraps
from fxjit.guards.kinds import HasKey, IdIs, KeysAre, LengthIs, TypeIs
from fxjit.guards.source import (
    AttrSource,
    DictKeySource,
    DictValueSource,
    ItemSource,
    Source,
    nth_value,
    stored_keys,
    stored_length,
)

Entry = tuple[Value, Value]


class DictValue(Undoable, Places):
    """A dict. `items` maps keys to (key value, value), in order."""

    shell = True
    #: The OrderedDict that existed before, and the value of its `__dict__`, once somebody has asked for it.
    _attributed: collections.OrderedDict[Any, Any] | None = None
    _namespace: Value | None = None

    def __init__(self, t: Tracer, pairs: Iterable[Entry] = (), cls: type = dict, source: Source | None = None,
                 factory: Value | None = None) -> None:
        super().__init__(source)
        self._t = t
        self.cls = cls
        self.factory = factory
        #: The instance of a class of the program's whose dict this is.
        self.holder: Value | None = None
        #: Whether the methods of its class in C call those that the holder's class has.
        self.calls_back = False
        self._real: Mapping[Any, Any] | None = None
        self._items: dict[HashKey, Entry] = {}
        #: The entries of an open dict whose keys have not been looked at.
        self._by_place: dict[HashKey, Entry] | None = None
        self._changed: set[HashKey] = set()
        self._removed: dict[HashKey, Value] = {}
        self._reordered = False
        #: How many times a key came, went or moved.
        self.changes = 0
        self._compared_in_c: bool | None = None
        for key, value in pairs:
            self._put(key_of(t, key, self._items), key, value)

    @classmethod
    def around(cls, t: Tracer, real: Mapping[Any, Any], source: Source, factory: Value | None = None) -> DictValue:
        """The open value of a dict that exists."""
        kind = next(base for base in (collections.OrderedDict, collections.defaultdict, dict, object)
                    if isinstance(real, base))
        value = cls(t, (), kind, source, factory)
        value._real = real
        if type(real) is collections.OrderedDict:
            value._attributed = real
        return value

    def pytype(self) -> type:
        return self.cls

    def met_keys(self) -> Iterable[HashKey]:
        """The keys that the trace looked for or wrote. Equal ones are not looked for: that may run the program's `__eq__`."""
        return [*self._items, *self._changed, *self._removed]

    def unread(self) -> object | None:
        return self._real

    # -- keys and entries ----------------------------------------------------------------------------------------

    @property
    def items(self) -> dict[HashKey, Entry]:
        """All entries; from here on all keys are guarded."""
        if self._real is not None:
            self._close(self._real)
        return self._items

    def in_order(self) -> dict[HashKey, Entry]:
        """All entries, for who needs their number and order: the keys of the result must not be looked at."""
        real, t, source = self._real, self._t, self.source
        if self._by_place is not None and real is not None:
            return self._by_place
        if not isinstance(real, dict) or self._items or not is_read_by_place(real):
            return self.items  # one that was found by its key may be at another place next time
        assert source is not None
        t.guard(LengthIs(source, stored_length(real)))
        self._by_place = {
            place_of(key): (Lazy(t, key, DictKeySource(source, i)), Lazy(t, nth_value(real, i), DictValueSource(source, i)))
            for i, key in enumerate(stored_keys(real))
        }
        return self._by_place

    def _close(self, real: Mapping[Any, Any]) -> None:
        t, source, seen = self._t, self.source, self._by_place or self._items
        assert source is not None
        if self._by_place is None or self._by_place:
            t.guard(KeysAre(source, tuple(stored_keys(real))))
        self._real = None
        self._items = {}
        for index, key in enumerate(stored_keys(real)):
            known = is_plain_constant(key) or isinstance(key, _KNOWN_BY_IDENTITY)
            key_value = t.make(key) if known else t.wrap(key, DictKeySource(source, index))
            # Before the key is hashed for real.
            hashed = key if is_plain_constant(key) else key_of(t, key_value, self._items)
            # The key is the dict's own, and not the one that it was looked up by: 1 finds True.
            self._items[hashed] = (key_value.realize(), seen[hashed][1] if hashed in seen else self._lazy(real, key))

    def _lazy(self, real: Mapping[Any, Any], key: Any) -> Value:
        assert self.source is not None
        where: Source = ItemSource(self.source, key)
        if isinstance(real, dict) and type(real).__getitem__ is not dict.__getitem__:
            where = RawItem(dict, key).of(self.source)
        try:
            item = dict.__getitem__(real, key) if isinstance(real, dict) else real[key]
        except KeyError:  # the key has another hash than when it was put there
            self._t.break_("value-slot", slot="__hash__", type=type(key).__name__)
        return Lazy(self._t, item, where)

    def find(self, t: Tracer, key: Value) -> Entry | None:
        """The entry of a key, or None."""
        unread = isinstance(key, ConstantFromOutside) and not key.was_read and isinstance(key.source, DictKeySource)
        if unread and not (self._items if self._real is None else stored_length(self._real)) and not self.in_order():
            return None  # as no key is in it
        open_ = self._real is not None and self._by_place is None
        if open_ and key.is_constant() and is_plain_constant(key.as_constant()) and self._compared_by_c():
            known = key.as_constant()
            guard_nan_identity(t, key)
            if known not in self._items:
                real = self._real
                assert self.source is not None and real is not None
                present = dict.__contains__(real, known) if isinstance(real, dict) else known in real
                t.guard(HasKey(self.source, known, present))
                if not present:
                    return None
                self._items[known] = (key, self._lazy(real, known))
            return self._items[known]
        items = self.items
        return items.get(key_to_find(t, key, items))

    def _compared_by_c(self) -> bool:
        if self._compared_in_c is None:
            assert self._real is not None
            self._compared_in_c = compared_by_c(stored_keys(self._real)) if isinstance(self._real, dict) else True
        return self._compared_in_c

    def get(self, t: Tracer, key: Value) -> Value | None:
        entry = self.find(t, key)
        return None if entry is None else entry[1].realize()

    def _put(self, key: HashKey, key_value: Value, value: Value) -> None:
        old = self._items.get(key)
        self.changes += old is None
        self._items[key] = (key_value if old is None else old[0], value)
        self._changed.add(key)

    def undo_check(self) -> Callable[[], bool]:
        entries, changed, removed, reordered = dict(self._items), set(self._changed), dict(self._removed), self._reordered

        def restored() -> bool:
            if list(self._items) != list(entries) or not all(
                    value is entries[key][1] or value.realize() is entries[key][1].realize()
                    for key, (_, value) in self._items.items()):
                return False
            self._items, self._changed, self._removed, self._reordered = entries, changed, removed, reordered
            return True
        return restored

    def store(self, t: Tracer, key: Value, value: Value) -> None:
        known = key_to_store(t, key, self.items)
        t.effects.mutate(self)
        self._put(known, key, value)

    def remove(self, t: Tracer, key: Value) -> Entry | None:
        """Take an entry out; None if there is none."""
        items = self.items
        known = key_to_find(t, key, items)
        if known not in items:
            return None
        t.effects.mutate(self)
        return self._take_out(known)

    def _take_out(self, known: HashKey) -> Entry:
        self.changes += 1
        entry = self._items.pop(known)
        self._removed[known] = entry[0]
        return entry

    # -- building ------------------------------------------------------------------------------------------------

    def graph_arg(self, t: Tracer) -> Any:
        return {key.graph_arg(t): value.realize().graph_arg(t) for key, value in self.items.values()}

    def rebuild(self, cg: Rebuilder) -> None:
        if self.cls is dict:
            cg.asm.build_map(0)
        elif self.cls is collections.defaultdict:
            cg.call(self.cls, self.factory)
        else:
            cg.call(self.cls)

    def fill(self, cg: Rebuilder) -> None:
        if self.items:
            cg.asm.dup()
            self._push_entries(cg, self.items.values())
            cg.asm.call_const(put_items, 2)
            cg.asm.pop()
        for name, attribute in cg.effects.stored_attrs(self).items():
            if attribute is not None:
                cg.call(setattr, self, name, attribute)
                cg.asm.pop()

    def places(self) -> Iterator[tuple[Source, Value]]:
        if self.source is not None:
            for key, value in self._items.values():
                if key.is_constant():
                    yield ItemSource(self.source, key.as_constant()), value

    def write_back(self, cg: Rebuilder) -> None:
        """Replays removals, then insertions, which gives dicts their order; other entries are not touched, since they may
        go by themselves meanwhile (`weakref.finalize` keeps such a dict)."""
        items = self.items
        if self._reordered:
            self._push_entries(cg, items.values())
            cg.asm.call_const(set_items, 2)
        else:
            for key in self._removed.values():
                cg.push(key)
            cg.asm.build_tuple(len(self._removed))
            self._push_entries(cg, [items[key] for key in items if key in self._changed])
            cg.asm.call_const(change_items, 3)
        cg.asm.pop()

    def _push_entries(self, cg: Rebuilder, entries: Iterable[Entry]) -> None:
        count = 0
        for key, value in entries:
            cg.push(key)
            cg.push(value)
            count += 2
        cg.asm.build_tuple(count)

    # -- slots ---------------------------------------------------------------------------------------------------

    def sq_length(self, t: Tracer) -> Value:
        return t.make(len(self.in_order()))

    def nb_bool(self, t: Tracer) -> Value:
        return t.make(bool(self.in_order()))

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        return t.make(self.find(t, item) is not None)

    def tp_iter(self, t: Tracer) -> Value:
        return DictIteratorValue(self, "keys")

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "default_factory" and issubclass(self.cls, collections.defaultdict):
            return t.make(None) if self.factory is None else self.factory.realize()
        if self.cls is collections.OrderedDict and name == "__dict__":
            return self.instance_dict(t)
        if self.cls is collections.OrderedDict and protocol.type_lookup(self.cls, name) is NOT_IMPLEMENTED:
            return self._own_attribute(t, name)
        return super().tp_getattro(t, name)

    def _own_attribute(self, t: Tracer, name: str, ask: Callable[[Any, str], object] = getattr) -> Value:
        """An OrderedDict has attributes of its own (`state_dict()` keeps its versions there). `ask` says where it has none."""
        written = t.effects.load_attr(self, name)
        if isinstance(written, Value):
            return written
        if written is None and self.source is not None and self._attributed is not None:
            found = instance_dicts.attribute(t, self, self._attributed, self.source, name)
            if found is not None:
                return found
        return protocol.fold(t, lambda: ask(collections.OrderedDict(), name))

    def namespace(self) -> dict[str, Any] | None:
        """The instance dict of an OrderedDict that existed before."""
        return None if self._attributed is None else self._attributed.__dict__

    def instance_dict(self, t: Tracer) -> Value:
        if self._namespace is None:
            instance_dicts.meet(t, self, self.namespace(), self.source)
            self._namespace = function_namespace(t, self, self.source)
        return self._namespace

    def tp_setattro(self, t: Tracer, name: str, value: Value | None) -> None:
        if self.cls is not collections.OrderedDict or protocol.type_lookup(self.cls, name) is not NOT_IMPLEMENTED:
            super().tp_setattro(t, name, value)
            return
        if value is None:
            self._own_attribute(t, name, delattr)
        instance_dicts.meet(t, self, self.namespace(), self.source)
        t.effects.store_attr(self, name, value)

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        found = self.get(t, key)
        if found is not None:
            return found
        if issubclass(self.cls, collections.defaultdict):
            return self.meth___missing__(t, key)
        t.raise_(KeyError, key)

    def mp_ass_subscript(self, t: Tracer, key: Value, value: Value | None) -> None:
        if value is not None:
            self.store(t, key, value)
        elif self.remove(t, key) is None:
            t.raise_(KeyError, key)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        theirs = dict_part(other)
        if op not in ("==", "!=") or theirs is None:
            return NOT_IMPLEMENTED
        return t.make(self._equals(t, theirs) == (op == "=="))

    def _equals(self, t: Tracer, theirs: DictValue) -> bool:
        if len(self.items) != len(theirs.items):
            return False
        ordered = collections.OrderedDict
        if issubclass(self.cls, ordered) and issubclass(theirs.cls, ordered) and list(self.items) != list(theirs.items):
            return False
        for key, value in list(self.items.values()):
            other = theirs.get(t, key)
            if other is None or not same_or_equal(t, value.realize(), other):
                return False
        return True

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        theirs = dict_part(other)
        if op != "|" or theirs is None:
            return NOT_IMPLEMENTED
        first, second = (theirs, self) if reflected else (self, theirs)
        copied = first.copied(t) if self.cls is dict else pairs_of(t, first, self.cls)
        return DictValue(t, [*copied, *pairs_of(t, second, self.cls)], self.cls, factory=self.factory)

    def copied(self, t: Tracer) -> Iterable[Entry]:
        """What a copy gets: C asks the class of an instance as `dict.update` does, but for an empty dict."""
        return pairs_of(t, self, self.cls) if self.items else ()

    def nb_inplace(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if op != "|":
            return NOT_IMPLEMENTED
        self.meth_update(t, other)
        return self

    def tp_repr(self, t: Tracer) -> Value:
        return t.make(text_of_dict(t, self))

    # -- methods -------------------------------------------------------------------------------------------------

    def meth_keys(self, t: Tracer) -> Value:
        return DictViewValue(self, "keys")

    def meth_values(self, t: Tracer) -> Value:
        return DictViewValue(self, "values")

    def meth_items(self, t: Tracer) -> Value:
        return DictViewValue(self, "items")

    def meth_get(self, t: Tracer, key: Value, default: Value | None = None) -> Value:
        return self.get(t, key) or default or t.make(None)

    def meth___getitem__(self, t: Tracer, key: Value) -> Value:
        return self.mp_subscript(t, key)

    def meth_setdefault(self, t: Tracer, key: Value, default: Value | None = None) -> Value:
        if self.holder is not None and self.calls_back and issubclass(self.cls, collections.OrderedDict):
            if protocol.contains(t, self.holder, key):
                return protocol.getitem(t, self.holder, key)
            protocol.setitem(t, self.holder, key, default or t.make(None))
            return default or t.make(None)
        found = self.get(t, key)
        if found is None:
            found = default or t.make(None)
            self.store(t, key, found)
        return found

    def put(self, t: Tracer, key: Value, value: Value) -> None:
        """Stores as those methods in C do that call the `__setitem__` of a class of the program's."""
        if self.holder is None or not self.calls_back:
            self.store(t, key, value)
        else:
            protocol.setitem(t, self.holder, key, value)

    def meth_pop(self, t: Tracer, key: Value, default: Value | None = None) -> Value:
        if self._real is not None and self.find(t, key) is None:
            entry = None
        else:
            entry = self.remove(t, key)
        if entry is not None:
            return entry[1].realize()
        if default is None:
            t.raise_(KeyError, key)
        return default

    def meth_popitem(self, t: Tracer, last: Value | None = None) -> Value:
        if not self.items:
            what = "dictionary" if issubclass(self.cls, collections.OrderedDict) else "popitem(): dictionary"
            t.raise_(KeyError, f"{what} is empty")
        at_end = last is None or protocol.truth(t, last)
        known = next(reversed(self.items)) if at_end else next(iter(self.items))
        t.effects.mutate(self)
        key, value = self._take_out(known)
        return TupleValue([key, value])

    def meth_move_to_end(self, t: Tracer, key: Value, last: Value | None = None) -> Value:
        entry = self.find(t, key)
        if entry is None:
            t.raise_(KeyError, key)
        at_end = last is None or protocol.truth(t, last)
        if entry is (next(reversed(self.items.values())) if at_end else next(iter(self.items.values()))):
            return t.make(None)  # which leaves iterators valid
        entry = self.remove(t, key) or entry
        self._reordered = True
        known = key_of(t, entry[0], self._items)
        if at_end:
            self._items[known] = entry
        else:
            self._items = {known: entry, **self._items}
        return t.make(None)

    def meth_clear(self, t: Tracer) -> Value:
        if self.items:
            t.effects.mutate(self)
            self._reordered = True
            self.changes += CLEAR_COUNTS
            self._items.clear()
        return t.make(None)

    def meth_copy(self, t: Tracer) -> Value:
        return DictValue(t, self.copied(t), self.cls, factory=self.factory)

    def meth_update(self, t: Tracer, *others: Value, **kwargs: Value) -> Value:
        if len(others) > 1:
            t.raise_(TypeError, f"update expected at most 1 argument, got {len(others)}")
        store = self.put if issubclass(self.cls, collections.OrderedDict) else self.store
        for key, value in itertools.chain(pairs_of(t, others[0], self.cls) if others else (), keyword_pairs(t, kwargs)):
            store(t, key, value)
        return t.make(None)

    def meth___init__(self, t: Tracer, *others: Value, **kwargs: Value) -> Value:
        if issubclass(self.cls, collections.defaultdict):
            factory, *others = others or (t.make(None),)  # type: ignore[assignment]
            if not (factory.is_constant() and factory.as_constant() is None) and not callable_type(factory.pytype()):
                t.raise_(TypeError, "first argument must be callable or None")
            t.effects.mutate(self)
            self.factory = factory
        return self.meth_update(t, *others, **kwargs)

    def meth___missing__(self, t: Tracer, key: Value) -> Value:
        if self.factory is None or (self.factory.is_constant() and self.factory.as_constant() is None):
            t.raise_(KeyError, key)
        made = t.call(self.factory.realize(), [])
        self.put(t, key, made)
        return made

    def meth___reversed__(self, t: Tracer) -> Value:
        return DictIteratorValue(self, "keys", backwards=True)

    def meth___or__(self, t: Tracer, other: Value) -> Value:
        return _or_not_implemented(t, self.nb_binary(t, "|", other, False))

    def meth_fromkeys(self, t: Tracer, keys: Value, value: Value | None = None) -> Value:
        return DictValue(t, [(key, value or t.make(None)) for key in protocol.unpack(t, keys)], self.cls)


_KNOWN_BY_IDENTITY: Final = (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)


def _or_not_implemented(t: Tracer, result: Value | _NotImplemented) -> Value:
    return t.make(NotImplemented) if isinstance(result, _NotImplemented) else result


# -- views and iterators ----------------------------------------------------------------------------------------

DICT_TYPES: Final[dict[tuple[type, str], tuple[type, type, type]]] = {
    (cls, kind): (type(view), type(iter(view)), type(reversed(view)))
    for cls in (dict, collections.OrderedDict)
    for kind, view in (("keys", cls().keys()), ("values", cls().values()), ("items", cls().items()))
}


def _types_of(cls: type, kind: str) -> tuple[type, type, type]:
    """The types of a view, its iterator and its reversed iterator."""
    ordered = issubclass(cls, collections.OrderedDict)
    return DICT_TYPES[collections.OrderedDict if ordered else dict, kind]


class DictViewValue(Value):
    """d.keys(), d.values(), d.items()."""

    def __init__(self, mapping: DictValue, kind: str, source: Source | None = None) -> None:
        super().__init__(source)
        self.mapping = mapping
        self.kind = kind

    def pytype(self) -> type:
        return _types_of(self.mapping.cls, self.kind)[0]

    def of_entry(self, entry: Entry) -> Value:
        key, value = entry
        if self.kind == "items":
            return TupleValue([key, value])
        return (key if self.kind == "keys" else value).realize()

    def elements(self) -> list[Value]:
        return [self.of_entry(entry) for entry in self.mapping.in_order().values()]

    def graph_arg(self, t: Tracer) -> Any:
        return [element.graph_arg(t) for element in self.elements()]

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(view_of, self.mapping, self.kind)

    def sq_length(self, t: Tracer) -> Value:
        return self.mapping.sq_length(t)

    def nb_bool(self, t: Tracer) -> Value:
        return self.mapping.nb_bool(t)

    def tp_iter(self, t: Tracer) -> Value:
        return DictIteratorValue(self.mapping, self.kind)

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        if self.kind == "keys":
            return self.mapping.sq_contains(t, item)
        if self.kind == "items":
            if not isinstance(item, TupleValue) or len(item.items) != 2:
                return t.make(False)
            found = self.mapping.get(t, item.item(0))
            return t.make(found is not None and same_or_equal(t, found, item.item(1)))
        return NOT_IMPLEMENTED

    def operand(self, t: Tracer) -> Operand:
        if self.kind == "keys" and not any(isinstance(known, NumberKey) for known in self.mapping.items):
            items = self.mapping.items
            view: Any = items.keys()
            pairs = {known: entry[0] for known, entry in items.items()}
        else:
            pairs = {key_of(t, each): each for each in self.elements()}
            view = pairs.keys()
        return view, pairs, set_history.of_keys(list(view))

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if self.kind == "values":
            return NOT_IMPLEMENTED
        return SetValue(t, self.elements()).tp_richcompare(t, op, _as_set(t, other))

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        if self.kind == "values" or op not in ("&", "|", "-", "^"):
            return NOT_IMPLEMENTED
        mine, theirs = self.operand(t), _operand(t, other)
        return set_operation(t, op, theirs, mine) if reflected else set_operation(t, op, mine, theirs)

    def tp_repr(self, t: Tracer) -> Value:
        busy = busy_reprs(t)
        if id(self.mapping) in busy:
            return t.make("...")
        busy.add(id(self.mapping))
        try:
            inner = ", ".join(protocol.repr_(t, element).as_constant() for element in self.elements())
        finally:
            busy.discard(id(self.mapping))
        return t.make(f"{self.pytype().__name__}([{inner}])")

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name == "mapping":
            return MappingProxyValue(self.mapping)
        return super().tp_getattro(t, name)

    def meth_isdisjoint(self, t: Tracer, other: Value) -> Value:
        iterated: Value = other
        searched: Value = self
        like_set = issubclass(other.pytype(), (set, frozenset)) or (isinstance(other, DictViewValue) and other.kind != "values")
        # CPython iterates over the shorter one then.
        if like_set and protocol.truth(t, protocol.compare(t, ">", protocol.length(t, other), protocol.length(t, self))):
            iterated, searched = self, other
        items = protocol.iter_(t, iterated)
        while (item := protocol.next_(t, items)) is not None:
            if protocol.contains(t, searched, item):
                return t.make(False)
        return t.make(True)

    def meth___reversed__(self, t: Tracer) -> Value:
        return DictIteratorValue(self.mapping, self.kind, backwards=True)


def _operand(t: Tracer, other: Value) -> Operand:
    part = set_part(other)
    if part is not None:
        return part.operand(t)
    if isinstance(other, DictViewValue) and other.kind != "values":
        return other.operand(t)
    elements: dict[HashKey, Value] = {}
    for value in protocol.unpack(t, other):
        elements.setdefault(key_of(t, value, elements), value.realize())
    return list(elements), elements, set_history.of_elements(list, list(elements))


def _as_set(t: Tracer, value: Value) -> Value:
    return SetValue(t, value.elements()) if isinstance(value, DictViewValue) and value.kind != "values" else value


class DictIteratorValue(IteratorValue):
    """An iterator over a dict; a change of the dict's size meanwhile is an error, as in CPython. What it gives where as many
    keys came as went depends on the dict's room."""

    def __init__(self, mapping: DictValue, kind: str, backwards: bool = False, source: Source | None = None) -> None:
        super().__init__(source)
        self.view = DictViewValue(mapping, kind)
        self.backwards = backwards
        self.order = list(mapping.in_order())
        self.changes = mapping.changes
        if backwards:
            self.order.reverse()

    def pytype(self) -> type:
        return _types_of(self.view.mapping.cls, self.view.kind)[2 if self.backwards else 1]

    def advance(self, t: Tracer) -> Value | None:
        mapping, items = self.view.mapping, self.view.mapping.in_order()
        resized, at_end = len(items) != len(self.order), self.consumed >= len(self.order)
        if issubclass(mapping.cls, collections.OrderedDict):
            if not at_end and self.changes != mapping.changes:
                t.raise_(RuntimeError, "OrderedDict mutated during iteration")
            if not at_end and resized:  # cleared
                t.raise_(RuntimeError, "OrderedDict changed size during iteration")
        elif resized:
            t.raise_(RuntimeError, "dictionary changed size during iteration")
        elif self.changes != mapping.changes or not (at_end or self.order[self.consumed] in items):
            t.break_("value-iterator", value=self.describe(), type=self.pytype().__name__)
        return None if at_end else self.view.of_entry(items[self.order[self.consumed]])

    def rebuild(self, cg: Rebuilder) -> None:
        stale = len(self.view.mapping.in_order()) != len(self.order)
        cg.call(stale_iterator if stale else iterator_behind, self.view.mapping, self.view.kind, self.backwards, self.consumed)


class MappingProxyValue(Value):
    """types.MappingProxyType(mapping)"""

    def __init__(self, mapping: Value, source: Source | None = None) -> None:
        super().__init__(source)
        self.mapping = mapping

    def pytype(self) -> type:
        return types.MappingProxyType

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(types.MappingProxyType, self.mapping)

    def sq_length(self, t: Tracer) -> Value:
        return protocol.length(t, self.mapping)

    def tp_iter(self, t: Tracer) -> Value:
        return protocol.iter_(t, self.mapping)

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        return t.make(protocol.contains(t, self.mapping, item))

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        return protocol.getitem(t, self.mapping, key)

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        theirs = other.mapping if isinstance(other, MappingProxyValue) else other
        return protocol.compare(t, op, self.mapping, theirs)

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        theirs = other.mapping if isinstance(other, MappingProxyValue) else other
        return self.mapping.nb_binary(t, op, theirs, reflected)

    def tp_repr(self, t: Tracer) -> Value:
        return t.make(f"mappingproxy({protocol.repr_(t, self.mapping).as_constant()})")

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        if name in ("keys", "values", "items", "get", "copy"):
            return protocol.getattr_(t, self.mapping, name)
        return super().tp_getattro(t, name)

    def meth___reversed__(self, t: Tracer) -> Value:
        return protocol.call_method(t, self.mapping, "__reversed__")


# -- reading pairs ----------------------------------------------------------------------------------------------


def dict_part(value: Value) -> DictValue | None:
    """`value` as a dict, if it is one or an instance of a subclass."""
    base = getattr(value, "base", None)
    part = base if isinstance(base, Value) else value
    return part if isinstance(part, DictValue) else None


def merged_as_it_is(value: Value) -> DictValue | None:
    """The dict whose entries C merges into another one without asking its class for anything."""
    if isinstance(value, DictValue):
        return value
    part = getattr(value, "base", None)
    found = isinstance(part, DictValue) and protocol.type_lookup(value.pytype(), "__iter__") is dict.__iter__
    return part if found else None


def pairs_of(t: Tracer, value: Value, into: type = dict) -> Iterator[Entry]:
    """The pairs that `into(value)` takes from a mapping or from an iterable of pairs, where `into` is a type of dict."""
    value = value.realize()
    value = getattr(value, "holder", None) or value
    as_it_is = merged_as_it_is(value)
    if as_it_is is not None and (as_it_is is value or not issubclass(into, collections.OrderedDict)):
        yield from list(as_it_is.items.values())
        return
    if protocol.type_lookup(value.pytype(), "keys") is not NOT_IMPLEMENTED or hasattr(value, "meth_keys"):
        for key in protocol.unpack_fast(t, protocol.call_method(t, value, "keys")):
            yield key, protocol.getitem(t, value, key)
        return
    for index, element in enumerate(protocol.one_by_one(t, value)):
        if not hasattr(element.pytype(), "__iter__") and not hasattr(element.pytype(), "__getitem__"):
            t.raise_(TypeError, f"cannot convert dictionary update sequence element #{index} to a sequence")
        pair = protocol.unpack_fast(t, element)
        if len(pair) != 2:
            t.raise_(ValueError, f"dictionary update sequence element #{index} has length {len(pair)}; 2 is required")
        yield pair[0], pair[1]


def keyword_pairs(t: Tracer, kwargs: Mapping[str, Value]) -> list[Entry]:
    return [(t.make(name), value) for name, value in kwargs.items()]


# -- wrapping ---------------------------------------------------------------------------------------------------


@wraps(dict, collections.OrderedDict)
def wrap_dict(t: Tracer, obj: dict[Any, Any], source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    if isinstance(obj, collections.OrderedDict) and not has_one_order(obj):
        return UntraceableValue(obj, source, "attribute-unsupported", value="OrderedDict", name="keys")
    if obj is sys.modules:  # which modules there are changes with what torch itself imports: only names are looked up
        return namespace_value(t, sys.modules, {})
    globals_ = known_namespace(t, obj)
    if globals_ is not None and globals_.written:
        t.guard(IdIs(source, obj))
        return globals_
    of_instance = instance_dicts.meet_dict(t, obj, source)
    return DictValue.around(t, obj, source) if of_instance is None else of_instance


@wraps(collections.defaultdict)
def wrap_defaultdict(t: Tracer, obj: collections.defaultdict[Any, Any], source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    return DictValue.around(t, obj, source, Lazy(t, obj.default_factory, AttrSource(source, "default_factory")))


@creates(dict, collections.OrderedDict)
def make_dict(t: Tracer, obj: dict[Any, Any]) -> Value:
    """A new dict of things known while tracing: what a folded call gave."""
    return DictValue(t, [(t.make(key), t.make(value)) for key, value in obj.items()], type(obj))
