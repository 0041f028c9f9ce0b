"""Sets and frozensets.

`elements` maps keys (keys.py) to values; `order` is a real set of the keys to which the same is done as the program
does, so that iteration gives constants in the order in which CPython would. What was done is noted (set_history.py), since
the order that a later change leads to depends on the whole table, gaps and all: the new bytecode does it again.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from types import FunctionType
from typing import Any, Final

from fxjit import process_state
from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol, set_history
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.constant import is_plain_constant
from fxjit.frontend.values.iteration import IteratorValue, consume, method_in_c
from fxjit.frontend.values.keys import HashKey, IdentityKey, has_known_hash, key_of, key_to_find
from fxjit.frontend.values.sequence import known_hash
from fxjit.frontend.values.set_history import History
from fxjit.frontend.values.wrap import creates, wraps
from fxjit.guards.kinds import HasKey, KeysAre, LengthIs, SetIs, TypeIs
from fxjit.guards.source import DictKeySource, Source, stored_keys, stored_length

_OPERATIONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "&": operator.and_, "|": operator.or_, "-": operator.sub, "^": operator.xor,
}
_IN_PLACE: Final = {"&": "__iand__", "|": "__ior__", "-": "__isub__", "^": "__ixor__"}
_COMPARISONS: Final[dict[str, Callable[[Any, Any], Any]]] = {
    "<": operator.lt, "<=": operator.le, "==": operator.eq, "!=": operator.ne, ">": operator.gt, ">=": operator.ge,
}


#: A set or a view of a dict, of keys and for real; the values of the keys; and what made it.
Operand = tuple[Collection[HashKey], Mapping[HashKey, Value], History | None]


class ChosenOrder(Value):
    """The mark of a set whose order was chosen while tracing. Where it is still reached when the trace ends, the trace breaks
    before it is looked at (resumability.check_generators)."""

    is_suspended = True

    def __init__(self, t: Tracer, cls: type) -> None:
        super().__init__(None)
        self.cls = cls
        self.created_step, self.created_index, self.created_at = t.here()
        t.new_source_state("generators").setdefault("all", []).append(self)

    def has_cleanup(self) -> bool:
        """Never: its end is not observable."""
        return False

    def why_before(self) -> tuple[str, dict[str, object]]:
        """The reason for a break before the set is iterated over."""
        return "value-slot", {"slot": "__iter__", "type": self.cls.__name__}


class SetValue(Value):
    """A set or frozenset."""

    def __init__(self, t: Tracer, values: Iterable[Value] = (), cls: type = set, source: Source | None = None,
                 order: set[HashKey] | frozenset[HashKey] | None = None) -> None:
        super().__init__(source)
        self.cls = cls
        #: How many times elements came or went.
        self.changes = 0
        self._fill(t, values, order)

    def _fill(self, t: Tracer, values: Iterable[Value], order: set[HashKey] | frozenset[HashKey] | None) -> None:
        elements: dict[HashKey, Value] = {}
        for value in values:
            elements.setdefault(key_of(t, value, elements), value.realize())
        kind = set if issubclass(self.cls, set) else frozenset
        # Made of a list: a set that is made of a dict takes its room beforehand, and has another order.
        self.elements, self.order = elements, kind(list(elements) if order is None else order)
        self.history = set_history.of_elements(kind, list(elements)) if order is None else None

    @property
    def shell(self) -> bool:  # type: ignore[override]  # a frozenset is built whole
        return issubclass(self.cls, set) and (self.source is not None or not set_history.is_needed(self.history))

    @property
    def items(self) -> list[Value]:
        """The elements in iteration order."""
        return [self.elements[key] for key in self.order]

    def pytype(self) -> type:
        return self.cls

    def is_constant(self) -> bool:
        return self.cls is frozenset and all(value.is_constant() for value in self.elements.values())

    def as_constant(self) -> frozenset[Any]:
        return frozenset(self.order) if self.interned is None else self.interned

    #: Keys and elements, and the keys in iteration order.
    elements: dict[HashKey, Value]
    #: The constant of a code object that this frozenset is.
    interned: Any = None
    order: Any
    #: What made the order; None where that is not known.
    history: History | None
    _obj: set[Any] | frozenset[Any] | None = None
    #: Where the order of the elements was chosen.
    chosen: ChosenOrder | None = None
    #: The set that exists, as long as nothing depends on its order.
    given: set[Any] | frozenset[Any] | None = None

    def operand(self, t: Tracer) -> Operand:
        """The operand of an operation on sets."""
        self.use_order(t)
        return self.order, self.elements, self.history_of_copy()

    def history_of_copy(self) -> History | None:
        """That of a set made of this one: a given set is a table that holds its elements in this order."""
        if self.given is not None or set_history.is_of_given(self.history):
            return set_history.of_dict(type(self.order), list(self.order))
        return set_history.since_cleared(self.history)

    def ordered_keys(self, t: Tracer) -> list[HashKey]:
        """The keys as the program iterates over them."""
        known = self.given_order(t)
        if known is None:
            known = list(self.order)
            _bind_order(known)
            if self._has_unknown_table():
                t.break_("value-slot", slot="__iter__", type=self.cls.__name__)
            if len(known) > 1 and not all(map(has_known_hash, known)):
                known = self._chosen_order(t)
        return known

    def _chosen_order(self, t: Tracer) -> list[HashKey]:
        """That of objects which the trace makes and which have their addresses for hashes: CPython promises none, and one is as
        good as another, so long as nobody sees the set in the order that it gets when it is built. (Of objects from outside,
        the program may have seen it before.)"""
        new = {key.value.creation_id: key for key in self.elements if isinstance(key, IdentityKey) and key.value.source is None}
        if len(new) < len(self.elements) or self.source is not None:
            t.break_("value-slot", slot="__iter__", type=self.cls.__name__)
        if self.chosen is None:
            self.chosen = ChosenOrder(t, self.cls)
        return [new[at] for at in sorted(new)]

    def given_order(self, t: Tracer) -> list[HashKey] | None:
        """The order of a set that was given and has not changed: guarded, beside the elements."""
        if self.given is None or self.source is None:
            return None
        keys = list(stored_keys(self.given))
        if len(keys) > 1:
            t.guard(KeysAre(self.source, tuple(keys)))
        return keys

    def use_order(self, t: Tracer) -> None:
        """A set that is derived from this one has an order that follows from it."""
        given = self.given_order(t)
        if given is not None:  # a table with gaps has copies in another order
            unknown = not list(self.order) == given == list(set(dict.fromkeys(given)))
        else:
            unknown = self._has_unknown_table()
        if unknown:
            t.break_("value-slot", slot="__iter__", type=self.cls.__name__)

    def _has_unknown_table(self) -> bool:
        """A set that was given and has changed: where new elements went depends on room and gaps, which are not guarded."""
        return self.source is not None and self.given is None and len(self.order) > 1 and set_history.is_of_given(self.history)

    def _mutate(self, t: Tracer) -> None:
        if self.given is not None:
            self.given_order(t)
            self.history = set_history.GIVEN
        t.effects.mutate(self)
        self.given = None
        self.changes += 1

    def _put(self, key: HashKey, value: Value) -> None:
        self.elements[key] = value
        self.order.add(key)
        self.history = set_history.added(self.history, key)

    def _drop(self, key: HashKey) -> None:
        del self.elements[key]
        self.order.discard(key)
        self.history = set_history.done(self.history, "discard", key)

    def _change(self, t: Tracer, method: str, *operands: Operand) -> None:
        """Calls a method of sets that changes this one, on the order as well."""
        mine = self.elements
        histories = _histories(self.order, operands)
        if method in ("intersection_update", "__iand__"):  # which go through this one in order
            self.use_order(t)
        self._mutate(t)
        getattr(set, method)(self.order, *(each[0] for each in operands))
        self.elements = _elements_of(self.order, mine, *(each[1] for each in operands))
        self.history = set_history.done(self.history, method, *histories)

    def _derive(self, t: Tracer, method: str, *operands: Operand) -> SetValue:
        """Calls a method of sets that makes a new one."""
        mine = self.operand(t)
        return _derived(t, getattr(mine[0], method)(*(each[0] for each in operands)), method, mine, *operands)

    def _merge(self, t: Tracer, op: str, other: SetValue) -> None:
        """`self op= other`."""
        self._change(t, _IN_PLACE[op], other.operand(t))

    # -- building ------------------------------------------------------------------------------------------------

    def graph_arg(self, t: Tracer) -> Any:
        if all(value.is_constant() for value in self.elements.values()):
            return self.cls(self.order)
        return super().graph_arg(t)

    def _push_items(self, cg: Rebuilder) -> None:
        for key in self._order_to_insert():
            cg.push(self.elements[key])

    def _order_to_insert(self) -> list[HashKey]:
        """The order in which elements make a set that is iterated over as this one: most often the one they came in."""
        came, wanted = list(self.elements), list(self.order)
        return wanted if list(set(came)) != wanted == list(set(wanted)) else came

    def rebuild(self, cg: Rebuilder) -> None:
        if self.shell:
            cg.asm.build_set(0)
            return
        if self.interned is not None:
            cg.push_const(self.interned)
            return
        if self.source is None and set_history.is_needed(self.history):
            cg.call(set_history.replay, self.history)
            return
        cg.asm.begin_call(frozenset)
        self._push_items(cg)
        cg.asm.build_tuple(len(self.elements))
        cg.asm.call(1)

    def fill(self, cg: Rebuilder) -> None:
        if self.elements and self.shell:
            cg.asm.dup()
            self.write_back(cg)

    def write_back(self, cg: Rebuilder) -> None:
        if self.source is not None and set_history.is_needed(self.history):
            cg.asm.load_const(self.history)
            cg.asm.call_const(set_history.replay_on, 2)
            cg.asm.pop()
            return
        self._push_items(cg)
        cg.asm.build_tuple(len(self.elements))
        cg.asm.call_const(set_elements, 2)
        cg.asm.pop()

    # -- slots ---------------------------------------------------------------------------------------------------

    def key_for_lookup(self, t: Tracer, value: Value) -> HashKey:
        """A set is looked for as the frozenset of its elements."""
        if isinstance(value, SetValue) and issubclass(value.cls, set):
            return frozenset(value.order)
        return key_to_find(t, value, self.elements)

    def sq_length(self, t: Tracer) -> Value:
        return t.make(len(self.elements))

    def sq_contains(self, t: Tracer, item: Value) -> Value | _NotImplemented:
        return t.make(self.key_for_lookup(t, item) in self.elements)

    def tp_iter(self, t: Tracer) -> Value:
        return SetIteratorValue(self, self.ordered_keys(t))

    def tp_hash(self, t: Tracer) -> Value:
        if issubclass(self.cls, set):
            t.raise_(TypeError, f"unhashable type: '{self.cls.__name__}'")
        return t.make(hash(frozenset(known_hash(t, value) for value in self.items)))

    def tp_richcompare(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        theirs = set_part(other)
        return NOT_IMPLEMENTED if theirs is None else t.make(_COMPARISONS[op](self.order, theirs.order))

    def nb_binary(self, t: Tracer, op: str, other: Value, reflected: bool) -> Value | _NotImplemented:
        theirs = set_part(other)
        if theirs is None or op not in _OPERATIONS:
            return NOT_IMPLEMENTED
        first, second = (theirs, self) if reflected else (self, theirs)
        return set_operation(t, op, first.operand(t), second.operand(t))

    def nb_inplace(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        theirs = set_part(other)
        if theirs is None or op not in _OPERATIONS or not issubclass(self.cls, set):
            return NOT_IMPLEMENTED
        self._merge(t, op, theirs)
        return self

    def tp_repr(self, t: Tracer) -> Value:
        texts = [protocol.repr_(t, self.elements[key]).as_constant() for key in self.ordered_keys(t)]
        name = self.cls.__name__
        if not texts:
            return t.make(f"{name}()")
        inner = "{" + ", ".join(texts) + "}"
        return t.make(inner if self.cls is set else f"{name}({inner})")

    # -- methods -------------------------------------------------------------------------------------------------

    def meth_add(self, t: Tracer, value: Value) -> Value:
        key = key_of(t, value, self.elements)
        if key not in self.elements:
            self._mutate(t)
            self._put(key, value)
        return t.make(None)

    def meth_discard(self, t: Tracer, value: Value) -> Value:
        key = self.key_for_lookup(t, value)
        if key in self.elements:
            self._mutate(t)
            self._drop(key)
        return t.make(None)

    def meth_remove(self, t: Tracer, value: Value) -> Value:
        if self.key_for_lookup(t, value) not in self.elements:
            t.raise_(KeyError, value)
        return self.meth_discard(t, value)

    def meth_pop(self, t: Tracer) -> Value:
        if not self.elements:
            t.raise_(KeyError, "pop from an empty set")
        if self.source is not None and len(self.order) > 1:  # it has a finger that says where it looks first
            t.break_("value-slot", slot="pop", type=self.cls.__name__)
        known = self.ordered_keys(t)
        self._mutate(t)
        _bind_order(self.order)
        if self.chosen is not None:
            self.order.remove(key := known[0])
        else:
            key = self.order.pop()
        self.history = set_history.done(self.history, "pop")
        return self.elements.pop(key)

    def meth_clear(self, t: Tracer) -> Value:
        self._change(t, "clear")
        return t.make(None)

    def meth_copy(self, t: Tracer) -> Value:
        return self if self.cls is frozenset else self.duplicate(t)

    def duplicate(self, t: Tracer) -> SetValue:
        return self._derive(t, "copy")

    def _operand(self, t: Tracer, other: Value) -> Operand:
        """What a method of sets is given: of a dict CPython makes room beforehand, of anything else it takes one by one."""
        part = set_part(other)
        if part is not None:
            return part.operand(t)
        elements: dict[HashKey, Value] = {}
        for value in protocol.unpack(t, other):
            elements.setdefault(key_of(t, value, elements), value.realize())
        if other.pytype() is dict:
            return dict.fromkeys(elements), elements, set_history.of_dict(dict, list(elements))
        return list(elements), elements, set_history.of_elements(list, list(elements))

    def meth_update(self, t: Tracer, *others: Value) -> Value:
        for other in others:
            self._take_in(t, "update", other)
        return t.make(None)

    def _take_in(self, t: Tracer, change: str, other: Value) -> None:
        """`update`, or `__init__`, which empties the set first."""
        if set_part(other) is not None or other.pytype() is dict:
            self._change(t, change, self._operand(t, other))
            return
        if change == "__init__":
            self._change(t, change)
        for value in protocol.one_by_one(t, other):
            self.meth_add(t, value)

    def _common(self, t: Tracer, others: Iterable[Value]) -> list[Operand]:
        """The operands of an intersection with one after the other."""
        operands: list[Operand] = []
        keys: Collection[HashKey] = self.order
        for other in others:
            operands.append(self._until_found(t, other, keys))
            keys = set(keys).intersection(operands[-1][0])
        return operands

    def _until_found(self, t: Tracer, other: Value, keys: Collection[HashKey]) -> Operand:
        """The operand, of an iterable as far as CPython goes in it: until it had all of these keys."""
        if set_part(other) is not None or other.pytype() is dict:
            return self._operand(t, other)
        elements: dict[HashKey, Value] = {}
        missing = set(keys)
        for value in protocol.one_by_one(t, other):
            key = key_of(t, value, elements)
            elements.setdefault(key, value.realize())
            if key in missing:
                missing.remove(key)
                if not missing:
                    break
        return list(elements), elements, set_history.of_elements(list, list(elements))

    def meth_union(self, t: Tracer, *others: Value) -> Value:
        return self._derive(t, "union", *(self._operand(t, other) for other in others))

    def meth_intersection(self, t: Tracer, *others: Value) -> Value:
        return self._derive(t, "intersection", *self._common(t, others))

    def meth_difference(self, t: Tracer, *others: Value) -> Value:
        return self._derive(t, "difference", *(self._operand(t, other) for other in others))

    def meth_symmetric_difference(self, t: Tracer, other: Value) -> Value:
        return self._derive(t, "symmetric_difference", self._operand(t, other))

    def meth_intersection_update(self, t: Tracer, *others: Value) -> Value:
        self._change(t, "intersection_update", *self._common(t, others))
        return t.make(None)

    def meth_difference_update(self, t: Tracer, *others: Value) -> Value:
        for other in others:
            self._take_out(t, other)
        return t.make(None)

    def _take_out(self, t: Tracer, other: Value) -> None:
        """`difference_update` by one operand. What the set does behind its last element, make itself smaller, is done with
        all of them once more."""
        operand: Operand | None = None
        if set_part(other) is None and other.pytype() is not dict:
            elements: dict[HashKey, Value] = {}
            for value in protocol.one_by_one(t, other):
                key = key_of(t, value, elements)
                elements.setdefault(key, value.realize())
                if key in self.elements:
                    self._mutate(t)
                    self._drop(key)
            operand = list(elements), elements, set_history.of_elements(list, list(elements))
        self._change(t, "difference_update", operand or self._operand(t, other))

    def meth_symmetric_difference_update(self, t: Tracer, other: Value) -> Value:
        self._change(t, "symmetric_difference_update", self._operand(t, other))
        return t.make(None)

    def _other(self, t: Tracer, other: Value) -> SetValue:
        return set_part(other) or SetValue(t, protocol.unpack(t, other))

    def meth_issubset(self, t: Tracer, other: Value) -> Value:
        if _ISSUBSET_STOPS and set_part(other) is None:
            return t.make(self.order.issubset(self._until_found(t, other, self.order)[0]))
        return t.make(self.order <= self._other(t, other).order)

    def meth_issuperset(self, t: Tracer, other: Value) -> Value:
        part = set_part(other)
        if part is not None:
            return t.make(self.order >= part.order)
        return t.make(all(key_of(t, item, self.elements) in self.elements for item in protocol.one_by_one(t, other)))

    def meth_isdisjoint(self, t: Tracer, other: Value) -> Value:
        part = set_part(other)
        if part is not None and not has_own_iter(other):
            return t.make(self.order.isdisjoint(part.order))
        return t.make(not any(key_of(t, item, self.elements) in self.elements for item in protocol.one_by_one(t, other)))

    def meth___init__(self, t: Tracer, values: Value | None = None) -> Value:
        if issubclass(self.cls, set):  # a frozenset's is `object.__init__`
            if values is None:
                self._change(t, "__init__")
            else:
                self._take_in(t, "__init__", values)
        return t.make(None)


class SourcedSetValue(SetValue):
    """A set that exists and whose elements have to be looked at one by one: not before the trace needs them, because
    hashing may run the elements' own `__hash__`."""

    def __init__(self, t: Tracer, obj: set[Any] | frozenset[Any], cls: type, source: Source) -> None:
        super().__init__(t, (), cls, source)
        self._t = t
        self._obj: set[Any] | frozenset[Any] | None = obj
        self.given = obj

    def unread(self) -> object | None:
        return self._obj

    def given_order(self, t: Tracer) -> list[HashKey] | None:
        """As the elements were looked at: each is found by its place."""
        return None if self.given is None else list(self.elements)

    def use_order(self, t: Tracer) -> None:
        """Where hashes are not known, what is derived has no known order either."""
        given = self.given_order(t)
        if given is None or not all(map(has_known_hash, given)):
            return
        if not list(self.order) == given == list(set(dict.fromkeys(given))):
            t.break_("value-slot", slot="__iter__", type=self.cls.__name__)

    def _look(self) -> None:
        obj, source = self._obj, self.source
        assert source is not None
        if obj is not None:
            values = [self._t.wrap(item, DictKeySource(source, index)) for index, item in enumerate(stored_keys(obj))]
            self._obj = None
            try:
                self._fill(self._t, values, None)
                for item in stored_keys(obj):
                    if _hashes_itself(item):
                        self._guard_found(obj, item)
            except BaseException:  # a break too: the set is looked at anew then
                self._obj = obj
                raise

    def _guard_found(self, obj: set[Any] | frozenset[Any], item: Any) -> None:
        """The set finds the element, as it does not where that has another hash than when it was put there."""
        assert self.source is not None
        if not (set if isinstance(obj, set) else frozenset).__contains__(obj, item):  # type: ignore[operator]  # one or the other
            self._t.break_("value-slot", slot="__hash__", type=type(item).__name__)
        self._t.guard(HasKey(self.source, item, True))

    @property
    def elements(self) -> dict[HashKey, Value]:  # type: ignore[override]  # a plain attribute of the others
        self._look()
        return self._elements

    @elements.setter
    def elements(self, elements: dict[HashKey, Value]) -> None:
        self._elements = elements

    @property
    def order(self) -> Any:
        self._look()
        return self._order

    @order.setter
    def order(self, order: Any) -> None:
        self._order = order


