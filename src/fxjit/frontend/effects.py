"""The effect log: what the traced frame did to objects that the caller can see.

Values call it through `tracer.EffectLog`; trace.py freezes it into the records below, which resume/replay.py turns
into bytecode. Containers and cells are recorded by their final state (they keep their own contents while
tracing), in the order of their first mutation; attribute writes and calls in program order.

Every *source* that records, results and locals need is loaded before the first record is replayed: a record may
overwrite what a source reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from fxjit.frontend.values.base import NOT_IMPLEMENTED, Lazy, Value, _NotImplemented, next_creation_id
from fxjit.frontend.values.made_classes import MadeClasses
from fxjit.frontend.values.traits import Undoable


@dataclass(frozen=True, slots=True)
class StoreAttr:
    """`object.__setattr__(obj, name, value)`, or delattr when value is None (`type.__setattr__` on classes,
    plain setattr on modules)."""

    obj: Value
    name: str
    value: Value | None


@dataclass(frozen=True, slots=True)
class Restore:
    """A container, cell or iterator that existed before gets its final state: `value.write_back(cg)` with the object
    itself loaded from its source on top of the stack; write_back consumes it."""

    value: Value


@dataclass(frozen=True, slots=True)
class CallLater:
    """`fn(*args)`; values among the arguments are rebuilt, others are constants."""

    fn: Callable[..., object]
    args: tuple[object, ...]


Effect = StoreAttr | Restore | CallLater


class Effects:
    """The log of one trace. Implements tracer.EffectLog."""

    def __init__(self) -> None:
        self._attrs: dict[Value, dict[str, Value | None]] = {}
        #: Objects that share their instance dict with another one.
        self._sharing: dict[Value, Value] = {}
        self._log: list[Effect] = []
        #: Classes that the trace made: each run makes its own.
        self.made_classes = MadeClasses()
        self._restored: set[Value] = set()
        self._confined_since: int | None = None
        self._reached_back = False
        self._undo_checks: dict[Value, Callable[[], bool]] = {}
        #: Containers, cells and namespaces that changed before a function is traced which a graph will call as it is: the
        #: graph runs before their changes are replayed. None where no such function is being traced.
        self._changed_before: frozenset[Value] | None = None
        self._reads_since, self._was_read = 0, False
        #: What functions read that eager code runs later (values/run_later.py): a container or cell, or a name in an object or
        #: namespace, with what is told when it changes. And of the function that is being traced: what is told, since when, and
        #: whether of its own changes, too.
        self._read_later: dict[tuple[Value, str | None], Callable[[], object]] = {}
        self._recording: tuple[Callable[[], object], int, bool] | None = None
        #: What nobody but the function that is being traced can reach.
        self._private: Value | None = None
        #: Called when the outermost frame is about to return, or to break.
        self.before_return: list[Callable[[], object]] = []
        self.before_break: list[Callable[[], object]] = []
        #: Told what existed before and is about to change, once.
        self.on_first_change: Callable[[Value], None] | None = None

    @property
    def watches_reads(self) -> bool:
        return bool(self._changed_before) or self._recording is not None

    def mutate(self, value: Value, name: str | None = None) -> None:
        """A container, cell or iterator is about to change; what existed before is written back at the end. `name`: that one,
        in a namespace."""
        if self._read_later or self._recording is not None:
            self._tell_readers(value, name, None)
        self._log_change(value, value.undo_check if isinstance(value, Undoable) else None)
        if value.source is not None and value not in self._restored:
            if self.on_first_change is not None:
                self.on_first_change(value)
            self._restored.add(value)
            self._log.append(Restore(value))

    def changed(self) -> Iterator[Value]:
        """What existed before and is changed now, or got other attributes."""
        yield from self._restored
        yield from (obj for obj in self._attrs if obj.source is not None)

    def is_mutated(self, value: Value) -> bool:
        return value in self._restored

    def is_written(self, value: Value) -> bool:
        """Whether its state or one of its attributes is."""
        return value in self._restored or self.owner(value) in self._attrs

    def store_attr(self, obj: Value, name: str, value: Value | None) -> None:
        owner = self.owner(obj)
        if self._read_later or self._recording is not None:
            self._tell_readers(owner, name, "__dict__")
        self._log_change(obj)
        if owner not in self._attrs:
            if self.on_first_change is not None and obj.source is not None:
                self.on_first_change(obj)
            self._attrs[owner] = {}
        self._attrs[owner][name] = value
        if obj.source is not None:
            self._log.append(StoreAttr(obj, name, value))

    def share_attrs(self, obj: Value, owner: Value) -> None:
        """Attributes of `obj` are those of `owner`."""
        self._sharing[obj] = owner

    def owner(self, obj: Value) -> Value:
        """The object that stands for all whose instance dict is that of `obj`."""
        return self._sharing.get(obj, obj) if self._sharing else obj

    def _log_change(self, value: Value, undo_check: Callable[[], Callable[[], bool]] | None = None) -> None:
        if self._confined_since is None or value in self._undo_checks:
            return
        if value.source is None and value.creation_id >= self._confined_since:
            return
        restored = None if undo_check is None else undo_check()
        if restored is None:
            self._reached_back = True
        else:
            self._undo_checks[value] = restored

    def reach_back(self) -> None:
        """Something that existed before is changed by the graph itself."""
        if self._confined_since is not None:
            self._reached_back = True

    @contextmanager
    def confined(self) -> Iterator[Callable[[], bool]]:
        """A context that reports whether its block had no effects but on values made in it, or they were undone."""
        since, reached_back, snapshots, length = self._confined_since, self._reached_back, self._undo_checks, len(self._log)
        self._confined_since, self._reached_back, self._undo_checks = next_creation_id(), False, {}
        yield lambda: self._forget_undone(length) and not self._reached_back and len(self._log) == length
        self._confined_since, self._reached_back, self._undo_checks = since, reached_back or self._reached_back, snapshots

    @contextmanager
    def reporting_reads(self) -> Iterator[Callable[[], bool]]:
        """A context that reports whether its block read anything that was changed before it."""
        outer = self._changed_before, self._reads_since, self._was_read
        self._changed_before, self._reads_since, self._was_read = frozenset(self._restored), next_creation_id(), False
        try:
            yield lambda: self._was_read
        finally:
            self._changed_before, self._reads_since, self._was_read = outer

    @contextmanager
    def recording_reads(self, on_change: Callable[[], object], changes_too: bool = False,
                        private: Value | None = None) -> Iterator[None]:
        """A context that records what its block reads of what it did not make; `on_change` is called before that changes, and
        with `changes_too` before the block changes any such. Attributes of `private` are not recorded: nobody else can reach
        them. A block inside of another is a part of it."""
        outer = self._recording, self._private
        self._recording, self._private = outer[0] or (on_change, next_creation_id(), changes_too), private
        try:
            yield
        finally:
            self._recording, self._private = outer

    def forget_readers(self) -> None:
        """Forget what such blocks read: they hold the trace."""
        self._read_later.clear()
        self.before_return.clear()
        self.before_break.clear()
        self._recording = None

    def _record_read(self, value: Value, name: str | None) -> None:
        if self._recording is not None and isinstance(value, Value):
            on_change, since, _ = self._recording
            if (value.source is not None or value.creation_id < since) and value is not self._private:
                self._read_later.setdefault((value, name), on_change)

    def _tell_readers(self, value: Value, *names: str | None) -> None:
        if self._recording is not None and self._recording[2]:
            on_change, since, _ = self._recording
            if value.source is not None or value.creation_id < since:
                on_change()
        for name in names:
            if (told := self._read_later.get((value, name))) is not None:
                told()

    def note_read(self, value: Value, name: str | None = None) -> None:
        """The contents of `value` may be looked at; `name`: that alone, in a namespace."""
        if self._recording is not None:
            self._record_read(value, name)
            if isinstance(base := getattr(value, "base", None), Value):
                self._record_read(base, None)
            if isinstance(owner := getattr(value, "owner", None), Value):  # an instance dict is written to by its object
                self._record_read(self.owner(owner), "__dict__")
        if self._changed_before and (name is None or name in getattr(value, "written", ())):
            self._was_read |= value in self._changed_before or getattr(value, "base", None) in self._changed_before

    def _forget_undone(self, start: int) -> bool:
        """Take out of the log what has been undone since `start`; whether everything has that could be."""
        for value, restored in self._undo_checks.items():
            if not restored():
                return False
            for record in [record for record in self._log[start:] if isinstance(record, Restore) and record.value is value]:
                self._log.remove(record)
                self._restored.discard(value)
        return True

    def load_attr(self, obj: Value, name: str) -> Value | _NotImplemented | None:
        if self._recording is not None:
            self._record_read(self.owner(obj), name)
        stored = self._attrs.get(self.owner(obj))
        if stored is None or name not in stored:
            return None
        value = stored[name]
        if self._changed_before is not None and obj.creation_id < self._reads_since:
            self._was_read = True
        if value is None:
            return NOT_IMPLEMENTED
        return value.realize() if isinstance(value, Lazy) else value

    def stored_attrs(self, obj: Value) -> Mapping[str, Value | None]:
        return self._attrs.get(self.owner(obj), {})

    def call_later(self, fn: Callable[..., object], args: Sequence[Value | object]) -> None:
        self._log.append(CallLater(fn, tuple(args)))

    def puts_off_only(self, fn: Callable[..., object]) -> bool:
        """Whether no call is put off but those of `fn`."""
        return all(effect.fn is fn for effect in self._log if isinstance(effect, CallLater))

    def forget_call(self, fn: Callable[..., object], arg: Value) -> None:
        """Forget the call `fn(arg)` that was put off: an effect, where effects are confined."""
        self._reached_back = True
        self._log = [effect for effect in self._log
                     if not (isinstance(effect, CallLater) and effect.fn is fn and effect.args[0] is arg)]

    def length(self) -> int:
        """A place in the log, for `withdraw_calls`."""
        return len(self._log)

    def withdraw_calls(self, start: int) -> bool:
        """Forget the calls put off since `start`, if nothing else happened since."""
        if not all(isinstance(effect, CallLater) for effect in self._log[start:]):
            return False
        del self._log[start:]
        return True

    def __bool__(self) -> bool:
        return bool(self._log)

    def records(self) -> tuple[Effect, ...]:
        """The effects to replay: an attribute written more than once is kept at its last write only when no call stands
        between, so that the order seen from outside stays."""
        last: dict[tuple[Value, str], int] = {}
        replaced: set[int] = set()
        for index, effect in enumerate(self._log):
            if isinstance(effect, StoreAttr):
                place = (self.owner(effect.obj), effect.name)
                replaced.add(last.get(place, -1))
                last[place] = index
            elif isinstance(effect, CallLater):
                last.clear()
        return tuple(effect for index, effect in enumerate(self._log) if index not in replaced)
