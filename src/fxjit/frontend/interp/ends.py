"""Objects with a `__del__` or weak references that end where an instruction lets go of the last that holds them.

The running program makes such objects, since a call of their class breaks the graph: a trace gets them as arguments, or finds
them in what it is given. Those that it may let go of are at stake: what arguments hold, and what is in a container or an object
that the trace changes. machine.py asks after each instruction whether frames, and what the trace changed outside of them, still
hold all of these. If not, the graph breaks there and the running program does it, so that `__del__` and callbacks run when
they do in eager code. Traces that meet no such object do nothing of this.
"""

from __future__ import annotations

import gc
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Set
from itertools import chain
from types import CodeType, FrameType, FunctionType, ModuleType
from typing import TYPE_CHECKING, Final

import torch

from fxjit.frontend.bytecode.instruction import Instruction
from fxjit.frontend.interp.generators import GeneratorValue
from fxjit.frontend.interp.lifetimes import is_of_torch, is_referred_to, is_running_thread, referred_to_by_trace
from fxjit.frontend.values.base import NOT_IMPLEMENTED, Lazy, Value
from fxjit.frontend.values.constant import ConstantFromOutside
from fxjit.frontend.values.objects import instance_namespace
from fxjit.frontend.values.protocol import type_lookup
from fxjit.guards.source import LocalSource

if TYPE_CHECKING:
    from fxjit.frontend.effects import Effects
    from fxjit.frontend.interp.machine import Machine
    from fxjit.frontend.tracer import Tracer

#: What takes nothing off the stack, or puts what it takes somewhere else.
_LETS_NOTHING_GO: Final = frozenset({
    "NOP", "RESUME", "COPY", "SWAP", "PUSH_NULL", "LOAD_CONST", "LOAD_FAST", "LOAD_GLOBAL", "LOAD_DEREF", "LOAD_CLOSURE",
    "MAKE_CELL", "COPY_FREE_VARS", "BUILD_LIST", "BUILD_TUPLE", "BUILD_MAP", "BUILD_SLICE", "JUMP", "GET_ITER",
})
#: What lets go of nothing but what it takes off the stack or out of a variable: no container loses anything by it.
_CHANGES_NO_CONTAINER: Final = frozenset({
    "STORE_FAST", "DELETE_FAST", "POP_TOP", "LOAD_ATTR", "LOAD_METHOD", "LOAD_NAME", "BINARY_SUBSCR", "COMPARE_OP", "IS_OP",
    "CONTAINS_OP", "UNARY_NOT", "LIST_APPEND", "BUILD_STRING", "FORMAT_VALUE", "LOAD_FAST_AND_CLEAR", "LOAD_FAST_CHECK",
    "POP_JUMP_IF_TRUE", "POP_JUMP_IF_FALSE", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE", "JUMP_IF_TRUE_OR_POP",
    "JUMP_IF_FALSE_OR_POP", "TO_BOOL", "BUILD_SET", "BUILD_CONST_KEY_MAP", "MAKE_FUNCTION",
})
#: Of a class as `type` says it: a metaclass may answer otherwise, or raise.
_FLAGS: Final = vars(type)["__flags__"].__get__
_WEAK_REFERENCES: Final = vars(type)["__weakrefoffset__"].__get__
_HEAP_TYPE: Final = 1 << 9  # Py_TPFLAGS_HEAPTYPE: classes of the program's
#: Objects that others hold as well; what these hold is not looked at.
_OUTSIDE: Final = (ModuleType, type, CodeType, FrameType, torch.Tensor, torch.nn.Module)
_PLAIN: Final = frozenset({int, float, complex, str, bytes, type(None), bool, torch.Tensor, torch.nn.Parameter})
#: How deep real objects are looked into (an instance dict is a step), and after how many no further.
_DEPTH: Final = 4
_MAX_OBJECTS: Final = 2_000
#: Of a value: what is no value itself, or no longer in it.
_REAL: Final = frozenset({
    "obj", "_obj", "_real", "_unseen", "source", "node", "namespace", "builtins", "given", "history", "_removed", "_by_place",
})
_NONE: Final[Mapping[int, object]] = {}