def _hashes_itself(item: object) -> bool:
    """Whether code of the user's says what the hash of an element is: another at another time, perhaps."""
    if isinstance(item, tuple | frozenset):
        return any(map(_hashes_itself, item))
    return isinstance(type(item).__hash__, FunctionType)


class SetIteratorValue(IteratorValue):
    cls: type = type(iter(set()))

    def __init__(self, elements: SetValue, keys: list[HashKey], source: Source | None = None) -> None:
        super().__init__(source)
        self.set = elements
        self.keys = keys
        self.changes = elements.changes

    def advance(self, t: Tracer) -> Value | None:
        if len(self.set.elements) != len(self.keys):
            t.raise_(RuntimeError, "Set changed size during iteration")
        if self.changes != self.set.changes:  # as many came as went: what is met yet depends on the table's room
            t.break_("value-iterator", value=self.describe(), type=self.cls.__name__)
        if self.consumed >= len(self.keys):
            return None
        return self.set.elements.get(self.keys[self.consumed])

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(set_iterator_behind, self.set, self.consumed)


def set_operation(t: Tracer, op: str, a: Operand, b: Operand) -> SetValue:
    """`a op b`. CPython does it with the keys: it says which of two equal elements the result has, and in which order."""
    return _derived(t, _OPERATIONS[op](a[0], b[0]), op, a, b)


