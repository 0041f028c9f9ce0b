"""collections.deque."""

from __future__ import annotations

import collections
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final

from fxjit.frontend.tracer import Tracer
from fxjit.frontend.values import protocol
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Lazy, Rebuilder, Value, _NotImplemented
from fxjit.frontend.values.concrete import builtin_part
from fxjit.frontend.values.iteration import IteratorValue
from fxjit.frontend.values.ranges import as_index
from fxjit.frontend.values.sequence import SequenceValue, busy_reprs, is_index_like, same_or_equal
from fxjit.frontend.values.wrap import wraps
from fxjit.guards.kinds import LengthIs, TypeIs
from fxjit.guards.source import ApplySource, AttrSource, ItemSource, Source


def bound_of(t: Tracer, maxlen: Value) -> int:
    """What `deque` takes for a bound: an int, and nothing that could be made one."""
    if not issubclass(maxlen.realize().pytype(), int):
        t.raise_(TypeError, "an integer is required")
    return as_index(t, maxlen)


class DequeValue(SequenceValue):
    """A deque: a list with two ends and maybe a bound (`maxlen`).

    Of one that was found, nothing is relied on before it is looked at: the memory of an agent, which grows from step to step,
    is asked for its length alone, and passed on. `found` is the real one until then, and `read_items` gives its items."""

    shell = True
    base_type = collections.deque
    found: collections.deque[Any] | None = None
    read_items: Callable[[], list[Value]] | None = None

    def __init__(self, items: Iterable[Value] = (), source: Source | None = None, maxlen: int | None = None,
                 cls: type | None = None) -> None:
        super().__init__(items, source, cls)
        self.maxlen = maxlen
        self.changes = 0
        self._trim(left=True)

    @property
    def items(self) -> list[Value]:  # type: ignore[override]  # what the others have as an attribute
        if self.read_items is not None:
            read, self.read_items, self.found = self.read_items, None, None
            self._items = read()
        return self._items

    @items.setter
    def items(self, items: list[Value]) -> None:
        self._items, self.read_items, self.found = items, None, None

    def sq_length(self, t: Tracer) -> Value:
        if self.found is None or self.source is None:
            return super().sq_length(t)
        return t.wrap(_length(self.found), ApplySource(self.source, _length, "len"))

    def nb_bool(self, t: Tracer) -> Value:
        return t.make(protocol.truth(t, self.sq_length(t)))

    def like(self, items: Iterable[Value]) -> Value:
        return DequeValue(items, maxlen=self.maxlen)

    def _trim(self, left: bool) -> None:
        if self.maxlen is not None and len(self.items) > self.maxlen:
            extra = len(self.items) - self.maxlen
            if left:
                del self.items[:extra]
            else:
                del self.items[-extra:]

    def _changing(self, t: Tracer) -> None:
        t.effects.mutate(self)
        self.changes += 1

    def rebuild(self, cg: Rebuilder) -> None:
        cg.call(collections.deque, (), self.maxlen)

    def fill(self, cg: Rebuilder) -> None:
        if self.items:
            cg.asm.dup()
            self.write_back(cg)

    def write_back(self, cg: Rebuilder) -> None:
        for item in self.items:
            cg.push(item)
        cg.asm.build_tuple(len(self.items))
        cg.asm.call_const(set_deque, 2)
        cg.asm.pop()

    def tp_iter(self, t: Tracer) -> Value:
        return DequeIteratorValue(self)

    def tp_repr(self, t: Tracer) -> Value:
        if id(self) in busy_reprs(t):
            return t.make("[...]")
        inner = self.text_of(t, "[", "]")
        return t.make(f"deque({inner})" if self.maxlen is None else f"deque({inner}, maxlen={self.maxlen})")

    def tp_getattro(self, t: Tracer, name: str) -> Value:
        return t.make(self.maxlen) if name == "maxlen" else super().tp_getattro(t, name)

    def mp_subscript(self, t: Tracer, key: Value) -> Value:
        index = as_index(t, key, "sequence index must be integer, not '{}'")
        if not -len(self.items) <= index < len(self.items):
            t.raise_(IndexError, "deque index out of range")
        return self.item(index)

    def mp_ass_subscript(self, t: Tracer, key: Value, value: Value | None) -> None:
        index = as_index(t, key, "sequence index must be integer, not '{}'")
        if not -len(self.items) <= index < len(self.items):
            t.raise_(IndexError, "deque index out of range")
        if value is None:
            self._changing(t)
            del self.items[index]
        else:  # no change of the deque's own, to iterators
            t.effects.mutate(self)
            self.items[index] = value

    def nb_inplace(self, t: Tracer, op: str, other: Value) -> Value | _NotImplemented:
        if op == "+":
            self.meth_extend(t, other)
            return self
        if op == "*" and is_index_like(other):
            count = as_index(t, other)
            self._changing(t)
            self.items = self.items * max(count, 0)
            self._trim(left=True)
            return self
        return NOT_IMPLEMENTED

    def meth___init__(self, t: Tracer, iterable: Value | None = None, maxlen: Value | None = None) -> Value:
        self._changing(t)
        none = maxlen is None or (maxlen.is_constant() and maxlen.as_constant() is None)
        self.maxlen = None if none or maxlen is None else bound_of(t, maxlen)
        self.items = []
        return t.make(None) if iterable is None else self.meth_extend(t, iterable)

    def meth_append(self, t: Tracer, value: Value) -> Value:
        self._changing(t)
        self.items.append(value)
        self._trim(left=True)
        return t.make(None)

    def meth_appendleft(self, t: Tracer, value: Value) -> Value:
        self._changing(t)
        self.items.insert(0, value)
        self._trim(left=False)
        return t.make(None)

    def meth_extend(self, t: Tracer, values: Value) -> Value:
        for value in self._added(t, values):
            self.meth_append(t, value)
        return t.make(None)

    def meth_extendleft(self, t: Tracer, values: Value) -> Value:
        for value in self._added(t, values):
            self.meth_appendleft(t, value)
        return t.make(None)

    def _added(self, t: Tracer, values: Value) -> Iterator[Value]:
        """What is added one by one; of the deque itself its items before."""
        one_by_one = protocol.one_by_one(t, values)
        return iter(list(one_by_one)) if builtin_part(values.realize()) is self else one_by_one

    def meth_pop(self, t: Tracer) -> Value:
        return self._pop(t, -1)

    def meth_popleft(self, t: Tracer) -> Value:
        return self._pop(t, 0)

    def _pop(self, t: Tracer, index: int) -> Value:
        if not self.items:
            t.raise_(IndexError, "pop from an empty deque")
        self._changing(t)
        return self.items.pop(index).realize()

    def meth_clear(self, t: Tracer) -> Value:
        self._changing(t)
        self.items.clear()
        return t.make(None)

    def meth_copy(self, t: Tracer) -> Value:
        return DequeValue(self.items, maxlen=self.maxlen)

    def meth_reverse(self, t: Tracer) -> Value:
        self._changing(t)
        self.items.reverse()
        return t.make(None)

    def meth_rotate(self, t: Tracer, n: Value | None = None) -> Value:
        count = 1 if n is None else as_index(t, n)
        self._changing(t)
        if self.items:
            split = -count % len(self.items)
            self.items = self.items[split:] + self.items[:split]
        return t.make(None)

    def meth_insert(self, t: Tracer, index: Value, value: Value) -> Value:
        if self.maxlen is not None and len(self.items) >= self.maxlen:
            t.raise_(IndexError, "deque already at its maximum size")
        where = as_index(t, index)
        self._changing(t)
        self.items.insert(where, value)
        return t.make(None)

    def meth_remove(self, t: Tracer, value: Value) -> Value:
        for i in self._indices():
            if same_or_equal(t, self.item(i), value):
                self._changing(t)
                del self.items[i]
                return t.make(None)
        t.raise_(ValueError, "deque.remove(x): x not in deque")

    def meth___reversed__(self, t: Tracer) -> Value:
        return DequeIteratorValue(self, backwards=True)