class Ends:
    """The objects at stake in one trace, by id."""

    def __init__(self, t: Tracer, effects: Effects) -> None:
        self.at_stake: dict[int, object] = {}
        self._effects = effects
        self._t: Tracer | None = t
        self._kinds: dict[type, bool] = {}
        #: Tensors that the trace made references with callbacks to: of others, no end is looked for.
        self._awaited: dict[int, Value] = {}
        #: What frames held, by itself, when all that were at stake were last found to be held; and how many these were.
        self._holding: dict[int, Value] = {}
        self._found = 0
        effects.on_first_change = self._changes

    def given(self, values: Iterable[Value]) -> None:
        """What a frame is given: it may hold the last reference."""
        for value in values:
            for obj in self._met(value):
                self.at_stake[id(obj)] = obj

    def awaits(self, tensor: Value) -> None:
        """The program is called back when this one ends."""
        self._awaited[id(tensor)] = self.at_stake[id(tensor)] = tensor

    def _changes(self, value: Value) -> None:
        """`value` is about to change for the first time: what it holds may have to go."""
        self.given([value])

    def release(self) -> None:
        """The trace is over."""
        self.at_stake.clear()
        self._awaited.clear()
        self._holding.clear()
        self._effects.on_first_change = None
        self._t = None

    def check(self, machine: Machine, instruction: Instruction) -> None:
        """Breaks the graph if what this instruction did ends one of them."""
        if instruction.opname in _LETS_NOTHING_GO or machine.t.break_points.whole:
            return
        if instruction.opname == "DELETE_FAST" and str(instruction.argval).startswith("."):
            return  # a resume function's parameter, which lies on the stack
        if not all(map(machine.t.is_held, self._awaited.values())):
            machine.t.break_("object-let-go", value="tensor")
        before, self._holding = self._holding, {id(value): value for value in _of_frames(machine)}
        if instruction.opname in _CHANGES_NO_CONTAINER and before and self._found == len(self.at_stake):
            gone = deque(value for key, value in before.items() if key not in self._holding)
            if not self._reaches_any(gone):
                return
        self._found = len(self.at_stake)
        missing = {key: obj for key, obj in self.at_stake.items() if key not in self._awaited}
        if not missing:
            return
        for obj in self._held(machine, self._values_of(missing.values())):
            missing.pop(id(obj), None)
            if not missing:
                return
        for obj in self._held_by_modules(machine):
            missing.pop(id(obj), None)
        if not missing:
            return
        machine.t.break_("object-let-go", value=type(next(iter(missing.values()))).__name__)

    def _values_of(self, objects: Iterable[object]) -> dict[int, object]:
        """The objects that the trace has met, by the identities of their values."""
        known = ((self._known(obj), obj) for obj in objects)
        return {id(value): obj for value, obj in known if value is not None}

    def _reaches_any(self, values: deque[Value]) -> bool:
        """Whether one at stake is held by one of these, perhaps among others."""
        if not values:
            return False
        found = self._walk(values, set(), self._values_of(self.at_stake.values()))
        return any(id(obj) in self.at_stake for obj in found)

    def holders(self, machine: Machine, names: Iterable[str]) -> list[str]:
        """Those of the frame's locals that hold one of them."""
        if not self.at_stake:
            return []
        return [name for name in names if any(id(obj) in self.at_stake for obj in self._met(machine.locals[name]))]

    def holders_of(self, machine: Machine, names: Iterable[str], wanted: Set[int]) -> list[str]:
        """Those of the frame's locals that are or hold one of these values."""
        if not wanted:
            return []
        return [name for name in names if any(id(each) in wanted for each in self._values_within(machine.locals[name]))]

    def order(self, machine: Machine) -> tuple[str, ...]:
        """The arguments of the root that bring what the frame holds when it returns, as eager code lets go of them."""
        if not self.at_stake:
            return ()
        code = machine.code
        names = dict.fromkeys(name for name in code.varnames if name in machine.locals)
        kept = [*(machine.locals[name] for name in names), *machine.cells.values()]
        found: dict[str, None] = {}
        for value in kept:
            for each in self._values_within(value):
                source = each.source
                if isinstance(source, LocalSource) and any(True for _ in self._met(each)):
                    found[source.name] = None
        return tuple(found)

    # -- what holds what -------------------------------------------------------------------------------------------

    def _met(self, value: Value) -> Iterator[object]:
        return self._walk(deque([value]), set())

    def _held(self, machine: Machine, wanted: Mapping[int, object]) -> Iterator[object]:
        """What the frames under way hold, and what the trace changed outside of them."""
        todo: deque[Value] = deque()
        todo.extendleft(_of_frames(machine))
        bound = {value.source for value in todo}
        for value in self._effects.changed():
            root = value.source.root if value.source is not None else None
            if not isinstance(root, LocalSource) or root in bound:
                todo.append(value)
        return self._walk(todo, set(), wanted)

    def _held_by_modules(self, machine: Machine) -> Iterator[object]:
        """What modules of the frames hold, as far as the trace has not changed it: others hold the modules as well."""
        todo: deque[Value] = deque()
        for value in _of_frames(machine):
            value = (value.realized or value) if isinstance(value, Lazy) else value
            obj = value.peek() if isinstance(value, Lazy) else getattr(value, "obj", None)
            if isinstance(obj, torch.nn.Module):
                stored = self._effects.stored_attrs(value)
                kept = (held for name, held in (instance_namespace(obj) or {}).items() if name not in stored)
                yield from self._below(self._unchanged(kept, set(), todo), _DEPTH, todo)
        yield from self._walk(todo, set())

    def _walk(self, todo: deque[Value], seen: set[int], wanted: Mapping[int, object] = _NONE) -> Iterator[object]:
        """Those whose end can be seen that the values hold, the nearest first, and the objects of values that are `wanted`.
        `seen`: the values that were reached."""
        while todo:
            value = todo.popleft()
            if id(value) in seen:
                continue
            seen.add(id(value))
            if id(value) in wanted:
                yield wanted[id(value)]
            if isinstance(value, Lazy):
                if value.realized is not None:
                    todo.append(value.realized)
                else:
                    yield from self._within(value.peek(), _DEPTH, todo)
                continue
            if value.source is not None:
                yield from self._of_real(value, todo)
            todo.extend(self._parts(value))

    def _of_real(self, value: Value, todo: deque[Value]) -> Iterator[object]:
        """What the object has that was there before the trace, as far as the trace has not changed it."""
        unread = value.unread()
        if unread is not None:
            yield from self._below([unread], _DEPTH, todo)
        if isinstance(value, ConstantFromOutside):
            return  # a number or a text: to read it would be a guard
        obj = getattr(value, "obj", None)
        if obj is None:
            return
        if not self._effects.is_written(value):
            yield from self._within(obj, _DEPTH, todo)
            return
        if self._is_seen(obj):
            yield obj
        stored = self._effects.stored_attrs(value)
        for name, held in (instance_namespace(obj) or {}).items():
            if name not in stored:
                yield from self._within(held, _DEPTH - 2, todo)

    def _parts(self, value: Value) -> Iterator[Value]:
        """The values that a value is made of."""
        if isinstance(value, GeneratorValue):
            yield from _of_frame(value.machine)
        for name, held in vars(value).items():
            if name not in _REAL:
                yield from _flat(held)
        yield from (held for held in self._effects.stored_attrs(value).values() if held is not None)

    def _values_within(self, value: Value) -> Iterator[Value]:
        """The value and those that it holds, in the order in which CPython lets go of them: sequences from behind."""
        seen: set[int] = set()
        todo = [value]
        while todo:
            each = todo.pop()
            if id(each) in seen:
                continue
            seen.add(id(each))
            yield each
            if not isinstance(each, Lazy):
                # Not by `getattr`: a set from outside that was not looked at would be, which runs code of its elements.
                parts, is_sequence = list(self._parts(each)), isinstance(vars(each).get("items"), list)
                todo += parts if is_sequence else reversed(parts)

    def _within(self, obj: object, depth: int, todo: deque[Value]) -> Iterator[object]:
        """The same of a real object: what the collector finds, which runs none of the program's code. What the trace changed is
        as its value says."""
        return self._below(self._unchanged((obj,), set(), todo), depth, todo)

    def _below(self, level: list[object], depth: int, todo: deque[Value]) -> Iterator[object]:
        seen = {id(obj) for obj in level}
        while True:
            for each in level:
                if self._is_seen(each):
                    yield each
            depth -= 1
            if depth < 0 or len(seen) > _MAX_OBJECTS:
                return
            level = self._unchanged(gc.get_referents(*chain.from_iterable(map(_own_parts, level))), seen, todo)

    def _unchanged(self, objects: Iterable[object], seen: set[int], todo: deque[Value]) -> list[object]:
        """Those that the trace has not changed and that were not seen; of others their values are to do."""
        found = []
        for obj in objects:
            if id(obj) in seen or type(obj) in _PLAIN:
                continue
            seen.add(id(obj))
            value = self._known(obj)
            if value is not None and self._effects.is_written(value):
                todo.append(value)
            else:
                found.append(obj)
        return found

    def _known(self, obj: object) -> Value | None:
        """The value of a real object, if the trace has met it."""
        return None if self._t is None else self._t.known(obj)

    def _is_seen(self, obj: object) -> bool:
        """Whether somebody may see the end of the object."""
        kind = type(obj)
        if self._is_finalized(kind):
            return True
        if self._t is not None and (referred := referred_to_by_trace(self._t)) and id(self._known(obj)) in referred:
            return _FLAGS(kind) & _HEAP_TYPE != 0 and not issubclass(kind, _OUTSIDE)
        if not _FLAGS(kind) & _HEAP_TYPE or not _WEAK_REFERENCES(kind) or not weakref.getweakrefcount(obj):
            return False
        if issubclass(kind, _OUTSIDE) or is_of_torch(kind) or is_running_thread(obj):
            return False
        return is_referred_to(obj)

    def _is_finalized(self, kind: type) -> bool:
        """Whether the class has a `__del__` of Python's: files and generators are none of these."""
        known = self._kinds.get(kind)
        if known is None:
            found = type_lookup(kind, "__del__")
            known = self._kinds[kind] = found is not NOT_IMPLEMENTED and isinstance(found, FunctionType)
        return known


def _own_parts(obj: object) -> tuple[object, ...]:
    """The object, for the collector to say what it holds; of a function what it does not share with others."""
    kind = type(obj)
    if kind is FunctionType:
        return tuple(each for each in (obj.__closure__, obj.__defaults__, obj.__kwdefaults__) if each is not None)  # type: ignore[attr-defined]
    return () if issubclass(kind, _OUTSIDE) or is_running_thread(obj) else (obj,)


def _of_frame(frame: Machine) -> list[Value]:
    held = [*frame.stack, *frame.locals.values(), *frame.cells.values()]
    return held if frame.handled is None else [*held, frame.handled]


def _of_frames(machine: Machine) -> Iterator[Value]:
    """What the frame and those that called it hold."""
    frame: Machine | None = machine
    while frame is not None:
        yield from _of_frame(frame)
        frame = frame.parent


def _flat(held: object) -> Iterator[Value]:
    """The values in an attribute of a value."""
    if isinstance(held, Value):
        yield held
    elif isinstance(held, (list, tuple, set, frozenset, deque)):
        for each in held:
            yield from _flat(each)
    elif isinstance(held, dict):
        for pair in held.items():
            yield from _flat(pair)