def _derived(t: Tracer, order: Any, method: str, *operands: Operand) -> SetValue:
    result = SetValue(t, cls=type(order))
    result.order, result.elements = order, _elements_of(order, *(each[1] for each in operands))
    result.history = set_history.done(operands[0][2], method, *_histories(operands[0][0], operands[1:]))
    return result


def _histories(order: Any, operands: Sequence[Operand]) -> list[History | None]:
    """Those of the operands of a call on the set with this order, which may be one of them."""
    return [set_history.ITSELF if each[0] is order else each[2] for each in operands]


def _elements_of(keys: Iterable[HashKey], *known: Mapping[HashKey, Value]) -> dict[HashKey, Value]:
    """The values of these keys themselves: equal ones may be of another type."""
    found = {id(key): value for elements in known for key, value in elements.items()}
    rest = {key: value for elements in reversed(known) for key, value in elements.items()}
    return {key: found.get(id(key)) or rest[key] for key in keys}


def has_own_iter(value: Value) -> bool:
    """Whether an instance of a subclass of sets says itself what its items are."""
    cls = value.pytype()
    return issubclass(cls, (set, frozenset)) and cls.__iter__ not in (set.__iter__, frozenset.__iter__)


def _issubset_stops() -> bool:
    items = iter([1, 2])
    return {1}.issubset(items) and next(items, None) is not None