class DequeIteratorValue(IteratorValue):
    def __init__(self, queue: DequeValue, backwards: bool = False, source: Source | None = None) -> None:
        super().__init__(source)
        self.queue = queue
        self.backwards = backwards
        self.changes = queue.changes

    def pytype(self) -> type:
        return type(reversed(collections.deque())) if self.backwards else type(iter(collections.deque()))

    def advance(self, t: Tracer) -> Value | None:
        if self.changes != self.queue.changes:
            self.exhausted = True
            t.raise_(RuntimeError, "deque mutated during iteration")
        if self.consumed >= len(self.queue.items):
            return None
        return self.queue.items[-1 - self.consumed if self.backwards else self.consumed]

    def rebuild(self, cg: Rebuilder) -> None:
        stale = self.changes != self.queue.changes
        cg.call(stale_deque_iterator if stale else deque_iterator_behind, self.queue, self.backwards, self.consumed)


def deque_iterator_behind(queue: Any, backwards: bool, taken: int) -> Any:
    """An iterator over a deque that has given `taken` items already."""
    iterator = reversed(queue) if backwards else iter(queue)
    for _ in range(taken):
        next(iterator, None)
    return iterator


def stale_deque_iterator(queue: Any, backwards: bool, taken: int) -> Any:
    """An iterator that the deque was changed behind: what it was made for is gone, and its next item is an error."""
    iterator = reversed(queue) if backwards else iter(queue)
    if queue.maxlen is None or len(queue) < queue.maxlen:
        queue.append(None)
        queue.pop()
    elif queue:
        queue.append(queue.pop())
    return iterator


def set_deque(target: Any, items: tuple[Any, ...]) -> None:
    """These items and no others."""
    target.clear()
    target.extend(items)


_length: Final = collections.deque.__len__


@wraps(collections.deque)
def wrap_deque(t: Tracer, obj: collections.deque[Any], source: Source) -> Value:
    t.guard(TypeIs(source, type(obj)))
    bound = t.wrap(obj.maxlen, AttrSource(source, "maxlen"))
    value = DequeValue((), source, None if obj.maxlen is None else as_index(t, bound))

    def read() -> list[Value]:
        t.guard(LengthIs(source, _length(obj)))
        return [Lazy(t, item, ItemSource(source, i)) for i, item in enumerate(collections.deque.__iter__(obj))]

    value.found, value.read_items = obj, read
    return value