#: Whether `issubset` goes in an iterable until it had all elements; CPython 3.11 makes a set of it.
_ISSUBSET_STOPS: Final = _issubset_stops()


def set_part(value: Value) -> SetValue | None:
    """`value` as a set, if it is one, an instance of a subclass, or a view of keys or items."""
    base = getattr(value, "base", None)
    part = base if isinstance(base, Value) else value
    return part if isinstance(part, SetValue) else None


def _bind_order(keys: Collection[HashKey]) -> None:
    """The hashes of numbers are the same in each process, but for a NaN's, which is its address."""
    if len(keys) > 1 and not all(type(key) in (bool, int, float) and key == key for key in keys):
        process_state.bind("the order of a set")


def unpack_in_any_order(t: Tracer, value: Value,
                        otherwise: Callable[[Tracer, Value], list[Value]] = protocol.unpack) -> list[Value]:
    """The items of an iterable, for a caller that orders them: those of a set come as they are, without a guard on its order,
    if they have one order among themselves. No two of them are equal."""
    part = value.realize()
    if isinstance(part, SetValue) and _are_ordered(part.elements):
        return list(part.elements.values())
    return otherwise(t, value)


def _are_ordered(keys: Collection[HashKey]) -> bool:
    return any(
        all(type(key) in kinds for key in keys) and not any(key != key for key in keys)  # a NaN has no place
        for kinds in ((bool, int, float), (str,), (bytes,))
    )


# -- what the new bytecode calls --------------------------------------------------------------------------------


def set_elements(target: set[Any], elements: tuple[Any, ...]) -> None:
    """These elements and no others."""
    set.clear(target)
    set.update(target, elements)


def set_iterator_behind(elements: set[Any], taken: int) -> Any:
    iterator = method_in_c(elements, "__iter__", iter)
    consume(iterator, taken)
    return iterator


# -- wrapping ---------------------------------------------------------------------------------------------------


@wraps(set, frozenset)
def wrap_set(t: Tracer, obj: set[Any] | frozenset[Any], source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    cls: type = set if isinstance(obj, set) else frozenset  # also for the builtin part of an instance of a subclass
    if _keyed_by_itself(obj):
        items = list(stored_keys(obj))
        t.guard(SetIs(source, frozenset(items)))
        found = SetValue(t, [t.make(item) for item in items], cls, source, obj)
        found.given = obj
        return found
    t.guard(LengthIs(source, stored_length(obj)))
    return SourcedSetValue(t, obj, cls, source)


@creates(set, frozenset)
def make_set(t: Tracer, obj: set[Any] | frozenset[Any]) -> Value:
    return SetValue(t, [t.make(item) for item in obj], type(obj), order=obj if _keyed_by_itself(obj) else None)


def _keyed_by_itself(obj: set[Any] | frozenset[Any]) -> bool:
    return all(is_plain_constant(item) or isinstance(item, type) for item in stored_keys(obj))
